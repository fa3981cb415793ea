"""The store in a journal: what a tick changes is one append (`braidmq.journal`), and the broker's memory is the rest.

Calls between two commits only make a list; `commit` writes it as one block. With `sync = "normal"` a committed tick
survives the death of the process (`kill -9`), and with `sync = "full"` the loss of power too, for one fsync a tick.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, Literal

import msgspec

from braidmq.broker.sqlite_import import take_over
from braidmq.broker.store import Snapshot, StoreError
from braidmq.broker.store_changes import DELIVERY, MESSAGE, SESSION, StoreChanges
from braidmq.broker.store_tables import LostRow, StoreTables
from braidmq.journal.contents import read_contents
from braidmq.journal.errors import JournalDamaged, JournalFormatError
from braidmq.journal.headers import VERSION
from braidmq.journal.journal import Journal
from braidmq.system.folder_lock import FolderInUse, lock_folder

FOLDER_NAME: Final = "journal"
_UNUSABLE: Final = (OSError, JournalDamaged, JournalFormatError, msgspec.MsgspecError, LostRow)


class JournalStore(StoreChanges):
    """The store of a data folder. A store of an earlier version in it is taken over first."""

    def __init__(self, folder: Path, sync: Literal["normal", "full"] = "normal") -> None:
        super().__init__()
        self.path = folder / FOLDER_NAME
        self._lock = _lock(folder)
        try:
            take_over(folder, self.path)
            self.journal = Journal(self.path, sync == "full")
        except _UNUSABLE as error:
            os.close(self._lock)
            raise unusable(self.path, error) from error
        found = StoreTables(self.journal.take_contents().tables)
        self._found: StoreTables | None = found
        """What an earlier process left, until it is loaded or changed."""
        self._last_session = found.last(SESSION)
        self._last_message = found.last(MESSAGE)
        self._last_delivery = found.last(DELIVERY)

    def load(self) -> Snapshot:
        """What is committed."""
        tables, self._found = self._found, None
        try:
            tables = tables or StoreTables(read_contents(self.path).tables)
            snapshot = tables.load()
        except _UNUSABLE as error:
            raise unusable(self.path, error) from error
        self._changes = tables.sweep + self._changes
        return snapshot

    def commit(self) -> None:
        """Makes all calls since the last commit durable, or raises StoreError and keeps them for the next try."""
        changes, self._changes = self._changes, []  # whoever hears of the block may have more to write
        try:
            self.journal.commit(changes)
        except OSError as error:
            self._changes = changes
            raise unusable(self.path, error) from error
        self._found = None

    def close(self) -> None:
        self.journal.close()
        os.close(self._lock)


def read_copy(folder: Path) -> Snapshot:
    """What a copy of a journal adds up to; the folder is the journal's own. Raises StoreError. Nothing is changed."""
    try:
        return StoreTables(read_contents(folder).tables).load()
    except _UNUSABLE as error:
        raise unusable(folder, error) from error


def unusable(folder: Path, error: Exception) -> StoreError:
    """What a person should read, and do."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, JournalFormatError) and error.version is not None:
        text = f"{error.path} was written by another version (format {error.version}, this one reads {VERSION})"
        return StoreError(f"{text}; use what wrote it, or give this broker another folder with --data")
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreError(f"the disk is full: {folder} cannot be written; make room on it")
        return StoreError(f"{folder} cannot be used: {error.strerror}; check the folder, its owner and the disk")
    if isinstance(error, JournalDamaged):
        path, what = error.path, error.what
    elif isinstance(error, JournalFormatError):
        path, what = error.path, "it is not a part of a journal"
    else:
        path, what = folder, str(error)
    text = f"{path} is damaged: {what}"
    return StoreError(f"{text}; restore {folder} from a copy, or move it away to start with an empty store")


def _lock(folder: Path) -> int:
    """Two brokers must not share a folder: the second one is told so. Released when the process ends, in any way."""
    try:
        return lock_folder(folder)
    except FolderInUse:
        text = f"the data folder {folder} is in use by another broker"
        raise StoreError(f"{text}; stop that one, or give this one another folder with --data") from None
    except OSError as error:
        raise StoreError(f"the data folder {folder} cannot be used: {error.strerror}") from error
