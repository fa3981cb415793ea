"""Plans that need no search, to compare with: a random server for everybody (RA), the nearest one (NS), one server for
each topic (OTOS)."""

from __future__ import annotations

import numpy as np

from braidmq.placement.problem import Ints, PlacementProblem


def random_homes(problem: PlacementProblem, chance: np.random.Generator) -> Ints:
    """RA."""
    return problem.kept(chance.integers(0, len(problem.servers), len(problem.clients)))


def nearest_homes(problem: PlacementProblem) -> Ints:
    """NS."""
    return problem.kept(np.argmin(problem.latencies.client_ms, axis=1))


def one_server_a_topic(problem: PlacementProblem, chance: np.random.Generator, *, cooperation: bool = True) -> Ints:
    """OTOS: all clients of a topic go to one server, drawn at random; those who are at home already stay.

    With cooperation a topic that does not fit there goes to the server that then has the least storage in use.
    """
    rows = problem.members
    homes = problem.fixed.copy()
    storage = np.zeros(len(problem.servers))
    compute = np.zeros(len(problem.servers))
    for topic in range(len(problem.topics)):
        mine = problem.rows_of_topic(topic)
        clients = rows.client[mine]
        new = clients[homes[clients] < 0]
        load = problem.spool[topic] * np.count_nonzero(rows.publishes[mine][homes[clients] < 0])
        fits = (storage + problem.stored[topic] <= problem.storage) & (compute + load <= problem.compute)
        server = int(chance.integers(len(problem.servers)))
        if cooperation and not fits[server]:
            server = int(np.argmin(np.where(fits, storage, np.inf))) if fits.any() else int(np.argmin(storage))
        homes[new] = server
        counts = np.bincount(homes[clients[rows.publishes[mine]]], minlength=storage.size)
        storage += problem.stored[topic] * (counts > 0)
        compute += problem.spool[topic] * counts
    homes[homes < 0] = nearest_homes(problem)[homes < 0]
    return homes
