"""Giving a session up to another broker (`handover_state` has the states and what leads from one to the next).

A session that is given up has lost its connection and goes on gathering what comes for it. When its state is fetched it
is frozen: a `SessionRelay` takes its part among the subscriptions, so its state is the same whenever it is asked for.
`SessionStored` says that the other broker has it in its store; only then it is deleted here. The relay then passes on
what was still on its way to this broker (`tail`), for as long as a publication may be repeated. If the other broker
falls silent before `SessionStored`, the session is put back as it was, with what the relay has. Every request names its
move: one that comes twice gets the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from braidmq.braid.roaming.clients import ClientRecords
from braidmq.braid.roaming.directory_messages import SessionHolder
from braidmq.braid.roaming.epochs import UNKNOWN_EPOCH
from braidmq.braid.roaming.handover_state import Handover, HandoverEvent, HandoverState
from braidmq.braid.roaming.marks import Horizon, Marks, Row, merged
from braidmq.braid.roaming.messages import (
    AskForeignSession,
    FetchState,
    FetchSubscriptions,
    GivenUp,
    GiveUp,
    GiveUpAnswer,
    HasForeignSession,
    NoSuchMove,
    SessionDeleted,
    SessionState,
    SessionStored,
    SessionSubscriptions,
)
from braidmq.braid.roaming.moved import Absence, MovedDelivery, moved_late, state_of, subscribe_all, unsubscribe_all
from braidmq.braid.roaming.sessions import RoamingSession, SessionRelay
from braidmq.braid.roaming.tail import TAIL_S, SessionTails, may_move
from braidmq.braid.transfer.predecessors import Predecessors
from braidmq.broker.broker import Broker
from braidmq.broker.session import Session
from braidmq.broker.subscription import Subscribed
from braidmq.host import Address, Host, Reply, Service, handles
from braidmq.mqtt.reasons import Reason

PART_BYTES = 1 << 20
"""What one message carries of a session; a single publication may be more, up to …"""

ITEM_BYTES_MAX = 15 << 20
"""… this: a larger one does not fit into a frame between brokers, and stays behind."""

SILENCE_S = 15.0
"""How long a broker that fetches a session may be silent before it is put back."""

HANDOVERS_MAX = 100_000
"""Sessions that are under way or have just gone; the relay of the one that has gone first ends early."""


class Handovers(Service):
    def __init__(
        self,
        broker: Broker,
        host: Host,
        identity: str,
        clients: ClientRecords,
        marks: Marks,
        followed: Callable[[], Iterable[Row]],
        predecessors: Predecessors,
    ) -> None:
        """`identity` is that of this broker; `followed` says how far it has followed the histories, its own too."""
        self._broker = broker
        self._host = host
        self._identity = identity
        self._clients = clients
        self._marks = marks
        self._followed = followed
        self._predecessors = predecessors
        self.adopt: Callable[[str, str], GiveUpAnswer | None] = lambda _broker, _client_id: None
        """Takes a session up from the copy of what a broker has that is gone; BUSY while that is under way, THERE if
        that broker is there, None if there is nothing to take up any more."""
        self.pack_instances: Callable[[str], bytes] = lambda _client_id: b""
        """What a client is an instance of, and what is reserved of it."""
        self._by_client: dict[str, Handover] = {}
        self._tails = SessionTails(broker, host, marks, self._by_client)
        self.given = 0
        """Sessions that have moved away from here."""
        host.serve(self)

    def is_under_way(self, client_id: str) -> bool:
        """Whether a session is being given up, and is still here."""
        handover = self._by_client.get(client_id)
        return handover is not None and handover.is_here

    def gone_to(self, client_id: str) -> SessionHolder | None:
        """The broker that has a session which was here not long ago."""
        handover = self._by_client.get(client_id)
        return handover.holder if handover is not None and handover.state is HandoverState.GONE else None

    # Requests

    @handles(AskForeignSession)
    def on_ask_foreign_session(self, _origin: Address, asked: AskForeignSession) -> HasForeignSession:
        return HasForeignSession(self.is_kept_from(asked.client_id, asked.user))

    def is_kept_from(self, client_id: str, user: str) -> bool:
        """Whether a session, here or under way, is kept from a user since it is another's; if not, it ends."""
        session = self._broker.sessions.get(client_id)
        if session is None or not session.is_foreign(user):
            return self._clients.is_coming_for_another(client_id, user)
        if self.is_under_way(client_id) or self._broker.is_kept_from(client_id, user):
            return True
        self._broker.sessions.end(session)
        self._broker.flush()
        return False

    @handles(GiveUp)
    def on_give_up(self, origin: Address, asked: GiveUp) -> Reply:
        client_id = asked.client_id
        handover = self._by_client.get(client_id)
        if asked.asked and asked.asked != self._identity:
            return GivenUp(GiveUpAnswer.UNKNOWN)
        if handover is not None and handover.move == asked.move:
            handover.heard_at = self._host.now()
            return _given(handover)
        if self.is_kept_from(client_id, asked.user):
            return GivenUp(GiveUpAnswer.FOREIGN)
        if asked.is_pushed and not self._is_away(client_id):
            return GivenUp(GiveUpAnswer.NEWER)
        begun = self._clients.epochs.begun(client_id)
        refusal = self._clients.refusal_of(asked)
        if refusal is not None:
            return GivenUp(refusal)
        if handover is not None and handover.is_here:
            self.put_back(client_id)
        adopting = self.adopt(asked.of, client_id) if asked.of else None
        if adopting is not None:
            return GivenUp(adopting)
        was_here = client_id in self._broker.sessions
        if was_here and self._clients.epochs.get(client_id, UNKNOWN_EPOCH) < asked.at_least:
            return GivenUp(GiveUpAnswer.UNKNOWN)
        session = self._disconnected(client_id, asked.clean)
        if session is None:
            self._clients.epochs.drop(client_id)
        if session is None and was_here:
            return GivenUp(GiveUpAnswer.NOTHING)
        if session is None:
            return self._answer_without_session(asked)
        handover = Handover(asked, origin, session, self._host.now())
        handover.begun = begun
        if not asked.is_pushed:
            self._broker.sessions.wills.renew(session, None)  # its client is back [MQTT-3.1.3-9]
        if session.expiry_timer is not None:
            handover.ends_at = session.expiry_timer.when
            session.expiry_timer.cancel()
            session.expiry_timer = None
        self._by_client[client_id] = handover
        if len(self._by_client) > HANDOVERS_MAX:
            self._end_oldest()
        self._host.spawn(self._watch(client_id, handover))
        return _given(handover)

    def _is_away(self, client_id: str) -> bool:
        session = self._broker.sessions.get(client_id)
        return session is None or session.connection is None

    def _answer_without_session(self, asked: GiveUp) -> GivenUp:
        gone_to = self.gone_to(asked.client_id)
        if gone_to is not None and gone_to.name != asked.name:
            return GivenUp(GiveUpAnswer.ELSEWHERE, 0, gone_to)
        was_served = asked.client_id in self._clients.served
        return GivenUp(GiveUpAnswer.NOTHING if was_served else GiveUpAnswer.UNKNOWN)

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
            broker.sessions.end(session)
            session = None
        broker.request_flush()
        return session

    @handles(FetchSubscriptions)
    def on_fetch_subscriptions(self, _origin: Address, asked: FetchSubscriptions) -> Reply:
        handover = self._of(asked.move, asked.client_id)
        return NoSuchMove() if handover is None else _subscriptions(handover, asked.since)

    @handles(FetchState)
    def on_fetch_state(self, _origin: Address, asked: FetchState) -> Reply:
        handover = self._of(asked.move, asked.client_id)
        if handover is None:
            return NoSuchMove()
        if handover.state is HandoverState.GIVEN:
            self._freeze(handover)
            handover.advance(HandoverEvent.STATE_FETCHED)
            handover.is_held = not self._broker.tick.commit_once(handover.let_go)
        if handover.is_held:
            return None  # asked again, the copies have it
        handover.advance(HandoverEvent.STATE_FETCHED)
        items: list[MovedDelivery] = []
        size = 0
        following = 0
        for number, item in enumerate(handover.deliveries[asked.since :], asked.since):
            size += item.size
            if items and size > PART_BYTES:
                following = number
                break
            items.append(item)
        if asked.since:
            return SessionState(tuple(items), following, (), ())
        h = handover
        return SessionState(tuple(items), following, h.received, h.horizon, h.absence, h.published, h.instances)

    @handles(SessionStored)
    def on_session_stored(self, _origin: Address, told: SessionStored) -> Reply:
        handover = self._of(told.move, told.client_id)
        if handover is not None and handover.is_here:
            handover.advance(HandoverEvent.STORED)
            self._broker.sessions.end(handover.session, moved=True)
            self._clients.epochs.drop(told.client_id)
            self._clients.served.pop(told.client_id, None)  # what becomes of it is not known here any more
            self._broker.flush()
            self.given += 1
            self._host.spawn(self._end_later(told.client_id, handover))
            if (gone := self._clients.pushed.get(told.client_id)) is not None:
                gone.set()
            self._tails.pass_on(handover)
        return None if self._broker.degraded else SessionDeleted()  # asked again, it may be true

    def _of(self, move: int, client_id: str) -> Handover | None:
        handover = self._by_client.get(client_id)
        if handover is None or handover.move != move:
            return None
        handover.heard_at = self._host.now()
        return handover

    # Freezing, and going back

    def _freeze(self, handover: Handover) -> None:
        session = handover.session
        broker = self._broker
        unproven = session.take_unproven() if isinstance(session, RoamingSession) else []
        state = state_of(session, broker.now())
        handover.deliveries = [one for one in state if one.size <= ITEM_BYTES_MAX and may_move(one, handover)]
        broker.metrics.messages_dropped += len(state) - len(handover.deliveries)
        handover.received = tuple(sorted(session.received))
        handover.horizon = self._horizon(session)
        handover.published = self._predecessors.last(session.client_id)
        handover.instances = self.pack_instances(session.client_id)
        if handover.is_pushed:
            self._note_absence(handover)
        relay = SessionRelay(broker, session.client_id, self._marks, lambda: self._tails.pass_on(handover))
        relay.waiting += unproven
        handover.relay = relay
        if not self._clients.is_displaced(session.client_id):
            subscribe_all(broker, relay, handover.subscriptions)
            unsubscribe_all(broker, session, handover.subscriptions)

    def _note_absence(self, handover: Handover) -> None:
        """What was to happen here if the client did not come back is the other broker's to do from now on."""
        session, now = handover.session, self._broker.now()
        will_at = handover.will_at = self._broker.sessions.wills.hold(session)
        ends_in_s = None if handover.ends_at is None else max(0.0, handover.ends_at - now)
        if will_at is None:
            handover.absence = Absence(ends_in_s)
        else:
            handover.absence = Absence(ends_in_s, session.will, max(0.0, will_at - now))

    def _horizon(self, session: Session) -> tuple[Row, ...]:
        """How far the session has followed the histories: as this broker, unless it came here just now."""
        if not isinstance(session, RoamingSession):
            return tuple(self._followed())
        if session.checks_marks:
            return tuple(session.horizon)
        return tuple(merged([*session.horizon, *self._followed()]))

    def has_followed(self, horizon: Iterable[Row]) -> bool:
        """Whether this broker has come as far in the histories as a session had before it came here."""
        return Horizon(self._followed()).covers_all(horizon)

    def put_back(self, client_id: str) -> None:
        """The session stays here after all."""
        handover = self._by_client.pop(client_id, None)
        if handover is None:
            return
        session, relay, was_here = handover.session, handover.relay, handover.is_here
        handover.advance(HandoverEvent.PUT_BACK)
        if was_here and self._broker.sessions.get(client_id) is session:
            if relay is not None and not self._clients.is_displaced(client_id):
                subscribe_all(self._broker, session, session.subscriptions)
                self._tails.deliver_waiting(session, relay)
            if session.connection is None:
                self._broker.sessions.expire_detached(session, handover.ends_at if handover.is_pushed else None)
            if session.will is not None and handover.will_at is not None:
                self._broker.sessions.wills.adopt(session, session.will, handover.will_at)
        if relay is not None:
            unsubscribe_all(self._broker, relay, handover.subscriptions)

    def put_back_from(self, taker: Address, client_id: str) -> bool:
        """A broker that was to take a session has given up. Whether it is nobody else's business."""
        handover = self._by_client.get(client_id)
        if handover is None or not handover.is_here:
            return True
        if not handover.is_pushed or handover.holder.address != taker:
            return False
        self.put_back(client_id)
        return True

    @property
    def is_passing_on(self) -> bool:
        """Whether something waits here for sessions that have gone."""
        return any(one.relay is not None and one.relay.waiting for one in self._by_client.values())

    def deliver_late(self, session: Session, items: tuple[MovedDelivery, ...]) -> None:
        """Publications that a session may have had already."""
        self._tails.deliver(session, items)

    def end_for(self, client_id: str, session: Session) -> None:
        """The client is here again, with this session: nothing is passed on any more, what waits is for it."""
        waiting = self._end(client_id, HandoverEvent.CLIENT_BACK)
        if waiting is not None:
            self._tails.deliver(session, waiting)

    def _end(self, client_id: str, event: HandoverEvent) -> tuple[MovedDelivery, ...] | None:
        """Ends a handover and its relay; what that has, None if there is none."""
        handover = self._by_client.pop(client_id, None)
        if handover is None:
            return None
        handover.advance(event)
        if handover.relay is None:
            return None
        unsubscribe_all(self._broker, handover.relay, handover.subscriptions)
        now = self._broker.now()
        return tuple([moved_late(one, now) for one in handover.relay.waiting])

    async def _watch(self, client_id: str, handover: Handover) -> None:
        while handover.is_here and self._by_client.get(client_id) is handover:
            left_s = handover.heard_at + SILENCE_S - self._host.now()
            if left_s <= 0:
                self.put_back(client_id)
                return
            await self._host.sleep(left_s)

    def _end_oldest(self) -> None:
        gone = next((one for one, has in self._by_client.items() if has.state is HandoverState.GONE), None)
        if gone is not None:
            self._end(gone, HandoverEvent.TAIL_ENDED)

    async def _end_later(self, client_id: str, handover: Handover) -> None:
        await self._host.sleep(TAIL_S)
        if self._by_client.get(client_id) is handover:
            self._end(client_id, HandoverEvent.TAIL_ENDED)


def _given(handover: Handover) -> GivenUp:
    begun, first = handover.begun, _subscriptions(handover, 0)
    return GivenUp(GiveUpAnswer.GIVEN, handover.expiry_s, begun=begun, subscriptions=first)


def _subscriptions(handover: Handover, since: int) -> SessionSubscriptions:
    """As many as one message carries, from a number on."""
    items: list[tuple[str, Subscribed]] = []
    size = 0
    for row in list(handover.subscriptions.items())[since:]:
        size += len(row[0].encode()) + 16
        if items and size > PART_BYTES:
            return SessionSubscriptions(tuple(items), since + len(items))
        items.append(row)
    return SessionSubscriptions(tuple(items), 0)
