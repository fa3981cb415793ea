"""Servers in K clusters by where they are (K-means), and for each client the cluster that is closest to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from braidmq.placement.errors import PlacementError
from braidmq.placement.problem import Floats, Ints, PlacementProblem

ROUNDS_MAX: Final = 100
STARTS: Final = 100
"""Runs of K-means, of which the tightest counts."""


@dataclass(frozen=True, slots=True)
class ServerClusters:
    of_server: Ints
    of_client: Ints

    def servers(self, cluster: int) -> Ints:
        return np.flatnonzero(self.of_server == cluster)


def cluster_servers(problem: PlacementProblem, count: int, chance: np.random.Generator) -> ServerClusters:
    """K-means over the delays between servers: a server's row of delays says where it is, as coordinates would.

    A client belongs to the cluster whose servers are closest on average.
    """
    if not 1 <= count <= len(problem.servers):
        raise PlacementError(f"{len(problem.servers)} servers cannot be divided into {count} clusters")
    places = _coordinates(problem.latencies.server_ms)
    tries = [_k_means(places, count, chance) for _ in range(STARTS)]
    of_server = min(tries, key=lambda one: one[1])[0]
    client_ms = problem.latencies.client_ms
    means = np.column_stack([client_ms[:, of_server == cluster].mean(axis=1) for cluster in range(count)])
    return ServerClusters(of_server, np.argmin(means, axis=1).astype(np.int64))


def _coordinates(server_ms: Floats) -> Floats:
    """Points whose distances are these delays, as nearly as it can be (classical scaling)."""
    count = len(server_ms)
    centring = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-0.5 * centring @ server_ms**2 @ centring)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)), np.float64)


def _k_means(places: Floats, count: int, chance: np.random.Generator) -> tuple[Ints, float]:
    """(the cluster of each place, the sum of squares); none is empty, and they are numbered by their first place."""
    centres = places[np.sort(chance.choice(len(places), count, replace=False))]
    nearest = np.full(len(places), -1)
    for _ in range(ROUNDS_MAX):
        squares = ((places[:, None] - centres[None]) ** 2).sum(axis=2)
        found = np.argmin(squares, axis=1)
        for empty in np.setdiff1d(np.arange(count), found):
            far = int(
                np.argmax(squares[np.arange(len(places)), found] * (np.bincount(found, minlength=count)[found] > 1))
            )
            found[far] = empty
        if np.array_equal(found, nearest):
            break
        nearest = found
        centres = np.array([places[nearest == cluster].mean(axis=0) for cluster in range(count)])
    spread = float(((places - centres[nearest]) ** 2).sum())
    _, first, numbers = np.unique(nearest, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers].astype(np.int64), spread
