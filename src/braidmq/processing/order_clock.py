"""The times by which messages stand in spools that several brokers have.

Clocks of brokers differ. If a message were stamped by the clock here alone, one of a broker whose clock is ahead would
stand behind it, though it was here before. So no message is stamped with an earlier time than what is known here when
it comes (Lamport's rule, over physical time): a message that comes here is the last of its spool, and everywhere stands
behind all that was known here. While clocks agree, this is the plain time.
"""

from __future__ import annotations

from typing import Final

AHEAD_MAX_S: Final = 60.0
"""How far ahead another broker's time may be to be followed; beyond, its messages stand last until it has come."""
STEP_S: Final = 1e-6


class OrderClock:
    def __init__(self) -> None:
        self._newest = 0.0
        self._is_own = True
        """Whether the newest time is that of a message which came here: the next may have the same, for it has a higher
        number."""

    def stamp(self, now: float) -> float:
        """The time of a message that comes here now."""
        if now > self._newest:
            self._newest = now
        elif not self._is_own:
            self._newest = round(self._newest + STEP_S, 6)
        self._is_own = True
        return self._newest

    def follow(self, time: float, now: float) -> None:
        """A message of another broker, or of an earlier start, has come with this time."""
        if self._newest <= time <= now + AHEAD_MAX_S:
            self._newest = time
            self._is_own = False
