"""What is still to happen, in order of time.

One heap of all events grows slow with 100,000 of them. `Timeline` cuts time into slots: an event of a later slot is
just appended to its slot, and a slot is sorted once, when its time comes. With constant delays events are appended in
order already, and sorting what is sorted costs next to nothing. Only what is added to the open slot goes through a
heap, a small one. Events of the same time happen in the order in which they were added.

`Deadlines` are events that hardly ever happen, for a call is nearly always answered. Calls with the same time-out
expire in the order in which they were made: a queue for each time-out serves them, and is not looked at before the
first of them may be due.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count
from math import inf
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

Event = tuple[Any, ...]
"""(time, what, …)"""

SLOTS_PER_S = 1024
"""A power of two, so that a slot's beginning is exact."""

ENDED_SLACK = 64
"""A queue of deadlines holds at most so many ended calls more than calls under way."""

_time = itemgetter(0)


class Timeline:
    """A queue of events by time."""

    __slots__ = ("_numbers", "_open", "_slots", "_waiting", "due", "filled", "filling", "late")

    def __init__(self) -> None:
        self._open = -1
        self.due: list[Event] = []
        """The open slot, the last event first."""
        self.late: list[tuple[float, int, Event]] = []
        """A heap of what was added to the open slot after it was opened; all of it comes after its like in `due`."""
        self.filling = -1
        """The slot that the last event was put into, which is where the next one goes, as a rule …"""
        self.filled: list[Event] = []
        """… and what it holds, in the order in which it was added."""
        self._numbers = count()
        self._waiting: dict[int, list[Event]] = {}
        self._slots: list[int] = []
        """A heap of the slots that wait."""

    @property
    def is_empty(self) -> bool:
        return not (self.due or self.late or self._slots)

    def push(self, event: Event) -> None:
        slot = int(event[0] * SLOTS_PER_S)
        if slot <= self._open:
            heappush(self.late, (event[0], next(self._numbers), event))
            return
        waiting = self._waiting.get(slot)
        if waiting is None:
            waiting = self._waiting[slot] = []
            heappush(self._slots, slot)
        waiting.append(event)
        self.filling, self.filled = slot, waiting

    def pop(self, limit: float) -> Event | None:
        """The next event, unless there is none up to this time: of the open slot, or of the next if that is through."""
        due, late = self.due, self.late
        if not due and not late:
            if not self._slots or self._slots[0] > limit * SLOTS_PER_S:
                return None
            self._open = heappop(self._slots)
            if self._open == self.filling:
                self.filling = -1
            self.due = due = self._waiting.pop(self._open)
            due.sort(key=_time)
            due.reverse()
        if late and (not due or late[0][0] < due[-1][0]):
            return heappop(late)[2] if late[0][0] <= limit else None
        return due.pop() if due[-1][0] <= limit else None


class TimedWait(Protocol):
    """What has a deadline: made with a time-out, and over when no task waits for it any more."""

    timeout_s: float
    deadline: float
    task: Any


W = TypeVar("W", bound=TimedWait)


class _Queue(Generic[W]):
    """The calls of one time-out in the order of their deadlines, ended ones between them."""

    __slots__ = ("active", "calls")

    def __init__(self) -> None:
        self.calls: deque[W] = deque()
        self.active = 0


class Deadlines(Generic[W]):
    """When calls expire."""

    __slots__ = ("_queues", "due_at")

    def __init__(self) -> None:
        self._queues: dict[float, _Queue[W]] = {}
        self.due_at = inf
        """No call is due before."""

    def add(self, call: W) -> None:
        """A call begins whose deadline is its time-out from now."""
        queue = self._queues.get(call.timeout_s)
        if queue is None:
            queue = self._queues[call.timeout_s] = _Queue()
        queue.calls.append(call)
        queue.active += 1
        if call.deadline < self.due_at:
            self.due_at = call.deadline

    def end(self, call: W) -> None:
        """A call is over; it has no task any more."""
        queue = self._queues[call.timeout_s]
        queue.active -= 1
        if len(queue.calls) > 2 * queue.active + ENDED_SLACK:
            queue.calls = deque([call for call in queue.calls if call.task is not None])

    def postpone(self, call: W, deadline: float) -> None:
        """The call that is due is due later: its host stands still. It is not in the order of its time-out any more."""
        queue = self._queues[call.timeout_s]
        queue.calls.remove(call)
        queue.active -= 1
        call.deadline, call.timeout_s = deadline, -deadline
        self.add(call)

    def expired(self) -> W | None:
        """The call that is due at `due_at`; or None when that one has ended, and `due_at` moves on to the next."""
        first: W | None = None
        for timeout_s, queue in list(self._queues.items()):
            while queue.calls and queue.calls[0].task is None:
                queue.calls.popleft()
            if not queue.calls:
                del self._queues[timeout_s]
            elif first is None or queue.calls[0].deadline < first.deadline:
                first = queue.calls[0]
        if first is not None and first.deadline <= self.due_at:
            return first
        self.due_at = inf if first is None else first.deadline
        return None
