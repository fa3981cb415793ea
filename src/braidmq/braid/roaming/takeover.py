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
fetched when that broker is back (`displaced`).

Where the directory is not sure, or that broker is silent or knows nothing of the session, all brokers are asked what
they have of it (`searching`): one that died while it took the session over knows nothing of it after its restart, and
the broker before it has it still; one that is gone has left a copy.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from braidmq.braid.roaming.clients import Arrival, ClientRecords, Served
from braidmq.braid.roaming.directory import ClientDirectory
from braidmq.braid.roaming.directory_messages import Claimed, SessionHolder
from braidmq.braid.roaming.displaced import DisplacedSessions
from braidmq.braid.roaming.epochs import UNKNOWN_EPOCH
from braidmq.braid.roaming.fetching import MOVE_WAIT_S, SessionFetcher
from braidmq.braid.roaming.handover import Handovers
from braidmq.braid.roaming.incoming import IncomingSessions
from braidmq.braid.roaming.messages import GiveUpAnswer
from braidmq.braid.roaming.reaching import BrokerReach
from braidmq.braid.roaming.searching import FoundAt, Search, SearchResult, SessionSearch
from braidmq.broker.admission import Arrived
from braidmq.broker.broker import Broker
from braidmq.host import Address, Event, Host

CLAIM_WAIT_S = 5.0
"""How long a CONNECT waits until it is known where its session is; then it is served without it."""

CLAIM_SOON_S = 0.1
"""How long the directory has to answer, beyond a round trip; then what brokers say must do."""

MIRRORED_WAIT_S = 0.2
"""How long it waits for an answer of that broker if others have a copy of the session, before they are asked …"""

ANSWER_WAIT_S = 1.0
"""… and if, as far as is known, nobody else has it."""

SEARCHES_MAX, SEARCH_AGAIN_S = 6, 0.06
"""How often all are asked, and how long after each other, while a broker that does not answer is heard by others."""

ENTER_WAIT_S = 0.1
"""How long a CONNECT waits until a broker that has just started is in the braid; then the brokers that it knows are
asked for the session …"""

ENTERING_S = 6.0
"""… and how long after its start at the latest: by then it has found others, or begun a braid of its own."""

TAIL_WAIT_S = 0.3
"""How long it waits until a broker that has just started knows what is to be left out of its sessions."""

_UNDECIDED = (None, GiveUpAnswer.UNKNOWN, GiveUpAnswer.THERE)

HANDED_ON_MAX = 4
"""How often a session may have moved on while it is looked for."""

