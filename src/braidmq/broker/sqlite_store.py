"""The store in SQLite: write-ahead log, one transaction a loop tick.

Calls between two commits only make a list; `commit` runs it in one transaction. With `sync = "normal"` a committed tick
survives the death of the process (`kill -9`), and with `sync = "full"` the loss of power too, for one fsync a tick.
"""

from __future__ import annotations

import os
import sqlite3
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from braidmq.broker.message import Delivery, Message
from braidmq.broker.store import SavedDelivery, SavedSession, SavedWill, Snapshot, StoreError
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt.packets import Will
from braidmq.mqtt.wire import string
from braidmq.system.folder_lock import FolderInUse, lock_folder

FILE_NAME: Final = "braidmq.sqlite"
VERSION: Final = 4

_SCHEMA: Final = """
CREATE TABLE session (
    id INTEGER PRIMARY KEY, client_id TEXT NOT NULL UNIQUE, expiry_s INTEGER NOT NULL, ends_at REAL
);
CREATE TABLE subscription (
    session INTEGER NOT NULL, filter TEXT NOT NULL, options BLOB NOT NULL, PRIMARY KEY (session, filter)
) WITHOUT ROWID;
CREATE TABLE message (
    id INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL, qos INTEGER NOT NULL, retain INTEGER NOT NULL,
    sender TEXT NOT NULL, forward BLOB NOT NULL, expires_at REAL
);
CREATE TABLE delivery (
    id INTEGER PRIMARY KEY, session INTEGER NOT NULL, message INTEGER NOT NULL, qos INTEGER NOT NULL,
    retain INTEGER NOT NULL, ids BLOB NOT NULL, share TEXT NOT NULL, packet_id INTEGER NOT NULL,
    released INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX delivery_session ON delivery (session);
CREATE TABLE received (session INTEGER NOT NULL, packet_id INTEGER NOT NULL, PRIMARY KEY (session, packet_id))
WITHOUT ROWID;
CREATE TABLE retained (
    topic TEXT PRIMARY KEY, payload BLOB NOT NULL, qos INTEGER NOT NULL, sender TEXT NOT NULL, forward BLOB NOT NULL,
    expires_at REAL
) WITHOUT ROWID;
CREATE TABLE will (client_id TEXT PRIMARY KEY, will BLOB NOT NULL, due_at REAL) WITHOUT ROWID;
"""

_SINCE_2: Final = """
CREATE TABLE sent (position INTEGER PRIMARY KEY, row BLOB NOT NULL);
CREATE TABLE cursor (origin TEXT PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID;
ALTER TABLE retained ADD COLUMN at REAL NOT NULL DEFAULT 0;
"""
_SINCE_3: Final = """
CREATE TABLE writer (name TEXT PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE part (
    writer TEXT NOT NULL, batch INTEGER NOT NULL, number INTEGER NOT NULL, rows BLOB NOT NULL,
    PRIMARY KEY (writer, number)
);
"""
_SINCE_4: Final = """
ALTER TABLE session ADD COLUMN owner TEXT;
ALTER TABLE will ADD COLUMN owner TEXT;
"""
_STEPS: Final = (_SCHEMA, _SINCE_2, _SINCE_3, _SINCE_4)
"""What each version has more than the one before it."""

