"""Ends a function that takes too long for a message, without a timer for each message.

One timer fires every `limit_s`. If the function is then still at the same message as the last time, a TookTooLong is
raised in it: so it has between one and two times the limit. A call that hangs in C, and never returns to Python, cannot
be ended in this way.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class TookTooLong(BaseException):
    """Not an Exception: a function that goes on after any error would go on after this one."""


class TimeLimit:
    """`with TimeLimit(1.0) as limit:` and then, for each message, `limit.running = number` before and -1 after it."""

    def __init__(self, limit_s: float) -> None:
        self.running = -1
        self._limit_s = limit_s
        self._seen = -1
        self._before: Any = None
        self._is_set = threading.current_thread() is threading.main_thread()  # else there are no signals

    def __enter__(self) -> Self:
        if self._is_set:
            self._before = signal.signal(signal.SIGALRM, self._on_alarm)
            signal.setitimer(signal.ITIMER_REAL, self._limit_s, self._limit_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_set:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        running, seen = self.running, self._seen
        self._seen = running
        if running >= 0 and running == seen:
            self._seen = -1
            raise TookTooLong
