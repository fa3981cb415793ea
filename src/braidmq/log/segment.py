"""A segment: some of one partition's batches in a file of their own, an Arrow IPC stream, with its index beside it.

    <first offset>.arrow     the schema, then one batch a commit
    <first offset>.index     one entry a batch: the commit point
    <first offset>.parquet   the same rows, in place of both, once the segment is old

A batch whose entry is not there, or not whole, was never written. That can only be at the end, and only after a crash:
`Segment.resume` cuts it off.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from braidmq.log.checksum import crc32
from braidmq.log.errors import LogError
from braidmq.log.index import ENTRY_BYTES, Entries, entry_bytes, intact, read_entries
from braidmq.log.schema import SCHEMA_BYTES

DATA: Final = ".arrow"
INDEX: Final = ".index"
PARQUET: Final = ".parquet"
UNFINISHED: Final = ".part"
"""The end of the name of a file that is still being made; readers ignore it."""

_DIGITS: Final = 19


def partition_folder(folder: Path, partition: int) -> Path:
    return folder / f"partition-{partition:03}"


def segment_path(folder: Path, first: int) -> Path:
    """Without the end that says which file of the segment it is."""
    return folder / f"{first:0{_DIGITS}}"


def with_end(path: Path, end: str) -> Path:
    return path.parent / (path.name + end)


def segment_paths(folder: Path) -> list[Path]:
    """The segments of a partition, oldest first, without their ends."""
    names = {name.partition(".")[0] for name in _names(folder) if name.endswith((INDEX, PARQUET))}
    return [folder / name for name in sorted(names) if name.isdigit() and len(name) == _DIGITS]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


class Segment:
    """The segment of a partition that is written to."""

    def __init__(self, path: Path, data: int, index: int, size: int, index_size: int) -> None:
        self.path = path
        self._data = data
        self._index = index
        self.size = size
        self.index_size = index_size
        self.last = -1
        """The last offset in it; -1 while it is empty."""
        self.time_us = 0
        """When its latest row was received."""
        self.began_us = 0
        """When its first row was."""
        self.rows = 0

    @classmethod
    def create(cls, folder: Path, first: int) -> Segment:
        path = segment_path(folder, first)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = _open(with_end(path, DATA), os.O_CREAT | os.O_TRUNC)
        try:
            _write(data, SCHEMA_BYTES, 0)
            index = _open(with_end(path, INDEX), os.O_CREAT | os.O_TRUNC)
        except BaseException:
            os.close(data)
            raise
        return cls(path, data, index, len(SCHEMA_BYTES), 0)

    @classmethod
    def resume(cls, path: Path, below: int) -> tuple[Segment, int]:
        """Opens a segment to go on behind its last whole batch below an offset; also how many bytes were cut off."""
        data_path, index_path = with_end(path, DATA), with_end(path, INDEX)
        entries = read_entries(index_path)
        was = index_path.stat().st_size + data_path.stat().st_size
        kept = _whole_count(entries, data_path, below)
        data = _open(data_path)
        index = _open(index_path)
        size = len(SCHEMA_BYTES)
        if kept:
            end = entries[kept - 1]
            size = int(end["position"]) + int(end["length"])
        segment = cls(path, data, index, size, kept * ENTRY_BYTES)
        if kept:
            segment.last, segment.time_us = int(end["last"]), int(end["time"])
            segment.began_us, segment.rows = int(entries[0]["time"]), int(entries[:kept]["rows"].sum())
        segment.cut()
        return segment, max(0, was - segment.bytes)

    @property
    def bytes(self) -> int:
        return self.size + self.index_size

    def append(self, batch: memoryview, first: int, last: int, rows: int, time_us: int, sync: bool) -> None:
        """Writes a batch and then its entry. If that fails, `cut` takes back what was written of it."""
        entry = entry_bytes(first, last, self.size, time_us, batch, rows)
        _write(self._data, batch, self.size)
        if sync:
            os.fsync(self._data)
        _write(self._index, entry, self.index_size)
        if sync:
            os.fsync(self._index)

    def keep(self, batch_bytes: int, last: int, rows: int, time_us: int) -> None:
        """What `append` wrote counts."""
        if not self.rows:
            self.began_us = time_us
        self.rows += rows
        self.size += batch_bytes
        self.index_size += ENTRY_BYTES
        self.last = last
        self.time_us = max(self.time_us, time_us)

    def cut(self) -> None:
        """Back to what counts."""
        os.ftruncate(self._index, self.index_size)
        os.ftruncate(self._data, self.size)

    def close(self) -> None:
        os.close(self._data)
        os.close(self._index)


def _whole_count(entries: Entries, data_path: Path, below: int) -> int:
    """How many entries count: all up to the last one that is whole, below an offset, and has its batch."""
    intact_ones = intact(entries)
    with data_path.open("rb") as data:
        for number in range(len(entries) - 1, -1, -1):
            entry = entries[number]
            if intact_ones[number] and entry["last"] < below:
                data.seek(int(entry["position"]))
                if crc32(data.read(int(entry["length"]))) == entry["checksum"]:
                    return number + 1
    return 0


def _open(path: Path, flags: int = 0) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        raise LogError(
            f"{path} cannot be opened: {error.strerror}; check the folder, its owner and the disk"
        ) from error


def _write(file: int, data: bytes | memoryview, position: int) -> None:
    """All of it: a full disk takes a part, and refuses the rest at the next try."""
    written = os.pwrite(file, data, position)
    while written < len(data):
        written += os.pwrite(file, memoryview(data)[written:], position + written)
