"""How a command ends: the exit codes that scripts can rely on, and the error that carries one with words for people."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    """Done. For `sub` also: ended by Ctrl-C, SIGTERM, or because nobody reads its output any more."""
    FAILED = 1
    """The broker answered, and the answer was no: refused, disconnected, or messages were lost."""
    USAGE = 2
    """The command line, or the configuration, cannot be right: nothing was tried."""
    UNAVAILABLE = 3
    """There is nothing to work with: no connection to the broker; or `up` cannot listen or use its store."""
    TIMEOUT = 4
    """The time was up. What was asked for may still happen."""
    INTERRUPTED = 130
    """Ctrl-C, where that leaves something undone."""


class CliError(Exception):
    """An expected failure: what was wrong, and in `hint` what to do about it. It is shown without a traceback."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED, hint: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.code = code
        self.hint = hint


class UsageError(CliError):
    """An option, or a combination of options, that makes no sense."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text, ExitCode.USAGE, hint)
