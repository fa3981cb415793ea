"""Sessions on their way from one broker to another: the one that is coming, and the relay of the one that has gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from braidmq.bounded import BoundedDict
from braidmq.braid.roaming.marks import Horizon, Mark, MarkedDelivery, Marks, Row, merged, rows_of
from braidmq.braid.roaming.moved import MovedDelivery, delivery_of, subscribe_all, unsubscribe_all
from braidmq.broker.backlog import NOTHING, Backlog
from braidmq.broker.broker import Broker
from braidmq.broker.flow import Flow
from braidmq.broker.message import Delivery, Message
from braidmq.broker.session import Session

SEEN_MAX = 65_536
"""Marks that a session remembers while it may get publications on two ways."""

SEEN_FEW = 1024
"""Up to so many marks are written with each commit, more of them now and then."""


class RoamingSession(Session):
    """A session that comes from another broker. It gathers what arrives here until its state has come, and then, while
    late publications may still be passed on from there, checks marks."""

    __slots__ = ("_gathered", "_horizon", "_marks", "_seen", "has_news")

    def __init__(self, broker: Broker, client_id: str, row: int, expiry_s: int, marks: Marks) -> None:
        super().__init__(broker, client_id, row)
        self.expiry_s = expiry_s
        self._marks = marks
        self._seen: BoundedDict[Mark, None] | None = BoundedDict(SEEN_MAX)
        self._horizon = Horizon(())
        self._gathered: list[MarkedDelivery] | None = []
        self.has_news = False
        """Whether it has seen marks that are not written yet."""

    @classmethod
    def instead_of(cls, broker: Broker, session: Session, marks: Marks, horizon: Horizon) -> RoamingSession:
        """A session that had just come when the broker died: it goes on to check marks."""
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
            roaming.expiry_timer = broker.timers.at(expiry.when, partial(broker.sessions.end, roaming))
            expiry.cancel()
        if will is not None:
            roaming.will_timer = broker.timers.at(will.when, partial(broker.sessions.wills.due, roaming))
            will.cancel()
        broker.sessions.replace(roaming)
        subscribe_all(broker, roaming, session.subscriptions)
        unsubscribe_all(broker, session, session.subscriptions)
        return roaming

    @property
    def takes_plain(self) -> bool:
        return self._seen is None and super().takes_plain

    @property
    def checks_marks(self) -> bool:
        return self._seen is not None

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool = False,
        ids: tuple[int, ...] = (),
        group: str = "",
        publisher: Flow | None = None,
    ) -> None:
        if self._seen is None or not qos:
            if self._gathered is None:
                super().deliver(message, qos, retain, ids, group, publisher)
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
            super().deliver(message, qos, retain, ids, group, publisher)
        elif len(self._gathered) < self.broker.limits.queue_messages_max:
            self._gathered.append(waiting)
        else:
            self.broker.metrics.messages_dropped += 1

    def _note(self, mark: Mark) -> None:
        if self._seen is not None:
            self._seen[mark] = None
            self.has_news = True

    def arrive(self, state: Iterable[MovedDelivery], received: Iterable[int], horizon: Horizon) -> None:
        """Takes its state up, and behind it what was gathered here meanwhile and is not in it."""
        store = self.broker.store
        now = self.tick.now()
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
        """What it has had, here or before it came, while it checks marks."""
        return merged([*self._horizon.rows, *rows_of(self._seen or ())])

    def stop_checking(self) -> None:
        """Nothing comes on two ways any more."""
        self._horizon = Horizon(self.horizon)
        self._seen = None


class SessionRelay(Session):
    """Stands for a session that has left, for publications that are still on their way to where it was."""

    __slots__ = ("_marks", "_on_waiting", "waiting")

    def __init__(self, broker: Broker, client_id: str, marks: Marks, on_waiting: Callable[[], None]) -> None:
        super().__init__(broker, client_id, 0)
        self._marks = marks
        self._on_waiting = on_waiting
        self.waiting: list[MarkedDelivery] = []

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool = False,
        ids: tuple[int, ...] = (),
        group: str = "",
        publisher: Flow | None = None,
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
