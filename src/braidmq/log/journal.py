"""The journal: rows that a publisher waits for are noted here at once, in one write, and come to their segments later.

Batches of a few rows are expensive, and a publisher of QoS 1 waits for those of each tick. So the rows of a tick are
noted as they are, and the log's next commit puts them into batches together with all other rows. After a crash, what is
noted here above the watermark is put into the log first.

There are two files. While one is written to, the other waits until all that it holds is in the segments, and is then
emptied; so neither grows for long.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from braidmq.log.checksum import crc32
from braidmq.log.run import Run

NAMES: Final = ("journal-0", "journal-1")
_HEAD_BYTES: Final = 8
"""Before each note: its length and its checksum, four bytes each."""


class RowJournal:
    def __init__(self, folder: Path, sync: bool) -> None:
        self._sync = sync
        self._files = [os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for name in NAMES]
        self._sizes = [0, 0]
        self._ends = [0, 0]
        """The offset after the highest one that is noted in each file."""
        self._active = 0
        self._lock = threading.Lock()
        self._encode = msgspec.msgpack.Encoder().encode

    def read(self) -> list[Run]:
        """What an earlier process noted, in the order of its offsets; an unfinished note at the end is left out."""
        found: list[Run] = []
        for file in self._files:
            found += _runs_in(os.pread(file, os.fstat(file).st_size, 0))
        return sorted(found, key=lambda run: run.first or 0)

    def note(self, runs: Sequence[Run]) -> None:
        """Notes rows with their offsets, in their order; when this returns, they survive a crash."""
        if not runs:
            return
        body = self._encode(runs)
        data = len(body).to_bytes(4, "little") + crc32(body).to_bytes(4, "little") + body
        with self._lock:
            file, position = self._files[self._active], self._sizes[self._active]
            written = 0
            while written < len(data):  # what a failure leaves half written is written over by the next note
                written += os.pwrite(file, data[written:], position + written)
            if self._sync:
                os.fdatasync(file)
            self._sizes[self._active] = position + written
            self._ends[self._active] = max(self._ends[self._active], (runs[-1].first or 0) + runs[-1].rows)

    def switch_files(self) -> None:
        """Notes go to the other file from now on, if it is empty."""
        with self._lock:
            if not self._sizes[1 - self._active]:
                self._active = 1 - self._active

    def discard_below(self, following: int) -> None:
        """All rows below an offset are in their segments: a file that has only such rows is emptied."""
        with self._lock:
            other = 1 - self._active
            if self._sizes[other] and self._ends[other] <= following:
                self._empty(other)

    def clear(self) -> None:
        """Everything is in the segments."""
        with self._lock:
            for number in range(len(self._files)):
                self._empty(number)

    def _empty(self, number: int) -> None:
        os.ftruncate(self._files[number], 0)
        self._sizes[number] = self._ends[number] = 0

    def close(self) -> None:
        for file in self._files:
            os.close(file)


def _runs_in(data: bytes) -> list[Run]:
    found: list[Run] = []
    at = 0
    while at + _HEAD_BYTES <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        body = data[at + _HEAD_BYTES : at + _HEAD_BYTES + length]
        if not length or crc32(body) != int.from_bytes(data[at + 4 : at + _HEAD_BYTES], "little"):
            break
        found += msgspec.msgpack.decode(body, type=list[Run])
        at += _HEAD_BYTES + length
    return found
