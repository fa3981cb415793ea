"""Deadlines without a clock: a heap of what is due when. The world outside says what time it is."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timer:
    """One deadline; `cancel` forgets it."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Timers:
    """Deadlines in order. A cancelled one stays in the heap until it is due, or until half of the heap is such."""

    SWEEP_MIN = 1024

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._swept_at = self.SWEEP_MIN
        self.earlier: Callable[[], None] = lambda: None
        """Called when the next deadline has come nearer."""

    def at(self, when: float, action: Callable[[], None]) -> Timer:
        timer = Timer(when, action)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, timer))
        if self._heap[0][2] is timer:
            self.earlier()
        if len(self._heap) > self._swept_at:
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._swept_at = max(self.SWEEP_MIN, 2 * len(self._heap))
        return timer

    @property
    def next_at(self) -> float | None:
        """When the next deadline is due; None without one."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def run(self, now: float) -> None:
        """Fires all that is due. What an action schedules for now waits for the next run."""
        newest = self._count
        later = []
        try:
            while self._heap and self._heap[0][0] <= now:
                entry = heapq.heappop(self._heap)
                if entry[1] > newest:
                    later.append(entry)
                elif entry[2].action is not None:
                    entry[2].action()
        finally:
            for entry in later:
                heapq.heappush(self._heap, entry)
