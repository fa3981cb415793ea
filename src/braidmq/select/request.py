"""What is asked for: a component that meets some conditions, and by which score the best of several is told.

A condition is on one attribute: `cpu <= 50`, `memory >= 512`. Attributes are numbers that components report, `slots`
among them, which is how many they have free. A score is a sum of attributes with weights; less is better, so `least
cpu` is (("cpu", 1.0),) and `nearest` is (("steps", 1.0),): the steps from the asker's cluster to the component's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from braidmq.host import Address, Message
from braidmq.overlay.aggregates import Aggregate
from braidmq.select.group import ComponentGroup

LEASE_MAX_S: Final = 86_400.0
NEEDS_MAX: Final = 16
"""Conditions of a request, and attributes in its score."""

STEPS: Final = "steps"
SLOTS: Final = "slots"
TESTS: Final = ("<=", ">=")


class Need(Message, frozen=True, array_like=True, gc=False):
    """A condition on an attribute."""

    attribute: str
    test: str
    bound: float

    def holds(self, attributes: Mapping[str, float]) -> bool:
        """A component that does not say meets no condition."""
        value = attributes.get(self.attribute)
        if value is None:
            return False
        return value <= self.bound if self.test == "<=" else value >= self.bound


class SelectionRequest(Message, frozen=True, array_like=True, gc=False):
    """One component is wanted, for so long. The id is the asker's: the same request twice is one reservation."""

    id: str
    group: ComponentGroup
    lease_s: float
    needs: tuple[Need, ...] = ()
    score: tuple[tuple[str, float], ...] = ()
    cluster: str = ""
    """Where it is asked for."""
    holder: str = ""
    """Who asks: the client that is to have it."""
    asker: Address = ""
    """The broker that asks for it."""
    key: str = ""
    """What it is for, as the holder says: a stream, for one."""
    known_at: str = ""
    """The broker by whose name its holder knows it: where it was reserved, though the component may have moved on."""


def problem_of(request: SelectionRequest) -> str | None:
    """What is wrong with a request; None if nothing is."""
    if not 0 < request.lease_s <= LEASE_MAX_S:
        return f"a lease of {request.lease_s} s: more than 0 and at most {LEASE_MAX_S:,.0f}"
    if len(request.needs) > NEEDS_MAX or len(request.score) > NEEDS_MAX:
        return f"at most {NEEDS_MAX} conditions, and as many attributes in a score"
    for need in request.needs:
        if need.test not in TESTS:
            return f"a condition by {need.test!r}: by {' or '.join(TESTS)}"
        if not math.isfinite(need.bound):
            return f"{need.attribute} {need.test} {need.bound}: that is no number to compare with"
    if not all(math.isfinite(weight) for _, weight in request.score):
        return "a weight in the score is no number"
    return None


def score_of(request: SelectionRequest, attributes: Mapping[str, float], steps: int) -> float:
    """Less is better. What a component does not say counts as the worst."""
    total = 0.0
    for attribute, weight in request.score:
        value = steps if attribute == STEPS else attributes.get(attribute)
        if value is None:
            return math.inf
        total += weight * value
    return total


def may_hold(request: SelectionRequest, aggregate: Aggregate) -> bool:
    """Whether some node of a range may meet the conditions, as far as the range's aggregate tells."""
    group = request.group
    for need in request.needs:
        label = group.bound(need.attribute, "min" if need.test == "<=" else "max")
        known = aggregate.get(label)
        if isinstance(known, int | float) and not need.holds({need.attribute: known}):
            return False
    return True


def free_in(request: SelectionRequest, aggregate: Aggregate) -> int:
    """How many components of a range are free, as far as its aggregate tells; 0 if none can meet the conditions."""
    free = aggregate.get(request.group.label, 0)
    return int(free) if isinstance(free, int | float) and may_hold(request, aggregate) else 0
