"""What a lower bound takes instead of the delays between the homes of pairs: d^S(l, l') ≥ φ(l) − φ(l').

A φ is right for this if it differs between two servers by no more than their delay. It is made so after each step: of
the largest such function below it and the smallest above it, the mean is taken.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.sparse import csr_array

from braidmq.placement.problem import Floats, Ints, PlacementProblem

STEP: Final = 0.015
"""The first step of a φ, in mean delays between servers."""
INERTIA: Final = 0.9
SHRINKS_AFTER: Final = 50
CHUNK: Final = 1024
"""Pairs that are worked on at once: what is needed of them fits into a processor's cache."""


def metric_closure(delays: Floats) -> Floats:
    """The shortest ways over any servers: the largest metric that is nowhere larger than these delays."""
    closed = delays.copy()
    for over in range(len(closed)):
        np.minimum(closed, closed[:, over, None] + closed[None, over], out=closed)
    return closed


class PairPotentials:
    """A φ for each two members of a topic of which one hears the other."""

    def __init__(self, problem: PlacementProblem, between_ms: Floats, homes: Ints) -> None:
        rows = problem.members
        sizes = np.diff(rows.topic_starts)
        pairs = [
            np.column_stack(np.triu_indices(size, 1)) + start
            for size, start in zip(sizes, rows.topic_starts, strict=False)
        ]
        first, second = np.concatenate(pairs).T
        receives = rows.subscribes.astype(np.float64)
        weight = rows.share[first] * receives[second] + rows.share[second] * receives[first]
        self._first, self._second = first[weight > 0], second[weight > 0]
        weight = weight[weight > 0]
        count = weight.size
        self._to_rows = csr_array(
            (
                np.concatenate([weight, -weight]),
                (np.concatenate([self._first, self._second]), np.tile(np.arange(count), 2)),
            ),
            shape=(rows.client.size, count),
        )
        self._between_ms = between_ms
        at = homes[rows.client]
        self._phi = 0.5 * (between_ms[at[self._second]] - between_ms[at[self._first]])
        self._speed = np.zeros_like(self._phi)
        self._unit = STEP * float(between_ms.sum()) / max(1, between_ms.size - len(between_ms))

    def felt(self) -> Floats:
        """What being at each server costs a member of a topic, by all its pairs."""
        return np.asarray(self._to_rows @ self._phi, np.float64)

    def follow(self, chosen: Floats, number: int) -> None:
        """Raises φ where the first of a pair is, and lowers it where the second is."""
        step = self._unit / (1 + number / SHRINKS_AFTER)
        self._speed *= INERTIA
        self._speed += step * (chosen[self._first] - chosen[self._second])
        self._phi += self._speed
        for start in range(0, len(self._phi), CHUNK):
            self._make_right(self._phi[start : start + CHUNK])

    def _make_right(self, phi: Floats) -> None:
        """Puts the mean of the largest right functions below these and the smallest above them in their place."""
        below = phi[:, 0, None] + self._between_ms[0]
        above = phi[:, 0, None] - self._between_ms[0]
        shifted = np.empty_like(below)
        for server in range(1, len(self._between_ms)):
            height = phi[:, server, None]
            np.minimum(below, np.add(height, self._between_ms[server], out=shifted), out=below)
            np.maximum(above, np.subtract(height, self._between_ms[server], out=shifted), out=above)
        np.add(below, above, out=phi)
        phi *= 0.5


class TopicPotentials:
    """For topics with very many members: what the members choose, taken for fixed, gives a φ for each pair of choices,
    half of how much farther from the one it is than from the other; and a mean of such φ is one, too. So only the sums
    are kept, a row for each member."""

    def __init__(self, problem: PlacementProblem, between_ms: Floats, homes: Ints) -> None:
        self._problem = problem
        self._between_ms = between_ms
        rows = problem.members
        self._receives = rows.subscribes.astype(np.float64)
        self._starts = rows.topic_starts[np.flatnonzero(np.diff(rows.topic_starts))]
        self._of_topic = np.repeat(np.arange(self._starts.size), np.diff(np.append(self._starts, rows.client.size)))
        self._felt = self._against(np.eye(len(problem.servers))[homes[rows.client]])

    def felt(self) -> Floats:
        return self._felt

    def follow(self, chosen: Floats, number: int) -> None:
        part = 2 / (number + 10)
        self._felt = (1 - part) * self._felt + part * self._against(chosen)

    def _against(self, chosen: Floats) -> Floats:
        share, receives = self._problem.members.share, self._receives
        own = chosen @ self._between_ms
        felt = np.zeros_like(own)
        for mine, others in ((share, receives), (receives, share)):
            total = np.add.reduceat(others, self._starts)[self._of_topic]
            away = np.add.reduceat(others[:, None] * own, self._starts)[self._of_topic]
            felt += 0.5 * mine[:, None] * (away - total[:, None] * own)
        return felt
