"""How a command is told to end: with Ctrl-C (SIGINT), or with SIGTERM.

A shell without job control, such as that of a script, makes background processes ignore SIGINT, and Python inherits
that. These commands end at SIGINT all the same, for there is no other way to end them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Final, Self

from braidmq.cli.errors import CliError, ExitCode

AGAIN_S: Final = 0.5
"""One that comes sooner is the first again: `timeout`, for one, signals its child and then the whole group."""


class Interrupted(CliError):
    """The command was told to end before it was done."""

    def __init__(self) -> None:
        super().__init__("interrupted", ExitCode.INTERRUPTED)


def heed_ctrl_c() -> None:
    """Ctrl-C is a KeyboardInterrupt, whatever this process has inherited."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt_at_sigterm() -> None:
    """SIGTERM is a KeyboardInterrupt as well: for commands whose normal end is Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


class Ending:
    """Set by the first signal, so that work under way can be finished. A second signal ends the process at once."""

    def __init__(self) -> None:
        self._is_set = threading.Event()
        self._set_at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_set(self) -> bool:
        return self._is_set.is_set()

    def wait(self, timeout_s: float) -> bool:
        return self._is_set.wait(timeout_s)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._is_set.is_set():
            self._set_at = now
            self._is_set.set()
        elif now - self._set_at > AGAIN_S:
            with contextlib.suppress(Exception):  # it may be in the middle of a line
                sys.stdout.flush()
            os._exit(ExitCode.INTERRUPTED)
