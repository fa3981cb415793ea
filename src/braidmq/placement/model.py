"""How long notifications take under an assignment of home servers (Tanaka et al. 2021, Eqs 1–10).

A message of a client m that is at home at l is processed there, and its notification goes to the home l' of each
subscriber m'. What l cannot hold or compute goes to the cloud and back:

    D = d^H_{m,l} + 2 d^C (1 − θ_l) + θ_l d^S_{l,l'} + d^H_{m',l'},  the mean over a message's subscribers    (Eq. 6)

Y is the mean of D over all messages, Y1 what of it is due to the ways between clients and homes, Y2 the rest (Eqs 7–9;
the second 1/I in the paper's Eqs 8 and 9 is a slip, since Y = Y1 + Y2). With a_{n,l} what a subscriber of topic n hears
from server l, and q_{n,l} its subscribers there, the double sum over clients is one over servers:

    I · Y2 = Σ_l 2 d^C (1 − θ_l) P_l + θ_l T_l,   T_l = Σ_n a_{n,l} Σ_l' q_{n,l'} d^S_{l,l'},

where P_l are the messages that are published at l. That is what is computed here. Storage U_l, load v_l (Eq. 1) and the
share θ_l (Eq. 2) are those of `processors.placement`, for all servers at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from braidmq.placement.errors import PlacementError
from braidmq.placement.problem import Bools, Floats, Ints, PlacementProblem, sums_by


@dataclass(frozen=True, slots=True)
class Performance:
    """What an assignment leads to: delays in ms, and what each server has to bear."""

    delay_ms: float
    """Y."""
    distance_ms: float
    """Y1."""
    resource_ms: float
    """Y2."""
    storage: Floats
    """U_l = Σ u_n over the topics that are managed at l."""
    compute: Floats
    """v_l (Eq. 1)."""
    local_share: Floats
    """θ_l (Eq. 2)."""
    distances_ms: Floats
    """d^H of each client."""


def evaluate(problem: PlacementProblem, homes: Ints, counted: Bools | None = None) -> Performance:
    """Eqs 1–9 for one assignment: the number of its home server for each client.

    `counted` says which rows of members are a load to their servers, if not all that publish are.
    """
    if homes.shape != (len(problem.clients),):
        raise PlacementError(f"{len(problem.clients):,} homes are wanted, and {homes.size:,} are given")
    if np.any((homes < 0) | (homes >= len(problem.servers))):
        raise PlacementError(f"an unknown server among the homes: there are {len(problem.servers)}")
    rows = problem.members
    at = homes[rows.client]
    publishing = rows.publishes if counted is None else rows.publishes & counted
    publishers = by_topic_and_server(problem, at, publishing.astype(np.float64))
    storage = problem.stored @ (publishers > 0)
    compute = problem.spool @ publishers
    share = local_shares(problem, storage, compute)
    published = sums_by(at, rows.rate, len(problem.servers))
    between = pair_delays(
        problem,
        by_topic_and_server(problem, at, rows.share),
        by_topic_and_server(problem, at, rows.subscribes.astype(np.float64)),
    )
    distances = problem.latencies.client_ms[np.arange(homes.size), homes]
    distance = float(problem.distance_weight @ distances) / problem.rate_total
    resource = float(server_costs(problem, share, published, between).sum()) / problem.rate_total
    return Performance(distance + resource, distance, resource, storage, compute, share, distances)


def by_topic_and_server(problem: PlacementProblem, at: Ints, weight: Floats) -> Floats:
    """The sums of what rows of members weigh that are at home `at`: a row for each topic, a column for each server."""
    shape = (len(problem.topics), len(problem.servers))
    return sums_by(problem.members.topic * shape[1] + at, weight, shape[0] * shape[1]).reshape(shape)


def local_shares(problem: PlacementProblem, storage: Floats, compute: Floats) -> Floats:
    """θ_l (Eq. 2), over the last axis."""
    by_storage = problem.storage / np.maximum(storage, problem.storage)  # at most 1
    return np.minimum(by_storage, problem.compute / np.maximum(compute, problem.compute))


def pair_delays(problem: PlacementProblem, heard: Floats, subscribers: Floats) -> Floats:
    """T_l: what all notifications of a server travel to the homes of their subscribers, if none is delegated."""
    return np.asarray((heard * (subscribers @ problem.latencies.server_ms)).sum(axis=0), np.float64)


def server_costs(problem: PlacementProblem, share: Floats, published: Floats, between: Floats) -> Floats:
    """I · Y2, server by server."""
    return 2 * problem.latencies.cloud_ms * (1 - share) * published + share * between
