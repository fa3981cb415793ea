"""The journal: rows that a publisher waits for are noted here at once, in one write, and come to their segments later.

A batch of a few rows costs a segment much, and a publisher of QoS 1 waits for each tick's. So a tick's rows are noted
as they are, and the log's next commit puts them into batches together with all others. After a crash, what is noted
here and stands above the watermark is put into the log before anything else.

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


class Journal:
    def __init__(self, folder: Path, sync: bool) -> None:
        self._sync = sync
        self._files = [os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for name in NAMES]
        self._sizes = [0, 0]
        self._ends = [0, 0]
        """Behind the highest offset that is noted in each file."""
        self._active = 0
        self._turn = threading.Lock()
        self._encode = msgspec.msgpack.Encoder().encode

    def read(self) -> list[Run]:
        """What an earlier process noted, in the order of its offsets; an unfinished note at the end is left out."""
        found: list[Run] = []
        for file in self._files:
            found += _runs_in(os.pread(file, os.fstat(file).st_size, 0))
        return sorted(found, key=lambda run: run.first or 0)

    def note(self, runs: Sequence[Run]) -> None:
        """Rows with their offsets, in their order; when this returns, a crash does not take them."""
        if not runs:
            return
        body = self._encode(runs)
        data = len(body).to_bytes(4, "little") + crc32(body).to_bytes(4, "little") + body
        with self._turn:
            file, place = self._files[self._active], self._sizes[self._active]
            written = 0
            while written < len(data):  # what a failure leaves half written is written over by the next note
                written += os.pwrite(file, data[written:], place + written)
            if self._sync:
                os.fdatasync(file)
            self._sizes[self._active] = place + written
            self._ends[self._active] = max(self._ends[self._active], (runs[-1].first or 0) + runs[-1].rows)

    def turn_over(self) -> None:
        """Lets the other file take what is noted from now on, if it is free."""
        with self._turn:
            if not self._sizes[1 - self._active]:
                self._active = 1 - self._active

    def settle(self, following: int) -> None:
        """All rows below an offset are in their segments: what only has such rows is emptied."""
        with self._turn:
            other = 1 - self._active
            if self._sizes[other] and self._ends[other] <= following:
                self._empty(other)

    def clear(self) -> None:
        """Everything is in the segments."""
        with self._turn:
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
