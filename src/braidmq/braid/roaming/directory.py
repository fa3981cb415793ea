"""The directory: which broker has which client id.

A client id is one client's anywhere in the braid, so a broker that gets its CONNECT must find out who had it before.
Every broker stands in the overlay once more, at a hash of its name, and keeps the entries of the client ids whose
hashes lie between its own and the next broker's:

      …  other keys │ $braid/dir 1f… b   $braid/dir 6c… a   $braid/dir d0… c │ other keys  …
                      ◀─────── b ───────▶◀────── a ────────▶◀───── c ──────▶

What lies before the first of them is the first one's, too: a lookup that ends before the segment has it on its right.

Entries are soft. A claim (at CONNECT) is answered with who was there before and gets a higher epoch; holders repeat
what they have now and then, so that what a crash took away comes back, and learn who has overtaken them. Each registrar
sends a copy of what it is told to the neighbour that will inherit from it. A registrar that does not answer is passed by:
its heir is asked instead. Two claims that met different registrars are told apart by their epochs, which follow the clock.

An entry says whose the session is. The claim of another user changes nothing: whoever makes it is told of the holder,
asks there whether it has the session still, and only then claims it over that holder. Where a partition has let two
users have the same client id after all, the one who came first keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from braidmq.braid.roaming.hash_ranges import HIGH, LOW, HashRange, HashRanges, hash_key_of, is_inside, registrar_key_of
from braidmq.host import Address, CallError, Host, Message, Reply, Service, handles
from braidmq.keys import Key
from braidmq.overlay.overlay import Overlay
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import RingNode
from braidmq.security.identity import is_foreign

REGISTER_S = 30.0
"""How often a broker repeats which clients it has."""

ENTRY_KEPT_S = 4 * REGISTER_S
"""How long an entry is kept that nobody repeats."""

ENTRIES_MAX = 1_000_000
"""Entries that a broker keeps, its own and copies; the one that was heard of least recently goes."""

PAGE_MAX = 1000
"""Entries in one message."""

TIMEOUTS_S = (0.25, 0.5, 1.0)
"""How long a registrar is waited for, each time that it is asked; then it is silent."""

REGISTER_ROUNDS = 4
"""How often registering looks for the registrars of those that are left."""

AGAIN_S = 0.05
"""How long to wait for a registrar that is just taking over."""

TRIES_MAX = 100
"""How often a registrar may say that it is not ready, or not the one."""

HINTS_MAX = 2
"""How often a registrar's word for another one is taken, before that is looked up."""

WARM_MAX = 64
"""Registrars that are looked up by a broker that enters, before it needs them."""


