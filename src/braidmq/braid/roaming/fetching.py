"""Fetching a session from the broker that has it: questions that are repeated until they are answered, or too late."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from braidmq.braid.roaming.clients import Arrival, ClientRecords
from braidmq.braid.roaming.directory_messages import SessionHolder
from braidmq.braid.roaming.handover import Handovers
from braidmq.braid.roaming.marks import Horizon
from braidmq.braid.roaming.messages import (
    AskForeignSession,
    FetchState,
    FetchSubscriptions,
    GivenUp,
    GiveUp,
    GiveUpAnswer,
    HasForeignSession,
    SessionDeleted,
    SessionState,
    SessionStored,
    SessionSubscriptions,
)
from braidmq.braid.roaming.moved import Absence, MovedDelivery
from braidmq.braid.round_trips import RoundTrips
from braidmq.braid.transfer.predecessors import ByTopic
from braidmq.broker.broker import Broker
from braidmq.broker.subscription import Subscribed
from braidmq.host import Address, Host, Message, ask

MOVE_WAIT_S = 4.0
"""How long a CONNECT waits for an answer of the broker that had the client before."""

CONFIRM_S = 600.0
"""How long the broker that a session came from is told so, until it answers."""

FIRST_TIMEOUT_S, CALL_TIMEOUT_S = 0.1, 1.0
"""How long an answer may take, at the first try at least and at most: a message may be lost, and the way be long."""
BUSY_S = 0.02
"""The pause before a broker that is busy, or did not answer, is asked again."""

Answer = TypeVar("Answer", bound=Message)


class FetchedState(NamedTuple):
    deliveries: list[MovedDelivery]
    received: tuple[int, ...]
    """Packet ids of QoS 2."""
    horizon: Horizon
    """How far histories were followed."""
    absence: Absence | None
    published: ByTopic = ()
    """What the client has published last on its topics."""
    instances: bytes = b""
    """What it is an instance of, and what is reserved of it."""


class SessionFetcher:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        identity: str,
        cluster: str,
        clients: ClientRecords,
        handovers: Handovers,
        round_trips: RoundTrips,
    ) -> None:
        """`identity` and `cluster` are those of this broker."""
        self._broker = broker
        self._round_trips = round_trips
        self._host = host
        self._identity = identity
        self._cluster = cluster
        self._clients = clients
        self._handovers = handovers

    async def _ask(self, to: Address, request: Message, replies: type[Answer], wait_s: float) -> Answer | None:
        """Repeats a request until it is answered, or time is over: one that refuses may just be starting."""
        ends_at = self._host.now() + wait_s
        timeout_s = min(max(FIRST_TIMEOUT_S, self._round_trips.timeout_s(to)), wait_s)
        while True:
            reply = await ask(self._host, to, request, Message, timeout_s=timeout_s)
            if reply is not None:
                return reply if isinstance(reply, replies) else None
            if self._host.now() + timeout_s / 2 > ends_at:
                return None
            await self._host.sleep(BUSY_S)
            timeout_s = min(2 * timeout_s, CALL_TIMEOUT_S, max(FIRST_TIMEOUT_S, ends_at - self._host.now()))

    async def is_kept_from(self, holder: SessionHolder, user: str) -> bool | None:
        """Whether a broker keeps a session from this user, since it is another's; None if it does not answer."""
        if holder.name == self._identity:
            return self._handovers.is_kept_from(holder.client_id, user)
        asked = AskForeignSession(holder.client_id, user)
        answer = await self._ask(holder.address, asked, HasForeignSession, MOVE_WAIT_S)
        return None if answer is None else answer.is_kept

    async def give_up(
        self, arrival: Arrival, holder: SessionHolder, move: int, of: str = "", wait_s: float = MOVE_WAIT_S
    ) -> GivenUp | None:
        """Asks a broker to give the client's session up, again while it is busy with it; `of` names the broker that
        has it, if another one is asked that has a copy."""
        asked = GiveUp(
            move,
            arrival.client_id,
            self._identity,
            arrival.epoch,
            arrival.clean,
            self._cluster,
            arrival.user,
            arrival.is_pushed,
            of,
            0 if arrival.clean else holder.epoch,
            "" if of else holder.name,
        )
        while True:
            answer = await self._ask(holder.address, asked, GivenUp, wait_s)
            if answer is None:
                return None
            arrival.extend(MOVE_WAIT_S)
            if answer.answer is not GiveUpAnswer.BUSY or arrival.is_lost:
                return answer
            if arrival.client_id not in self._clients.epochs:
                return answer
            await self._host.sleep(BUSY_S)

    async def subscriptions(
        self, arrival: Arrival, giver: Address, move: int, first: SessionSubscriptions | None
    ) -> dict[str, Subscribed] | None:
        """All of them; `first` are those that have come with the answer that the session is given up."""
        found: dict[str, Subscribed] = {} if first is None else dict(first.items)
        since = 0 if first is None else first.following
        while first is None or since:
            asked = FetchSubscriptions(move, arrival.client_id, since)
            first = await self._ask(giver, asked, SessionSubscriptions, MOVE_WAIT_S)
            if first is None:
                return None
            arrival.extend(MOVE_WAIT_S)
            found.update(first.items)
            since = first.following
        return found

    async def state(self, arrival: Arrival, giver: Address, move: int) -> FetchedState | None:
        first: SessionState | None = None
        items: list[MovedDelivery] = []
        since = 0
        while True:
            part = await self._ask(giver, FetchState(move, arrival.client_id, since), SessionState, MOVE_WAIT_S)
            if part is None:
                return None
            arrival.extend(MOVE_WAIT_S)
            first = first or part
            items += part.items
            since = part.following
            if not since:
                horizon = Horizon(first.horizon)
                return FetchedState(items, first.received, horizon, first.absence, first.published, first.instances)

    async def left_behind(self, client_id: str, giver: SessionHolder) -> tuple[int, list[MovedDelivery]] | None:
        """What another broker still has of a client whose session is here, and the number of the move."""
        session = self._broker.sessions.get(client_id)
        user = (session.owner if session is not None else None) or ""
        arrival = Arrival(self._host, client_id, user, False, lambda _arrived: False)
        arrival.epoch = self._clients.epochs.get(client_id, 0)
        move = self.new_move()
        answer = await self.give_up(arrival, giver, move)
        if answer is None or answer.answer is not GiveUpAnswer.GIVEN:
            return None
        fetched = await self.state(arrival, giver.address, move)
        return None if fetched is None else (move, fetched.deliveries)

    async def confirm(self, giver: Address, move: int, client_id: str) -> bool:
        """Tells the broker that a session came from that it is in the store here; whether it has deleted it."""
        return await self._ask(giver, SessionStored(move, client_id), SessionDeleted, CONFIRM_S) is not None

    def new_move(self) -> int:
        return self._host.chance.getrandbits(62)
