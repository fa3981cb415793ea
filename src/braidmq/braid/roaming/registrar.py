"""A registrar of the directory: the entries of the client ids whose hashes are this broker's (`directory`).

It sends a copy of what it is told to the neighbour that will inherit from it, and gives all its entries to that
neighbour when it leaves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import islice

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.braid.roaming.directory_entries import REGISTER_S, DirectoryEntries
from braidmq.braid.roaming.directory_messages import (
    PAGE_MAX,
    AreYouThere,
    AskEntries,
    Claim,
    Claimed,
    ConfirmEntries,
    Copies,
    CopiesKept,
    DirectoryEntry,
    EntriesConfirmed,
    HeldElsewhere,
    NotMine,
    Register,
    Registered,
    SessionHolder,
    StillThere,
    TryAgain,
)
from braidmq.braid.roaming.hash_ranges import HIGH, LOW, hash_key_of, is_inside, registrar_key_of
from braidmq.braid.round_trips import RoundTrips
from braidmq.host import Address, Host, Message, Reply, Service, ask, handles, run_all
from braidmq.keys import Key
from braidmq.overlay import Overlay, Peer
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.ring import RingNode
from braidmq.security.identity import is_foreign

PAGES_AT_ONCE = 16
"""Pages of entries that are given to an heir at a time."""

ASKING_MAX = 4
"""Registrars that have come of which it is remembered what they ask for."""

SILENT_S = 1.0
SILENT_MAX = 64
"""How long it is taken for granted that a registrar is silent, and of how many."""

TIMEOUTS_S = (0.25, 0.5, 1.0)
"""How long a registrar is waited for, each time that it is asked; then it is silent."""


async def ask_registrar(
    host: Host, to: Address, request: Message, is_wanted: Callable[[], bool] = lambda: True
) -> Message | None:
    """Asks, with more patience each time, while an answer is wanted; None if there was none."""
    for timeout_s in TIMEOUTS_S:
        if not is_wanted():
            return None
        answer = await ask(host, to, request, Message, timeout_s=timeout_s)
        if answer is not None:
            return answer
    return None


class Registrar(Service):
    def __init__(self, overlay: Overlay, name: str, round_trips: RoundTrips, identity: str = "") -> None:
        self._identity = identity
        self._host: Host = overlay.host
        self._round_trips = round_trips
        self._overlay = overlay
        self._key = registrar_key_of(name)
        self._entries = DirectoryEntries(self._host.now)
        self._asked_for: BoundedDict[Address, list[str]] = BoundedDict(ASKING_MAX)
        """By registrar that has come and asks for its entries: which those are, in their order."""
        self._is_filling = False
        self._looking: dict[Address, None] = {}
        """Registrars of which it is being found out whether they are there."""
        self._silent_until: BoundedDict[Address, float] = BoundedDict(SILENT_MAX)
        """Those that are not."""
        self._neighbours: tuple[Key, Key] | None = None
        """The keys on both sides, as they were at the last claim …"""
        self._settled_at = 0.0
        """… and since when they are the same, and longer than it takes all holders to repeat what they have."""
        self._host.serve(self)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, client_id: str) -> DirectoryEntry | None:
        return self._entries.get(client_id)

    # Coming and going

    async def enter(self) -> None:
        """Becomes a registrar, with the entries that are its own from now on."""
        self._is_filling = True
        await self._overlay.join(self._key)
        own = self._own
        if own is not None:
            low, high = self._range_of(own)
            for neighbour in {peer.address: None for peer in (own.left, own.right) if is_inside(peer.key)}:
                if neighbour != self._host.address and not self._overlay.ring.silent.is_silent(neighbour):
                    await self._fill(neighbour, low, high)
        self._is_filling = False

    async def _fill(self, neighbour: Address, low: Key, high: Key) -> None:
        after = ""
        while True:
            told = await ask_registrar(self._host, neighbour, AskEntries(low, high, after))
            if not isinstance(told, Copies) or not told.entries:
                return
            self._keep_copies(told.entries)
            after = told.entries[-1].holder.client_id

    @handles(AskEntries)
    def on_ask_entries(self, origin: Address, asked: AskEntries) -> Reply:
        """A page of what is in a hash range; one that asks for more goes on in the order that was found at first."""
        order = self._asked_for.get(origin) if asked.after else None
        if order is None:
            order = sorted(one for one in self._entries if asked.low <= hash_key_of(one) < asked.high)
        left = order[bisect_right(order, asked.after) :]
        page = tuple(islice((self._entries[one] for one in left if one in self._entries), PAGE_MAX))
        if len(page) == PAGE_MAX:
            self._asked_for.renew(origin, order)
        else:
            self._asked_for.pop(origin, None)
        return Copies(page)

    async def leave(self) -> None:
        """Gives its own entries to the neighbour that inherits them, and is no registrar any more.

        That neighbour has a copy of nearly all of them. So it is given some pages at a time, and not waited for long.
        """
        heir = self._heir
        if heir is not None:
            mine = [one for one in self._entries.values() if self._is_mine(hash_key_of(one.holder.client_id))]
            pages = [Copies(tuple(mine[start : start + PAGE_MAX])) for start in range(0, len(mine), PAGE_MAX)]
            for start in range(0, len(pages), PAGES_AT_ONCE):
                if not await self._give(heir.address, pages[start : start + PAGES_AT_ONCE]):
                    break
        await self._overlay.leave(self._key)

    async def _give(self, heir: Address, pages: list[Copies]) -> bool:
        """Whether the heir has taken all of some pages."""
        taken: list[Message] = []

        async def give(page: Copies) -> None:
            answer = await ask_registrar(self._host, heir, page)
            if answer is not None:
                taken.append(answer)

        await run_all(self._host, [give(page) for page in pages])
        return len(taken) == len(pages)

    # Which entries are whose

    @property
    def _own(self) -> RingNode | None:
        return self._overlay.view.own.get(self._key)

    @property
    def _heir(self) -> Peer | None:
        """The registrar that would have this broker's entries if it were gone."""
        own = self._own
        if own is None:
            return None
        heir = own.left if is_inside(own.left.key) and own.left.key < self._key else own.right
        return heir if is_inside(heir.key) and heir.address != self._host.address else None

    def _is_mine(self, hash_key: Key) -> bool:
        own = self._own
        if own is None:
            return False
        if hash_key >= self._key:
            return not self._key < own.right.key <= hash_key
        return not (is_inside(own.left.key) and own.left.key < self._key)

    def _range_of(self, own: RingNode) -> KeyRange:
        """The hashes that are this registrar's."""
        low = self._key if is_inside(own.left.key) and own.left.key < self._key else LOW
        return low, own.right.key if self._key < own.right.key < HIGH else HIGH

    def _has_all(self, low: Key, high: Key) -> bool:
        """Whether all hashes in a range are this registrar's."""
        own = self._own
        if own is None:
            return False
        begin, end = self._range_of(own)
        return begin <= low and high <= end

    def _likely_registrar(self, hash_key: Key) -> Peer | None:
        own = self._own
        if own is None:
            return None
        other = own.right if hash_key > self._key else own.left
        return other if is_inside(other.key) else None

    # What it is told

    @handles(Claim)
    def on_claim(self, origin: Address, claim: Claim) -> Reply:
        if self._is_filling or (claim.slow is not None and not self._has_found_silent(claim.slow)):
            return TryAgain()
        if not claim.stands_in and not self._is_mine(hash_key_of(claim.client_id)):
            return NotMine(self._likely_registrar(hash_key_of(claim.client_id)))
        old = self._entries.get(claim.client_id)
        is_sure = not claim.stands_in and self._is_settled()
        if old is not None and old.claim == claim.claim:  # the answer got lost
            return Claimed(old.holder.epoch, old.before, old.earlier, is_sure=is_sure)
        if old is not None and is_foreign(old.holder.owner, claim.owner) and claim.over != old.holder.epoch:
            return Claimed(old.holder.epoch, old.holder, None, is_foreign=True)
        if old is not None and claim.giver and self._is_elsewhere(old.holder, claim):
            return Claimed(old.holder.epoch, old.holder, None, is_elsewhere=True)
        epoch = claim.epoch if old is None else max(claim.epoch, old.holder.epoch + 1)
        before, earlier = (None, None) if old is None else (old.holder, old.before)
        holder = SessionHolder(claim.client_id, origin, claim.name, epoch, claim.owner, claim.mirrors)
        entry = DirectoryEntry(holder, claim.claim, before, earlier)
        self._entries.keep(entry)
        self._copy([entry])
        return Claimed(epoch, before, earlier, is_sure=is_sure)

    @staticmethod
    def _is_elsewhere(holder: SessionHolder, claim: Claim) -> bool:
        """Whether the giver of a claim has not got the client's session, but another broker, or the claimant itself."""
        is_newer = bool(claim.given) and holder.epoch > claim.given
        return holder.name != claim.giver and (holder.name != claim.name or is_newer)

    def _is_settled(self) -> bool:
        """Whether the entries of this registrar have been its own for long enough that all holders have repeated
        theirs."""
        own, now = self._own, self._host.now()
        neighbours = None if own is None else (own.left.key, own.right.key)
        if neighbours != self._neighbours:
            self._neighbours, self._settled_at = neighbours, now + REGISTER_S
        return now > self._settled_at

    def _has_found_silent(self, registrar: Address) -> bool:
        """Whether a registrar that is slow to answer another broker does not answer this one; finds out, if need be."""
        if self._host.now() < self._silent_until.get(registrar, 0.0):
            return True
        if registrar not in self._looking:
            self._looking[registrar] = None
            self._host.spawn(self._look_for(registrar))
        return False

    async def _look_for(self, registrar: Address) -> None:
        if await self._round_trips.who_is_at(registrar) is None:
            self._silent_until.renew(registrar, self._host.now() + SILENT_S)
        del self._looking[registrar]

    @handles(AreYouThere)
    def on_are_you_there(self, _origin: Address, _asked: AreYouThere) -> Reply:
        return StillThere(self._identity)

    @handles(Register)
    def on_register(self, origin: Address, told: Register) -> Reply:
        if self._is_filling:
            return TryAgain()
        others: list[SessionHolder] = []
        not_mine: list[str] = []
        kept: list[DirectoryEntry] = []
        for client_id, epoch, owner in told.clients:
            old = self._entries.get(client_id)
            if not told.stands_in and not self._is_mine(hash_key_of(client_id)):
                not_mine.append(client_id)
                continue
            if old is not None and (old.holder.name != told.name or old.holder.epoch != epoch):
                others.append(old.holder)
            highest = epoch if old is None else max(epoch, old.holder.epoch)
            is_new = old is None or epoch > old.holder.epoch or old.holder.name == told.name
            if old is not None and old.holder.is_contested(told.name, owner):  # the one that came first has it
                highest, is_new = epoch, epoch < old.holder.epoch
            if is_new:
                holder = SessionHolder(client_id, origin, told.name, highest, owner, told.mirrors)
                same = old is not None and old.holder == holder
                entry = old if same and old is not None else DirectoryEntry(holder)
                self._entries.keep(entry)
                kept.append(entry)
                if old is not None and old.holder.name != told.name:
                    self._host.send(old.holder.address, HeldElsewhere(holder))
        self._copy(kept)
        return Registered(tuple(others), tuple(not_mine))

    @handles(ConfirmEntries)
    def on_confirm_entries(self, _origin: Address, asked: ConfirmEntries) -> Reply:
        if self._is_filling:
            return TryAgain()
        if not asked.stands_in and not self._has_all(asked.low, asked.high):
            return NotMine(None)
        differing = self._entries.confirm(asked)
        heir = self._heir
        if heir is not None and not asked.stands_in:
            self._host.spawn(self._confirm_copies(heir.address, asked, differing))
        return EntriesConfirmed(differing)

    async def _confirm_copies(self, heir: Address, asked: ConfirmEntries, differing: tuple[int, ...]) -> None:
        """What is confirmed here is so at the heir, too, or is copied again; what is not will be registered."""
        unsure = set(differing)
        digests = tuple(one for one in asked.digests if one.bucket not in unsure)
        request = msgspec.structs.replace(asked, digests=digests, stands_in=True)
        answer = await ask_registrar(self._host, heir, request)
        if isinstance(answer, EntriesConfirmed):
            entries = self._entries.of_holder(asked.name, answer.differing)
            for start in range(0, len(entries), PAGE_MAX):
                self._copy(entries[start : start + PAGE_MAX])

    @handles(Copies)
    def on_copies(self, _origin: Address, told: Copies) -> Reply:
        self._keep_copies(told.entries)
        return CopiesKept()

    def _keep_copies(self, entries: Iterable[DirectoryEntry]) -> None:
        for entry in entries:
            known = self._entries.get(entry.holder.client_id)
            if known is None or known.holder.epoch <= entry.holder.epoch:
                self._entries.keep(entry)

    def _copy(self, entries: list[DirectoryEntry]) -> None:
        heir = self._heir
        if heir is not None and entries:
            self._host.send(heir.address, Copies(tuple(entries)))

    def expire(self) -> None:
        """Forgets what nobody has repeated for long."""
        self._entries.expire()
