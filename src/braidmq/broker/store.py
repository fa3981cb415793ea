"""What must survive the process, behind a narrow interface.

The broker calls the small methods while it works and `commit` once a loop tick, before anything that those calls were
made for is acknowledged. `MemoryStore` keeps nothing: for a broker without a data folder, and for tests.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from braidmq.broker.message import Delivery, Message
from braidmq.broker.shares import Subscribed
from braidmq.mqtt.packets import Will


class StoreError(OSError):
    """The store cannot be used; the text says why and what to do."""


class SavedDelivery(msgspec.Struct):
    delivery: Delivery
    released: bool


class SavedSession(msgspec.Struct):
    """A session as it was last committed. `ends_at` (Unix time) is None for one that was connected or never ends."""

    row: int
    client_id: str
    expiry_s: int
    ends_at: float | None
    subscriptions: dict[str, Subscribed] = {}
    deliveries: list[SavedDelivery] = []
    received: set[int] = set()


class Snapshot(msgspec.Struct):
    """All that a store holds when the broker starts."""

    sessions: list[SavedSession] = []
    retained: list[Message] = []
    wills: dict[str, tuple[Will, float | None]] = {}
    """By client id: the will, and when it is due (Unix time; None: its client was connected)."""


class Store(Protocol):
    dirty: bool
    """Whether something waits for a commit."""

    def load(self) -> Snapshot: ...
    def commit(self) -> None:
        """Makes all calls since the last commit durable, or raises StoreError and keeps them for the next try."""
        ...

    def close(self) -> None: ...

    def next_row(self) -> int:
        """A session number that was never used."""
        ...

    def save_session(self, row: int, client_id: str, expiry_s: int, ends_at: float | None) -> None: ...
    def drop_session(self, row: int) -> None: ...
    def save_subscription(self, session: int, full_filter: str, subscribed: Subscribed) -> None: ...
    def drop_subscription(self, session: int, full_filter: str) -> None: ...
    def save_delivery(self, session: int, delivery: Delivery) -> None:
        """Adds a delivery, or notes the packet id of one that is there."""
        ...

    def release_delivery(self, delivery: Delivery) -> None: ...
    def drop_delivery(self, delivery: Delivery) -> None: ...
    def save_received(self, session: int, packet_id: int) -> None: ...
    def drop_received(self, session: int, packet_id: int) -> None: ...
    def save_retained(self, message: Message) -> None: ...
    def drop_retained(self, topic: str) -> None: ...
    def save_will(self, client_id: str, will: Will, due_at: float | None) -> None: ...
    def drop_will(self, client_id: str) -> None: ...


class MemoryStore:
    """Keeps nothing beyond the process: every call is already done."""

    dirty = False

    def __init__(self) -> None:
        self._rows = 0

    def load(self) -> Snapshot:
        return Snapshot()

    def next_row(self) -> int:
        self._rows += 1
        return self._rows

    def commit(self) -> None: ...
    def close(self) -> None: ...
    def save_session(self, row: int, client_id: str, expiry_s: int, ends_at: float | None) -> None: ...
    def drop_session(self, row: int) -> None: ...
    def save_subscription(self, session: int, full_filter: str, subscribed: Subscribed) -> None: ...
    def drop_subscription(self, session: int, full_filter: str) -> None: ...
    def save_delivery(self, session: int, delivery: Delivery) -> None: ...
    def release_delivery(self, delivery: Delivery) -> None: ...
    def drop_delivery(self, delivery: Delivery) -> None: ...
    def save_received(self, session: int, packet_id: int) -> None: ...
    def drop_received(self, session: int, packet_id: int) -> None: ...
    def save_retained(self, message: Message) -> None: ...
    def drop_retained(self, topic: str) -> None: ...
    def save_will(self, client_id: str, will: Will, due_at: float | None) -> None: ...
    def drop_will(self, client_id: str) -> None: ...
