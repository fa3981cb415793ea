"""How many clients may connect a second, over all listeners; more of them wait in the kernel's queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BURST_S: Final = 0.1
"""The connect rate is kept over spans of this length; what was not used up in one is lost."""


class ConnectRate:
    """A token bucket: so many connects a second, and no more at once than a tenth of a second earns."""

    __slots__ = ("_at", "_clock", "_tokens", "per_s")

    def __init__(self, per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_s = per_s
        self._clock = clock
        self._tokens = self._tokens_max
        self._at = clock()

    @property
    def _tokens_max(self) -> float:
        return max(1.0, self.per_s * BURST_S)

    def wait_s(self) -> float:
        """How long until the next connect may come in; 0 if it may now."""
        now = self._clock()
        self._tokens = min(self._tokens_max, self._tokens + (now - self._at) * self.per_s)
        self._at = now
        return 0.0 if self._tokens >= 1.0 else (1.0 - self._tokens) / self.per_s

    def spend(self) -> None:
        """A connect has come in."""
        self._tokens -= 1.0
