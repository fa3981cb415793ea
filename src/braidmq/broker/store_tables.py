"""What the tables of a store hold, as a broker that starts needs it (`Snapshot`).

Rows of a session that is gone, and messages that nobody waits for, are left out, and named so that they can be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec.msgpack import Decoder

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

_SESSION: Final = Decoder(tuple[str, int, float | None, str | None])
_SUBSCRIPTION: Final = Decoder(tuple[int, bool, bool, int])
_MESSAGE: Final = Decoder(tuple[str, bytes, int, bool, str, bytes, float | None])
_DELIVERY: Final = Decoder(tuple[int, int, int, bool, tuple[int, ...], str])
_PACKET_ID: Final = Decoder(int)
_RETAINED: Final = Decoder(tuple[bytes, int, str, bytes, float | None, float])
_WILL: Final = Decoder(tuple[bytes, float | None, str | None])
_ROW: Final = Decoder(bytes)
_PART: Final = Decoder(tuple[int, bytes])
_decode_will: Final = Decoder(Will).decode


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
            [SavedWill(one, _decode_will(will), *rest) for one, (will, *rest) in _rows(tables.group(WILL), _WILL)],
            [row for _, row in sorted(_rows(tables.group(SENT), _ROW))],
            list(_rows(tables.group(CURSOR), _ROW)),
            list(_rows(tables.group(WRITER), _ROW)),
            self._parts(),
        )

    def _sessions(self) -> dict[int, SavedSession]:
        found = sorted(_rows(self._tables.group(SESSION), _SESSION))
        sessions = {row: SavedSession(row, *values) for row, values in found}
        for number, group in self._groups_of(SUBSCRIPTION, sessions):
            for full_filter, values in _rows(group, _SUBSCRIPTION):
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
        packet_ids: dict[int, int] = dict(_rows(self._tables.group(IN_FLIGHT), _PACKET_ID))
        deliveries = {number: session.deliveries for number, session in sessions.items()}
        for row, (session, message, qos, retain, ids, group) in _rows(self._tables.group(DELIVERY), _DELIVERY):
            of_session = deliveries.get(session)
            if of_session is None:
                self._sweep(DELIVERY, row)
                continue
            packet_id = packet_ids.pop(row, 0) if packet_ids else 0
            if packet_id >= RELEASED:
                delivery = Delivery(Message("", b"", b"", 0), qos, retain, ids, group, packet_id - RELEASED, row)
                of_session.append(SavedDelivery(delivery, True))
                continue
            one = messages.get(message)
            if one is None:
                raise LostRow(f"delivery {row} has lost its message")
            one.holders += 1
            of_session.append(SavedDelivery(Delivery(one, qos, retain, ids, group, packet_id, row), False))
        for row in packet_ids:
            self._sweep(IN_FLIGHT, row)
        for row, one in messages.items():
            if not one.holders:
                self._sweep(MESSAGE, row)

    def _messages(self) -> dict[int, Message]:
        names: dict[str, bytes] = {}
        messages = {}
        for row, (topic, payload, qos, retain, sender, forward, expires_at) in _rows(
            self._tables.group(MESSAGE), _MESSAGE
        ):
            name = names.get(topic)
            if name is None:
                name = names[topic] = string(topic)
            messages[row] = Message(topic, name, payload, qos, retain, sender, forward, expires_at, row)
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
                for number, (batch, rows) in _rows(parts, _PART)
            ),
            key=itemgetter(0, 2),
        )

    def _sweep(self, table: int, row: int) -> None:
        self.sweep.append((DELETE, table, 0, row))


def _rows(group: dict[Part, msgspec.Raw], decoder: Decoder[Any]) -> Iterator[tuple[Any, Any]]:
    """Key and value of each row, in their order."""
    return zip(group, map(decoder.decode, group.values()), strict=True)
