"""Opens a log to read, wherever it is."""

from __future__ import annotations

from braidmq.log.reader import LogReader
from braidmq.log.remote import RemoteLog
from braidmq.log.source import LogSource


def open_log(where: str, token: str | None = None) -> LogSource:
    """The log in a folder, or the one behind an admin port (http://… or https://…)."""
    if where.startswith(("http://", "https://")):
        return RemoteLog(where, token)
    return LogReader(where)
