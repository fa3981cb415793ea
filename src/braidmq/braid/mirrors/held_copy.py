"""The copy of another broker's journal, in a folder of its own.

What its owner sends is a stream: it is taken if it follows what is here, and blocks are written once they are whole.
A snapshot comes beside the copy that is there, and takes its place when it is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from braidmq.braid.mirrors.copied_sessions import CopiedSessions
from braidmq.broker.journal_store import read_copy
from braidmq.broker.store import Snapshot
from braidmq.host import Address
from braidmq.journal.block import block_length
from braidmq.journal.files import file_name
from braidmq.journal.journal_copy import CopyStart, JournalCopy, start_of_snapshot

ABOUT_FILE: Final = "mirror.json"
"""Beside the files of the journal: a `CopyAbout`."""
INCOMING: Final = ".incoming"
"""The end of the name of a folder in which a copy begins."""
STREAMING_S: Final = 1.5
"""An owner that was not heard for longer is not streaming."""
UNFINISHED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of a block that has not come as a whole."""


class CopyAbout(msgspec.Struct, frozen=True):
    owner: str
    address: Address
    term: int


class CopyUnusable(Exception):
    """What has come is not what the copy needs; the text says why."""


class HeldCopy:
    def __init__(self, folder: Path, about: CopyAbout, journal: JournalCopy, clock: Callable[[], float]) -> None:
        self.folder = folder
        self.journal = journal
        self.heard_at = clock()
        """When the owner was heard last; at first, when the copy was opened."""
        self.received = journal.position
        """How far the stream has come, with a block at the end that may not be whole."""
        self.gap_told = (-1, 0.0)
        """For which position, and when, the owner was asked for what is missing."""
        self._clock = clock
        self._about = about
        self._waiting: list[bytes] = []
        """What has come of a block that is not whole."""
        self._waiting_for = 0
        """How long that block is; 0 if that is not known."""
        self._snapshot: Snapshot | None = None
        self._sessions: CopiedSessions | None = None
        self._was_heard = False

    # What others may know of it

    @property
    def owner(self) -> str:
        return self._about.owner

    @property
    def address(self) -> Address:
        """Where the owner was last."""
        return self._about.address

    @property
    def term(self) -> int:
        """The last in which this copy counted; 0 if it never did."""
        return self._about.term

    @property
    def position(self) -> int:
        return self.journal.position

    @property
    def is_streaming(self) -> bool:
        """Whether the owner was heard lately."""
        return self._was_heard and self._clock() - self.heard_at <= STREAMING_S

    def snapshot(self) -> Snapshot:
        """What the copy adds up to; it must not be changed. Raises StoreError."""
        if self._snapshot is None:
            self._snapshot = read_copy(self.folder)
        return self._snapshot

    def sessions(self) -> CopiedSessions:
        """Those in the snapshot. Raises StoreError."""
        if self._sessions is None:
            self._sessions = CopiedSessions(self.owner, self.snapshot())
        return self._sessions

    # What the owner sends

    def hear(self, address: Address, term: int) -> None:
        """The owner was heard, at an address, and says in which term it is. Raises OSError."""
        self.heard_at = self._clock()
        self._was_heard = True
        term = max(term, self.term)
        if address != self.address or term != self.term:
            self._about = CopyAbout(self.owner, address, term)
            write_about(self.folder, self._about)

    def take(self, position: int, data: bytes) -> bool:
        """Takes a piece of the stream, unless something before it is missing; False if it is.

        Raises OSError, JournalDamaged, or CopyUnusable.
        """
        if position > self.received:
            return False
        data = data[self.received - position :]
        if not data:
            return True
        self.received += len(data)
        if self._waiting:
            self._waiting.append(data)
            if self.received - self.position > UNFINISHED_BYTES_MAX:
                raise CopyUnusable(f"a block of more than {UNFINISHED_BYTES_MAX} bytes")
            if self.received - self.position < self._waiting_for:
                return True
            data = b"".join(self._waiting)
        try:
            end = self.journal.append(data)
        except Exception:
            self.received = self.position
            self._waiting.clear()
            raise
        self._waiting = [data[end:]] if end < len(data) else []
        self._waiting_for = block_length(data, end)
        if end:
            self._snapshot = self._sessions = None
        return True

    def begins_with(self, position: int) -> bool:
        """Whether it has nothing yet but the snapshot of a position."""
        return position == self.position == self.journal.snapshot_position

    def close(self) -> None:
        self.journal.close()


class IncomingSnapshot:
    """A snapshot that comes part by part, in a folder beside the copy."""

    def __init__(self, folder: Path, position: int, size: int) -> None:
        """Raises OSError."""
        self.folder = folder.with_name(folder.name + INCOMING)
        self.position, self.size, self.offset = position, size, 0
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700, parents=True)
        path = self.folder / file_name(position, "snapshot")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def add(self, offset: int, data: bytes) -> None:
        """Raises OSError, or CopyUnusable if it does not follow."""
        if offset > self.offset or offset + len(data) > self.size:
            raise CopyUnusable(f"a part at {offset} of a snapshot of which {self.offset} of {self.size} bytes are here")
        if os.pwrite(self._file, data, offset) < len(data):
            raise OSError("not all of a part of a snapshot could be written")
        self.offset = max(self.offset, offset + len(data))

    @property
    def is_whole(self) -> bool:
        return self.offset == self.size

    def finish(self) -> CopyStart:
        """Raises OSError, JournalDamaged or JournalFormatError."""
        os.fsync(self._file)
        self.close()
        return start_of_snapshot(self.folder)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def write_about(folder: Path, about: CopyAbout) -> None:
    """As a whole or not at all. Raises OSError."""
    unfinished = folder / f"{ABOUT_FILE}.new"
    unfinished.write_bytes(msgspec.json.encode(about))
    unfinished.rename(folder / ABOUT_FILE)


def read_about(folder: Path) -> CopyAbout:
    """Raises OSError or MsgspecError."""
    return msgspec.json.decode((folder / ABOUT_FILE).read_bytes(), type=CopyAbout)
