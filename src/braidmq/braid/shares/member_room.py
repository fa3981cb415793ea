"""How many messages the members at another broker are thought to take now: what it said last, less what is on its way.

A broker of which nothing is known is thought to have a little room: what is too much comes back, and with it how much
there is. If its members have said how much they can take, it is thought to have that.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FIRST_ROOM: Final = 64
"""What a broker of which nothing is known is thought to have room for."""

ROOM_MAX: Final = 4096
"""Messages of one group that are lent to one broker at a time."""


class MemberRoom:
    """Of one group, at one broker."""

    __slots__ = ("_free", "_under_way", "batch", "heard_at", "is_silent", "used_at")

    def __init__(self, now: float, told: int | None = None) -> None:
        """`told` is what its members say, all of them."""
        self._free = FIRST_ROOM if told is None else max(1, told)
        self._under_way: deque[tuple[int, int]] = deque()
        """Batches that it has not answered, and how many messages each has."""
        self.batch = 0
        """The last one that it was sent."""
        self.heard_at = now
        self.used_at = 0
        """In which turn it was last sent anything."""
        self.is_silent = False
        """Whether it does not answer."""

    @property
    def left(self) -> int:
        if self.is_silent:
            return 0
        return min(self._free, ROOM_MAX) - sum([count for _, count in self._under_way])

    def send(self, count: int) -> int:
        """So many are sent; the number of their batch."""
        self.batch += 1
        self._under_way.append((self.batch, count))
        return self.batch

    def hear(self, batch: int, free: int, now: float) -> None:
        """The broker says how much room it has, once it has a batch; what is older is no news."""
        while self._under_way and self._under_way[0][0] <= batch:
            self._under_way.popleft()
        self._free = free
        self.heard_at = now
        self.is_silent = False

    def forget(self, now: float, is_silent: bool) -> None:
        """Nothing is known of it any more: it does not answer, or what it said may have been lost."""
        self._under_way.clear()
        self._free = 1
        self.heard_at = now
        self.is_silent = is_silent
