"""Rows for the tests, and what was read of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from braidmq.log.log import Log
from braidmq.log.reader import LogReader
from braidmq.log.run import Run

START_US = 1_800_000_000_000_000
EVER = 1 << 62


def row(number: int, topic: str | None = None, qos: int = 1) -> Run:
    """The row with this number; its time is the number's in seconds."""
    name = f"t/{number % 5}" if topic is None else topic
    return Run.of(name, b"payload %d" % number, START_US + number * 1_000_000, client="tester", qos=qos)


def write(log: Log, *numbers: int) -> None:
    log.append([row(number) for number in numbers])


def read_all(source: Any, start: int = 0, until: int = EVER, filters: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Of all partitions, by offset. Within each, offsets only grow."""
    found: list[dict[str, Any]] = []
    for partition in range(source.state().partitions):
        rows = [one for batch in source.read(partition, start, until, filters) for one in batch.to_pylist()]
        offsets = [one["offset"] for one in rows]
        assert offsets == sorted(set(offsets))
        found += rows
    found.sort(key=lambda one: int(one["offset"]))
    assert len({one["offset"] for one in found}) == len(found)
    return found


def numbers_in(folder: Path | LogReader) -> list[int]:
    """The numbers of the rows in a log, in the order of their offsets."""
    reader = folder if isinstance(folder, LogReader) else LogReader(folder)
    return [int(one["payload"].removeprefix(b"payload ")) for one in read_all(reader)]


def crashed_copy(folder: Path, to: Path) -> Path:
    """The files as they are now, without the good end that `close` would give them."""
    shutil.copytree(folder, to)
    return to
