"""Taking sessions that another broker gives away: the side of the taker (`pushing` has the other one).

No client waits for it, so there is no hurry, and it never takes a session from a broker to which the client itself has
come meanwhile: the directory lets this broker claim it only from the giver. If the client comes here while its session
does, it waits for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from braidmq.braid.membership.presence import Presence
from braidmq.braid.roaming.clients import Arrival, ClientRecords
from braidmq.braid.roaming.directory import ClientDirectory
from braidmq.braid.roaming.directory_messages import SessionHolder
from braidmq.braid.roaming.fetching import SessionFetcher
from braidmq.braid.roaming.incoming import IncomingSessions
from braidmq.braid.roaming.messages import (
    AskRoom,
    GiveUpAnswer,
    HasRoom,
    NotTaken,
    TakeAnswer,
    TakeSession,
    TakingSession,
)
from braidmq.braid.roaming.searching import SearchResult
from braidmq.broker.broker import Broker
from braidmq.host import Address, Host, Reply, Service, handles

TAKING_MAX = 1024
"""Sessions that are taken at a time, from all brokers."""


class SessionTaker(Service):
    def __init__(
        self,
        broker: Broker,
        host: Host,
        presence: Presence,
        clients: ClientRecords,
        directory: ClientDirectory,
        fetcher: SessionFetcher,
        incoming: IncomingSessions,
    ) -> None:
        self._broker = broker
        self._host = host
        self._presence = presence
        self._clients = clients
        self._directory = directory
        self._fetcher = fetcher
        self._incoming = incoming
        self._taking = 0
        self.search: Callable[[str], Awaitable[SearchResult]]
        """Asks all brokers what they have of a client's session."""
        self.is_draining: Callable[[], bool] = lambda: False
        """Whether this broker gives its own sessions away."""
        host.serve(self)

    @property
    def has_room(self) -> bool:
        broker, presence = self._broker, self._presence
        if not presence.is_in or presence.is_leaving or self.is_draining() or broker.degraded:
            return False
        return len(broker.sessions) + self._taking < broker.limits.sessions_max and self._taking < TAKING_MAX

    @handles(AskRoom)
    def on_ask_room(self, _origin: Address, _asked: AskRoom) -> Reply:
        return HasRoom(self.has_room)

    @handles(TakeSession)
    def on_take_session(self, origin: Address, asked: TakeSession) -> Reply:
        if not self.has_room:
            return TakingSession(TakeAnswer.NO_ROOM)
        session = self._broker.sessions.get(asked.client_id)
        is_here = session is not None and not self._clients.is_displaced(asked.client_id)
        if asked.client_id in self._clients.arriving or is_here:  # what is here may be newer
            return TakingSession(TakeAnswer.BUSY)
        arrival = Arrival(
            self._host, asked.client_id, asked.owner or "", clean=False, done=lambda _arrived: False, is_pushed=True
        )
        arrival.owner = asked.owner
        self._clients.arriving[asked.client_id] = arrival
        self._taking += 1
        self._host.spawn(self._take(arrival, origin, asked))
        return TakingSession(TakeAnswer.TAKING)

    async def _take(self, arrival: Arrival, giver: Address, asked: TakeSession) -> None:
        client_id = arrival.client_id
        try:
            is_taken = await self._fetch(arrival, giver, asked)
        finally:
            self._taking -= 1
            del self._clients.arriving[client_id]
            arrival.through.set()
        if not is_taken:
            self._clients.epochs.drop(client_id)
            self._host.send(giver, NotTaken(client_id))

    async def _fetch(self, arrival: Arrival, giver: Address, asked: TakeSession) -> bool:
        client_id = arrival.client_id
        if asked.epoch and (await self.search(client_id)).newer_than(asked.epoch, asked.name) is not None:
            return False  # the directory may not know of it
        claimed = await self._directory.claim(client_id, arrival.user, giver=asked.name, given=asked.epoch)
        if claimed is None or claimed.is_foreign or claimed.is_elsewhere:
            return False
        arrival.epoch = self._clients.epochs[client_id] = claimed.epoch
        self._clients.came_from.pop(client_id, None)
        move = self._fetcher.new_move()
        holder = SessionHolder(client_id, giver, asked.name, asked.epoch)
        given = await self._fetcher.give_up(arrival, holder, move)
        if given is None or given.answer is not GiveUpAnswer.GIVEN:
            return False
        self._clients.epochs.set_begun(client_id, given.begun)
        return await self._incoming.bring(arrival, holder, move, given)
