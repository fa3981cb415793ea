"""Client take-over and moving sessions between brokers: the side to which the client has come.

Before the CONNACK this broker claims the client id in the `directory` and learns which broker had it. That broker
closes a connection that it has (0x8E) and, if the session outlives that and the client wants it, gives it up
(`handover`):

    here                                      there
    claim ─▶ directory
    GiveUp ─────────────────────────────────▶ disconnects; goes on gathering
    FetchSubscriptions ─────────────────────▶
    stands for them, and gathers; once that has taken effect in the whole braid
    FetchState ─────────────────────────────▶ freezes: state, and how far histories were followed
    one commit; CONNACK with session present
    SessionStored ──────────────────────────▶ deletes it, one commit; passes on what was on its way

From before the state is taken there until after its relay ends, a publication reaches one of the two brokers or both;
what comes on both ways is known by its mark (`marks`), so it is given to the client once.

If the other broker does not answer in time the client begins anew (session present 0), and what was left behind is
fetched when that broker is back (`displaced`). One that has died while it took the session over knows nothing of it
after its restart: then the broker before it still has it, and is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from braidmq.braid.roaming.clients import Arrival, ClientRecords, Served
from braidmq.braid.roaming.directory import ClientDirectory
from braidmq.braid.roaming.directory_messages import Claimed, SessionHolder
from braidmq.braid.roaming.displaced import DisplacedSessions
from braidmq.braid.roaming.fetching import MOVE_WAIT_S, SessionFetcher
from braidmq.braid.roaming.handover import Handovers
from braidmq.braid.roaming.incoming import IncomingSessions
from braidmq.braid.roaming.messages import GiveUpAnswer
from braidmq.broker.admission import Arrived
from braidmq.broker.broker import Broker
from braidmq.host import Host

CLAIM_WAIT_S = 5.0
"""How long a CONNECT waits for the directory; then it is served here, and claimed later."""

MIRRORED_WAIT_S = 0.2
"""How long it waits for an answer of that broker if others have a copy of the session, before one of them is asked."""

HANDED_ON_MAX = 4
"""How often a session may have moved on while it is looked for."""


class Takeovers:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        identity: str,
        clients: ClientRecords,
        directory: ClientDirectory,
        handovers: Handovers,
        displaced: DisplacedSessions,
        fetcher: SessionFetcher,
        incoming: IncomingSessions,
    ) -> None:
        """`identity` is that of this broker."""
        self._broker = broker
        self._host = host
        self._identity = identity
        self._clients = clients
        self._directory = directory
        self._handovers = handovers
        self._displaced = displaced
        self._fetcher = fetcher
        self._incoming = incoming
        self.adopt_here: Callable[[str, str], Awaitable[bool]] = _nothing_here
        """Takes up a session from the copy that this broker has of what another one has; whether it is here now."""

    def arrive(self, client_id: str, user: str, clean: bool, done: Callable[[Arrived], bool]) -> None:
        """Brings the client's session here, if it has one. Calls when it may be opened, or that it may not."""
        self._host.spawn(self._arrive(Arrival(self._host, client_id, user, clean, done)))

    async def _arrive(self, arrival: Arrival) -> None:
        client_id = arrival.client_id
        while (other := self._clients.arriving.get(client_id)) is not None:
            await other.through.wait()
        self._clients.arriving[client_id] = arrival
        arrival.extend(CLAIM_WAIT_S)
        self._host.spawn(self._watch(arrival))
        try:
            await self._claim_and_bring(arrival)
        finally:
            del self._clients.arriving[client_id]
            arrival.through.set()
        self._open(arrival)

    def _open(self, arrival: Arrival) -> None:
        if arrival.end(Arrived.HERE):
            self._clients.served.renew(arrival.client_id, Served(self._host.now(), arrival.clean))

    async def _watch(self, arrival: Arrival) -> None:
        """The client waits no longer than it is worth: it is served without its session, or refused."""
        while not arrival.is_over:
            left_s = arrival.ends_at - self._host.now()
            if left_s > 0:
                await self._host.sleep(left_s)
                continue
            if arrival.is_contested:
                arrival.end(Arrived.UNREACHABLE)
                return
            if arrival.epoch or self._clients.is_displaced(arrival.client_id):
                self._displaced.leave_behind(arrival.client_id)
            arrival.is_late = True
            self._open(arrival)

    # Claiming

    async def _claim_and_bring(self, arrival: Arrival) -> None:
        client_id = arrival.client_id
        claimed = await self._directory.claim(client_id, arrival.user)
        if claimed is not None and claimed.is_foreign:
            claimed = await self._claim_over(arrival, claimed)
        if arrival.is_over or self._handovers.is_kept_from(client_id, arrival.user):
            arrival.end(Arrived.FOREIGN)
            return
        epochs = self._clients.epochs
        if claimed is None:  # registering will find out
            epochs[client_id] = max(int(self._broker.now() * 1000), epochs.get(client_id, 0))
            if self._clients.is_displaced(client_id):
                self._displaced.leave_behind(client_id)
            return
        arrival.epoch = epochs[client_id] = claimed.epoch
        if claimed.before is None or claimed.before.name == self._identity:
            self._displaced.take_back(client_id)
            return
        self._clients.came_from.pop(client_id, None)
        await self._bring_from_either(arrival, claimed.before, claimed.earlier)

    async def _bring_from_either(self, arrival: Arrival, before: SessionHolder, earlier: SessionHolder | None) -> None:
        """Brings the session from the last holder or, if that knows nothing of it, from the one before it."""
        client_id = arrival.client_id
        is_gone = bool(before.mirrors) and self._directory.is_silent(before.address)
        answer = None if is_gone else await self._bring(arrival, before)
        if answer in (None, GiveUpAnswer.UNKNOWN):
            answer = await self._bring_from_mirrors(arrival, before) or answer
        if answer in (None, GiveUpAnswer.UNKNOWN) and earlier is not None and earlier.name != before.name:
            if earlier.name != self._identity:
                answer = await self._bring(arrival, earlier)
            elif answer is GiveUpAnswer.UNKNOWN:
                self._displaced.take_back(client_id)
                return
        if answer in (None, GiveUpAnswer.UNKNOWN):
            if self._handovers.is_under_way(client_id):
                self._displaced.take_back(client_id)
            else:
                self._displaced.leave_behind(client_id)

    async def _claim_over(self, arrival: Arrival, claimed: Claimed) -> Claimed | None:
        """Another user has the client id, so the directory says: claims it if its holder has nothing any more."""
        holder = claimed.before
        assert holder is not None
        arrival.is_contested = True
        arrival.extend(2 * MOVE_WAIT_S)
        is_kept = await self._fetcher.is_kept_from(holder, arrival.user)
        if is_kept is None:
            arrival.end(Arrived.UNREACHABLE)
            return None
        again = None if is_kept else await self._directory.claim(arrival.client_id, arrival.user, holder.epoch)
        if is_kept or (again is not None and again.is_foreign):
            arrival.end(Arrived.FOREIGN)
            return None
        arrival.is_contested = False
        return again

    # Bringing its session

    async def _bring_from_mirrors(self, arrival: Arrival, holder: SessionHolder) -> GiveUpAnswer | None:
        """Brings the session from a broker that has a copy of what its holder has: the holder knows nothing of it, or
        does not answer. None if there is no copy, or the holder is there after all."""
        for address in holder.mirrors:
            mirror = msgspec.structs.replace(holder, address=address, mirrors=())
            if address == self._host.address:
                is_brought = await self.adopt_here(holder.name, holder.client_id)
                answer = GiveUpAnswer.GIVEN if is_brought else None
            else:
                answer = await self._bring(arrival, mirror, of=holder.name)
            if answer not in (None, GiveUpAnswer.UNKNOWN):
                return answer
        return None

    async def _bring(self, arrival: Arrival, holder: SessionHolder, of: str = "") -> GiveUpAnswer | None:
        """Brings the session from a broker, or from its copy of what another one has; its answer, None if it gave none
        or stopped in the middle."""
        for _ in range(HANDED_ON_MAX):
            move = self._fetcher.new_move()
            arrival.extend(MOVE_WAIT_S)
            wait_s = MIRRORED_WAIT_S if holder.mirrors else MOVE_WAIT_S
            given = await self._fetcher.give_up(arrival, holder.address, move, of, wait_s)
            if given is None:
                return None
            if given.answer is GiveUpAnswer.ELSEWHERE and given.holder is not None:
                holder = given.holder
                continue
            if given.answer is GiveUpAnswer.GIVEN:
                is_brought = await self._incoming.bring(arrival, holder, move, given.expiry_s)
                return GiveUpAnswer.GIVEN if is_brought else None
            self._on_not_given(arrival, given.answer)
            return given.answer
        return None

    def _on_not_given(self, arrival: Arrival, answer: GiveUpAnswer) -> None:
        client_id = arrival.client_id
        if answer is GiveUpAnswer.NEWER:
            self._clients.lose(arrival, Arrived.ELSEWHERE)
        elif answer is GiveUpAnswer.FOREIGN:
            self._clients.lose(arrival, Arrived.FOREIGN)
        elif answer is GiveUpAnswer.NOTHING:
            if self._handovers.is_under_way(client_id):
                self._displaced.take_back(client_id)
            else:
                self._displaced.end_stale(client_id)


async def _nothing_here(_broker: str, _client_id: str) -> bool:
    """There is no copy."""
    return False