_SAVE_SESSION: Final = (
    "INSERT INTO session VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) "
    "DO UPDATE SET expiry_s = excluded.expiry_s, ends_at = excluded.ends_at, owner = excluded.owner"
)
_DROP_SESSION: Final = (
    "DELETE FROM session WHERE id = ?",
    "DELETE FROM subscription WHERE session = ?",
    "DELETE FROM delivery WHERE session = ?",
    "DELETE FROM received WHERE session = ?",
)
_SAVE_SUBSCRIPTION: Final = "INSERT OR REPLACE INTO subscription VALUES (?, ?, ?)"
_DROP_SUBSCRIPTION: Final = "DELETE FROM subscription WHERE session = ? AND filter = ?"
_ADD_MESSAGE: Final = "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DROP_MESSAGE: Final = "DELETE FROM message WHERE id = ?"
_ADD_DELIVERY: Final = "INSERT INTO delivery VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)"
_SENT_DELIVERY: Final = "UPDATE delivery SET packet_id = ? WHERE id = ?"
_RELEASE_DELIVERY: Final = "UPDATE delivery SET released = 1, message = 0 WHERE id = ?"
_DROP_DELIVERY: Final = "DELETE FROM delivery WHERE id = ?"
_SAVE_RECEIVED: Final = "INSERT OR IGNORE INTO received VALUES (?, ?)"
_DROP_RECEIVED: Final = "DELETE FROM received WHERE session = ? AND packet_id = ?"
_SAVE_RETAINED: Final = "INSERT OR REPLACE INTO retained VALUES (?, ?, ?, ?, ?, ?, ?)"
_DROP_RETAINED: Final = "DELETE FROM retained WHERE topic = ?"
_SAVE_WILL: Final = "INSERT OR REPLACE INTO will VALUES (?, ?, ?, ?)"
_DROP_WILL: Final = "DELETE FROM will WHERE client_id = ?"
_SAVE_SENT: Final = "INSERT OR REPLACE INTO sent VALUES (?, ?)"
_DROP_SENT: Final = "DELETE FROM sent WHERE position <= ?"
_SAVE_CURSOR: Final = "INSERT OR REPLACE INTO cursor VALUES (?, ?)"
_DROP_CURSOR: Final = "DELETE FROM cursor WHERE origin = ?"
_SAVE_WRITER: Final = "INSERT OR REPLACE INTO writer VALUES (?, ?)"
_DROP_WRITER: Final = "DELETE FROM writer WHERE name = ?"
_SAVE_PART: Final = "INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?)"
_DROP_PARTS: Final = "DELETE FROM part WHERE writer = ?"