class Holder(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who has a client id, since when, and for which user: of two the one with the higher epoch."""

    client_id: str
    address: Address
    name: str
    epoch: int
    owner: str = ""

    def is_contested(self, name: str, owner: str) -> bool:
        """Whether another broker has a session of another user under the same client id."""
        return name != self.name and bool(owner) and is_foreign(self.owner, owner)


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a registrar knows. `claim` names the claim that made it; the others had the client id before that."""

    holder: Holder
    claim: int = 0
    before: Holder | None = None
    earlier: Holder | None = None


class Claim(Message, frozen=True, array_like=True, gc=False):
    """The client is here now. `stands_in`: its registrar does not answer, so you are asked."""

    client_id: str
    name: str
    epoch: int
    claim: int
    stands_in: bool
    owner: str = ""
    over: int = 0
    """The epoch of a holder for another user who has said that it has nothing any more."""


class Claimed(Message, frozen=True, array_like=True, gc=False):
    """`earlier` had it before that one, who may have died before it had all."""

    epoch: int
    before: Holder | None
    earlier: Holder | None
    is_foreign: bool = False
    """It is another user's, whose holder is told in `before`; nothing was changed."""


class Client(NamedTuple):
    """A client that a broker has."""

    client_id: str
    epoch: int
    owner: str


class Register(Message, frozen=True, array_like=True, gc=False):
    """These clients are here still."""

    name: str
    clients: tuple[Client, ...]
    stands_in: bool


class Registered(Message, frozen=True, array_like=True, gc=False):
    """`others`: what was known otherwise. `not_mine`: ask somebody else."""

    others: tuple[Holder, ...]
    not_mine: tuple[str, ...]


class NotMine(Message, frozen=True, array_like=True, gc=False):
    """Somebody else keeps this entry; probably this one."""

    registrar: Peer | None


class TryAgain(Message, tag="Again", frozen=True, array_like=True, gc=False):
    """The entries of this registrar are on their way to it."""


class Copies(Message, frozen=True, array_like=True, gc=False):
    """Keep these, in case they become yours."""

    entries: tuple[Entry, ...]


class CopiesKept(Message, tag="Kept", frozen=True, array_like=True, gc=False):
    """They are kept."""


class AskEntries(Message, frozen=True, array_like=True, gc=False):
    """The entries with hashes in [low, high) are mine now; a page of them, behind the client id `after`."""

    low: Key
    high: Key
    after: str


class Directory(Service):
    """One broker's part: a registrar of entries, and the way to the others."""

    def __init__(self, overlay: Overlay, name: str, now: Callable[[], float], identity: str = "") -> None:
        """`now` is Unix time: epochs follow it. `identity` stands for this broker in entries, if it is not the name."""
        self.host: Host = overlay.host
        self.name = identity or name
        self.ranges = HashRanges(overlay)
        self._overlay = overlay
        self._now = now
        self._key = registrar_key_of(name)
        self._entries: dict[str, Entry] = {}
        """The one that was heard of least recently first."""
        self._heard_at: dict[str, float] = {}
        self._is_filling = False
        self.host.serve(self)

    def __len__(self) -> int:
        return len(self._entries)

    # Coming and going

    async def enter(self) -> None:
        """Becomes a registrar, with the entries that are its own from now on."""
        self._is_filling = True
        await self._overlay.join(self._key)
        own = self._own
        if own is not None:
            low = self._key if is_inside(own.left.key) and own.left.key < self._key else LOW
            high = own.right.key if self._key < own.right.key < HIGH else HIGH
            for neighbour in {peer.address: None for peer in (own.left, own.right) if is_inside(peer.key)}:
                if neighbour != self.host.address:
                    await self._fill(neighbour, low, high)
        self._is_filling = False
        hash_key = LOW
        for _ in range(WARM_MAX):
            hash_range = await self.ranges.find(hash_key)
            if hash_range is None or hash_range.high == HIGH:
                break
            hash_key = hash_range.high

    async def _fill(self, neighbour: Address, low: Key, high: Key) -> None:
        after = ""
        while True:
            told = await self._call(neighbour, AskEntries(low, high, after))
            if not isinstance(told, Copies) or not told.entries:
                return
            self._take_copies(told.entries)
            after = told.entries[-1].holder.client_id

    @handles(AskEntries)
    def on_ask_entries(self, _origin: Address, asked: AskEntries) -> Reply:
        wanted = [one for one in self._entries if one > asked.after and asked.low <= hash_key_of(one) < asked.high]
        return Copies(tuple([self._entries[one] for one in sorted(wanted)[:PAGE_MAX]]))

    async def leave(self) -> None:
        """Gives the entries to who inherits them, and is no registrar any more."""
        heir = self._heir
        entries = list(self._entries.values())
        if heir is not None:
            for start in range(0, len(entries), PAGE_MAX):
                if await self._call(heir.address, Copies(tuple(entries[start : start + PAGE_MAX]))) is None:
                    break
        await self._overlay.leave(self._key)

    # Claiming and registering

    async def claim(self, client_id: str, owner: str = "", over: int = 0) -> Claimed | None:
        """Makes this broker the holder of a client id; who was it before. None if no registrar answered."""
        hash_key = hash_key_of(client_id)
        epoch = int(self._now() * 1000)
        number = self.host.chance.getrandbits(62)
        hints = 0
        for _ in range(TRIES_MAX):
            hash_range = await self.ranges.find(hash_key)
            if hash_range is None:
                return None
            stands_in = self.ranges.is_silent(hash_range.registrar)
            answer = await self._ask(hash_range, Claim(client_id, self.name, epoch, number, stands_in, owner, over))
            if isinstance(answer, Claimed):
                return answer
            if isinstance(answer, TryAgain):
                await self.host.sleep(AGAIN_S)
            elif isinstance(answer, NotMine):
                hints += 1
                self.ranges.refine(hash_range, answer.registrar if hints <= HINTS_MAX else None)
            elif stands_in:
                return None
        return None

    async def register(self, clients: Iterable[Client]) -> list[Holder] | None:
        """Repeats what this broker holds; what others know otherwise. None if a registrar did not answer."""
        left = {client.client_id: client for client in clients}
        others: list[Holder] = []
        for _ in range(REGISTER_ROUNDS):
            groups: dict[Key, tuple[HashRange, list[Client]]] = {}
            for client_id, client in left.items():
                hash_range = await self.ranges.find(hash_key_of(client_id))
                if hash_range is not None:
                    groups.setdefault(hash_range.low, (hash_range, []))[1].append(client)
            for hash_range, group in groups.values():
                for start in range(0, len(group), PAGE_MAX):
                    answer = await self._register_page(hash_range, group[start : start + PAGE_MAX])
                    if answer is not None:
                        others += answer.others
                        for client_id, *_ in group[start : start + PAGE_MAX]:
                            if client_id not in answer.not_mine:
                                del left[client_id]
            if not left:
                return others
        return None

    async def _register_page(self, hash_range: HashRange, page: list[Client]) -> Registered | None:
        answer = await self._ask(
            hash_range, Register(self.name, tuple(page), self.ranges.is_silent(hash_range.registrar))
        )
        if isinstance(answer, TryAgain):
            await self.host.sleep(AGAIN_S)
        if not isinstance(answer, Registered):
            return None
        if answer.not_mine:
            self.ranges.forget(hash_range.low)
        return answer

    async def _ask(self, hash_range: HashRange, request: Claim | Register) -> object:
        """Asks the registrar of an hash_range, or its heir if that is to stand in for it. None if it is silent."""
        to = await self.ranges.heir_of(hash_range) if request.stands_in else hash_range.registrar
        answer = None if to is None else await self._call(to.address, request)
        if answer is None:
            self.ranges.note_silent(hash_range.registrar)
        return answer

    async def _call(self, to: Address, request: Message) -> object:
        if to == self.host.address:
            return self._answer(request)
        for timeout_s in TIMEOUTS_S:
            try:
                return await self.host.call(to, request, timeout_s)
            except CallError:
                continue
        return None

    def _answer(self, request: Message) -> object:
        if isinstance(request, Claim):
            return self.on_claim(self.host.address, request)
        assert isinstance(request, Register)
        return self.on_register(self.host.address, request)

    # Who keeps what

    @property
    def _own(self) -> RingNode | None:
        return self._overlay.view.own.get(self._key)

    @property
    def _heir(self) -> Peer | None:
        """Who would keep this broker's entries if it were gone."""
        own = self._own
        if own is None:
            return None
        heir = own.left if is_inside(own.left.key) and own.left.key < self._key else own.right
        return heir if is_inside(heir.key) and heir.address != self.host.address else None

    def _is_mine(self, hash_key: Key) -> bool:
        own = self._own
        if own is None:
            return False
        if hash_key >= self._key:
            return not self._key < own.right.key <= hash_key
        return not (is_inside(own.left.key) and own.left.key < self._key)

    def _likely_registrar(self, hash_key: Key) -> Peer | None:
        own = self._own
        if own is None:
            return None
        other = own.right if hash_key > self._key else own.left
        return other if is_inside(other.key) else None

    # What a registrar is told

    @handles(Claim)
    def on_claim(self, origin: Address, claim: Claim) -> Reply:
        if self._is_filling:
            return TryAgain()
        if not claim.stands_in and not self._is_mine(hash_key_of(claim.client_id)):
            return NotMine(self._likely_registrar(hash_key_of(claim.client_id)))
        old = self._entries.get(claim.client_id)
        if old is not None and old.claim == claim.claim:  # the answer got lost
            return Claimed(old.holder.epoch, old.before, old.earlier)
        if old is not None and is_foreign(old.holder.owner, claim.owner) and claim.over != old.holder.epoch:
            return Claimed(old.holder.epoch, old.holder, None, is_foreign=True)
        epoch = claim.epoch if old is None else max(claim.epoch, old.holder.epoch + 1)
        before, earlier = (None, None) if old is None else (old.holder, old.before)
        holder = Holder(claim.client_id, origin, claim.name, epoch, claim.owner)
        entry = Entry(holder, claim.claim, before, earlier)
        self._keep(entry)
        self._copy([entry])
        return Claimed(epoch, before, earlier)

    @handles(Register)
    def on_register(self, origin: Address, told: Register) -> Reply:
        if self._is_filling:
            return TryAgain()
        others: list[Holder] = []
        not_mine: list[str] = []
        kept: list[Entry] = []
        for client_id, epoch, owner in told.clients:
            old = self._entries.get(client_id)
            if not told.stands_in and not self._is_mine(hash_key_of(client_id)):
                not_mine.append(client_id)
                continue
            if old is not None and (old.holder.name != told.name or old.holder.epoch != epoch):
                others.append(old.holder)
            highest = epoch if old is None else max(epoch, old.holder.epoch)
            is_new = old is None or epoch > old.holder.epoch or old.holder.name == told.name
            if old is not None and old.holder.is_contested(told.name, owner):  # the one who came first has it
                highest, is_new = epoch, epoch < old.holder.epoch
            if is_new:
                holder = Holder(client_id, origin, told.name, highest, owner)
                same = old is not None and old.holder == holder
                entry = old if same and old is not None else Entry(holder)
                self._keep(entry)
                kept.append(entry)
        self._copy(kept)
        return Registered(tuple(others), tuple(not_mine))

    @handles(Copies)
    def on_copies(self, _origin: Address, told: Copies) -> Reply:
        self._take_copies(told.entries)
        return CopiesKept()

    def _take_copies(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            known = self._entries.get(entry.holder.client_id)
            if known is None or known.holder.epoch <= entry.holder.epoch:
                self._keep(entry)

    def _copy(self, entries: list[Entry]) -> None:
        heir = self._heir
        if heir is not None and entries:
            self.host.send(heir.address, Copies(tuple(entries)))

    def _keep(self, entry: Entry) -> None:
        client_id = entry.holder.client_id
        self._entries.pop(client_id, None)
        self._heard_at.pop(client_id, None)
        self._entries[client_id] = entry
        self._heard_at[client_id] = self.host.now()
        if len(self._entries) > ENTRIES_MAX:
            self._forget(next(iter(self._entries)))

    def expire(self) -> None:
        """Forgets what nobody has repeated for long."""
        oldest = self.host.now() - ENTRY_KEPT_S
        for client_id, heard_at in list(self._heard_at.items()):
            if heard_at >= oldest:
                break
            self._forget(client_id)

    def _forget(self, client_id: str) -> None:
        del self._entries[client_id]
        del self._heard_at[client_id]
