"""Looking for a session among all brokers, where the directory is not sure which of them has it.

That is so after a registrar or the broker that had the session is gone: entries may be lost, or old. Every broker says
whether it has the session, or a copy of a store with it, and of which epoch. The one with the highest epoch is the
client's. What a broker says of itself counts more than a copy of what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from braidmq.braid.roaming.clients import ClientRecords
from braidmq.braid.roaming.directory_messages import SessionHolder
from braidmq.braid.roaming.epochs import UNKNOWN_EPOCH
from braidmq.braid.roaming.messages import AskSession, FoundSession, HeldCopyOf
from braidmq.braid.roaming.reaching import BrokerReach
from braidmq.braid.round_trips import RoundTrips
from braidmq.broker.broker import Broker
from braidmq.host import Address, Host, Reply, Service, handles

SEARCHED_MAX: Final = 64
"""Brokers that are asked."""

TRIES: Final = 2
"""How often one is asked that is there."""

SEARCH_S: Final = 0.25
"""How long all have to answer, beyond a round trip, or to be found out of reach."""


class FoundAt(NamedTuple):
    """Where a session is: at a broker, or in a copy of what a broker has that is gone."""

    epoch: int
    is_live: bool
    term: int
    """Of the copy."""
    address: Address
    name: str
    """The broker whose session it is."""


class SearchResult:
    """What brokers have said."""

    def __init__(self, own: FoundSession, here: Address, client_id: str = "") -> None:
        self.client_id = client_id
        self._answers: dict[Address, FoundSession] = {here: own}

    def add(self, address: Address, answer: FoundSession) -> None:
        self._answers[address] = answer

    def __contains__(self, address: Address) -> bool:
        """Whether a broker has answered."""
        return address in self._answers

    @property
    def names(self) -> set[str]:
        """The brokers that have answered."""
        return {one.name for one in self._answers.values()}

    def _copies(self) -> Iterable[tuple[Address, HeldCopyOf]]:
        for address, answer in self._answers.items():
            for copy in answer.copies:
                yield address, copy

    def hearers_of(self, name: str) -> list[Address]:
        """Of a broker that has not answered: those that hear it, as far as they know, and have a copy of what it has.

        One whose copy is older than another's is not among them: should the broker just have gone, it would act for it
        with what that had once.
        """
        if name in self.names:
            return []
        copies = [(by, copy) for by, copy in self._copies() if copy.owner == name]
        last = max((copy.term for _, copy in copies), default=0)
        return [by for by, copy in copies if copy.is_heard and copy.term == last]

    @property
    def is_doubtful(self) -> bool:
        """Whether a broker has not answered that others hear, as far as they know: it may just have gone."""
        names = self.names
        return any(copy.is_heard and copy.owner not in names for _, copy in self._copies())

    def knows_of(self, holder: SessionHolder) -> bool:
        """Whether it is known that a broker has nothing of an epoch, or of a later one: it says so itself, or a mirror
        of it does."""
        for answer in self._answers.values():
            if answer.name == holder.name:
                return answer.epoch < holder.epoch
        copies = [copy for at, copy in self._copies() if copy.owner == holder.name and at in holder.mirrors]
        return bool(copies) and all(copy.epoch < holder.epoch and not copy.is_heard for copy in copies)

    def newest_holder(self, known: SessionHolder | None) -> SessionHolder | None:
        """Of the holder that is known of and those that brokers have given the session to: the last one."""
        holders = [one.gone_to for one in self._answers.values() if one.gone_to is not None]
        return max(holders if known is None else [known, *holders], key=lambda one: one.epoch, default=None)

    def may_be_last(self, found: FoundAt, before: SessionHolder | None, is_open: bool, is_sure: bool = False) -> bool:
        """Whether nobody has a newer one, as far as can be told. While it `is_open` what a broker has that has not
        answered, that is not known; it need not be where the directory `is_sure`, and its holder answers."""
        is_known = before is not None and found.epoch >= before.epoch
        if is_known and is_sure and found.is_live:
            return True
        if is_open:
            return False
        return before is None or is_known or self.knows_of(before)

    def has_live(self, holder: SessionHolder) -> bool:
        """Whether a broker says that it has the session, as new as is known."""
        return any(one.is_live and one.name == holder.name and one.epoch >= holder.epoch for one in self.found())

    def has_as_new(self, holder: SessionHolder) -> bool:
        """Whether anything was found that is at least as new as what a holder has."""
        return any(one.epoch >= holder.epoch for one in self.found())

    def newer_than(self, epoch: int, name: str) -> SessionHolder | None:
        """Another broker than the one of this name that says that it has a newer session than one of an epoch."""
        for one in self.found():
            if one.is_live and one.name != name and one.epoch > epoch:
                return SessionHolder(self.client_id, one.address, one.name, one.epoch)
        return None

    def found(self) -> list[FoundAt]:
        """Where it is, the newest first. Of two copies of what one broker has, only the one that counted last does, and
        none while anybody hears the broker: it may have gone on without the mirror that has the older one."""
        live = [FoundAt(one.epoch, True, 0, at, one.name) for at, one in self._answers.items() if one.epoch]
        there = self.names | {copy.owner for _, copy in self._copies() if copy.is_heard}
        terms: dict[str, int] = {}
        for _, copy in self._copies():
            terms[copy.owner] = max(copy.term, terms.get(copy.owner, 0))
        copies = [
            FoundAt(copy.epoch, False, copy.term, at, copy.owner)
            for at, copy in self._copies()
            if copy.epoch and copy.owner not in there and copy.term == terms[copy.owner]
        ]
        return sorted([*live, *copies], key=lambda one: one[:3], reverse=True)


class Search:
    """One question to all brokers, under way."""

    def __init__(
        self,
        host: Host,
        round_trips: RoundTrips,
        client_id: str,
        result: SearchResult,
        is_unreached: Callable[[Address], bool],
        reach: BrokerReach,
    ) -> None:
        self.result = result
        self._host = host
        self._round_trips = round_trips
        self._client_id = client_id
        self._is_unreached = is_unreached
        self._reach = reach
        self._began_at = host.now()
        self._waiting: dict[Address, None] = {}
        self._awaited: dict[Address, float] = {}
        """Those of which an answer is expected, and when at the latest."""
        self._asked: dict[Address, None] = {host.address: None}
        self._news = host.event()

    def ask_all(self, addresses: Iterable[Address]) -> None:
        """Those that are not asked yet."""
        for address in dict.fromkeys(addresses):
            if address not in self._asked and len(self._asked) <= SEARCHED_MAX:
                self._asked[address] = None
                self._waiting[address] = None
                is_silent = self._round_trips.is_silent(address) or self._is_unreached(address)
                wait_s = self._round_trips.moment_s(address) if is_silent else self._round_trips.timeout_s(address)
                self._awaited[address] = self._host.now() + wait_s
                self._host.spawn(self._ask(address))

    async def _ask(self, address: Address) -> None:
        asked = AskSession(self._client_id)
        self._host.spawn(self._look_if_late(address))
        answer = await self._round_trips.ask(address, asked, FoundSession, 1)
        if answer is None:
            if not self._reach.is_known(address):
                await self._reach.look(address).wait()
            if self._reach.way_to(address) is not None:
                answer = await self._round_trips.ask(address, asked, FoundSession, TRIES)
        if answer is not None:
            self._reach.on_answered(address)
            self.result.add(address, answer)
        del self._waiting[address]
        self._news.set()

    async def _look_if_late(self, address: Address) -> None:
        """Begins to look for a broker whose answer takes longer than any before, while it is waited for."""
        await self._host.sleep(self._round_trips.usual_s(address))
        if address in self._waiting and not self._reach.is_known(address):
            self._reach.look(address)

    @property
    def unanswered(self) -> list[Address]:
        """Those that have not answered."""
        return [one for one in self._asked if one not in self.result]

    def unanswered_but(self, holder: SessionHolder | None) -> list[Address]:
        """The same without a holder: whether that is there is found out by its mirrors."""
        return [one for one in self.unanswered if holder is None or one != holder.address]

    async def until_known(self, before: SessionHolder | None = None, is_sure: bool = False) -> SearchResult:
        """Waits for the answers. `before` is the holder as far as is known: after a cut the directory may not know of
        the last one yet, so the others are waited for, too.

        A broker that does not answer in its time may have what is newer: it is waited for until it is known to be out
        of reach, unless the directory `is_sure`, and the holder answers.
        """
        await self._wait(self._awaited)
        if before is None or not is_sure or not self.result.has_live(before):
            left = self.unanswered_but(before if self._has_begun(before) else None)
            await self._wait(dict.fromkeys(left, self._began_at + SEARCH_S + self._round_trips.slowest_s))
        if before is not None and before.name in self.result.names and not self.result.has_live(before):
            await self._ask_again(before.address)
        return self.result

    async def _ask_again(self, address: Address) -> None:
        """What the holder has said may be older than what the directory says."""
        if address != self._host.address:
            answer = await self._round_trips.ask(address, AskSession(self._client_id), FoundSession, TRIES)
            if answer is not None:
                self.result.add(address, answer)

    async def _wait(self, ends: dict[Address, float]) -> None:
        """Until those have answered that are still asked, or each has had its time."""
        while True:
            ends_at = max((at for one, at in ends.items() if one in self._waiting), default=0.0)
            left_s = ends_at - self._host.now()
            if left_s <= 0:
                return
            self._news = self._host.event()
            await self._news.wait(left_s)

    def _has_begun(self, before: SessionHolder | None) -> bool:
        """Whether there is a session as new as is known, or somebody that hears the broker that has it."""
        if before is None:
            return bool(self.result.found()) or self.result.is_doubtful
        return self.result.has_as_new(before) or bool(self.result.hearers_of(before.name))


class SessionSearch(Service):
    def __init__(
        self,
        broker: Broker,
        host: Host,
        identity: str,
        clients: ClientRecords,
        round_trips: RoundTrips,
        reach: BrokerReach,
    ) -> None:
        """`identity` is that of this broker."""
        self._broker = broker
        self._host = host
        self._identity = identity
        self._clients = clients
        self._round_trips = round_trips
        self._reach = reach
        self.others: Callable[[], Iterable[Address]] = tuple
        """The brokers that are known."""
        self.is_unreached: Callable[[Address], bool] = lambda _address: False
        """Whether a broker is known not to answer: it is asked, and not waited for longer than a moment."""
        self.copies: Callable[[str], tuple[HeldCopyOf, ...]] = lambda _client_id: ()
        """What copies that are here have of a client's session."""
        self.gone_to: Callable[[str], SessionHolder | None] = lambda _client_id: None
        """The broker that has a session which was here not long ago."""
        host.serve(self)

    @handles(AskSession)
    def on_ask_session(self, _origin: Address, asked: AskSession) -> Reply:
        return self._answer(asked.client_id, self._epoch_of(asked.client_id))

    def _epoch_of(self, client_id: str) -> int:
        clients = self._clients
        if client_id not in self._broker.sessions and client_id not in clients.arriving:
            return 0
        return clients.epochs.get(client_id, UNKNOWN_EPOCH)

    def _answer(self, client_id: str, epoch: int) -> FoundSession:
        return FoundSession(self._identity, epoch, self.copies(client_id), self.gone_to(client_id))

    def begin(self, client_id: str, own_epoch: int) -> Search:
        """Asks all brokers. `own_epoch` is that of the session that was here before, 0 if there was none."""
        result = SearchResult(self._answer(client_id, own_epoch), self._host.address, client_id)
        search = Search(self._host, self._round_trips, client_id, result, self.is_unreached, self._reach)
        self._host.ways.hurry()
        search.ask_all(self.others())
        return search

    async def search(self, client_id: str, own_epoch: int) -> SearchResult:
        """Asks all brokers, and waits for their answers."""
        return await self.begin(client_id, own_epoch).until_known()
