"""Sessions whose client is elsewhere: a broker that was down or cut off comes back with what it had.

Every broker repeats in the directory which clients it has, and so learns who has been taken over while it could not be
told. A connection is closed then. A session is set aside: it stands for nothing any more, so that what is published now
is the other broker's alone, and it is offered there until it is fetched or not wanted.

The client was told over there that it has no session, so it gets none back. Of what was left behind it is given the
publications that match what it subscribes to now, after those that have come meanwhile; except those of QoS 2 that were
already sent under a packet id: it may have received them.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import TYPE_CHECKING

from braidmq.braid.roaming.directory import REGISTER_S, Client, Directory, Holder
from braidmq.braid.roaming.handover import CONFIRM_S, SessionStored
from braidmq.braid.roaming.transfer import Moved, delivery_of, state_of, subscribe_all, unsubscribe_all
from braidmq.broker.session import Session
from braidmq.host import Address, CallError, Message, Reply, Service, handles
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import is_foreign

if TYPE_CHECKING:
    from braidmq.braid.braid import Braid
    from braidmq.braid.roaming.takeover import Takeovers

OFFER_S = 5.0
"""How often a session whose client is elsewhere is offered to the broker there."""

LEFT_BEHIND_AFTER_S = 5.0
"""How long a client that had to begin anew may take to subscribe, before it is given what was left behind."""

UNKNOWN_EPOCH = 1
"""Of a session from an earlier incarnation: lower than any claim."""

CALL_TIMEOUT_S = 1.0

_log = logging.getLogger("braidmq.braid")


class Offer(Message, frozen=True, array_like=True, gc=False):
    """I have a session of this client, who is with you."""

    client_id: str
    name: str
    owner: str = ""


class OfferAnswer(IntEnum):
    NONE = 0
    """Delete it: its client has had it here, or has ended it."""
    SOME = 1
    """It will be fetched, now or later."""
    UNKNOWN = 2
    """I know nothing of this client: it is yours."""


class Offered(Message, frozen=True, array_like=True, gc=False):
    interest: OfferAnswer


class DisplacedSessions(Service):
    def __init__(self, braid: Braid, takeovers: Takeovers, directory: Directory) -> None:
        self._braid = braid
        self._broker = braid.broker
        self._host = braid.host
        self._takeovers = takeovers
        self._directory = directory
        self._displaced: dict[str, Session] = {}
        """Sessions whose client is elsewhere: out of the subscriptions, until they are fetched."""
        self._fetching: dict[str, None] = {}
        """Clients for whom what was left behind is being fetched."""
        self._host.serve(self)

    def is_displaced(self, client_id: str) -> bool:
        return client_id in self._displaced

    def forget(self, client_id: str) -> None:
        """The session is no longer set aside: it ends."""
        self._displaced.pop(client_id, None)

    # What was left behind

    def fill(self, client_id: str, items: list[Moved]) -> None:
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

    def leave_behind(self, client_id: str) -> None:
        """The client begins anew here; an older session of its own that is here is left behind, too."""
        session = self._broker.sessions.get(client_id)
        if session is None or session.connection is not None or self._takeovers.handovers.under_way(client_id):
            return
        items = state_of(session, self._broker.now())
        self.end_stale(client_id)
        if items:
            self._host.spawn(self._fill_later(client_id, items))

    async def _fill_later(self, client_id: str, items: list[Moved]) -> None:
        await self._host.sleep(LEFT_BEHIND_AFTER_S)
        self.fill(client_id, items)

    def end_stale(self, client_id: str) -> None:
        """The session here is an older one than the client's last."""
        self._displaced.pop(client_id, None)
        session = self._broker.sessions.get(client_id)
        if session is not None and session.connection is None:
            self._broker.end_session(session, moved=True)

    def take_back(self, client_id: str) -> None:
        """The session here is the client's last one."""
        self._takeovers.handovers.put_back(client_id)
        session = self._displaced.pop(client_id, None)
        if session is not None and self._broker.sessions.get(client_id) is session:
            subscribe_all(self._broker, session, session.subscriptions)

    # Registering

    async def enter(self) -> None:
        """Tells the directory what is here from an earlier incarnation, before this broker stands for any of it."""
        await self._register()
        self._host.spawn(self._keep_registering())

    async def _keep_registering(self) -> None:
        while self._braid.is_in:
            await self._host.sleep(self._host.chance.uniform(0.5, 1.0) * REGISTER_S)
            self._directory.expire()
            await self._register()

    async def _register(self) -> None:
        clients: dict[str, Client] = {}
        for client_id, session in self._broker.sessions.items():
            if client_id in self._takeovers.arriving or self._takeovers.handovers.under_way(client_id):
                continue
            if session.connection is not None:
                self._takeovers.epochs.setdefault(client_id, int(self._broker.now() * 1000))
            epoch = self._takeovers.epochs.get(client_id, UNKNOWN_EPOCH)
            clients[client_id] = Client(client_id, epoch, session.owner or "")
        for memory in (self._takeovers.epochs, self._takeovers.came_from):
            for client_id in list(memory):
                if client_id not in self._broker.sessions and client_id not in self._takeovers.arriving:
                    del memory[client_id]
        others = await self._directory.register(clients.values()) if clients else []
        if others is None:
            return
        for holder in others:
            self._compare(holder, clients[holder.client_id])
        elsewhere = {holder.client_id for holder in others if holder.name != self._braid.identity}
        for client_id in [one for one in self._displaced if one in clients and one not in elsewhere]:
            self.take_back(client_id)

    def _compare(self, holder: Holder, client: Client) -> None:
        """The directory knows a client otherwise than this broker did when it asked."""
        client_id, epoch, owner = client
        if client_id in self._takeovers.arriving or self._takeovers.epochs.get(client_id, UNKNOWN_EPOCH) != epoch:
            return
        if holder.name == self._braid.identity:
            self._takeovers.epochs[client_id] = max(epoch, holder.epoch)
        elif holder.is_contested(self._braid.identity, owner):
            if holder.epoch <= epoch:
                self._host.spawn(self._give_way(holder, client))
        elif holder.epoch >= epoch:
            self._set_aside(holder)
        elif client_id not in self._fetching:
            self._fetching[client_id] = None
            self._host.spawn(self._fetch_left_behind(client_id, holder))

    async def _give_way(self, holder: Holder, client: Client) -> None:
        """Another user had the client id first, at a broker that could not be asked when it was taken here."""
        if await self._takeovers.is_kept(holder, client.owner) is not True:
            return
        session = self._broker.sessions.get(client.client_id)
        if session is None or session.owner != client.owner:
            return
        _log.warning("client %r of user %r has to go: another user had its identifier first", *client[::2])
        if session.connection is not None:
            text = "this client identifier has a session of another user"
            session.connection.disconnect(Reason.NOT_AUTHORIZED, text)
        self._broker.end_session(session)

    def _set_aside(self, holder: Holder) -> None:
        """The client is elsewhere: its session here stands for nothing any more, and is offered there."""
        client_id = holder.client_id
        self._takeovers.epochs.pop(client_id, None)
        session = self._broker.sessions.get(client_id)
        if session is not None and session.connection is not None:
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "the client is connected to another broker")
            session = self._broker.sessions.get(client_id)
        if session is None or client_id in self._displaced:
            return
        self._broker.wills.renew(session, None)
        self._displaced[client_id] = session
        unsubscribe_all(self._broker, session, session.subscriptions)
        self._host.spawn(self._keep_offering(client_id, session, holder.address))

    async def _keep_offering(self, client_id: str, session: Session, to: Address) -> None:
        while self._displaced.get(client_id) is session and self._broker.sessions.get(client_id) is session:
            try:
                offer = Offer(client_id, self._braid.identity, session.owner or "")
                answer = await self._host.call(to, offer, CALL_TIMEOUT_S)
            except CallError:
                answer = None
            if isinstance(answer, Offered) and self._displaced.get(client_id) is session:
                if answer.interest is OfferAnswer.NONE:
                    self.end_stale(client_id)
                elif answer.interest is OfferAnswer.UNKNOWN:
                    await self._claim_back(client_id)
            await self._host.sleep(OFFER_S)
        if self._displaced.get(client_id) is session:
            del self._displaced[client_id]

    @handles(Offer)
    def on_offer(self, origin: Address, offer: Offer) -> Reply:
        client_id = offer.client_id
        if client_id in self._takeovers.arriving or client_id in self._fetching:
            return Offered(OfferAnswer.SOME)
        session = self._broker.sessions.get(client_id)
        if session is None and client_id not in self._takeovers.served:
            return Offered(OfferAnswer.UNKNOWN)
        if session is not None and is_foreign(offer.owner, session.owner or ""):
            return Offered(OfferAnswer.SOME)  # not for the user who is here
        served = self._takeovers.served.get(client_id)
        is_clean = served is not None and served.clean
        if session is None or is_clean or self._takeovers.came_from.get(client_id) == offer.name:
            return Offered(OfferAnswer.NONE)
        is_early = served is not None and self._host.now() - served.at < LEFT_BEHIND_AFTER_S
        if client_id in self._takeovers.epochs and not is_early:
            self._fetching[client_id] = None
            holder = Holder(client_id, origin, offer.name, 0)
            self._host.spawn(self._fetch_left_behind(client_id, holder))
        return Offered(OfferAnswer.SOME)

    async def _claim_back(self, client_id: str) -> None:
        """The broker that was about to take the session has lost all memory of it."""
        session = self._displaced[client_id]
        claimed = await self._directory.claim(client_id, session.owner or "")
        if claimed is not None and not claimed.is_foreign and client_id not in self._takeovers.arriving:
            self._takeovers.epochs[client_id] = claimed.epoch
            self.take_back(client_id)

    async def _fetch_left_behind(self, client_id: str, holder: Holder) -> None:
        """Brings what another broker still has of a client that has its session here."""
        try:
            fetched = await self._takeovers.fetch_rest(client_id, holder.address)
            if fetched is not None:
                move, items = fetched
                self.fill(client_id, items)
                self._broker.flush()
                if not self._broker.degraded:
                    self._takeovers.came_from[client_id] = holder.name
                    await self._takeovers.ask(holder.address, SessionStored(move, client_id), CONFIRM_S)
        finally:
            del self._fetching[client_id]
