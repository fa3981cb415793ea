"""Who has dialled: the process that holds the other end of a connection over loopback, as the system knows it (Linux).

Connections between brokers are sealed, by a key or by TLS, so nothing can be read from them that would tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_TABLE = Path("/proc/net/tcp")
_LOCAL_ADDRESS, _INODE = 1, 9
"""Columns of the table."""


def process_of(port: int, processes: Iterable[int]) -> int | None:
    """Which of some processes has a socket of loopback on this port."""
    inode = _inode_of(port)
    if inode is None:
        return None
    target = f"socket:[{inode}]"
    return next((process for process in processes if _holds(process, target)), None)


def _inode_of(port: int) -> str | None:
    local = f"0100007F:{port:04X}"
    for line in _TABLE.read_text().splitlines()[1:]:
        columns = line.split()
        if columns[_LOCAL_ADDRESS] == local:
            return columns[_INODE]
    return None


def _holds(process: int, target: str) -> bool:
    with suppress(OSError):  # the process, or one of its files, is gone
        for entry in os.scandir(f"/proc/{process}/fd"):
            with suppress(OSError):
                if os.readlink(entry.path) == target:
                    return True
    return False
