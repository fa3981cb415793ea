"""What is still to happen, in order of (time, number).

One heap of all events grows slow with 100,000 of them. Here time is cut into slots: an event of a later slot is just
appended to its slot, and a slot is sorted once, when its time comes. Constant delays are appended in order already, and
sorting what is sorted costs next to nothing. Only what is added to the open slot goes through a heap, a small one.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

Event = tuple[Any, ...]
"""(time, number, what, …): the number is unlike all others, so no comparison reaches what follows."""

SLOTS_PER_S = 1024
"""A power of two, so that a slot's beginning is exact."""


class Timeline:
    """A priority queue of events."""

    __slots__ = ("_due", "_late", "_open", "_slots", "_waiting")

    def __init__(self) -> None:
        self._open = -1
        self._due: list[Event] = []
        """The open slot, latest first."""
        self._late: list[Event] = []
        """A heap of what was added to the open slot, or before it."""
        self._waiting: dict[int, list[Event]] = {}
        self._slots: list[int] = []
        """A heap of the slots that wait."""

    def __len__(self) -> int:
        return len(self._due) + len(self._late) + sum(map(len, self._waiting.values()))

    def push(self, event: Event) -> None:
        slot = int(event[0] * SLOTS_PER_S)
        if slot <= self._open:
            heappush(self._late, event)
            return
        waiting = self._waiting.get(slot)
        if waiting is None:
            self._waiting[slot] = [event]
            heappush(self._slots, slot)
        else:
            waiting.append(event)

    def pop(self, limit: float) -> Event | None:
        """The next event, unless there is none up to this time."""
        due, late = self._due, self._late
        if not due and not late:
            if not self._slots or self._slots[0] > limit * SLOTS_PER_S:
                return None
            self._open = heappop(self._slots)
            self._due = due = self._waiting.pop(self._open)
            due.sort(reverse=True)
        if late and (not due or late[0] < due[-1]):
            return heappop(late) if late[0][0] <= limit else None
        return due.pop() if due[-1][0] <= limit else None