_log = logging.getLogger("braidmq.braid")


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
        search: SessionSearch,
        reach: BrokerReach,
        entered: Event,
    ) -> None:
        """`identity` is that of this broker; `entered` happens when it is in the braid, and has told what it has."""
        self._broker = broker
        self._host = host
        self._identity = identity
        self._clients = clients
        self._directory = directory
        self._handovers = handovers
        self._displaced = displaced
        self._fetcher = fetcher
        self._incoming = incoming
        self._search = search
        self._reach = reach
        self._entered = entered
        self._made_at = host.now()
        self.has_others: Callable[[], bool] = lambda: False
        """Whether this broker knows of any other one."""
        self.adopt_here: Callable[[str, str], Awaitable[GiveUpAnswer | None]] = _nothing_here
        """Takes up a session from the copy that this broker has of what another one has: GIVEN if it is here now, THERE
        if that broker is there."""

        self.tail_known: Event | None = None
        """Happens when it is known what of the sessions here is to be left out (`mirrors.unconfirmed_tail`)."""

    @property
    def awaits_entry(self) -> bool:
        """Whether this broker is about to meet others."""
        return not self._entered.is_set and self.has_others()

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
            if self.tail_known is not None:
                await self.tail_known.wait(TAIL_WAIT_S)
            if self.awaits_entry and self._host.now() - self._made_at < ENTERING_S:
                await self._entered.wait(ENTER_WAIT_S)
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
            self._clients.epochs.begin_anew(arrival.client_id)
            arrival.is_late = True
            self._open(arrival)

    # Claiming

    async def _claim_and_bring(self, arrival: Arrival) -> None:
        client_id, epochs = arrival.client_id, self._clients.epochs
        own_epoch = epochs.get(client_id, UNKNOWN_EPOCH) if client_id in self._broker.sessions else 0
        arrival.own_epoch = own_epoch
        search = None if arrival.clean else self._search.begin(client_id, own_epoch)
        claimed = await self._claim(arrival) if self._entered.is_set else None
        if claimed is not None and claimed.is_foreign:
            claimed = await self._claim_over(arrival, claimed)
        if arrival.is_over or self._handovers.is_kept_from(client_id, arrival.user):
            arrival.end(Arrived.FOREIGN)
            return
        if claimed is None:  # registering will find out
            claimed = Claimed(max(int(self._broker.now() * 1000), own_epoch + 1), None, None, is_sure=False)
        arrival.epoch = epochs[client_id] = claimed.epoch
        before = claimed.before
        is_here = before is not None and before.name == self._identity
        if not is_here:
            self._clients.came_from.pop(client_id, None)
        if arrival.clean:
            epochs.begin_anew(client_id)
            if before is not None and not is_here:
                await self._bring(arrival, before)
            else:
                self._displaced.take_back(client_id)
        elif search is None or (before is None and not own_epoch and claimed.is_sure):
            epochs.begin_anew(client_id)
        else:
            await self._bring_from_anywhere(arrival, own_epoch, claimed, search)

    async def _claim(self, arrival: Arrival) -> Claimed | None:
        """Claims the client id; if that takes too long, it is done behind the client's back, until that is served. Then
        the directory is told of it as of any other client: a claim would take it from where it has gone since."""
        client_id = arrival.client_id
        answers: list[Claimed | None] = []
        answered = self._host.event()

        async def claim() -> None:
            claimed = await self._directory.claim(client_id, arrival.user, is_wanted=lambda: not arrival.is_over)
            answers.append(claimed)
            if answered.is_set:
                self._on_claimed_late(arrival, claimed)
            answered.set()
            if claimed is None:
                await arrival.through.wait()
                await self._displaced.register_one(client_id)

        self._host.spawn(claim())
        await answered.wait(CLAIM_SOON_S + self._directory.round_trips.slowest_s)
        answered.set()
        return answers[0] if answers else None

    def _on_claimed_late(self, arrival: Arrival, claimed: Claimed | None) -> None:
        epochs, client_id = self._clients.epochs, arrival.client_id
        if claimed is not None:
            arrival.holder = claimed.before
        if claimed is not None and not claimed.is_foreign and client_id in epochs and not arrival.is_lost:
            epochs[client_id] = max(claimed.epoch, epochs[client_id])

    async def _bring_from_anywhere(self, arrival: Arrival, own_epoch: int, claimed: Claimed, search: Search) -> None:
        """Asks all brokers for the session: after a partition the directory may know of an earlier one.

        The newest one is the client's; but if the directory knows of one that is newer still, and nobody can say what
        became of it, the client begins anew.
        """
        client_id, before = arrival.client_id, claimed.before
        newer = self._clients.newer_than_here(client_id)
        if newer is not None and (before is None or before.epoch < newer.epoch):
            before = newer
        likely = [one.address for one in (claimed.before, claimed.earlier) if one is not None]
        for tries_left in range(SEARCHES_MAX - 1, -1, -1):
            before = before or arrival.holder
            search.ask_all(likely)
            result = await search.until_known(before, claimed.is_sure)
            if arrival.is_over:
                return
            before = result.newest_holder(before)
            is_doubtful = result.is_doubtful
            is_incomplete = self._may_reach(search.unanswered_but(before))
            is_open = tries_left > 0 and (is_doubtful or is_incomplete)
            for found in result.found():
                if not result.may_be_last(found, before, is_open, claimed.is_sure):
                    break
                answer = await self._bring_found(arrival, found, before)
                if answer not in _UNDECIDED:
                    return
                if answer is not GiveUpAnswer.UNKNOWN:  # it is somewhere: those that are older are not the client's
                    is_doubtful = True
                    break
            if before is not None and not (is_incomplete and tries_left) and not result.has_as_new(before):
                if await self._bring_by_others(arrival, before, result) not in _UNDECIDED:
                    return
            if not tries_left or not (self._may_reach(search.unanswered) or is_doubtful):
                break
            await self._host.sleep(SEARCH_AGAIN_S)
            search = self._search.begin(client_id, own_epoch)
        if arrival.is_over:
            return
        if self._handovers.is_under_way(client_id):
            self._displaced.take_back(client_id)
            return
        self._displaced.leave_behind(client_id)
        self._clients.epochs.begin_anew(client_id)
        if before is not None and before.name != self._identity:
            text = "client %r begins anew: %s, which had its session, cannot be reached, and nobody has a copy of it"
            _log.warning(text, client_id, before.name)

    async def _bring_found(self, arrival: Arrival, found: FoundAt, before: SessionHolder | None) -> GiveUpAnswer | None:
        client_id = arrival.client_id
        if found.address != self._host.address:
            mirrors = before.mirrors if before is not None and before.name == found.name else ()
            holder = SessionHolder(client_id, found.address, found.name, found.epoch, mirrors=mirrors)
            return await self._bring(arrival, holder, "" if found.is_live else found.name)
        if found.is_live:
            self._displaced.take_back(client_id)
            return GiveUpAnswer.GIVEN
        return await self.adopt_here(found.name, client_id) or GiveUpAnswer.UNKNOWN

    async def _bring_by_others(
        self, arrival: Arrival, before: SessionHolder, result: SearchResult
    ) -> GiveUpAnswer | None:
        """The broker that has the session does not answer: one with a copy may act for it, or others reach it."""
        if before.name in result.names:
            return None
        for by in result.hearers_of(before.name):
            if by == self._host.address:
                answer = await self.adopt_here(before.name, arrival.client_id)
            else:
                mirror = msgspec.structs.replace(before, address=by, mirrors=())
                answer = await self._bring(arrival, mirror, of=before.name)
            if answer not in _UNDECIDED:
                return answer
        if await self._reach.find(before.name, before.address) is None:
            return None
        return await self._bring(arrival, before)

    def _may_reach(self, unanswered: Iterable[Address]) -> bool:
        """Whether a broker that has not answered may yet, since it is there, as far as is known."""
        reach = self._reach
        return any(not reach.is_known(one) or reach.way_to(one) is not None for one in unanswered)

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

    async def _bring(self, arrival: Arrival, holder: SessionHolder, of: str = "") -> GiveUpAnswer | None:
        """Brings the session from a broker, or from its copy of what another one has; its answer, None if it gave none
        or stopped in the middle."""
        for _ in range(HANDED_ON_MAX):
            move = self._fetcher.new_move()
            arrival.extend(MOVE_WAIT_S)
            wait_s = MIRRORED_WAIT_S if holder.mirrors else ANSWER_WAIT_S
            wait_s = max(wait_s, self._directory.round_trips.timeout_s(holder.address))
            given = await self._fetcher.give_up(arrival, holder, move, of, wait_s)
            if given is None:
                return None
            if given.answer is GiveUpAnswer.ELSEWHERE and given.holder is not None:
                holder = given.holder
                continue
            if given.answer is GiveUpAnswer.GIVEN:
                self._clients.epochs.set_begun(arrival.client_id, given.begun)
                is_brought = await self._incoming.bring(arrival, holder, move, given, of)
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


async def _nothing_here(_broker: str, _client_id: str) -> GiveUpAnswer | None:
    """There is no copy."""
    return None
