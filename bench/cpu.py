"""The CPU time of processes, as Linux shows it below /proc."""

from __future__ import annotations

import os
from pathlib import Path


def children(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


def own_s(pid: int) -> float:
    """Of the process alone; an OSError if it has ended."""
    return sum(_times_s(pid)[:2])


def with_children_s(pid: int) -> float:
    """Of a process and all that it started, those that ended included."""
    try:
        return sum(_times_s(pid)) + sum(map(with_children_s, children(pid)))
    except OSError:
        return 0.0


def _times_s(pid: int) -> list[float]:
    """In user mode and in the system, its own and of its children that have ended (proc(5), `stat`)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:15]]
