"""Conditions on aggregates: which nodes a message is for, said so that whole ranges can be ruled out on the way.

`Condition("slots:max", "at_least", 2)` holds for nodes whose own value is so, and may hold for some node of a range
only if it holds for the range's aggregate. Tests are known by name on both sides; no code crosses the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from braidmq.host import Message
from braidmq.overlay.aggregates import Aggregate, Value

TESTS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "at_least": lambda value, bound: bool(value >= bound),
    "at_most": lambda value, bound: bool(value <= bound),
    "contains": lambda value, bound: bound in value,
}

FITTING: Final = {
    "max": "at_least",
    "sum": "at_least",
    "count": "at_least",
    "min": "at_most",
    "union": "contains",
}
"""The test that an aggregate by a reducer can answer for all its nodes (sums: of values that are not negative)."""


class Condition(Message, frozen=True, array_like=True, gc=False):
    label: str
    test: str
    value: Value | str

    def __post_init__(self) -> None:
        reducer = self.label.rpartition(":")[2]
        if reducer not in FITTING:
            raise ValueError(f"the label {self.label!r} ends in no known reducer: one of {', '.join(FITTING)}")
        if self.test != FITTING[reducer]:
            raise ValueError(
                f"{self.test!r} cannot be told from an aggregate by {reducer}: it answers {FITTING[reducer]!r} only"
            )

    def holds(self, values: Aggregate) -> bool:
        """Whether it holds for a node's own values, or may hold for some node of an aggregate."""
        value = values.get(self.label)
        return value is not None and TESTS[self.test](value, self.value)
