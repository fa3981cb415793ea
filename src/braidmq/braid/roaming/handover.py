"""Giving a session up to another broker.

    HERE ──GiveUp──▶ GIVEN ──FetchState──▶ FROZEN ──SessionStored──▶ GONE
                       └──◀── silence ──◀────┘

A session that is given up has lost its connection and goes on to gather what comes for it. When its state is fetched it
is frozen: a `Relay` takes its place among the subscriptions, so the state is the same however often it is asked for.
`SessionStored` says that the other broker has it in its store; only then it is deleted here. The relay then passes on what was
still on its way to this broker, for as long as a publication may be repeated. If the other broker falls silent before
`SessionStored`, the session is put back as it was, with what the relay has. Every request names its move: one that comes twice
gets the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from braidmq.braid.interest.scope import may_see
from braidmq.braid.roaming.directory import Holder
from braidmq.braid.roaming.transfer import (
    Marks,
    Moved,
    Relay,
    RoamingSession,
    Row,
    delivery_of,
    moved_of,
    state_of,
    subscribe_all,
    unsubscribe_all,
)
from braidmq.broker.session import Session
from braidmq.broker.shares import Subscribed
from braidmq.host import Address, CallError, Message, Reply, Service, handles
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import matches

if TYPE_CHECKING:
    from braidmq.braid.braid import Braid

PART_BYTES = 1 << 20
"""What one message carries of a session; a single publication may be more, up to …"""

ITEM_BYTES_MAX = 15 << 20
"""… this: a larger one does not fit into a frame between brokers, and stays behind."""

SILENCE_S = 15.0
"""How long a broker that fetches a session may be silent before it is put back."""

TAIL_S = 30.0
"""How long what is still on its way to a session is passed on: as long as a publication is repeated."""

CONFIRM_S = 600.0
"""How long the broker that a session came from is told so, until it answers."""

TAIL_MAX = 256
"""Publications that are passed on in one message."""

HANDOVERS_MAX = 100_000
"""Sessions that are under way or have just gone; the relay of the one that has gone first ends early."""

CALL_TIMEOUT_S = 1.0


class GiveUpAnswer(IntEnum):
    NOTHING = 0
    """There is no session, or it has ended now."""
    GIVEN = 1
    BUSY = 2
    """It is just arriving here: ask again."""
    NEWER = 3
    """The client has come here since."""
    ELSEWHERE = 4
    UNKNOWN = 5
    """There is no session, and the client was never here since this broker has started."""
    FOREIGN = 6
    """It is another user's, who keeps it."""


class GiveUp(Message, frozen=True, array_like=True, gc=False):
    """The client has come to me, under this epoch. `clean`: it wants nothing of its session."""

    move: int
    client_id: str
    name: str
    epoch: int
    clean: bool
    cluster: str = ""
    """Where I am: what must stay in a cluster that I am not in does not move to me."""
    user: str = ""
    """Who the client is."""


class GivenUp(Message, frozen=True, array_like=True, gc=False):
    answer: GiveUpAnswer
    expiry_s: int = 0
    holder: Holder | None = None


class AskForeignSession(Message, tag="AskKept", frozen=True, array_like=True, gc=False):
    """A client of this user has come to me. Do you keep a session of another user under its client id?"""

    client_id: str
    user: str


class HasForeignSession(Message, tag="IsKept", frozen=True, array_like=True, gc=False):
    is_kept: bool


class FetchSubscriptions(Message, frozen=True, array_like=True, gc=False):
    move: int
    client_id: str
    since: int


class SessionSubscriptions(Message, tag="Subscriptions", frozen=True, array_like=True, gc=False):
    """From a number on; `following` is the number behind the last one, 0 if that was all."""

    items: tuple[tuple[str, Subscribed], ...]
    following: int


class FetchState(Message, frozen=True, array_like=True, gc=False):
    move: int
    client_id: str
    since: int


class SessionState(Message, tag="State", frozen=True, array_like=True, gc=False):
    """Deliveries from a number on, and with the first of them the rest. `horizon`: see `roaming`."""

    items: tuple[Moved, ...]
    following: int
    received: tuple[int, ...]
    horizon: tuple[Row, ...]


class NoSuchMove(Message, frozen=True, array_like=True, gc=False):
    """I know nothing of this: begin anew."""


