"""Sessions on their way from one broker to another: what travels, and how nothing of it comes twice.

A publication of QoS 1 or 2 has a mark: its origin and its place in the origin's history. While a session moves, both
brokers stand for its filters, so that nothing is missed; the marks tell what is the same. The giver says how far it has
followed the histories when it took the session's state (`Horizon`): whatever lies within is in that state or was
acknowledged before. The taker drops that, and everything whose mark it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from braidmq.braid.transfer.batch import BatchItem, item_of, message_of
from braidmq.broker.backlog import NOTHING, Backlog
from braidmq.broker.broker import Broker
from braidmq.broker.message import Delivery, Message
from braidmq.broker.session import Session
from braidmq.broker.shares import Subscribed

SEEN_MAX = 65_536
"""Marks that a session remembers while it may get publications on two ways."""

SEEN_FEW = 1024
"""Up to so many marks are written with each commit, more of them now and then."""

Mark = tuple[str, int]
"""An origin, and an offset in its history."""

Ranges = tuple[tuple[int, int], ...]


class Moved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delivery that has not come to its end, as it travels. One that is released has no message any more."""

    topic: str
    item: BatchItem
    qos: int
    retain: bool
    ids: tuple[int, ...]
    group: str
    packet_id: int
    released: bool = False
    mark: Mark | None = None

    @property
    def size(self) -> int:
        return len(self.topic) + len(self.item.payload) + len(self.item.forward) + len(self.group) + 64


Row = tuple[str, int, Ranges]
"""Of an origin's history: everything up to an offset, and ranges behind it."""


