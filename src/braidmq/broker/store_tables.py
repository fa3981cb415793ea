"""What the tables of a store hold, as a broker that starts needs it (`Snapshot`).

Rows of a session that is gone, and messages that nobody waits for, are left out, and named so that they can be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import msgspec

from braidmq.broker.message import Delivery, Message
from braidmq.broker.store import SavedDelivery, SavedSession, SavedWill, Snapshot
from braidmq.broker.store_changes import (
    CURSOR,
    DELIVERY,
    IN_FLIGHT,
    MESSAGE,
    PART,
    RECEIVED,
    RELEASED,
    RETAINED,
    SENT,
    SESSION,
    SUBSCRIPTION,
    WILL,
    WRITER,
)
from braidmq.broker.subscription import Subscribed
from braidmq.journal.keyed_tables import KeyedTables
from braidmq.journal.operation import DELETE, DELETE_GROUP, Change, Part
from braidmq.mqtt.packets import Will
from braidmq.mqtt.wire import string

CHUNK_ROWS: Final = 10_000
"""How many rows are decoded together, which costs a third of decoding each."""
_ARRAY: Final = b"\xdd"
"""A MessagePack array with its length in four bytes."""


def _decoder(of: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(list[of])


_SESSIONS: Final = _decoder(tuple[str, int, float | None, str | None])
_SUBSCRIPTIONS: Final = _decoder(tuple[int, bool, bool, int])
_MESSAGES: Final = _decoder(tuple[str, bytes, int, bool, str, bytes, float | None])
_DELIVERIES: Final = _decoder(tuple[int, int, int, bool, tuple[int, ...], str])
_PACKET_IDS: Final = _decoder(int)
_RETAINED: Final = _decoder(tuple[bytes, int, str, bytes, float | None, float])
_WILLS: Final = _decoder(tuple[bytes, float | None, str | None])
_ROWS: Final = _decoder(bytes)
_PARTS: Final = _decoder(tuple[int, bytes])
_decode_will: Final = msgspec.msgpack.Decoder(Will).decode


class LostRow(Exception):
    """A row that another one refers to is missing."""


class StoreTables:
    """Reads all tables; `load` raises MsgspecError or LostRow if they make no sense."""

    def __init__(self, tables: KeyedTables[msgspec.Raw]) -> None:
        self._tables = tables
        self.sweep: list[Change] = []
        """Deletes what was left out."""

    def last(self, table: int) -> int:
        """The highest number of a row; 0 if there is none."""
        return max((key for key in self._tables.group(table) if isinstance(key, int)), default=0)

    def load(self) -> Snapshot:
        sessions = self._sessions()
        self._add_deliveries(sessions)
        tables = self._tables
        return Snapshot(
            list(sessions.values()),
            self._retained(),
            [SavedWill(one, _decode_will(will), *rest) for one, (will, *rest) in _rows(tables.group(WILL), _WILLS)],
            [row for _, row in sorted(_rows(tables.group(SENT), _ROWS))],
            list(_rows(tables.group(CURSOR), _ROWS)),
            list(_rows(tables.group(WRITER), _ROWS)),
            self._parts(),
        )

    def _sessions(self) -> dict[int, SavedSession]:
        found = sorted(_rows(self._tables.group(SESSION), _SESSIONS))
        sessions = {row: SavedSession(row, *values) for row, values in found}
        for number, group in self._groups_of(SUBSCRIPTION, sessions):
            for full_filter, values in _rows(group, _SUBSCRIPTIONS):
                sessions[number].subscriptions[full_filter] = Subscribed(*values)
        for number, group in self._groups_of(RECEIVED, sessions):
            sessions[number].received.update(group)
        return sessions

    def _groups_of(self, table: int, sessions: dict[int, SavedSession]) -> Iterator[tuple[int, dict[Any, Any]]]:
        for number, group in self._tables.groups(table).items():
            if number in sessions:
                yield int(number), group
            else:
                self.sweep.append((DELETE_GROUP, table, number))

    def _add_deliveries(self, sessions: dict[int, SavedSession]) -> None:
        messages = self._messages()
        packet_ids: dict[int, int] = dict(_rows(self._tables.group(IN_FLIGHT), _PACKET_IDS))
        for row, (session, message, qos, retain, ids, group) in _rows(self._tables.group(DELIVERY), _DELIVERIES):
            packet_id = packet_ids.pop(row, 0)
            if session not in sessions:
                self._sweep(DELIVERY, row)
                if packet_id:
                    self._sweep(IN_FLIGHT, row)
                continue
            is_released = packet_id >= RELEASED
            one = Message("", b"", b"", 0) if is_released else messages.get(message)
            if one is None:
                raise LostRow(f"delivery {row} has lost its message")
            if not is_released:
                one.holders += 1
            delivery = Delivery(one, qos, retain, ids, group, packet_id & ~RELEASED, row)
            sessions[session].deliveries.append(SavedDelivery(delivery, is_released))
        for row in packet_ids:
            self._sweep(IN_FLIGHT, row)
        for row, one in messages.items():
            if not one.holders:
                self._sweep(MESSAGE, row)

    def _messages(self) -> dict[int, Message]:
        names: dict[str, tuple[str, bytes]] = {}
        messages = {}
        for row, (topic, payload, qos, retain, sender, forward, expires_at) in _rows(
            self._tables.group(MESSAGE), _MESSAGES
        ):
            named = names.get(topic)
            if named is None:
                named = names[topic] = topic, string(topic)
            messages[row] = Message(*named, payload, qos, retain, sender, forward, expires_at, row)
        return messages

    def _retained(self) -> list[Message]:
        return [
            Message(topic, string(topic), payload, qos, True, sender, forward, expires_at, at=at)
            for topic, (payload, qos, sender, forward, expires_at, at) in _rows(self._tables.group(RETAINED), _RETAINED)
        ]

    def _parts(self) -> list[tuple[str, int, int, bytes]]:
        return sorted(
            (
                (str(writer), batch, number, rows)
                for writer, parts in self._tables.groups(PART).items()
                for number, (batch, rows) in _rows(parts, _PARTS)
            ),
            key=itemgetter(0, 2),
        )

    def _sweep(self, table: int, row: int) -> None:
        self.sweep.append((DELETE, table, 0, row))


def _rows(group: dict[Part, msgspec.Raw], decoder: msgspec.msgpack.Decoder[Any]) -> Iterator[tuple[Any, Any]]:
    """Key and value of each row, in their order."""
    rows = iter(group.items())
    while chunk := list(islice(rows, CHUNK_ROWS)):
        body = b"".join((_ARRAY, len(chunk).to_bytes(4), *(value for _, value in chunk)))
        yield from zip((key for key, _ in chunk), decoder.decode(body), strict=True)