class SessionStored(Message, tag="Done", frozen=True, array_like=True, gc=False):
    """I have it in my store."""

    move: int
    client_id: str


class SessionDeleted(Message, tag="Deleted", frozen=True, array_like=True, gc=False):
    """It is no longer here."""


class SessionTail(Message, tag="Tail", frozen=True, array_like=True, gc=False):
    """Publications for a session that has moved to you."""

    client_id: str
    items: tuple[Moved, ...]


class TailStored(Message, tag="Taken", frozen=True, array_like=True, gc=False):
    """They are in my store, or were."""


class Handover:
    """One session that is given up."""

    def __init__(self, move: GiveUp, to: Address, session: Session, heard_at: float) -> None:
        self.move = move.move
        self.cluster = move.cluster
        self.holder = Holder(move.client_id, to, move.name, move.epoch)
        self.session: Session | None = session
        """None once it is gone."""
        self.expiry_s = session.expiry_s
        self.subscriptions = dict(session.subscriptions)
        self.relay: Relay | None = None
        self.state: list[Moved] | None = None
        self.horizon: tuple[Row, ...] = ()
        self.received: tuple[int, ...] = ()
        self.heard_at = heard_at
        self.is_relaying = False


class Handovers(Service):
    def __init__(self, braid: Braid, marks: Marks) -> None:
        self._broker = braid.broker
        self._braid = braid
        self._host = braid.host
        self._marks = marks
        self._by_client: dict[str, Handover] = {}
        self.is_coming: Callable[[str, str], bool]
        """Whether a session of a client id is just coming here, for another user than this one."""
        self.is_arriving: Callable[[GiveUp], GiveUpAnswer | None]
        """Asks the one side that takes sessions whether this one is just coming."""
        self.has_served: Callable[[str], bool]
        """Whether a client was here in this incarnation of the broker."""
        self.is_displaced: Callable[[str], bool]
        """Whether a session stands for nothing, since its client is elsewhere."""
        self.given = 0
        """Sessions that have moved away from here."""
        self._host.serve(self)

    def under_way(self, client_id: str) -> bool:
        """Whether a session is being given up, and is still here."""
        handover = self._by_client.get(client_id)
        return handover is not None and handover.session is not None

    # Requests

    @handles(AskForeignSession)
    def on_ask_kept(self, _origin: Address, asked: AskForeignSession) -> HasForeignSession:
        return HasForeignSession(self.keeps_from(asked.client_id, asked.user))

    def keeps_from(self, client_id: str, user: str) -> bool:
        """Whether a session, here or under way, is kept from a user since it is another's; if not, it ends."""
        session = self._broker.sessions.get(client_id)
        if session is None or not session.is_foreign(user):
            return self.is_coming(client_id, user)
        if self.under_way(client_id) or self._broker.is_kept_from(client_id, user):
            return True
        self._broker.end_session(session)
        self._broker.flush()
        return False

    @handles(GiveUp)
    def on_give_up(self, origin: Address, asked: GiveUp) -> Reply:
        client_id = asked.client_id
        handover = self._by_client.get(client_id)
        if handover is not None and handover.move == asked.move:
            handover.heard_at = self._host.now()
            return GivenUp(GiveUpAnswer.GIVEN, handover.expiry_s)
        if self.keeps_from(client_id, asked.user):
            return GivenUp(GiveUpAnswer.FOREIGN)
        coming = self.is_arriving(asked)
        if coming is not None:
            return GivenUp(coming)
        if handover is not None and handover.session is not None:
            self.put_back(client_id)
        was_here = client_id in self._broker.sessions
        session = self._disconnected(client_id, asked.clean)
        if session is None and was_here:
            return GivenUp(GiveUpAnswer.NOTHING)
        if session is None:
            gone_to = handover.holder if handover is not None and handover.session is None else None
            if gone_to is not None and gone_to.name != asked.name:
                return GivenUp(GiveUpAnswer.ELSEWHERE, 0, gone_to)
            return GivenUp(GiveUpAnswer.NOTHING if self.has_served(client_id) else GiveUpAnswer.UNKNOWN)
        self._broker.wills.renew(session, None)  # its client is back [MQTT-3.1.3-9]
        if session.expiry_timer is not None:
            session.expiry_timer.cancel()
            session.expiry_timer = None
        handover = Handover(asked, origin, session, self._host.now())
        self._by_client[client_id] = handover
        if len(self._by_client) > HANDOVERS_MAX:
            self._end_oldest()
        self._host.spawn(self._watch(client_id, handover))
        return GivenUp(GiveUpAnswer.GIVEN, handover.expiry_s)

    def _disconnected(self, client_id: str, clean: bool) -> Session | None:
        """The session without a connection, if it outlives that; as `Broker.take_up` does it for a connection here."""
        broker = self._broker
        session = broker.sessions.get(client_id)
        if session is not None and session.connection is not None:
            if clean:
                session.expiry_s = 0
            text = "another connection has taken over this client id, at another broker"
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, text)
            session = broker.sessions.get(client_id)
        if session is not None and clean:
            broker.end_session(session)
            session = None
        broker.ring()
        return session

    @handles(FetchSubscriptions)
    def on_fetch_subscriptions(self, _origin: Address, asked: FetchSubscriptions) -> Reply:
        handover = self._of(asked.move, asked.client_id)
        if handover is None:
            return NoSuchMove()
        items: list[tuple[str, Subscribed]] = []
        size = 0
        rows = list(handover.subscriptions.items())
        for row in rows[asked.since :]:
            size += len(row[0].encode()) + 16
            if items and size > PART_BYTES:
                return SessionSubscriptions(tuple(items), asked.since + len(items))
            items.append(row)
        return SessionSubscriptions(tuple(items), 0)

    @handles(FetchState)
    def on_fetch_state(self, _origin: Address, asked: FetchState) -> Reply:
        handover = self._of(asked.move, asked.client_id)
        if handover is None:
            return NoSuchMove()
        state = handover.state
        if state is None:
            state = self._freeze(handover)
        items: list[Moved] = []
        size = 0
        following = 0
        for number, item in enumerate(state[asked.since :], asked.since):
            size += item.size
            if items and size > PART_BYTES:
                following = number
                break
            items.append(item)
        received, horizon = ((), ()) if asked.since else (handover.received, handover.horizon)
        return SessionState(tuple(items), following, received, horizon)

    @handles(SessionStored)
    def on_done(self, _origin: Address, told: SessionStored) -> Reply:
        handover = self._of(told.move, told.client_id)
        if handover is not None and handover.session is not None:
            session, handover.session = handover.session, None
            self._broker.end_session(session, moved=True)
            self._broker.flush()
            self.given += 1
            self._host.spawn(self._end_later(told.client_id, handover))
            self._forward(handover)
        return None if self._broker.degraded else SessionDeleted()  # asked again, it may be true

    def _of(self, move: int, client_id: str) -> Handover | None:
        handover = self._by_client.get(client_id)
        if handover is None or handover.move != move:
            return None
        handover.heard_at = self._host.now()
        return handover

    # Freezing, and going back

    def _freeze(self, handover: Handover) -> list[Moved]:
        session = handover.session
        assert session is not None
        broker = self._broker
        state = state_of(session, broker.now())
        handover.state = [one for one in state if one.size <= ITEM_BYTES_MAX and _may_go(one, handover)]
        broker.metrics.messages_dropped += len(state) - len(handover.state)
        handover.received = tuple(sorted(session.received))
        handover.horizon = self._horizon(session)
        handover.relay = relay = Relay(broker, session.client_id, self._marks, lambda: self._forward(handover))
        if not self.is_displaced(session.client_id):
            subscribe_all(broker, relay, handover.subscriptions)
            unsubscribe_all(broker, session, handover.subscriptions)
        return handover.state

    def _horizon(self, session: Session) -> tuple[Row, ...]:
        """How far the session has followed the histories: as this broker, unless it came here just now."""
        if isinstance(session, RoamingSession) and session.looks_at_marks:
            return tuple(session.horizon)
        rows: list[Row] = [(self._braid.origin, self._braid.history.head, ())]
        rows += ((origin, cursor.floor, tuple(cursor.seen_ranges())) for origin, cursor in self._braid.cursors)
        return tuple(rows)

    def put_back(self, client_id: str) -> None:
        """The session stays here after all."""
        handover = self._by_client.pop(client_id, None)
        if handover is None:
            return
        session, relay = handover.session, handover.relay
        if session is not None and self._broker.sessions.get(client_id) is session:
            if relay is not None and not self.is_displaced(client_id):
                subscribe_all(self._broker, session, session.subscriptions)
                for one in relay.waiting:
                    d = one.delivery
                    if _is_wanted(session, d.message.topic, d.group):
                        session.deliver(d.message, d.qos, d.retain, d.ids, d.group)
            if session.connection is None:
                self._broker.expire_detached(session)
        if relay is not None:
            unsubscribe_all(self._broker, relay, handover.subscriptions)

    def end(self, client_id: str, session: Session | None) -> None:
        """The client is here again, with this session: nothing is passed on any more, what waits is for it."""
        handover = self._by_client.pop(client_id, None)
        if handover is None or handover.relay is None:
            return
        unsubscribe_all(self._broker, handover.relay, handover.subscriptions)
        waiting = [moved_of(one.delivery, self._broker.now(), mark=one.mark) for one in handover.relay.waiting]
        if session is not None:
            self.deliver(session, tuple(waiting))

    async def _watch(self, client_id: str, handover: Handover) -> None:
        while handover.session is not None and self._by_client.get(client_id) is handover:
            left_s = handover.heard_at + SILENCE_S - self._host.now()
            if left_s <= 0:
                self.put_back(client_id)
                return
            await self._host.sleep(left_s)

    # What was still on its way

    def _forward(self, handover: Handover) -> None:
        relay = handover.relay
        if handover.session is None and relay is not None and relay.waiting and not handover.is_relaying:
            handover.is_relaying = True
            self._host.spawn(self._pass_on(handover, relay))

    async def _pass_on(self, handover: Handover, relay: Relay) -> None:
        client_id = relay.client_id
        while relay.waiting and self._by_client.get(client_id) is handover:
            some = relay.waiting[:TAIL_MAX]
            now = self._broker.now()
            items = [moved_of(one.delivery, now, mark=one.mark) for one in some]
            tail = SessionTail(client_id, tuple([one for one in items if _may_go(one, handover)]))
            try:
                taken = isinstance(await self._host.call(handover.holder.address, tail, CALL_TIMEOUT_S), TailStored)
            except CallError:
                taken = False
            if taken:
                del relay.waiting[: len(some)]
            else:
                await self._host.sleep(CALL_TIMEOUT_S)
        handover.is_relaying = False

    @handles(SessionTail)
    def on_tail(self, _origin: Address, told: SessionTail) -> Reply:
        handover = self._by_client.get(told.client_id)
        session = self._broker.sessions.get(told.client_id)
        if handover is not None and handover.relay is not None:
            session = handover.relay
        if session is not None:
            self.deliver(session, told.items)
            self._broker.flush()
        return None if self._broker.degraded else TailStored()

    def deliver(self, session: Session, items: tuple[Moved, ...]) -> None:
        """Gives late publications to a session that can tell whether it has had them.

        What it no longer subscribes to it does not get: its client may have unsubscribed since it came, or the rules
        here do not let it read what it could read there.
        """
        if isinstance(session, RoamingSession) and not session.looks_at_marks:
            return
        if not isinstance(session, RoamingSession | Relay):
            return
        now = self._broker.now()
        for item in items:
            message = delivery_of(item, now).message
            if not message.expired(now) and _is_wanted(session, item.topic, item.group):
                self._marks.current = item.mark
                session.deliver(message, item.qos, item.retain, item.ids, item.group)
        self._marks.current = None

    def _end_oldest(self) -> None:
        gone = next((one for one, handover in self._by_client.items() if handover.session is None), None)
        if gone is not None:
            self.end(gone, None)

    async def _end_later(self, client_id: str, handover: Handover) -> None:
        await self._host.sleep(TAIL_S)
        if self._by_client.get(client_id) is handover:
            self.end(client_id, None)


def _is_wanted(session: Session, topic: str, group: str) -> bool:
    """Whether a session still subscribes to what it is late to get. A relay takes all: its session is asked later."""
    if isinstance(session, Relay):
        return True
    if group:
        return group in session.subscriptions
    return any(matches(one, topic) for one in session.subscriptions if not one.startswith("$share/"))


def _may_go(moved: Moved, handover: Handover) -> bool:
    return moved.released or may_see(handover.cluster, moved.item.forward)