class Horizon:
    """How far the histories were followed."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)
        self._by_origin: dict[str, list[tuple[int, Ranges]]] = {}
        for origin, floor, ranges in self.rows:
            self._by_origin.setdefault(origin, []).append((floor, ranges))

    def covers(self, mark: Mark) -> bool:
        for floor, ranges in self._by_origin.get(mark[0], ()):
            if mark[1] <= floor or any(low <= mark[1] <= high for low, high in ranges):
                return True
        return False


class SavedMove(msgspec.Struct, frozen=True, array_like=True):
    """What is kept in the store of a session that has come, while it looks at marks."""

    giver: str
    horizon: tuple[Row, ...]


def rows_of(marks: Iterable[Mark]) -> list[Row]:
    """Single marks, as ranges."""
    found: dict[str, list[tuple[int, int]]] = {}
    for origin, offset in sorted(marks):
        ranges = found.setdefault(origin, [])
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1] = (ranges[-1][0], offset)
        else:
            ranges.append((offset, offset))
    return [(origin, 0, tuple(ranges)) for origin, ranges in found.items()]


class Marks:
    """Tells a session which mark the publication has that it is being given."""

    def __init__(self) -> None:
        self.current: Mark | None = None
        """Of the publication of another broker that is being delivered now."""
        self._unmarked: list[tuple[Message, Callable[[Mark], None]]] = []

    def when_marked(self, message: Message, note: Callable[[Mark], None]) -> None:
        """A publication from here gets its mark when it leaves for the others, directly after it is delivered here."""
        if self._unmarked and self._unmarked[-1][0] is not message:
            self._unmarked.clear()
        self._unmarked.append((message, note))

    def set(self, message: Message, mark: Mark) -> None:
        for one, note in self._unmarked:
            if one is message:
                note(mark)
        self._unmarked.clear()


class MarkedDelivery:
    """A publication that came while the session was under way."""

    __slots__ = ("delivery", "mark")

    def __init__(self, delivery: Delivery, mark: Mark | None) -> None:
        self.delivery = delivery
        self.mark = mark

    def note(self, mark: Mark) -> None:
        self.mark = mark


class RoamingSession(Session):
    """A session that comes from another broker. It gathers what arrives here until its state has come, and then, while
    late publications may still be passed on from there, looks at marks."""

    __slots__ = ("_gathered", "_horizon", "_marks", "_seen", "has_news")

    def __init__(self, broker: Broker, client_id: str, row: int, expiry_s: int, marks: Marks) -> None:
        super().__init__(broker, client_id, row)
        self.expiry_s = expiry_s
        self._marks = marks
        self._seen: dict[Mark, None] | None = {}
        self._horizon = Horizon(())
        self._gathered: list[MarkedDelivery] | None = []
        self.has_news = False
        """Whether it has seen marks that are not written yet."""

    @classmethod
    def instead_of(cls, session: Session, marks: Marks, horizon: Horizon) -> RoamingSession:
        """A session that had just come when the broker died: it goes on to look at marks."""
        broker = session.broker
        roaming = cls(broker, session.client_id, session.row, session.expiry_s, marks)
        roaming._horizon, roaming._gathered = horizon, None
        for name in (
            "stored",
            "owner",
            "subscriptions",
            "filter_bytes",
            "inflight",
            "released",
            "received",
            "backlog",
            "will",
        ):
            setattr(roaming, name, getattr(session, name))
        expiry, will = session.expiry_timer, session.will_timer
        if expiry is not None:
            roaming.expiry_timer = broker.timers.at(expiry.when, partial(broker.end_session, roaming))
            expiry.cancel()
        if will is not None:
            roaming.will_timer = broker.timers.at(will.when, partial(broker.wills.due, roaming))
            will.cancel()
        broker.sessions[session.client_id] = roaming
        subscribe_all(broker, roaming, session.subscriptions)
        unsubscribe_all(broker, session, session.subscriptions)
        return roaming

    @property
    def takes_plain(self) -> bool:
        return self._seen is None and super().takes_plain

    @property
    def looks_at_marks(self) -> bool:
        return self._seen is not None

    def deliver(
        self, message: Message, qos: int, retain: bool = False, ids: tuple[int, ...] = (), group: str = ""
    ) -> None:
        if self._seen is None or not qos:
            if self._gathered is None:
                super().deliver(message, qos, retain, ids, group)
            return
        mark = self._marks.current
        if mark is not None and (mark in self._seen or self._horizon.covers(mark)):
            return
        waiting = MarkedDelivery(Delivery(message, qos, retain, ids, group), mark)
        if mark is not None:
            self._note(mark)
        elif not group:
            self._marks.when_marked(message, waiting.note)
            self._marks.when_marked(message, self._note)
        if self._gathered is None:
            super().deliver(message, qos, retain, ids, group)
        elif len(self._gathered) < self.broker.limits.queue_messages_max:
            self._gathered.append(waiting)
        else:
            self.broker.metrics.messages_dropped += 1

    def _note(self, mark: Mark) -> None:
        if self._seen is not None:
            self._seen[mark] = None
            self.has_news = True
            if len(self._seen) > SEEN_MAX:
                self._seen.pop(next(iter(self._seen)))

    def arrive(self, state: Iterable[Moved], received: Iterable[int], horizon: Horizon) -> None:
        """Takes its state up, and behind it what was gathered here meanwhile and is not in it."""
        store = self.broker.store
        now = self.broker.now()
        for packet_id in received:
            self.received.add(packet_id)
            store.save_received(self.row, packet_id)
        waiting = Backlog(self.broker.metrics)
        for moved in state:
            delivery = delivery_of(moved, now)
            delivery.packet_id = moved.packet_id
            if delivery.qos:
                store.save_delivery(self.row, delivery)
            if moved.released:
                if delivery.row:
                    store.release_delivery(delivery)
                delivery.message = NOTHING
                self.released[moved.packet_id] = delivery
            elif moved.packet_id:
                self.inflight[moved.packet_id] = delivery
            else:
                waiting.push(delivery)
        self.backlog = waiting if waiting else None
        self._horizon = horizon
        gathered, self._gathered = self._gathered or [], None
        for one in gathered:
            if one.mark is None or not horizon.covers(one.mark):
                d = one.delivery
                super().deliver(d.message, d.qos, d.retain, d.ids, d.group)

    @property
    def has_seen_many(self) -> bool:
        """Whether it would take long to write all marks with each commit."""
        return len(self._seen or ()) > SEEN_FEW

    @property
    def horizon(self) -> list[Row]:
        """What it has had, here or before it came, while it looks at marks."""
        return [*self._horizon.rows, *rows_of(self._seen or ())]

    def settle(self) -> None:
        """Nothing comes on two ways any more."""
        self._seen = None
        self._horizon = Horizon(())


class Relay(Session):
    """Stands for a session that has left, for publications that are still on their way to where it was."""

    __slots__ = ("_marks", "_on_waiting", "waiting")

    def __init__(self, broker: Broker, client_id: str, marks: Marks, on_waiting: Callable[[], None]) -> None:
        super().__init__(broker, client_id, 0)
        self._marks = marks
        self._on_waiting = on_waiting
        self.waiting: list[MarkedDelivery] = []

    def deliver(
        self, message: Message, qos: int, retain: bool = False, ids: tuple[int, ...] = (), group: str = ""
    ) -> None:
        if not qos:
            return
        if len(self.waiting) >= self.broker.limits.queue_messages_max:
            self.broker.metrics.messages_dropped += 1
            return
        one = MarkedDelivery(Delivery(message, qos, retain, ids, group), self._marks.current)
        if one.mark is None:
            self._marks.when_marked(message, one.note)
        self.waiting.append(one)
        self._on_waiting()


def delivery_of(moved: Moved, now: float) -> Delivery:
    return Delivery(message_of(moved.item, moved.topic, now), moved.qos, moved.retain, moved.ids, moved.group)


def moved_of(delivery: Delivery, now: float, released: bool = False, mark: Mark | None = None) -> Moved:
    d = delivery
    return Moved(d.message.topic, item_of(d.message, now), d.qos, d.retain, d.ids, d.group, d.packet_id, released, mark)


def state_of(session: Session, now: float) -> list[Moved]:
    """What a session that is not connected has not brought to its end, in the order in which it is sent."""
    waiting = session.backlog.waiting if session.backlog is not None else ()
    return [
        *(moved_of(one, now, released=True) for one in session.released.values()),
        *(moved_of(one, now) for one in session.inflight.values() if one.message is not NOTHING),
        *(moved_of(one, now) for one in waiting if not one.packet_id and not one.message.expired(now)),
    ]


def subscribe_all(broker: Broker, session: Session, subscriptions: dict[str, Subscribed]) -> None:
    for full_filter, subscribed in subscriptions.items():
        broker.router.subscribe(session, full_filter, subscribed)


def unsubscribe_all(broker: Broker, session: Session, subscriptions: Iterable[str]) -> None:
    for full_filter in subscriptions:
        broker.router.unsubscribe(session, full_filter)
