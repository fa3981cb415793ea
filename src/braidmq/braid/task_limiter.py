"""Procedures beside each other, a few at a time.

A client that subscribes to a thousand topics makes a thousand keys. If all of them joined at once they would be in each
other's way: of those that want the same gap in the ring, one gets it and the rest try again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from braidmq.host import Host

WORKERS_MAX = 8

Procedure = Callable[[], Coroutine[Any, Any, None]]


class TaskLimiter:
    """Runs a few procedures at a time; more of them wait in their order."""

    def __init__(self, host: Host, workers_max: int = WORKERS_MAX) -> None:
        self._host = host
        self._workers_max = workers_max
        self._workers = 0
        self._waiting: deque[Procedure] = deque()
        """One for each topic that changes: as many as clients may subscribe to and publish, at the most."""

    def submit(self, procedure: Procedure) -> None:
        """Runs a procedure when its turn comes."""
        self._waiting.append(procedure)
        if self._workers < self._workers_max:
            self._workers += 1
            self._host.spawn(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._waiting.popleft()()
        finally:
            self._workers -= 1
