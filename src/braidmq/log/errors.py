"""What can go wrong with a log, in words for a person."""

from __future__ import annotations


class LogError(OSError):
    """The log cannot be used; the text says why and what to do."""


class LogInUseError(LogError):
    """Another process has it open."""