class SqliteStore:
    def __init__(self, folder: Path, sync: Literal["normal", "full"] = "normal") -> None:
        self.path = folder / FILE_NAME
        self.dirty = False
        self._changes: list[tuple[str, tuple[Any, ...]]] = []
        self._lock = _lock(folder)
        try:
            self._check_file()
            self._db = sqlite3.connect(self.path, isolation_level=None)
        except (sqlite3.Error, OSError) as error:
            os.close(self._lock)
            raise self._unusable(error) from error
        try:
            self._prepare()
            self._db.execute(f"PRAGMA synchronous = {sync.upper()}")
            self._last_session = self._maximum("session")
            self._last_message = self._maximum("message")
            self._last_delivery = self._maximum("delivery")
        except (sqlite3.Error, StoreError) as error:
            self.close()
            raise self._unusable(error) from error

    def _check_file(self) -> None:
        """SQLite takes a file that is too short to be one for a new one, and would write over it."""
        if self.path.exists() and self.path.stat().st_size:
            with self.path.open("rb") as file:
                if file.read(512)[:16] != b"SQLite format 3\0" or file.tell() < 512:
                    raise sqlite3.DatabaseError("it is no SQLite file")

    def _prepare(self) -> None:
        """Looks whose file it is before anything is written to it."""
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        is_empty = not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not 1 <= found <= VERSION and not (found == 0 and is_empty):
            whose = f"another version (format {found}, this one reads 1 to {VERSION})" if found else "another program"
            text = f"{self.path} was written by {whose}"
            raise StoreError(f"{text}; use what wrote it, or give this broker another folder with --data")
        self._db.execute("PRAGMA journal_mode = WAL")
        if is_empty or found < VERSION:
            steps = "".join(_STEPS[0 if is_empty else found :])
            self._db.executescript(f"BEGIN; {steps} PRAGMA user_version = {VERSION}; COMMIT;")

    def _maximum(self, table: str) -> int:
        return int(self._db.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()[0])  # noqa: S608

    def _unusable(self, error: Exception) -> StoreError:
        """What a person should read, and do."""
        if isinstance(error, StoreError):
            return error
        if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
            return StoreError(f"the disk is full: {self.path} cannot be written; make room on it")
        if isinstance(error, sqlite3.OperationalError | OSError) and "no such" not in str(error):
            return StoreError(f"{self.path} cannot be used: {error}; check the folder, its owner and the disk")
        text = f"{self.path} is damaged: {error}"
        return StoreError(f"{text}; restore it from a copy, or move it away to start with an empty store")

    def commit(self) -> None:
        changes = self._changes
        db = self._db
        try:
            db.execute("BEGIN")
            for sql, rows in groupby(changes, itemgetter(0)):
                db.executemany(sql, [row for _, row in rows])
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise self._unusable(error) from error
        changes.clear()
        self.dirty = False

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    # Changes

    def _change(self, sql: str, row: tuple[Any, ...]) -> None:
        self._changes.append((sql, row))
        self.dirty = True

    def next_row(self) -> int:
        self._last_session += 1
        return self._last_session

    def save_session(self, row: int, client_id: str, expiry_s: int, ends_at: float | None, owner: str | None) -> None:
        self._change(_SAVE_SESSION, (row, client_id, expiry_s, ends_at, owner))

    def drop_session(self, row: int) -> None:
        for sql in _DROP_SESSION:
            self._change(sql, (row,))

    def save_subscription(self, session: int, full_filter: str, subscribed: Subscribed) -> None:
        self._change(_SAVE_SUBSCRIPTION, (session, full_filter, msgspec.msgpack.encode(subscribed)))

    def drop_subscription(self, session: int, full_filter: str) -> None:
        self._change(_DROP_SUBSCRIPTION, (session, full_filter))

    def save_delivery(self, session: int, delivery: Delivery) -> None:
        if delivery.row:
            self._change(_SENT_DELIVERY, (delivery.packet_id, delivery.row))
            return
        m = delivery.message
        if not m.row:
            self._last_message += 1
            m.row = self._last_message
            row = (m.row, m.topic, m.payload, m.qos, m.retain, m.sender, m.forward, m.expires_at)
            self._change(_ADD_MESSAGE, row)
        m.holders += 1
        self._last_delivery += 1
        delivery.row = self._last_delivery
        ids = msgspec.msgpack.encode(delivery.ids)
        values = (session, m.row, delivery.qos, delivery.retain, ids, delivery.group, delivery.packet_id)
        self._change(_ADD_DELIVERY, (delivery.row, *values))

    def release_delivery(self, delivery: Delivery) -> None:
        self._change(_RELEASE_DELIVERY, (delivery.row,))
        self._let_go(delivery.message)

    def drop_delivery(self, delivery: Delivery) -> None:
        self._change(_DROP_DELIVERY, (delivery.row,))
        delivery.row = 0
        self._let_go(delivery.message)

    def _let_go(self, message: Message) -> None:
        if message.row:
            message.holders -= 1
            if not message.holders:
                self._change(_DROP_MESSAGE, (message.row,))
                message.row = 0

    def save_received(self, session: int, packet_id: int) -> None:
        self._change(_SAVE_RECEIVED, (session, packet_id))

    def drop_received(self, session: int, packet_id: int) -> None:
        self._change(_DROP_RECEIVED, (session, packet_id))

    def save_retained(self, message: Message) -> None:
        m = message
        self._change(_SAVE_RETAINED, (m.topic, m.payload, m.qos, m.sender, m.forward, m.expires_at, m.at))

    def drop_retained(self, topic: str) -> None:
        self._change(_DROP_RETAINED, (topic,))

    def save_will(self, client_id: str, will: Will, due_at: float | None, owner: str | None) -> None:
        self._change(_SAVE_WILL, (client_id, msgspec.msgpack.encode(will), due_at, owner))

    def drop_will(self, client_id: str) -> None:
        self._change(_DROP_WILL, (client_id,))

    def save_sent(self, offset: int, row: bytes) -> None:
        self._change(_SAVE_SENT, (offset, row))

    def drop_sent(self, up_to: int) -> None:
        self._change(_DROP_SENT, (up_to,))

    def save_cursor(self, origin: str, row: bytes) -> None:
        self._change(_SAVE_CURSOR, (origin, row))

    def drop_cursor(self, origin: str) -> None:
        self._change(_DROP_CURSOR, (origin,))

    def save_writer(self, name: str, row: bytes) -> None:
        self._change(_SAVE_WRITER, (name, row))

    def drop_writer(self, name: str) -> None:
        self._change(_DROP_WRITER, (name,))

    def save_part(self, writer: str, batch: int, number: int, rows: bytes) -> None:
        self._change(_SAVE_PART, (writer, batch, number, rows))

    def drop_parts(self, writer: str) -> None:
        self._change(_DROP_PARTS, (writer,))

    # What an earlier process left

    def load(self) -> Snapshot:
        try:
            for table in ("subscription", "received", "delivery"):
                self._db.execute(f"DELETE FROM {table} WHERE session NOT IN (SELECT id FROM session)")  # noqa: S608
            self._db.execute("DELETE FROM message WHERE id NOT IN (SELECT message FROM delivery)")
            sessions = self._load_sessions()
            self._load_deliveries(sessions)
            sent = [row for (row,) in self._db.execute("SELECT row FROM sent ORDER BY position")]
            cursors = self._db.execute("SELECT * FROM cursor").fetchall()
            writers = self._db.execute("SELECT * FROM writer").fetchall()
            parts = self._db.execute("SELECT * FROM part ORDER BY writer, number").fetchall()
            retained, wills = self._load_retained(), self._load_wills()
            return Snapshot(list(sessions.values()), retained, wills, sent, cursors, writers, parts)
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise self._unusable(error) from error

    def _load_sessions(self) -> dict[int, SavedSession]:
        sessions = {row[0]: SavedSession(*row) for row in self._db.execute("SELECT * FROM session ORDER BY id")}
        for session, full_filter, options in self._db.execute("SELECT * FROM subscription"):
            sessions[session].subscriptions[full_filter] = msgspec.msgpack.decode(options, type=Subscribed)
        for session, packet_id in self._db.execute("SELECT * FROM received"):
            sessions[session].received.add(packet_id)
        return sessions

    def _load_deliveries(self, sessions: dict[int, SavedSession]) -> None:
        messages = {0: Message("", b"", b"", 0)}
        for row, topic, payload, qos, retain, sender, forward, expires_at in self._db.execute("SELECT * FROM message"):
            messages[row] = Message(topic, string(topic), payload, qos, bool(retain), sender, forward, expires_at, row)
        rows = self._db.execute("SELECT * FROM delivery ORDER BY id")
        for row, session, message, qos, retain, ids, group, packet_id, released in rows:
            if message not in messages:
                raise sqlite3.DatabaseError(f"delivery {row} has lost its message")
            numbers = msgspec.msgpack.decode(ids, type=tuple[int, ...])
            delivery = Delivery(messages[message], qos, bool(retain), numbers, group, packet_id, row)
            if message:
                delivery.message.holders += 1
            sessions[session].deliveries.append(SavedDelivery(delivery, bool(released)))

    def _load_retained(self) -> list[Message]:
        return [
            Message(topic, string(topic), payload, qos, True, sender, forward, expires_at, at=at)
            for topic, payload, qos, sender, forward, expires_at, at in self._db.execute("SELECT * FROM retained")
        ]

    def _load_wills(self) -> list[SavedWill]:
        rows = self._db.execute("SELECT * FROM will")
        return [SavedWill(one, msgspec.msgpack.decode(will, type=Will), *rest) for one, will, *rest in rows]


def _lock(folder: Path) -> int:
    """Two brokers must not share a folder: the second one is told so. Released when the process ends, in any way."""
    try:
        return lock_folder(folder)
    except FolderInUse:
        text = f"the data folder {folder} is in use by another broker"
        raise StoreError(f"{text}; stop that one, or give this one another folder with --data") from None
    except OSError as error:
        raise StoreError(f"the data folder {folder} cannot be used: {error.strerror}") from error
