"""Displaced sessions: a broker that was down or cut off comes back with sessions whose clients are elsewhere now.

Every broker repeats in the directory which clients it has, and so learns which were taken over while it could not be
told. A connection is closed then. A session is set aside: it stands for nothing any more, so that what is published now
is the other broker's alone, and it is offered there until it is fetched (`left_behind`) or not wanted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from braidmq.braid.membership.presence import Presence
from braidmq.braid.roaming.clients import ClientRecords
from braidmq.braid.roaming.directory import ClientDirectory
from braidmq.braid.roaming.directory_entries import REGISTER_S
from braidmq.braid.roaming.directory_messages import Client, HeldElsewhere, SessionHolder
from braidmq.braid.roaming.epochs import UNKNOWN_EPOCH
from braidmq.braid.roaming.fetching import SessionFetcher
from braidmq.braid.roaming.handover import Handovers
from braidmq.braid.roaming.left_behind import deliver_left_behind
from braidmq.braid.roaming.messages import Offer, OfferAnswer, Offered
from braidmq.braid.roaming.moved import MovedDelivery, state_of, subscribe_all, unsubscribe_all
from braidmq.braid.roaming.searching import SearchResult
from braidmq.braid.roaming.sessions import release_unproven
from braidmq.broker.broker import Broker
from braidmq.broker.session import Session
from braidmq.host import Address, Host, Reply, Service, ask, handles
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import is_foreign

OFFER_S = 5.0
"""How often a session whose client is elsewhere is offered to the broker there."""

GIVE_UP_S = 1.0
"""How long a broker that has claimed a client may take to ask for its session."""

LEFT_BEHIND_AFTER_S = 5.0
"""How long a client that had to begin anew may take to subscribe, before it is given what was left behind."""

REGISTER_AGAIN_S = 1.0
"""How often a client that has come is told to the directory while that does not answer."""

CALL_TIMEOUT_S = 1.0

SESSIONS_AT_ONCE = 2000
"""Sessions that are looked at in one turn, to register them."""

_log = logging.getLogger("braidmq.braid")


class DisplacedSessions(Service):
    def __init__(
        self,
        broker: Broker,
        host: Host,
        presence: Presence,
        identity: str,
        clients: ClientRecords,
        directory: ClientDirectory,
        handovers: Handovers,
        fetcher: SessionFetcher,
    ) -> None:
        """`identity` is that of this broker."""
        self._broker = broker
        self._host = host
        self._presence = presence
        self._identity = identity
        self._clients = clients
        self._directory = directory
        self._handovers = handovers
        self._fetcher = fetcher
        self.search: Callable[[str], Awaitable[SearchResult]]
        """Asks all brokers what they have of a client's session."""
        self._fetching: dict[str, None] = {}
        """Clients for which what was left behind is being fetched."""
        host.serve(self)

    # What was left behind

    def leave_behind(self, client_id: str) -> None:
        """A client that has come begins anew here; an older session of its own that is here is left behind, too, and a
        connection that this still has is ended."""
        session = self._broker.sessions.get(client_id)
        if session is not None and session.connection is not None and not self._handovers.is_under_way(client_id):
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "another connection has taken over this client id")
            session = self._broker.sessions.get(client_id)
        if session is None or self._handovers.is_under_way(client_id):
            return
        release_unproven(session)
        items = state_of(session, self._broker.now())
        self.end_stale(client_id)
        if items:
            self._host.spawn(self._deliver_later(client_id, items))

    async def _deliver_later(self, client_id: str, items: list[MovedDelivery]) -> None:
        await self._host.sleep(LEFT_BEHIND_AFTER_S)
        deliver_left_behind(self._broker, client_id, items)

    def end_stale(self, client_id: str) -> None:
        """The session here is an older one than the client's last."""
        was_displaced = self._clients.displaced.pop(client_id, None) is not None
        session = self._broker.sessions.get(client_id)
        if session is not None and session.connection is None:
            self._broker.sessions.end(session, moved=True)
            if was_displaced and client_id not in self._clients.arriving:
                self._clients.epochs.drop(client_id)

    def take_back(self, client_id: str) -> None:
        """The session here is the client's last one."""
        self._handovers.put_back(client_id)
        session = self._clients.displaced.pop(client_id, None)
        if session is not None and self._broker.sessions.get(client_id) is session:
            subscribe_all(self._broker, session, session.subscriptions)

    def on_taken_up(self, sessions: Iterable[tuple[str, int]]) -> None:
        """Others have acted for this broker while it stood still: clients are elsewhere whose sessions have no higher
        epochs here. Their connections are closed, with what was read from them and not looked at."""
        for client_id, epoch in sessions:
            session = self._broker.sessions.get(client_id)
            if session is None or self._is_moving(client_id):
                continue
            if self._clients.epochs.get(client_id, UNKNOWN_EPOCH) <= epoch and session.connection is not None:
                session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "the client is connected to another broker")
                self._broker.sessions.wills.renew(session, None)

    # Registering

    async def enter(self) -> None:
        """Tells the directory what is here from an earlier incarnation, before this broker stands for any of it."""
        await self._register(is_entering=True)
        self._host.spawn(self._keep_registering())

    async def _keep_registering(self) -> None:
        while self._presence.is_in:
            await self._host.sleep(self._host.chance.uniform(0.5, 1.0) * REGISTER_S)
            self._directory.registrar.expire()
            await self._register()

    async def register_one(self, client_id: str) -> None:
        """Tells the directory of a client that has come while that could not be told, for as long as it stays."""
        sessions = self._broker.sessions
        while (session := sessions.get(client_id)) is not None and session.connection is not None:
            epoch = self._clients.epochs.get(client_id)
            if epoch is None or self._is_moving(client_id):
                return
            if await self._register_these({client_id: Client(client_id, epoch, session.owner or "")}):
                return
            await self._host.sleep(REGISTER_AGAIN_S)

    async def register(self) -> None:
        """Tells the directory of all clients here, and learns which of them are elsewhere."""
        await self._register()

    async def _register(self, is_entering: bool = False) -> None:
        clients = await self._own_clients()
        self._clients.forget_all_but(self._broker.sessions)
        await self._register_these(clients, is_entering)

    async def _register_these(self, clients: dict[str, Client], is_entering: bool = False) -> bool:
        """Whether all registrars have answered."""
        others = await self._directory.register(clients.values()) if clients else []
        if others is None:
            return False
        for holder in others:
            self._compare(holder, clients[holder.client_id], is_entering)
        elsewhere = {holder.client_id for holder in others if holder.name != self._identity}
        for client_id in [one for one in self._clients.displaced if one in clients and one not in elsewhere]:
            self.take_back(client_id)
        return True

    async def _own_clients(self) -> dict[str, Client]:
        """The clients whose sessions are here, and neither come nor go just now; some at a time."""
        clients: dict[str, Client] = {}
        sessions = self._broker.sessions
        for number, (client_id, session) in enumerate(list(sessions.items()), 1):
            if number % SESSIONS_AT_ONCE == 0:
                await self._host.sleep(0)
            if sessions.get(client_id) is not session:
                continue
            if self._is_moving(client_id):
                continue
            if session.connection is not None:
                if client_id not in self._clients.epochs:
                    self._clients.epochs[client_id] = int(self._broker.now() * 1000)
            epoch = self._clients.epochs.get(client_id, UNKNOWN_EPOCH)
            clients[client_id] = Client(client_id, epoch, session.owner or "")
        return clients

    def _is_moving(self, client_id: str) -> bool:
        """Whether a session is coming or going just now: the directory may know of it before it is done."""
        clients = self._clients
        return client_id in clients.arriving or client_id in clients.pushed or self._handovers.is_under_way(client_id)

    def _compare(self, holder: SessionHolder, client: Client, is_entering: bool) -> None:
        """The directory knows a client otherwise than this broker did when it asked."""
        client_id, epoch, owner = client
        if self._is_moving(client_id) or self._clients.epochs.get(client_id, UNKNOWN_EPOCH) != epoch:
            return
        if holder.name == self._identity:
            self._clients.epochs[client_id] = max(epoch, holder.epoch)
        elif holder.is_contested(self._identity, owner):
            if holder.epoch <= epoch:
                self._host.spawn(self._give_way(holder, client))
        elif holder.epoch >= epoch and is_entering:
            self._set_aside(holder)
        elif holder.epoch >= epoch:
            self._host.spawn(self.set_aside_later(holder, client))
        elif client_id not in self._fetching and holder.epoch < self._clients.epochs.begun(client_id):
            self._fetching[client_id] = None
            self._host.spawn(self._fetch_left_behind(client_id, holder))

    @handles(HeldElsewhere)
    def on_held_elsewhere(self, _origin: Address, told: HeldElsewhere) -> Reply:
        """After a cut both had the client; nobody has to wait until this broker tells the directory of it again."""
        client_id = told.holder.client_id
        session = self._broker.sessions.get(client_id)
        if session is not None and told.holder.name != self._identity:
            epoch = self._clients.epochs.get(client_id, UNKNOWN_EPOCH)
            self._compare(told.holder, Client(client_id, epoch, session.owner or ""), is_entering=False)
        return None

    async def _give_way(self, holder: SessionHolder, client: Client) -> None:
        """Another user had the client id first, at a broker that could not be asked when it was taken here."""
        if await self._fetcher.is_kept_from(holder, client.owner) is not True:
            return
        session = self._broker.sessions.get(client.client_id)
        if session is None or session.owner != client.owner:
            return
        _log.warning("client %r of user %r has to go: another user had its identifier first", *client[::2])
        if session.connection is not None:
            text = "this client identifier has a session of another user"
            session.connection.disconnect(Reason.NOT_AUTHORIZED, text)
        self._broker.sessions.end(session)

    # Offering

    async def set_aside_later(self, holder: SessionHolder, client: Client) -> None:
        """A broker that has just claimed a client is about to ask for its session. Until then it stays in its place: if
        it stood for nothing, what is published meanwhile would reach neither broker."""
        await self._host.sleep(GIVE_UP_S)
        client_id = client.client_id
        is_same = self._clients.epochs.get(client_id, UNKNOWN_EPOCH) == client.epoch
        if is_same and client_id in self._broker.sessions and not self._is_moving(client_id):
            self._set_aside(holder)

    def _set_aside(self, holder: SessionHolder) -> None:
        """The client is elsewhere: its session here stands for nothing any more, and is offered there."""
        client_id = holder.client_id
        session = self._broker.sessions.get(client_id)
        if session is not None and session.connection is not None:
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "the client is connected to another broker")
            session = self._broker.sessions.get(client_id)
        if session is None or self._clients.is_displaced(client_id):
            return
        _log.info("client %r is at %s now: the session that it had here is set aside", client_id, holder.name)
        self._broker.sessions.wills.renew(session, None)
        self._clients.displaced[client_id] = session
        self._clients.displaced_by[client_id] = holder
        unsubscribe_all(self._broker, session, session.subscriptions)
        self._host.spawn(self._keep_offering(client_id, session, holder))

    async def _keep_offering(self, client_id: str, session: Session, to: SessionHolder) -> None:
        displaced = self._clients.displaced
        while displaced.get(client_id) is session and self._broker.sessions.get(client_id) is session:
            epoch = self._clients.epochs.get(client_id, 0)
            offer = Offer(client_id, self._identity, session.owner or "", epoch)
            offered = await ask(self._host, to.address, offer, Offered, timeout_s=CALL_TIMEOUT_S)
            if offered is not None and displaced.get(client_id) is session:
                if offered.answer is OfferAnswer.NOT_WANTED:
                    self.end_stale(client_id)
                elif offered.answer is OfferAnswer.UNKNOWN:
                    to = await self._claim_back(client_id, to)
                elif offered.holder is not None:
                    to = offered.holder
            await self._host.sleep(OFFER_S)
        if displaced.get(client_id) is session:
            del displaced[client_id]

    @handles(Offer)
    def on_offer(self, origin: Address, offer: Offer) -> Reply:
        client_id = offer.client_id
        if client_id in self._clients.arriving or client_id in self._fetching:
            return Offered(OfferAnswer.WANTED)
        session = self._broker.sessions.get(client_id)
        gone_to = self._handovers.gone_to(client_id) if session is None else None
        if gone_to is not None and gone_to.name != offer.name:
            return Offered(OfferAnswer.WANTED, gone_to)
        if session is None and client_id not in self._clients.served:
            return Offered(OfferAnswer.UNKNOWN)
        if session is not None and is_foreign(offer.owner, session.owner or ""):
            return Offered(OfferAnswer.WANTED)  # not for the user that is here
        served = self._clients.served.get(client_id)
        is_clean = served is not None and served.clean
        is_earlier = bool(offer.epoch) and offer.epoch >= self._clients.epochs.begun(client_id)
        if session is None or is_clean or is_earlier or self._clients.came_from.get(client_id) == offer.name:
            return Offered(OfferAnswer.NOT_WANTED)
        is_early = served is not None and self._host.now() - served.at < LEFT_BEHIND_AFTER_S
        if client_id in self._clients.epochs and not is_early:
            self._fetching[client_id] = None
            holder = SessionHolder(client_id, origin, offer.name, 0)
            self._host.spawn(self._fetch_left_behind(client_id, holder))
        return Offered(OfferAnswer.WANTED)

    async def _claim_back(self, client_id: str, holder: SessionHolder) -> SessionHolder:
        """The broker that was about to take the session knows nothing of it: it has lost all memory of it, or was told
        to have it too late. Then the session is the client's, unless that has come to another broker: which one."""
        session = self._clients.displaced[client_id]
        own_epoch = self._clients.epochs.get(client_id, 0)
        newer = (await self.search(client_id)).newer_than(own_epoch, self._identity)
        if newer is not None:
            return newer
        claimed = await self._directory.claim(client_id, session.owner or "", giver=holder.name)
        is_arriving = client_id in self._clients.arriving
        if claimed is None or claimed.is_foreign or is_arriving or not self._clients.is_displaced(client_id):
            return holder
        if claimed.is_elsewhere:
            return claimed.before or holder
        self._clients.epochs[client_id] = claimed.epoch
        self.take_back(client_id)
        return holder

    async def _fetch_left_behind(self, client_id: str, holder: SessionHolder) -> None:
        """Brings what another broker still has of a client that has its session here."""
        try:
            fetched = await self._fetcher.left_behind(client_id, holder)
            if fetched is not None:
                move, items = fetched
                deliver_left_behind(self._broker, client_id, items)
                self._broker.flush()
                copied = self._host.event()
                self._broker.tick.when_copied(copied.set)
                await copied.wait()
                if not self._broker.degraded:
                    self._clients.came_from[client_id] = holder.name
                    await self._fetcher.confirm(holder.address, move, client_id)
        finally:
            del self._fetching[client_id]
