"""Memory that a broker and the process that writes its log both see.

Runs of many publications go through it: a pipe would copy them twice, in small pieces. The broker writes them without
holding the interpreter's lock, and its other threads go on meanwhile. One side writes, then the other reads; they take
turns by what they say over their pipes.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Final

KEPT_BYTES: Final = 48 * 1024 * 1024
KEPT_TIMES: Final = 8
"""What stays reserved between two turns, and how many times what the last one needed; more is given back."""

PIECES_MAX: Final = 1024
"""That the system takes in one call (IOV_MAX)."""


class SharedMemory:
    """The broker's side makes it; the writer's opens it by its file's number, which it inherits."""

    def __init__(self, file: int | None = None) -> None:
        self.file = _new_file() if file is None else file
        self._size = 0
        self._used = 0
        self._map: mmap.mmap | None = None

    def write(self, pieces: Sequence[bytes]) -> None:
        """Puts them one behind the other, from the beginning."""
        place = 0
        for first in range(0, len(pieces), PIECES_MAX):
            some = pieces[first : first + PIECES_MAX]
            place += self._write_all(some, place)
        self._used = place
        self._size = max(self._size, place)

    def _write_all(self, pieces: Sequence[bytes], place: int) -> int:
        size = sum(map(len, pieces))
        written = os.pwritev(self.file, pieces, place)
        if written < size:
            rest = b"".join(pieces)
            while written < size:
                written += os.pwrite(self.file, rest[written:], place + written)
        return size

    def trim(self) -> None:
        """Nobody reads any more what was written: gives back what is seldom needed."""
        if self._size > min(KEPT_BYTES, KEPT_TIMES * self._used):
            os.ftruncate(self.file, 0)
            self._size = 0

    def read(self, size: int) -> memoryview:
        """So many bytes from the beginning, as they are until the other side writes again."""
        if not size:
            return memoryview(b"")  # there may be nothing yet to map
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self.file, size, access=mmap.ACCESS_READ)
        return memoryview(self._map)[:size]

    def close(self) -> None:
        os.close(self.file)


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("braidmq-log")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
