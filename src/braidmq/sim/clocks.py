"""Clocks that are wrong: `host.now` of a host runs ahead of the simulator's time, or behind it.

Machines that were suspended, or whose quartz is poor, show such times. A `ClockError` says by how much a clock is ahead
at a time; it may be behind, but it never goes back. Sleeps and time-outs are not touched, so a protocol sees its clock
and its timers disagree, which is the worse case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, inf

import msgspec

ClockError = Callable[[float], float]
"""How many seconds a clock is ahead at a time of the simulator."""


class Jumps(msgspec.Struct, frozen=True):
    """A clock that jumps ahead by `by_s` at `first_s`, and every `every_s` from then on."""

    first_s: float
    every_s: float
    by_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.first_s < inf and self.every_s > 0 and 0 <= self.by_s < inf):
            raise ValueError(f"a clock cannot jump by {self.by_s} s from {self.first_s} s on, every {self.every_s} s")

    def __call__(self, now: float) -> float:
        return 0.0 if now < self.first_s else self.by_s * (1 + floor((now - self.first_s) / self.every_s))


class Drift(msgspec.Struct, frozen=True):
    """A clock that is ahead by a part of the time that has passed; behind, if that is negative."""

    rate: float

    def __post_init__(self) -> None:
        if not -1 < self.rate < inf:
            raise ValueError(f"a clock that drifts by {self.rate} of the time would stand still or go back")

    def __call__(self, now: float) -> float:
        return self.rate * now


def sum_of(errors: Sequence[ClockError]) -> ClockError:
    """All of these at once."""
    return lambda now: sum(error(now) for error in errors)
