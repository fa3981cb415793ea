"""Draining a broker: its sessions and clients go to other brokers, a bounded number at a time, until it is empty.

First it says so: to load balancers on the admin port, to other brokers by gossip, so that none gives it anything. Then,
step by step, clients are told to use another server (MQTT 5 §4.11) and sessions that outlive their connection are given
away (`pushing`): that of a client right behind it, to the very broker that the client is told of. Clients that connect
are sent on. Nothing of it is final until the broker leaves: a drain can be taken back.

Beside that, other brokers get the retained messages that are kept here (`retained.handing_over`).

When nothing is left, this broker asks all others once more for what it has missed, since something may be on its way to
a session that was here, and passes that on (`tail`). And it sees to it that its history can be followed to the end when
it has left (`catch_up.left_history`).

A client that is sent away has lost its connection without a DISCONNECT of its own, so its will is due, at once or after
its delay [MQTT-3.1.2-8]. One that waits for its delay moves with the session, and is off if the client is back in time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any, NamedTuple

from braidmq.braid.membership.broker_records import BrokerRecord, BrokerRecords
from braidmq.braid.retained.handing_over import RetainedHandover
from braidmq.braid.roaming.clients import ClientRecords
from braidmq.braid.roaming.handover import Handovers
from braidmq.braid.roaming.messages import TakeAnswer
from braidmq.braid.roaming.sending_away import SendingAway
from braidmq.braid.roaming.takers import Takers
from braidmq.broker.broker import Broker
from braidmq.broker.session import Session
from braidmq.host import Address, Host
from braidmq.mqtt.packets import V5
from braidmq.mqtt.reasons import Reason

CLIENTS_A_SECOND = 1000
"""Clients that are sent away in a second."""

SESSIONS_AT_ONCE = 64
"""Sessions that are given away at a time."""

STEP_S = 0.05
"""Clients are sent away, and sessions given away, in steps."""

LOOKED_AT_ONCE = 5000
"""Sessions that are looked at in one step."""

NOTICE_S = 1.0
"""How long a load balancer has to notice that this broker is drained, before the first client is sent away."""

TAKERS_S = 5.0
"""How often it is asked which brokers can take something; every step while there is none."""

NOBODY_S = 5.0
"""How long a broker that can take something is looked for."""

RETRY_S = 1.0
"""How long a session rests that could not be given away."""

SETTLE_S = 5.0
"""How long what is on its way to sessions that have gone is waited for."""

_log = logging.getLogger("braidmq.braid")


class DrainOutcome(Enum):
    EMPTY = "empty"
    """Nothing is left."""
    TIME_UP = "time is up"
    NOBODY = "no other broker can take anything"


class DrainProgress(NamedTuple):
    is_on: bool
    outcome: DrainOutcome | None
    sessions: int
    """Those that are still here, whether or not their clients are connected."""
    clients: int
    sessions_moved: int
    clients_moved: int
    elapsed_s: float
    left_s: float
    takers: list[str]
    retained: int
    """Retained messages, and tombstones, that are still here."""
    retained_moved: int


class Drain:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        clients: ClientRecords,
        handovers: Handovers,
        sending: SendingAway,
        takers: Takers,
        records: BrokerRecords,
        retained: RetainedHandover,
    ) -> None:
        self._broker = broker
        self._host = host
        self._clients = clients
        self._handovers = handovers
        self._sending = sending
        self._takers = takers
        self._records = records
        self._retained = retained
        self.announce: Callable[[], None] = lambda: None
        """Tells all brokers what this one says of itself."""
        self.ask_for_missed: Callable[[float], Awaitable[bool]]
        """Asks all brokers for what was missed of them, and waits for it, but not longer than so long."""
        self.register: Callable[[], Coroutine[Any, Any, None]]
        """Tells the directory which sessions are here, and learns which are elsewhere: these are not given away."""
        self.leave_queues: Callable[[list[Address], float], Awaitable[None]]
        """Has brokers go on with what waits here for shared subscriptions, until a time."""
        self.leave_history: Callable[[list[Address], float], Awaitable[None]]
        """Has all others follow the history of this broker to its end, or one of these keep it, by a time."""
        self.on_over: Callable[[DrainOutcome], None] = lambda _outcome: None
        self.is_on = False
        self.outcome: DrainOutcome | None = None
        """Set when it is over."""
        self.clients_moved = 0
        self._given_before = 0
        self._began_at = self._ends_at = 0.0
        self._turn = 0
        """Which drain this is: one that was taken back does nothing more."""
        self._queue: deque[str] = deque()
        """Clients that are to be looked at, in their order."""
        self._rests_until: dict[str, float] = {}
        """Sessions that could not be given away, and until when they rest."""

    # From outside

    def start(self, seconds: float) -> None:
        """Drains for at most so long; one that is under way ends by then."""
        now = self._host.now()
        if self.is_on:
            self._ends_at = min(self._ends_at, now + seconds)
            return
        self.is_on, self.outcome = True, None
        self._began_at, self._ends_at = now, now + seconds
        self.clients_moved, self._given_before = 0, self._handovers.given
        self._turn += 1
        _log.info(
            "draining, for at most %g s: %d sessions, %d connections",
            seconds,
            len(self._broker.sessions),
            self._broker.metrics.connections,
        )
        self._records.set_draining(True)
        self._retained.begin()
        self.announce()
        self._host.spawn(self._drain(self._turn))

    def cancel(self) -> None:
        """Takes it back: clients are served as ever. What has gone is gone."""
        if self.is_on:
            self.is_on, self.outcome = False, None
            self._turn += 1
            self._takers.clear()
            self._queue.clear()
            self._rests_until.clear()
            self._records.set_draining(False)
            self._retained.end()
            self.announce()
            _log.info("no longer draining: %d sessions are here", len(self._broker.sessions))

    @property
    def sends_away(self) -> bool:
        """Whether clients that come are sent to another broker, which can be reached."""
        return self.is_on and len(self._takers) > 0

    def server_reference(self, listener: str) -> str | None:
        found = self._takers.next_for(listener, self._sending.kind_of(listener))
        return None if found is None else found[1]

    async def can_start(self) -> bool:
        """Whether any other broker can take something."""
        await self._takers.find()
        return len(self._takers) > 0

    @property
    def is_empty(self) -> bool:
        is_left = self._broker.sessions or self._clients.arriving or self._sending.under_way or self._retained.left
        return not is_left

    @property
    def progress(self) -> DrainProgress:
        now = self._host.now()
        return DrainProgress(
            self.is_on,
            self.outcome,
            len(self._broker.sessions),
            self._broker.metrics.connections,
            self._handovers.given - self._given_before if self.is_on else 0,
            self.clients_moved,
            now - self._began_at if self.is_on else 0.0,
            max(0.0, self._ends_at - now) if self.is_on else 0.0,
            [one.name for one in self._takers],
            self._retained.left,
            self._retained.given if self.is_on else 0,
        )

    # Step by step

    async def _drain(self, turn: int) -> None:
        self._host.spawn(self.register())
        await self._takers.find()
        looked_at = found_at = self._host.now()
        await self._host.sleep(NOTICE_S)
        self._host.spawn(self._give_retained(turn))
        outcome = None
        while self._turn == turn and outcome is None:
            now = self._host.now()
            if now - looked_at > TAKERS_S or not self._takers:
                await self._takers.find()
                looked_at = now
            found_at = now if self._takers else found_at
            outcome = self._outcome(now, found_at)
            if self._turn == turn and outcome is None:
                self._move_some(now)
                await self._host.sleep(STEP_S)
        if self._turn == turn and outcome is DrainOutcome.EMPTY:
            await self._settle()
        if self._turn == turn and outcome is not None:
            self._end(outcome)

    def _outcome(self, now: float, found_at: float) -> DrainOutcome | None:
        """Why it is over. `found_at` is when there was a broker that can take something."""
        if self.is_empty:
            return DrainOutcome.EMPTY
        if now >= self._ends_at:
            return DrainOutcome.TIME_UP
        return DrainOutcome.NOBODY if now - found_at > NOBODY_S else None

    async def _give_retained(self, turn: int) -> None:
        """A page at a time, beside the sessions."""
        while self._turn == turn and self.outcome is None:
            taker = self._takers.next() if self._retained.left else None
            if taker is None:
                await self._host.sleep(STEP_S)
            elif not await self._retained.give_some(taker):
                await self._host.sleep(RETRY_S)

    async def _settle(self) -> None:
        """What was on its way to sessions that were here is passed on, and what was published here can be fetched."""
        ends_at = self._host.now() + SETTLE_S
        await self.ask_for_missed(SETTLE_S)
        await self.leave_queues([one.address for one in self._takers], ends_at)
        await self.leave_history([one.address for one in self._takers], ends_at)
        while self._handovers.is_passing_on and self._host.now() < ends_at:
            await self._host.sleep(STEP_S)

    def _end(self, outcome: DrainOutcome) -> None:
        self.outcome = outcome
        left = len(self._broker.sessions)
        level = logging.INFO if outcome is DrainOutcome.EMPTY else logging.WARNING
        given = self._handovers.given - self._given_before
        took_s = self._host.now() - self._began_at
        text = (
            "drained (%s) in %.1f s: %d sessions, %d clients and %d retained messages have gone, %d sessions are left"
        )
        _log.log(level, text, outcome.value, took_s, given, self.clients_moved, self._retained.given, left)
        self.on_over(outcome)

    def _move_some(self, now: float) -> None:
        clients_left = round(CLIENTS_A_SECOND * STEP_S)
        if not self._queue:
            self._queue.extend(self._broker.sessions)
        for _ in range(min(LOOKED_AT_ONCE, len(self._queue))):
            session = self._broker.sessions.get(self._queue[0])
            if session is not None and self._rests_until.get(session.client_id, now) <= now:
                if (session.connection is not None and not clients_left) or not self._takers:
                    return
                if session.durable and self._sending.under_way >= SESSIONS_AT_ONCE:
                    return
                clients_left -= session.connection is not None
                self._move(session)
            self._queue.popleft()

    def _move(self, session: Session) -> None:
        """Sends a client away, and its session, if that outlives the connection, behind it."""
        if not self._sending.can_send(session.client_id):
            return
        taker, reason, reference = self._takers.next(), Reason.SERVER_SHUTTING_DOWN, None
        connection = session.connection
        if connection is not None:
            self.clients_moved += 1
            listener = connection.origin.listener
            found = self._takers.next_for(listener, self._sending.kind_of(listener))
            if connection.version == V5 and found is not None:
                taker, reference = found
                reason = Reason.USE_ANOTHER_SERVER
        self._sending.send(session, taker, reason, "this broker is being drained", reference, self._on_given)

    def _on_given(self, session: Session, taker: BrokerRecord, answer: TakeAnswer | None) -> None:
        client_id = session.client_id
        if self._broker.sessions.get(client_id) is session:
            self._rests_until[client_id] = self._host.now() + RETRY_S
            if answer in (None, TakeAnswer.NO_ROOM):
                self._takers.drop(taker)
        else:
            self._rests_until.pop(client_id, None)
