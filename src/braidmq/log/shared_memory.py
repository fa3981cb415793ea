"""Memory that a broker and the process that writes its log both see.

The broker puts rows into it as they come, so they are copied only once: a pipe would copy them twice more, in small
pieces. Each region of a buffer has far more addresses than it is likely to need; only what is in use takes up memory.
One side writes, then the other reads; they alternate by the messages over their pipes.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Final

REGION_BYTES: Final = 32 * 1024 * 1024
"""A multiple of every page's size."""


class SharedMemory:
    """The broker makes it for so many regions; the writer opens it by the file descriptor that it inherits."""

    def __init__(self, regions: int, file: int | None = None) -> None:
        self.file = _new_file() if file is None else file
        size = regions * REGION_BYTES
        if file is None:
            os.ftruncate(self.file, size)
        self.map = mmap.mmap(self.file, size, access=mmap.ACCESS_WRITE if file is None else mmap.ACCESS_READ)

    def give_back(self, begin: int, end: int) -> None:
        """What lies between is not needed any more. Where the system cannot take single pages back, they stay."""
        if end > begin and hasattr(mmap, "MADV_REMOVE"):
            self.map.madvise(mmap.MADV_REMOVE, begin, end - begin)

    def close(self) -> None:
        self.map.close()
        os.close(self.file)


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("braidmq-log")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
