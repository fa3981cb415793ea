"""How much clients have to do with each other: z_{m,m'} is how many topics both have (Tanaka et al. 2021, §6).

The paper factorises Z and takes the strongest relations from the factors, but does not say how. Its figures come out
with Z itself. The other reading ranks by the inner product of Z's low-rank factors, which relates clients over a third
one too; since Z is the square of the table of clients and topics, they are the singular vectors of that table.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from braidmq.placement.problem import Ints, PlacementProblem

RelationsFrom = Literal["shared topics", "factors"]

RANK: Final = 10
"""Columns of the factors."""


class Relations:
    """The clients that have most to do with a client, the closest first; among equals in the order of their numbers."""

    def __init__(self, problem: PlacementProblem, kind: RelationsFrom, count_max: int) -> None:
        self._problem = problem
        self._count_max = count_max
        self._factors = _factors(problem) if kind == "factors" else None

    def strongest(self, client: int) -> Ints:
        if self._factors is not None:
            scores = self._factors @ self._factors[client]
            others = np.flatnonzero(scores > 0)
            scores = scores[others]
        else:
            topics = self._problem.members.topic[self._problem.rows_of_client(client)]
            mine = np.concatenate([self._problem.members.client[self._problem.rows_of_topic(int(n))] for n in topics])
            others, scores = np.unique(mine, return_counts=True)
        is_other = others != client
        others, scores = others[is_other], scores[is_other]
        return np.asarray(others[np.argsort(-scores, kind="stable")[: self._count_max]], np.int64)


def _factors(problem: PlacementProblem) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    table = np.zeros((len(problem.clients), len(problem.topics)))
    table[problem.members.client, problem.members.topic] = 1.0
    left, values, _ = np.linalg.svd(table, full_matrices=False)
    return np.asarray(left[:, :RANK] * values[:RANK], np.float64)
