"""The calls of a store as operations of a journal (`braidmq.journal.operation`), in the order in which they came.

A message is written once, however many deliveries refer to it, and goes with the last of them. A delivery is a small
row of its own. That it was sent or released is a row beside it, so that it costs a few bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from braidmq.broker.message import Delivery, Message
from braidmq.broker.subscription import Subscribed
from braidmq.journal.operation import DELETE, DELETE_GROUP, DELETE_UP_TO, PUT, Change
from braidmq.mqtt.packets import Will

# Tables, and their rows as group, key → value. Numbers are never used again for something else.
SESSION: Final = 1
"""0, session → client id, expiry, end, owner"""
SUBSCRIPTION: Final = 2
"""session, filter → QoS, no-local, retain as published, identifier"""
RECEIVED: Final = 3
"""session, packet id → None"""
MESSAGE: Final = 4
"""0, message → topic, payload, QoS, retain, sender, forward, expiry"""
DELIVERY: Final = 5
"""0, delivery → session, message, QoS, retain, identifiers, shared subscription"""
IN_FLIGHT: Final = 6
"""0, delivery → packet id, with RELEASED once the client has it"""
RETAINED: Final = 7
"""0, topic → payload, QoS, sender, forward, expiry, time"""
WILL: Final = 8
"""0, client id → will, due time, owner"""
SENT: Final = 9
"""0, offset → row"""
CURSOR: Final = 10
"""0, origin → row"""
WRITER: Final = 11
"""0, name → row"""
PART: Final = 12
"""writer, number → batch, rows"""

RELEASED: Final = 1 << 16
"""Beside a packet id."""

_encode: Final = msgspec.msgpack.Encoder().encode


class StoreChanges:
    """What waits for a commit."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._last_session = self._last_message = self._last_delivery = 0

    @property
    def dirty(self) -> bool:
        """Whether something waits for a commit."""
        return bool(self._changes)

    def next_row(self) -> int:
        """A session number that was never used."""
        self._last_session += 1
        return self._last_session

    # Sessions

    def save_session(self, row: int, client_id: str, expiry_s: int, ends_at: float | None, owner: str | None) -> None:
        self._changes.append((PUT, SESSION, 0, row, (client_id, expiry_s, ends_at, owner)))

    def drop_session(self, row: int) -> None:
        """What it still has of deliveries is dropped one by one, or found to be nobody's at the next start."""
        self._changes += ((DELETE, SESSION, 0, row), (DELETE_GROUP, SUBSCRIPTION, row), (DELETE_GROUP, RECEIVED, row))

    def save_subscription(self, session: int, full_filter: str, subscribed: Subscribed) -> None:
        value = (subscribed.qos, subscribed.no_local, subscribed.retain_as_published, subscribed.identifier)
        self._changes.append((PUT, SUBSCRIPTION, session, full_filter, value))

    def drop_subscription(self, session: int, full_filter: str) -> None:
        self._changes.append((DELETE, SUBSCRIPTION, session, full_filter))

    def save_received(self, session: int, packet_id: int) -> None:
        self._changes.append((PUT, RECEIVED, session, packet_id, None))

    def drop_received(self, session: int, packet_id: int) -> None:
        self._changes.append((DELETE, RECEIVED, session, packet_id))

    # Deliveries

    def save_delivery(self, session: int, delivery: Delivery) -> None:
        """Adds a delivery, or notes the packet id of one that is there."""
        row = delivery.row
        if not row:
            m = delivery.message
            if not m.row:
                self._last_message += 1
                m.row = self._last_message
                value = (m.topic, m.payload, m.qos, m.retain, m.sender, m.forward, m.expires_at)
                self._changes.append((PUT, MESSAGE, 0, m.row, value))
            m.holders += 1
            self._last_delivery += 1
            delivery.row = row = self._last_delivery
            refers = (session, m.row, delivery.qos, delivery.retain, delivery.ids, delivery.group)
            self._changes.append((PUT, DELIVERY, 0, row, refers))
        if delivery.packet_id:
            self._changes.append((PUT, IN_FLIGHT, 0, row, delivery.packet_id))

    def release_delivery(self, delivery: Delivery) -> None:
        self._changes.append((PUT, IN_FLIGHT, 0, delivery.row, delivery.packet_id | RELEASED))
        self._let_go(delivery.message)

    def drop_delivery(self, delivery: Delivery) -> None:
        self._changes.append((DELETE, DELIVERY, 0, delivery.row))
        if delivery.packet_id:
            self._changes.append((DELETE, IN_FLIGHT, 0, delivery.row))
        delivery.row = 0
        self._let_go(delivery.message)

    def _let_go(self, message: Message) -> None:
        if message.row:
            message.holders -= 1
            if not message.holders:
                self._changes.append((DELETE, MESSAGE, 0, message.row))
                message.row = 0

    # Retained messages and wills

    def save_retained(self, message: Message) -> None:
        m = message
        value = (m.payload, m.qos, m.sender, m.forward, m.expires_at, m.at)
        self._changes.append((PUT, RETAINED, 0, m.topic, value))

    def drop_retained(self, topic: str) -> None:
        self._changes.append((DELETE, RETAINED, 0, topic))

    def save_will(self, client_id: str, will: Will, due_at: float | None, owner: str | None) -> None:
        self._changes.append((PUT, WILL, 0, client_id, (_encode(will), due_at, owner)))

    def drop_will(self, client_id: str) -> None:
        self._changes.append((DELETE, WILL, 0, client_id))

    # What the braid and the writers of transactions keep here

    def save_sent(self, offset: int, row: bytes) -> None:
        self._changes.append((PUT, SENT, 0, offset, row))

    def drop_sent(self, up_to: int) -> None:
        """Forgets the history up to and including an offset."""
        self._changes.append((DELETE_UP_TO, SENT, 0, up_to))

    def save_cursor(self, origin: str, row: bytes) -> None:
        self._changes.append((PUT, CURSOR, 0, origin, row))

    def drop_cursor(self, origin: str) -> None:
        self._changes.append((DELETE, CURSOR, 0, origin))

    def save_writer(self, name: str, row: bytes) -> None:
        self._changes.append((PUT, WRITER, 0, name, row))

    def drop_writer(self, name: str) -> None:
        self._changes.append((DELETE, WRITER, 0, name))

    def save_part(self, writer: str, batch: int, number: int, rows: bytes) -> None:
        self._changes.append((PUT, PART, writer, number, (batch, rows)))

    def drop_parts(self, writer: str) -> None:
        """Forgets all parts of a writer's batch."""
        self._changes.append((DELETE_GROUP, PART, writer))
