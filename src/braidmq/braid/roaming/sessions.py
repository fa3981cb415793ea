"""Sessions on their way from one broker to another: the one that is coming, and the relay of the one that has gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from braidmq.bounded import BoundedDict
from braidmq.braid.roaming.marks import Horizon, Mark, MarkedDelivery, Marks, Ranges, Row, merged, rows_of
from braidmq.braid.roaming.moved import MovedDelivery, delivery_of, subscribe_all, unsubscribe_all
from braidmq.braid.roaming.other_origins import OtherOrigins
from braidmq.broker.backlog import NOTHING, Backlog
from braidmq.broker.broker import Broker
from braidmq.broker.flow import Flow
from braidmq.broker.message import Delivery, Message
from braidmq.broker.session import Session

SEEN_MAX = 65_536
"""Marks that a session remembers while it may get publications on two ways."""

SEEN_FEW = 1024
"""Up to so many marks are written with each commit, more of them now and then."""

PROOFS_MAX = 8
"""How often an origin is asked while filters that came with a session have not taken effect in the whole braid."""


class RoamingSession(Session):
    """A session that comes from another broker. It gathers what arrives here until its state has come, and then, while
    late publications may still be passed on from there, checks marks. What comes of an origin waits until it is proven
    that nothing is before it (`proofs`)."""

    __slots__ = (
        "_asked",
        "_gathered",
        "_horizon",
        "_marks",
        "_proven",
        "_seen",
        "_unproven",
        "has_news",
        "on_unproven",
    )

    def __init__(self, broker: Broker, client_id: str, row: int, expiry_s: int, marks: Marks) -> None:
        super().__init__(broker, client_id, row)
        self.expiry_s = expiry_s
        self._marks = marks
        self._seen: BoundedDict[Mark, None] | None = BoundedDict(SEEN_MAX)
        self._horizon = Horizon(())
        self._gathered: list[MarkedDelivery] | None = []
        self.has_news = False
        """Whether it has seen marks that are not written yet."""
        self.on_unproven: Callable[[str], None] = self._release
        """Called with an origin of which something waits for its proof."""
        self._unproven: dict[str, list[MarkedDelivery]] = {}
        """By origin that is asked: what waits. It is in the store and among the marks that it has seen."""
        self._proven: dict[str, int] = {}
        """By origin: up to which offset it has all that was wanted."""
        self._asked: dict[str, int] = {}
        """By origin: how often it was asked; more than can be, if nothing of it has to wait any more."""

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
        if mark is not None and self._is_known(mark):
            return
        waiting = MarkedDelivery(Delivery(message, qos, retain, ids, group), mark, self._marks.follows)
        if mark is not None:
            self._note(mark)
        elif not group:
            self._marks.when_marked(message, waiting.note)
            self._marks.when_marked(message, self._note)
        awaited = None if self._gathered is not None else self._awaited_by(waiting)
        if awaited is not None:
            self._await_proof(waiting, awaited)
        elif self._gathered is None:
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
                self._give_in_turn(one)

    def _give_in_turn(self, one: MarkedDelivery) -> None:
        awaited = self._awaited_by(one)
        if awaited is None:
            self._give(one)
        else:
            self._await_proof(one, awaited)

    def _give_proven(self, one: MarkedDelivery) -> None:
        """What is before it at its origin has come; what its publisher has published elsewhere may not have."""
        awaited = self._awaited_elsewhere(one)
        if awaited is None:
            self._give(one)
        else:
            self._await_proof(one, awaited)

    def _give(self, one: MarkedDelivery) -> None:
        d = one.delivery
        super().deliver(d.message, d.qos, d.retain, d.ids, d.group)

    # Proofs

    def _awaits_proof(self, mark: Mark) -> bool:
        """Whether something of the origin may be before a publication that has not come."""
        origin, offset = mark
        if origin in self._unproven:
            return True
        if self._asked.get(origin, 0) >= PROOFS_MAX:
            return False
        return offset > max(self._proven.get(origin, 0), self._horizon.floor_of(origin)) + 1

    def _awaited_by(self, one: MarkedDelivery) -> str | None:
        """The origin that must say first what is before a publication: another one, or its own."""
        origin = self._awaited_elsewhere(one)
        if origin is None and not one.delivery.group and one.mark is not None and self._awaits_proof(one.mark):
            return one.mark[0]
        return origin

    def _awaited_elsewhere(self, one: MarkedDelivery) -> str | None:
        """The same if its publisher has roamed: an origin of which something of that publisher and topic waits, or that
        has what it has published before."""
        if one.delivery.group:
            return None
        for origin, waiting in self._unproven.items():
            if any(each.stream == one.stream for each in waiting):
                return origin
        return one.follows[0] if one.follows is not None and not self._is_known(one.follows) else None

    def _await_proof(self, one: MarkedDelivery, origin: str) -> None:
        waiting = self._unproven.setdefault(origin, [])
        waiting.append(one)
        if self.expiry_s:
            self.broker.store.save_delivery(self.row, one.delivery)
        if len(waiting) > self.broker.limits.queue_messages_max:
            self._release(origin)
        elif len(waiting) == 1:
            self.on_unproven(origin)

    def is_unproven(self, origin: str) -> bool:
        """Whether something of an origin waits."""
        return origin in self._unproven

    def last_unproven(self, origin: str) -> int:
        """The offset of the last publication of an origin that waits, or that something waits for; 0 if none does."""
        marks = [mark for one in self._unproven.get(origin, ()) for mark in (one.mark, one.follows) if mark is not None]
        return max((offset for of, offset in marks if of == origin), default=0)

    def standing(self, origin: str) -> tuple[int, Ranges]:
        """Of an origin's history: up to where it has all, and what behind it."""
        rows: list[Row] = [(origin, self._proven.get(origin, 0), ())]
        rows += [row for row in self._horizon.rows if row[0] == origin]
        rows += rows_of(mark for mark in self._seen or () if mark[0] == origin)
        _, floor, ranges = merged(rows)[0]
        return floor, ranges

    def prove(self, origin: str, found: Iterable[MarkedDelivery], floor: int, is_last: bool) -> None:
        """What was before that which waits, up to an offset. The origin need not be asked again if that was the last
        that could go to the old broker alone."""
        self.note_proven(origin, floor, is_last)
        own: dict[int, MarkedDelivery] = {}
        others = OtherOrigins(origin)
        for one in (*found, *self._take(origin)):
            if one.mark is None or one.mark[0] != origin:
                others.add(one)
            elif not self._is_known(one.mark):
                if (found_before := own.get(one.mark[1])) is not None:
                    one.follows = one.follows or found_before.follows
                own[one.mark[1]] = one
                others.pass_by(one)
        for offset in sorted(own):
            for one in others.before(own[offset]):
                self._give_other(one)
            self._note((origin, offset))
            self._give_proven(own[offset])
        for one in others.left():
            self._give_other(one)

    def _give_other(self, one: MarkedDelivery) -> None:
        """What came of another origin, and has waited for one that has said what is before."""
        if one.mark is not None:
            if self._is_known(one.mark):
                return
            self._note(one.mark)
        self._give_in_turn(one)

    def note_proven(self, origin: str, floor: int, is_last: bool) -> None:
        self._proven[origin] = max(floor, self._proven.get(origin, 0))
        self._asked[origin] = PROOFS_MAX if is_last else self._asked.get(origin, 0) + 1

    def _is_known(self, mark: Mark) -> bool:
        return self._seen is not None and (mark in self._seen or self._horizon.covers(mark))

    def _release(self, origin: str) -> None:
        """What waits comes without a proof."""
        self.prove(origin, (), 0, True)

    def release_all(self) -> None:
        while self._unproven:
            self._release(next(iter(self._unproven)))

    def take_unproven(self) -> list[MarkedDelivery]:
        """Takes out all that waits, as if it had not come."""
        return [one for origin in list(self._unproven) for one in self._take(origin)]

    def _take(self, origin: str) -> list[MarkedDelivery]:
        waiting = self._unproven.pop(origin, [])
        for one in waiting:
            self.discard(one.delivery)
            one.delivery.row = 0
            if one.mark is not None and self._seen is not None:
                self._seen.pop(one.mark, None)
        self.has_news = self.has_news or bool(waiting)
        return waiting

    # Marks

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
        self.release_all()
        self._horizon = Horizon(self.horizon)
        self._seen = None


def release_unproven(session: Session) -> None:
    """What waits in a session that nobody will go on with is in its state."""
    if isinstance(session, RoamingSession):
        session.release_all()


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
        one = MarkedDelivery(Delivery(message, qos, retain, ids, group), self._marks.current, self._marks.follows)
        if one.mark is None:
            self._marks.when_marked(message, one.note)
        self.waiting.append(one)
        self._on_waiting()
