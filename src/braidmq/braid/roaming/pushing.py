"""Giving sessions away whose clients are not here: the side of the giver (`taking` has the other one).

    here                                      the taker
    TakeSession ────────────────────────────▶ claims it in the directory, from this broker
                                              … and fetches it, as if the client had come there (`takeover`)
                ◀──────────────────────────── SessionStored: it is deleted here
                ◀──────────────────────────── or NotTaken: this broker claims it back

A session stays in its place, and gathers what comes for it, until the taker has it in its store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from braidmq.braid.membership.broker_records import BrokerRecord
from braidmq.braid.roaming.clients import ClientRecords
from braidmq.braid.roaming.directory import ClientDirectory
from braidmq.braid.roaming.directory_messages import Client, SessionHolder
from braidmq.braid.roaming.handover import SILENCE_S, Handovers
from braidmq.braid.roaming.messages import NotTaken, TakeAnswer, TakeSession, TakingSession
from braidmq.braid.roaming.searching import SearchResult
from braidmq.broker.broker import Broker
from braidmq.broker.session import Session
from braidmq.host import Address, Host, Reply, Service, ask, handles

ASK_TIMEOUT_S = 1.0
TAKE_S = 10.0
"""How long a taker may take until it has begun to fetch a session; one that fetches may take longer."""


class SessionPusher(Service):
    def __init__(
        self,
        broker: Broker,
        host: Host,
        identity: str,
        clients: ClientRecords,
        directory: ClientDirectory,
        handovers: Handovers,
    ) -> None:
        """`identity` is that of this broker."""
        self._broker = broker
        self._host = host
        self._identity = identity
        self._clients = clients
        self._directory = directory
        self._handovers = handovers
        self.search: Callable[[str], Awaitable[SearchResult]]
        """Asks all brokers what they have of a client's session."""
        self.set_aside_later: Callable[[SessionHolder, Client], Coroutine[Any, Any, None]]
        """The client is elsewhere: its session here is offered there, unless it is fetched at once."""
        host.serve(self)

    @property
    def under_way(self) -> int:
        return len(self._clients.pushed)

    def can_push(self, client_id: str) -> bool:
        """Whether a session is here, and neither comes nor goes already."""
        clients = self._clients
        is_busy = client_id in clients.pushed or client_id in clients.arriving or clients.is_displaced(client_id)
        return not is_busy and not self._handovers.is_under_way(client_id)

    def begin(self, client_id: str) -> None:
        """From now on until `push` is through, the session counts as one that goes."""
        self._clients.pushed[client_id] = self._host.event()

    async def push(self, session: Session, taker: BrokerRecord) -> TakeAnswer | None:
        """Gives a session away; what the taker says to it, None if it is silent. If it has gone, it is not here."""
        client_id = session.client_id
        gone = self._clients.pushed[client_id]
        try:
            asked = TakeSession(client_id, self._identity, session.owner, self._clients.epochs.get(client_id, 0))
            told = await ask(self._host, taker.address, asked, TakingSession, timeout_s=ASK_TIMEOUT_S)
            if told is not None and told.answer is not TakeAnswer.TAKING:
                return told.answer
            await gone.wait(TAKE_S)
            while not gone.is_set and self._handovers.is_under_way(client_id):
                await gone.wait(SILENCE_S)
            if self._broker.sessions.get(client_id) is session:
                await self._claim_back(session, taker)
            return None if told is None else told.answer
        finally:
            del self._clients.pushed[client_id]

    async def _claim_back(self, session: Session, taker: BrokerRecord) -> None:
        """The taker may have claimed it before it failed. It may also have found that there is a newer one."""
        client_id = session.client_id
        own_epoch = self._clients.epochs.get(client_id, 0)
        newer = (await self.search(client_id)).newer_than(own_epoch, self._identity)
        if newer is not None:
            client = Client(client_id, own_epoch, session.owner or "")
            self._host.spawn(self.set_aside_later(newer, client))
            return
        claimed = await self._directory.claim(client_id, session.owner or "", giver=taker.identity)
        is_here = self._broker.sessions.get(client_id) is session and not self._handovers.is_under_way(client_id)
        if claimed is not None and is_here and not claimed.is_foreign and not claimed.is_elsewhere:
            self._clients.epochs[client_id] = claimed.epoch

    @handles(NotTaken)
    def on_not_taken(self, origin: Address, told: NotTaken) -> Reply:
        gone = self._clients.pushed.get(told.client_id)
        if gone is not None and self._handovers.put_back_from(origin, told.client_id):
            gone.set()
        return None
