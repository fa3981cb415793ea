"""The stream of a journal as bytes, piece by piece, for whoever holds a copy of it."""

from __future__ import annotations

import os
from pathlib import Path

from braidmq.journal.block import HEAD_BYTES, block_ends, block_length, seed_of
from braidmq.journal.errors import PositionGoneError
from braidmq.journal.files import files_of
from braidmq.journal.headers import HEADER_BYTES, read_header


class JournalReader:
    """Reads a journal that goes on being written and compacted; the segment that it is at stays open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = -1
        self._begin = 0

    def read(self, position: int, end: int, size_max: int) -> bytes:
        """Some of what stands between two positions: at most so many bytes, and at least one.

        Raises OSError, or PositionGoneError if it has been compacted or was never written.
        """
        size = min(end - position, size_max)
        data = b"" if self._file < 0 or position < self._begin else self._pread(position, size)
        if not data:
            self._open(position)
            data = self._pread(position, size)
        if not data:
            raise PositionGoneError(f"nothing stands at position {position} of {self._folder}")
        return data

    def _pread(self, position: int, size: int) -> bytes:
        return os.pread(self._file, size, position - self._begin + HEADER_BYTES)

    def _open(self, position: int) -> None:
        """Opens the segment that a position is in."""
        before = [one for one in files_of(self._folder, "segment") if one[0] <= position]
        if not before:
            raise PositionGoneError(f"position {position} of {self._folder} has been compacted")
        begin, path = before[-1]
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise PositionGoneError(f"position {position} of {self._folder} has just been compacted") from None
        self.close()
        self._file, self._begin = file, begin

    def has_block(self, head: bytes, end: int) -> bool:
        """Whether a block that begins with these bytes ends at a position."""
        length = block_length(head, 0)
        try:
            return bool(length) and self.read(end - length, end, HEAD_BYTES) == head
        except (PositionGoneError, OSError):
            return False

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def last_head(folder: Path, position: int) -> bytes:
    """The first bytes of the block that ends at a position, where a journal ends; empty if none is found."""
    for begin, path in reversed(files_of(folder, "segment")):
        header = read_header(path, "segment")
        if header is None or begin >= position:
            continue
        data = path.read_bytes()
        at = HEADER_BYTES
        for end in block_ends(data, at, header.sequence + 1, seed_of(header.journal_id)):
            if begin + end - HEADER_BYTES == position:
                return data[at : at + HEAD_BYTES]
            at = end
        return b""
    return b""
