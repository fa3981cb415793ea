"""Client take-over and moving sessions between brokers: the side to which the client has come.

Before the CONNACK this broker claims the client id in the `directory` and learns who had it. That broker closes a
connection that it has (0x8E) and, if the session outlives that and the client wants it, gives it up (`departures`):

    here                                      there
    claim ─▶ directory
    GiveUp ─────────────────────────────────▶ disconnects; goes on gathering
    FetchSubscriptions ─────────────────────▶
    stands for them, and gathers; once that has taken effect in the whole braid
    FetchState ─────────────────────────────▶ freezes: state, and how far histories were followed
    one commit; CONNACK with session present
    Done ───────────────────────────────────▶ deletes it, one commit; passes on what was on its way

From before the state is taken there until after its relay ends, a publication reaches one of the two brokers or both;
what comes on both ways is known by its mark (`roaming`), so it is given to the client once.

If the other broker does not answer in time the client begins anew (session present 0), and what was left behind is
fetched when that broker is back: it finds in the directory that its client is elsewhere, takes its session out of the
subscriptions and offers it (`Offer`). Since the client was told that it has no session, it gets none back: of what was
left behind it is given the publications that match what it subscribes to now, after those that have come meanwhile. A
QoS 2 publication that was already sent there under a packet id may have been received, and is not sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from braidmq.broker.braid.departures import (
    Answer,
    Deleted,
    Departures,
    Done,
    FetchState,
    FetchSubscriptions,
    GivenUp,
    GiveUp,
    State,
    Subscriptions,
)
from braidmq.broker.braid.directory import REGISTER_S, Directory, Holder
from braidmq.broker.braid.roaming import (
    Horizon,
    Marks,
    Moved,
    RoamingSession,
    delivery_of,
    state_of,
    subscribe_all,
    unsubscribe_all,
)
from braidmq.broker.router import filter_cost
from braidmq.broker.session import Session
from braidmq.broker.shares import Subscribed
from braidmq.host import Address, CallError, Message, Reply, Service, handles
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import split_share

if TYPE_CHECKING:
    from braidmq.broker.braid.braid import Braid

CLAIM_WAIT_S = 5.0
"""How long a CONNECT waits for the directory; then it is served here, and claimed later."""

MOVE_WAIT_S = 4.0
"""How long it waits for an answer of the broker that had the client before."""

EFFECTIVE_WAIT_S = 3.0
"""How long it waits until subscriptions that have moved here have taken effect in the whole braid."""

CALL_TIMEOUT_S = 1.0
BUSY_S = 0.05
POLL_S = 0.01
HANDED_ON_MAX = 4
"""How often a session may have moved on while it is looked for."""

OVERLAP_S = 40.0
"""How long a session that has come looks at marks: longer than its relay lasts."""

CONFIRM_S = 600.0
"""How long the broker that a session came from is told so, until it answers."""

OFFER_S = 5.0
"""How often a session whose client is elsewhere is offered to the broker there."""

LEFT_BEHIND_AFTER_S = 5.0
"""How long a client that had to begin anew may take to subscribe, before it is given what was left behind."""

SERVED_MAX = 100_000
"""Clients that are remembered after their session has ended or moved."""

UNKNOWN_EPOCH = 1
"""Of a session from an earlier life: lower than any claim."""

_log = logging.getLogger("braidmq.braid")


class Offer(Message, frozen=True, array_like=True, gc=False):
    """I have a session of this client, who is with you."""

    client_id: str
    name: str


class Interest(IntEnum):
    NONE = 0
    """Delete it: its client has had it here, or has ended it."""
    SOME = 1
    """It will be fetched, now or later."""
    UNKNOWN = 2
    """I know nothing of this client: it is yours."""


class Offered(Message, frozen=True, array_like=True, gc=False):
    interest: Interest


class Arrival:
    """A CONNECT that waits for its session."""

    def __init__(self, client_id: str, clean: bool, done: Callable[[bool], None]) -> None:
        self.client_id = client_id
        self.clean = clean
        self.epoch = 0
        self.ends_at = 0.0
        self.is_late = False
        """The client was served before its session had come."""
        self._done: Callable[[bool], None] | None = done

    @property
    def is_over(self) -> bool:
        return self._done is None

    def end(self, may_open: bool) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(may_open)


class Moves(Service):
    def __init__(self, braid: Braid, directory: Directory) -> None:
        self._braid = braid
        self._broker = braid.broker
        self._host = braid.host
        self._name = braid.name
        self._directory = directory
        self.marks = Marks()
        self.departures = Departures(braid, self.marks)
        self.departures.is_arriving = self._is_arriving
        self.departures.is_aside = self._is_aside
        self.departures.has_served = self._has_served
        self.taken = 0
        """Sessions that have moved here."""
        self._epochs: dict[str, int] = {}
        """Of the clients that this broker holds."""
        self._arriving: dict[str, Arrival] = {}
        self._aside: dict[str, Session] = {}
        """Sessions whose client is elsewhere: out of the subscriptions, until they are fetched."""
        self._came_from: dict[str, str] = {}
        """By client id: the broker from which its session came."""
        self._served: dict[str, float] = {}
        """Clients that have connected here in this life of the broker, and when."""
        self._fetching: dict[str, None] = {}
        """Clients for whom what was left behind is being fetched."""
        self._host.serve(self)

    # A client connects

    def arrive(self, client_id: str, clean: bool, done: Callable[[bool], None]) -> None:
        """Brings the client's session here, if it has one. Calls when it may be opened: with False if the client has
        come to another broker since."""
        self._host.spawn(self._arrive(Arrival(client_id, clean, done)))

    async def _arrive(self, arrival: Arrival) -> None:
        client_id = arrival.client_id
        while client_id in self._arriving:
            await self._host.sleep(POLL_S)
        self._arriving[client_id] = arrival
        self._served.pop(client_id, None)
        self._served[client_id] = self._host.now()
        if len(self._served) > SERVED_MAX:
            self._served.pop(next(iter(self._served)))
        self._extend(arrival, CLAIM_WAIT_S)
        self._host.spawn(self._watch(arrival))
        try:
            await self._settle(arrival)
        finally:
            del self._arriving[client_id]
        arrival.end(True)

    def _extend(self, arrival: Arrival, seconds: float) -> None:
        arrival.ends_at = self._host.now() + seconds

    async def _watch(self, arrival: Arrival) -> None:
        while not arrival.is_over:
            left_s = arrival.ends_at - self._host.now()
            if left_s <= 0:
                self._shelve(arrival.client_id)
                arrival.is_late = True
                arrival.end(True)
            else:
                await self._host.sleep(left_s)

    async def _settle(self, arrival: Arrival) -> None:
        client_id = arrival.client_id
        claimed = await self._directory.claim(client_id)
        if claimed is None:  # registering will find out
            self._epochs[client_id] = max(int(self._broker.now() * 1000), self._epochs.get(client_id, 0))
            return
        arrival.epoch = self._epochs[client_id] = claimed.epoch
        if claimed.before is None or claimed.before.name == self._name:
            self._take_back(client_id)
            return
        is_settled = await self._bring(arrival, claimed.before)
        if (
            not is_settled
            and claimed.earlier is not None
            and claimed.earlier.name
            not in (
                self._name,
                claimed.before.name,
            )
        ):
            is_settled = await self._bring(arrival, claimed.earlier)
        if not is_settled:
            if self.departures.under_way(client_id):
                self._take_back(client_id)
            else:
                self._shelve(client_id)

    async def _bring(self, arrival: Arrival, holder: Holder) -> bool:
        """Brings the session from a broker; False if that one does not answer, or knows nothing."""
        client_id = arrival.client_id
        for _ in range(HANDED_ON_MAX):
            move = self._host.chance.getrandbits(62)
            self._extend(arrival, MOVE_WAIT_S)
            asked = GiveUp(move, client_id, self._name, arrival.epoch, arrival.clean)
            answer = await self._ask_to_give_up(arrival, holder.address, asked)
            if answer is None or answer.answer is Answer.UNKNOWN:
                return False
            if answer.answer is Answer.ELSEWHERE and answer.holder is not None:
                holder = answer.holder
                continue
            if answer.answer is Answer.NEWER:
                self._lose(arrival)
            elif answer.answer is Answer.GIVEN:
                return await self._fetch(arrival, holder, move, answer.expiry_s)
            elif answer.answer is Answer.NOTHING:
                if self.departures.under_way(client_id):
                    self._take_back(client_id)
                else:
                    self._end_stale(client_id)
            return True
        return False

    async def _ask_to_give_up(self, arrival: Arrival, to: Address, asked: GiveUp) -> GivenUp | None:
        while True:
            answer = await self._ask(to, asked, MOVE_WAIT_S)
            if not isinstance(answer, GivenUp):
                return None
            self._extend(arrival, MOVE_WAIT_S)
            if answer.answer is not Answer.BUSY or arrival.client_id not in self._epochs:
                return answer
            await self._host.sleep(BUSY_S)

    async def _ask(self, to: Address, request: Message, wait_s: float) -> object:
        """Repeats a request until it is answered, or time is over."""
        ends_at = self._host.now() + wait_s
        while True:
            try:
                return await self._host.call(to, request, CALL_TIMEOUT_S)
            except CallError:
                if self._host.now() + CALL_TIMEOUT_S / 2 > ends_at:
                    return None
                await self._host.sleep(BUSY_S)

    # Fetching its session

    async def _fetch(self, arrival: Arrival, giver: Holder, move: int, expiry_s: int) -> bool:
        client_id = arrival.client_id
        broker = self._broker
        subscriptions = await self._fetch_subscriptions(arrival, giver.address, move)
        if subscriptions is None:
            return False
        session = RoamingSession(broker, client_id, broker.store.next_row(), expiry_s, self.marks)
        subscribe_all(broker, session, subscriptions)
        await self._until_effective(arrival, subscriptions)
        fetched = await self._fetch_state(arrival, giver.address, move)
        if fetched is None or arrival.is_late or broker.degraded:
            unsubscribe_all(broker, session, subscriptions)
            if fetched is None or broker.degraded:
                return False
            self._fill(client_id, fetched[0])
        else:
            self._install(session, subscriptions, *fetched)
        broker.flush()
        if broker.degraded:  # it stays where it was
            if not arrival.is_late:
                broker.end_session(session, moved=True)
            return False
        self.taken += 1
        self._came_from[client_id] = giver.name
        self._host.spawn(self._confirm(giver.address, move, client_id, session))
        return True

    async def _fetch_subscriptions(self, arrival: Arrival, giver: Address, move: int) -> dict[str, Subscribed] | None:
        found: dict[str, Subscribed] = {}
        since = 0
        while True:
            part = await self._ask(giver, FetchSubscriptions(move, arrival.client_id, since), MOVE_WAIT_S)
            if not isinstance(part, Subscriptions):
                return None
            self._extend(arrival, MOVE_WAIT_S)
            found.update(part.items)
            since = part.following
            if not since:
                return found

    async def _until_effective(self, arrival: Arrival, subscriptions: dict[str, Subscribed]) -> None:
        filters = [split_share(one)[1] for one in subscriptions]
        ends_at = self._host.now() + EFFECTIVE_WAIT_S
        while any(self._braid.is_awaited(one) for one in filters) and self._host.now() < ends_at:
            await self._host.sleep(POLL_S)
        self._extend(arrival, MOVE_WAIT_S)

    async def _fetch_state(
        self, arrival: Arrival, giver: Address, move: int
    ) -> tuple[list[Moved], tuple[int, ...], Horizon] | None:
        first: State | None = None
        items: list[Moved] = []
        since = 0
        while True:
            part = await self._ask(giver, FetchState(move, arrival.client_id, since), MOVE_WAIT_S)
            if not isinstance(part, State):
                return None
            self._extend(arrival, MOVE_WAIT_S)
            first = first or part
            items += part.items
            since = part.following
            if not since:
                return items, first.received, Horizon(first.horizon)

    def _install(
        self,
        session: RoamingSession,
        subscriptions: dict[str, Subscribed],
        state: list[Moved],
        received: tuple[int, ...],
        horizon: Horizon,
    ) -> None:
        """Makes what was fetched the client's session here; with what an older one here has, unless it is the same."""
        broker = self._broker
        client_id = session.client_id
        old = broker.sessions.get(client_id)
        left_behind = [] if old is None or self.departures.under_way(client_id) else state_of(old, broker.now())
        self._aside.pop(client_id, None)
        if old is not None:
            broker.end_session(old, moved=True)
        session.subscriptions = dict(subscriptions)
        session.filter_bytes = sum(filter_cost(one) for one in subscriptions)
        broker.adopt(session)
        session.arrive(state, received, horizon)
        self.departures.end(client_id, session)
        self._fill(client_id, left_behind)

    async def _confirm(self, giver: Address, move: int, client_id: str, session: RoamingSession) -> None:
        began_at = self._host.now()
        answer = await self._ask(giver, Done(move, client_id), CONFIRM_S)
        if not isinstance(answer, Deleted):
            _log.warning("%s was not told that the session of %r has moved here", giver, client_id)
        await self._host.sleep(max(0.0, began_at + OVERLAP_S - self._host.now()))
        session.settle()
        self._broker.forget_routes(session)

    # What was left behind

    def _fill(self, client_id: str, items: list[Moved]) -> None:
        """Gives a session, if it has not ended, what was left behind and matches what it subscribes to now."""
        broker = self._broker
        session = broker.sessions.get(client_id)
        if session is None:
            return
        now = broker.now()
        for item in items:
            message = delivery_of(item, now).message
            if item.released or message.expired(now):
                continue
            targets = [one for one in broker.router.route(message.topic).targets if one.session is session]
            if not targets or (item.packet_id and item.qos == 2):
                broker.metrics.messages_dropped += 1
                continue
            session.deliver(message, min(message.qos, targets[0].qos), item.retain, targets[0].ids)
        broker.ring()

    def _shelve(self, client_id: str) -> None:
        """The client begins anew here; an older session of its own that is here is left behind, too."""
        session = self._broker.sessions.get(client_id)
        if session is None or session.connection is not None or self.departures.under_way(client_id):
            return
        items = state_of(session, self._broker.now())
        self._end_stale(client_id)
        if items:
            self._host.spawn(self._fill_later(client_id, items))

    async def _fill_later(self, client_id: str, items: list[Moved]) -> None:
        await self._host.sleep(LEFT_BEHIND_AFTER_S)
        self._fill(client_id, items)

    def _end_stale(self, client_id: str) -> None:
        """The session here is an older one than the client's last."""
        self._aside.pop(client_id, None)
        session = self._broker.sessions.get(client_id)
        if session is not None and session.connection is None:
            self._broker.end_session(session, moved=True)

    def _take_back(self, client_id: str) -> None:
        """The session here is the client's last one."""
        self.departures.put_back(client_id)
        session = self._aside.pop(client_id, None)
        if session is not None and self._broker.sessions.get(client_id) is session:
            subscribe_all(self._broker, session, session.subscriptions)

    def _has_served(self, client_id: str) -> bool:
        return client_id in self._served

    def _is_aside(self, client_id: str) -> bool:
        return client_id in self._aside

    # Others ask

    def _is_arriving(self, asked: GiveUp) -> Answer | None:
        """What somebody is answered who wants a session that is just coming here, or came here later."""
        client_id = asked.client_id
        arrival = self._arriving.get(client_id)
        if self._epochs.get(client_id, 0) > asked.epoch:
            return Answer.NEWER
        if arrival is not None:
            if arrival.epoch:
                self._lose(arrival)
            return Answer.BUSY
        self._epochs.pop(client_id, None)
        self._came_from.pop(client_id, None)
        return None

    def _lose(self, arrival: Arrival) -> None:
        """The client has come to another broker since."""
        self._epochs.pop(arrival.client_id, None)
        arrival.end(False)

    # Registering

    async def enter(self) -> None:
        """Tells the directory what is here from an earlier life, before this broker stands for any of it."""
        await self._register()
        self._host.spawn(self._keep_registering())

    async def _keep_registering(self) -> None:
        while self._braid.is_in:
            await self._host.sleep(self._host.chance.uniform(0.5, 1.0) * REGISTER_S)
            self._directory.expire()
            await self._register()

    async def _register(self) -> None:
        clients: dict[str, int] = {}
        for client_id, session in self._broker.sessions.items():
            if client_id in self._arriving or self.departures.under_way(client_id):
                continue
            if session.connection is not None:
                self._epochs.setdefault(client_id, int(self._broker.now() * 1000))
            clients[client_id] = self._epochs.get(client_id, UNKNOWN_EPOCH)
        for memory in (self._epochs, self._came_from):
            for client_id in [one for one in memory if one not in self._broker.sessions and one not in self._arriving]:
                del memory[client_id]
        others = await self._directory.register(clients.items()) if clients else []
        if others is None:
            return
        for holder in others:
            self._compare(holder, clients[holder.client_id])
        elsewhere = {holder.client_id for holder in others if holder.name != self._name}
        for client_id in [one for one in self._aside if one in clients and one not in elsewhere]:
            self._take_back(client_id)

    def _compare(self, holder: Holder, epoch: int) -> None:
        """The directory knows a client otherwise than this broker did when it asked."""
        client_id = holder.client_id
        if client_id in self._arriving or self._epochs.get(client_id, UNKNOWN_EPOCH) != epoch:
            return
        if holder.name == self._name:
            self._epochs[client_id] = max(epoch, holder.epoch)
        elif holder.epoch >= epoch:
            self._set_aside(holder)
        elif client_id not in self._fetching:
            self._fetching[client_id] = None
            self._host.spawn(self._fetch_left_behind(client_id, holder))

    def _set_aside(self, holder: Holder) -> None:
        """The client is elsewhere: its session here stands for nothing any more, and is offered there."""
        client_id = holder.client_id
        self._epochs.pop(client_id, None)
        session = self._broker.sessions.get(client_id)
        if session is not None and session.connection is not None:
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "the client is connected to another broker")
            session = self._broker.sessions.get(client_id)
        if session is None or client_id in self._aside:
            return
        self._broker.wills.renew(session, None)
        self._aside[client_id] = session
        unsubscribe_all(self._broker, session, session.subscriptions)
        self._host.spawn(self._keep_offering(client_id, session, holder.address))

    async def _keep_offering(self, client_id: str, session: Session, to: Address) -> None:
        while self._aside.get(client_id) is session and self._broker.sessions.get(client_id) is session:
            try:
                answer = await self._host.call(to, Offer(client_id, self._name), CALL_TIMEOUT_S)
            except CallError:
                answer = None
            if isinstance(answer, Offered) and self._aside.get(client_id) is session:
                if answer.interest is Interest.NONE:
                    self._end_stale(client_id)
                elif answer.interest is Interest.UNKNOWN:
                    await self._claim_back(client_id)
            await self._host.sleep(OFFER_S)
        if self._aside.get(client_id) is session:
            del self._aside[client_id]

    @handles(Offer)
    def on_offer(self, origin: Address, offer: Offer) -> Reply:
        client_id = offer.client_id
        if client_id in self._arriving or client_id in self._fetching:
            return Offered(Interest.SOME)
        session = self._broker.sessions.get(client_id)
        if session is None and client_id not in self._served:
            return Offered(Interest.UNKNOWN)
        if session is None or self._came_from.get(client_id) == offer.name:
            return Offered(Interest.NONE)
        is_early = self._host.now() - self._served.get(client_id, -LEFT_BEHIND_AFTER_S) < LEFT_BEHIND_AFTER_S
        if client_id in self._epochs and not is_early:
            self._fetching[client_id] = None
            holder = Holder(client_id, origin, offer.name, 0)
            self._host.spawn(self._fetch_left_behind(client_id, holder))
        return Offered(Interest.SOME)

    async def _claim_back(self, client_id: str) -> None:
        """The broker that was about to take the session has lost all memory of it."""
        claimed = await self._directory.claim(client_id)
        if claimed is not None and client_id not in self._arriving:
            self._epochs[client_id] = claimed.epoch
            self._take_back(client_id)

    async def _fetch_left_behind(self, client_id: str, holder: Holder) -> None:
        """Brings what another broker still has of a client that has its session here."""
        try:
            arrival = Arrival(client_id, False, lambda _may_open: None)
            arrival.epoch = self._epochs.get(client_id, UNKNOWN_EPOCH)
            move = self._host.chance.getrandbits(62)
            asked = GiveUp(move, client_id, self._name, arrival.epoch, False)
            answer = await self._ask_to_give_up(arrival, holder.address, asked)
            if answer is None or answer.answer is not Answer.GIVEN:
                return
            fetched = await self._fetch_state(arrival, holder.address, move)
            if fetched is not None:
                self._fill(client_id, fetched[0])
                self._broker.flush()
                if not self._broker.degraded:
                    await self._ask(holder.address, Done(move, client_id), CONFIRM_S)
        finally:
            del self._fetching[client_id]
