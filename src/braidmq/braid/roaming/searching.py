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
from braidmq.broker.broker import Broker
from braidmq.host import Address, Host, Reply, Service, ask, handles

SEARCH_S: Final = 0.15
"""How long brokers have to answer, a client waits; those that are far are asked a second time."""

SEARCHED_MAX: Final = 64
"""Brokers that are asked."""


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

    def __init__(self, own: FoundSession, here: Address) -> None:
        self._answers: dict[Address, FoundSession] = {here: own}

    def add(self, address: Address, answer: FoundSession) -> None:
        self._answers[address] = answer

    @property
    def names(self) -> set[str]:
        """The brokers that have answered."""
        return {one.name for one in self._answers.values()}

    def _copies(self) -> Iterable[tuple[Address, HeldCopyOf]]:
        for address, answer in self._answers.items():
            for copy in answer.copies:
                yield address, copy

    def hearers_of(self, name: str) -> list[Address]:
        """Of a broker that has not answered: those that hear it, as far as they know."""
        if name in self.names:
            return []
        return [by for by, copy in self._copies() if copy.owner == name and copy.is_heard]

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

    def found(self) -> list[FoundAt]:
        """Where it is, the newest first. Of two copies of what one broker has, only the one that counted last does."""
        live = [FoundAt(one.epoch, True, 0, at, one.name) for at, one in self._answers.items() if one.epoch]
        names = self.names
        terms: dict[str, int] = {}
        for _, copy in self._copies():
            terms[copy.owner] = max(copy.term, terms.get(copy.owner, 0))
        copies = [
            FoundAt(copy.epoch, False, copy.term, at, copy.owner)
            for at, copy in self._copies()
            if copy.epoch and not copy.is_heard and copy.owner not in names and copy.term == terms[copy.owner]
        ]
        return sorted([*live, *copies], key=lambda one: one[:3], reverse=True)


class SessionSearch(Service):
    def __init__(self, broker: Broker, host: Host, identity: str, clients: ClientRecords) -> None:
        """`identity` is that of this broker."""
        self._broker = broker
        self._host = host
        self._identity = identity
        self._clients = clients
        self.others: Callable[[], Iterable[Address]] = tuple
        """The brokers that are known."""
        self.is_unreached: Callable[[Address], bool] = lambda _address: False
        """Whether a broker is known not to answer: it is asked, and not waited for."""
        self.copies: Callable[[str], tuple[HeldCopyOf, ...]] = lambda _client_id: ()
        """What copies that are here have of a client's session."""
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
        return FoundSession(self._identity, epoch, self.copies(client_id))

    async def search(
        self, client_id: str, own_epoch: int, likely: Iterable[Address] = (), newest: int | None = None
    ) -> SearchResult:
        """Asks all brokers, and first those that are `likely` to have it. `own_epoch` is that of the session that was
        here before, 0 if there was none. If it is found that is the `newest` as far as is known, the rest is not waited
        for as long."""
        result = SearchResult(self._answer(client_id, own_epoch), self._host.address)
        first = tuple(likely)
        left = [one for one in dict.fromkeys((*first, *self.others())) if one != self._host.address][:SEARCHED_MAX]
        all_in = self._host.event()
        waiting = dict.fromkeys(left)

        def is_awaited(address: Address) -> bool:
            return address in first or not self.is_unreached(address)

        async def ask_one(address: Address) -> None:
            answer = await ask(self._host, address, AskSession(client_id), FoundSession, timeout_s=SEARCH_S, tries=2)
            if answer is not None:
                result.add(address, answer)
            del waiting[address]
            if not any(is_awaited(one) for one in waiting):
                all_in.set()

        for address in left:
            self._host.spawn(ask_one(address))
        if any(is_awaited(one) for one in left):
            await all_in.wait(SEARCH_S)
            if newest is None or not any(one.epoch >= newest for one in result.found()):
                await all_in.wait(SEARCH_S)
        return result
