"""The files of a journal that is open for writing: blocks are appended, and segments of bounded size follow each other.

Once a write returns, it survives the process (`kill -9`), and with `is_synced` the loss of power too. If it fails,
nothing of it stays, and it may be tried again.

Nothing here takes long. A compaction (`compaction`) and bringing sealed segments to the disk are the business of
whoever has time for them; a journal that nobody compacts only grows.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from braidmq.journal.contents import JournalContents
from braidmq.journal.files import LOST, file_name, files_of, remove_obsolete, sync_file
from braidmq.journal.headers import ALL, HEADER_BYTES, FileHeader

SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""A segment that has grown so large is sealed, and the next begins."""
COMPACT_BYTES: Final = 64 * 1024 * 1024
"""Less than this behind a snapshot is not worth a compaction."""
COMPACT_RATIO: Final = 1.0
"""Nor is less than so many times what the snapshot has."""

_log = logging.getLogger("braidmq.journal")


class JournalWriter:
    """Goes on with the journal of a folder, and repairs what a crash left unfinished.

    Raises an OSError if it cannot be used. Two processes must not have the same one open: keeping them apart is the
    caller's business.
    """

    def __init__(self, folder: Path, contents: JournalContents, is_synced: bool = False) -> None:
        """`contents` are what the folder was found to hold."""
        self.folder = folder
        self.journal_id = contents.journal_id
        self.position = contents.position
        """Where the next block begins in the stream."""
        self.sequence = contents.sequence
        """Of the last block."""
        self.epoch = contents.tables.epoch
        """Raised by whoever takes the journal over."""
        self.snapshot_position = contents.snapshot_position
        self.snapshot_bytes = contents.snapshot_bytes
        self.is_compacting = False
        """Set by whoever compacts it, meanwhile."""
        self.is_synced = is_synced
        self._synced = contents.synced if contents.synced != ALL else contents.position
        self._file = -1
        self._begin = 0
        """The position at which the segment begins."""
        self._is_torn = False
        """Whether the file has more than it should, since a write failed."""
        try:
            self._open(contents)
        except OSError:
            self.close()
            raise

    def _open(self, contents: JournalContents) -> None:
        """Removes what does not count, and goes on with the last segment or a new one."""
        remove_obsolete(self.folder)
        for path in contents.lost:
            if path.stat().st_size > HEADER_BYTES:
                path.rename(path.with_name(path.name + LOST))
            else:
                path.unlink()
        last = contents.last
        if last is not None and last.position < self.position:
            self._begin = last.position
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            if (unfinished := os.fstat(self._file).st_size - self._size) > 0:
                _log.info("%s: %d bytes that a crash left unfinished are cut off", self._path, unfinished)
                os.ftruncate(self._file, self._size)
            if self.is_synced:
                os.fsync(self._file)
        if self._file < 0 or last is None or (last.synced == ALL) != self.is_synced:
            self.seal()

    @property
    def _path(self) -> Path:
        return self.folder / file_name(self._begin, "segment")

    @property
    def _size(self) -> int:
        """Of the segment's file."""
        return self.position - self._begin + HEADER_BYTES

    @property
    def is_open(self) -> bool:
        return self._file >= 0

    # Writing

    def prepare(self) -> None:
        """Called before a write: takes back what a failed one has left, and begins the next segment if it is time for
        it. Raises OSError."""
        if self._is_torn:
            self._repair()
        if self.position - self._begin >= SEGMENT_BYTES:
            self.seal()

    def write(self, blocks: bytes | bytearray, count: int) -> None:
        """Appends so many blocks, all of them or none. Raises OSError."""
        try:
            _write(self._file, blocks, self._size)
            if self.is_synced:
                os.fdatasync(self._file)
        except OSError:
            self._is_torn = True
            with suppress(OSError):
                self._repair()
            raise
        self.position += len(blocks)
        self.sequence += count

    def _repair(self) -> None:
        """Takes back what a failed write has left."""
        os.ftruncate(self._file, self._size)
        self._is_torn = False

    def seal(self) -> None:
        """Ends the segment, unless nothing is in it, and begins the next one. Raises OSError."""
        if self._is_torn:
            self._repair()
        if self._file >= 0 and self._begin == self.position:
            return
        path = self.folder / file_name(self.position, "segment")
        synced = ALL if self.is_synced else self._synced
        header = FileHeader("segment", self.journal_id, self.position, self.sequence, self.epoch, synced)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(file, header.encode(), 0)
            if self.is_synced:
                os.fsync(file)
                sync_file(self.folder)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._begin = self.position

    # Maintenance

    @property
    def sealed_position(self) -> int:
        """What is before it will never be written again."""
        return self._begin

    @property
    def is_compaction_due(self) -> bool:
        behind = self.position - self.snapshot_position
        return behind >= max(COMPACT_BYTES, COMPACT_RATIO * self.snapshot_bytes)

    def compacted(self, position: int, size: int) -> None:
        """There is a snapshot of so many bytes at a position."""
        self.snapshot_position, self.snapshot_bytes = position, size
        self.synced(position)

    @property
    def unsynced(self) -> list[Path]:
        """Sealed segments that may not be on the disk yet."""
        if self.is_synced or self._synced >= self._begin:
            return []
        segments = files_of(self.folder, "segment")
        return [path for position, path in segments if self._synced <= position < self._begin]

    def synced(self, position: int) -> None:
        """All that is before a position is on the disk."""
        self._synced = max(self._synced, position)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _write(file: int, data: bytes | bytearray, at: int) -> None:
    """In one call, unless the system takes only a part: then it says why, or takes the rest."""
    written = os.pwrite(file, data, at)
    while written < len(data):
        written += os.pwrite(file, data[written:], at + written)
