"""Things that come one by one or many at a time, divided in proportion to weights that may change each time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Proportions(Generic[K]):
    """What each has got too little of is remembered, within one thing: it comes first the next time."""

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        self._owed: dict[K, float] = {}

    def divide(self, count: int, weights: Mapping[K, float]) -> dict[K, int]:
        """How many of so many things each gets; weights are above 0."""
        total = sum(weights.values())
        owed = {key: self._owed.get(key, 0.0) + count * weight / total for key, weight in weights.items()}
        given = {key: max(0, int(due)) for key, due in owed.items()}
        left = count - sum(given.values())
        for key in sorted(owed, key=lambda key: given[key] - owed[key])[: max(0, left)]:
            given[key] += 1
        self._owed = {key: max(-1.0, min(1.0, due - given[key])) for key, due in owed.items()}
        return given

    def copy(self) -> Proportions[K]:
        other: Proportions[K] = Proportions()
        other._owed = dict(self._owed)
        return other

    def next(self, weights: Mapping[K, float]) -> K:
        """Who gets one thing."""
        given = self.divide(1, weights)
        return max(given, key=lambda key: given[key])
