"""The store of releases before the journal was a SQLite file: it is taken over at the first start, as a whole.

What it holds becomes the first snapshot of the journal. Once that is on the disk, the file is renamed and kept; a crash
before that repeats the take-over.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from braidmq.broker.message import Delivery, Message
from braidmq.broker.store import StoreError
from braidmq.broker.store_changes import StoreChanges
from braidmq.broker.subscription import Subscribed
from braidmq.journal.files import files_of, sync_file
from braidmq.journal.headers import FileHeader
from braidmq.journal.operation import Change
from braidmq.journal.snapshot_file import write_snapshot
from braidmq.mqtt.packets import Will
from braidmq.mqtt.wire import string

FILE_NAME: Final = "braidmq.sqlite"
VERSION: Final = 4
"""The last format; all before it are read, too."""
TAKEN_OVER: Final = ".taken-over"
"""Added to the file's name then."""

_LIVE: Final = "WHERE session IN (SELECT id FROM session)"

_log = logging.getLogger("braidmq.store")


def take_over(folder: Path, journal: Path) -> None:
    """Makes a journal of the SQLite file of a data folder, if there is one. Raises StoreError or OSError."""
    path = folder / FILE_NAME
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    if files_of(journal, "segment"):
        text = f"{folder} has a store of an earlier version, {path}, and a journal, {journal}"
        raise StoreError(f"{text}; move away the one that is not to be used")
    changes = read_changes(path)
    journal.mkdir(mode=0o700, exist_ok=True)
    header = FileHeader("snapshot", int.from_bytes(os.urandom(8)) or 1, 0, 0, 0, 0)
    write_snapshot(journal, header, map(msgspec.msgpack.Encoder().encode, changes))
    kept = _free_name(path)
    path.rename(kept)
    for end in ("-wal", "-shm"):  # SQLite leaves them where it could not finish
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + end).rename(kept.with_name(kept.name + end))
    sync_file(folder)
    _log.warning("the store of an earlier version was taken over into %s; it is kept as %s", journal, kept)


def _free_name(path: Path) -> Path:
    """A name that no file has that was kept before."""
    first = path.with_name(path.name + TAKEN_OVER)
    if not first.exists():
        return first
    return next(name for number in count(2) if not (name := first.with_name(f"{first.name}-{number}")).exists())


def read_changes(path: Path) -> list[Change]:
    """All that a SQLite store holds, as operations. Raises StoreError if it cannot be used."""
    try:
        _check_file(path)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return []  # it was just made
            return _Import(database, _version(path, database)).changes
    except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
        raise _unusable(path, error) from error


def _check_file(path: Path) -> None:
    """SQLite takes a file that is too short to be one for a new one."""
    with path.open("rb") as file:
        if file.read(512)[:16] != b"SQLite format 3\0" or file.tell() < 512:
            raise sqlite3.DatabaseError("it is no SQLite file")


def _version(path: Path, database: sqlite3.Connection) -> int:
    found = int(database.execute("PRAGMA user_version").fetchone()[0])
    if not 1 <= found <= VERSION:
        whose = f"another version (format {found}, this one reads 1 to {VERSION})" if found else "another program"
        text = f"{path} was written by {whose}"
        raise StoreError(f"{text}; use what wrote it, or give this broker another folder with --data")
    return found


def _unusable(path: Path, error: Exception) -> StoreError:
    """What a person should read, and do."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, sqlite3.OperationalError | OSError) and "no such" not in str(error):
        return StoreError(f"{path} cannot be used: {error}; check the folder, its owner and the disk")
    text = f"{path} is damaged: {error}"
    return StoreError(f"{text}; restore it from a copy, or move it away to start with an empty store")


class _Import(StoreChanges):
    """Reads the tables as an earlier version wrote them: in its format, they may have fewer columns."""

    def __init__(self, database: sqlite3.Connection, version: int) -> None:
        super().__init__()
        self._database = database
        owner = "owner" if version >= 4 else "NULL"
        self._read_sessions(owner)
        self._read_deliveries()
        self._read_retained("at" if version >= 2 else "0")
        for client_id, will, due_at, whose in self._select(f"client_id, will, due_at, {owner}", "will"):
            self.save_will(client_id, msgspec.msgpack.decode(will, type=Will), due_at, whose)
        if version >= 2:
            for offset, row in self._select("position, row", "sent ORDER BY position"):
                self.save_sent(offset, row)
            for origin, row in self._select("origin, row", "cursor"):
                self.save_cursor(origin, row)
        if version >= 3:
            for name, row in self._select("name, row", "writer"):
                self.save_writer(name, row)
            for part in self._select("writer, batch, number, rows", "part ORDER BY writer, number"):
                self.save_part(*part)

    @property
    def changes(self) -> list[Change]:
        return self._changes

    def _select(self, columns: str, source: str) -> list[tuple[Any, ...]]:
        return self._database.execute(f"SELECT {columns} FROM {source}").fetchall()  # noqa: S608

    def _read_sessions(self, owner: str) -> None:
        for row in self._select(f"id, client_id, expiry_s, ends_at, {owner}", "session ORDER BY id"):
            self.save_session(*row)
        for session, full_filter, options in self._select("session, filter, options", f"subscription {_LIVE}"):
            self.save_subscription(session, full_filter, msgspec.msgpack.decode(options, type=Subscribed))
        for session, packet_id in self._select("session, packet_id", f"received {_LIVE}"):
            self.save_received(session, packet_id)

    def _read_deliveries(self) -> None:
        messages = {}
        columns = "id, topic, payload, qos, retain, sender, forward, expires_at"
        for row, topic, payload, qos, retain, *rest in self._select(columns, "message"):
            messages[row] = Message(topic, string(topic), payload, qos, bool(retain), *rest)
        columns = "id, session, message, qos, retain, ids, share, packet_id, released"
        rows = self._select(columns, f"delivery {_LIVE} ORDER BY id")
        for row, session, message, qos, retain, ids, group, packet_id, released in rows:
            found = Message("", b"", b"", 0) if released else messages.get(message)
            if found is None:
                raise sqlite3.DatabaseError(f"delivery {row} has lost its message")
            numbers = msgspec.msgpack.decode(ids, type=tuple[int, ...])
            delivery = Delivery(found, qos, bool(retain), numbers, group, packet_id)
            self.save_delivery(session, delivery)
            if released:
                self.release_delivery(delivery)

    def _read_retained(self, at: str) -> None:
        columns = f"topic, payload, qos, sender, forward, expires_at, {at}"
        for topic, payload, qos, sender, forward, expires_at, when in self._select(columns, "retained"):
            self.save_retained(Message(topic, string(topic), payload, qos, True, sender, forward, expires_at, at=when))
