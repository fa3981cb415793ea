"""The registrars of the directory, and which hashes are whose: looked up once, remembered until that proves wrong."""

from __future__ import annotations

from bisect import bisect_right, insort
from hashlib import blake2b

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Address
from braidmq.keys import Key, Role, key_of, segment
from braidmq.overlay import FoundOwner, Overlay, Peer

TOPIC = "$braid/dir"
LOW, HIGH = segment(TOPIC, Role.SUBSCRIBER)

RANGES_MAX = 1024
"""Registrars that a broker remembers, with the hashes that are theirs."""

SILENT_S = 10.0
"""For how long the heir of a registrar that does not answer is asked at once."""


def hash_of(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def hash_key_of(client_id: str) -> Key:
    """Where a client id belongs."""
    return key_of(TOPIC, Role.SUBSCRIBER, hash_of(client_id), "")


def registrar_key_of(name: str) -> Key:
    """Where a broker stands as a registrar."""
    return key_of(TOPIC, Role.SUBSCRIBER, hash_of(name), name)


def is_inside(key: Key) -> bool:
    return LOW <= key < HIGH


class HashRange(msgspec.Struct, frozen=True):
    """The hashes of one registrar, as they were when they were looked up; `heir` is known for the first one."""

    low: Key
    high: Key
    registrar: Peer
    heir: Peer | None


class HashRanges:
    """What one broker remembers of the registrars."""

    def __init__(self, overlay: Overlay) -> None:
        self.lookups = 0
        """How often a registrar had to be looked up: it was not remembered."""
        self.hops = 0
        """How many hops these took."""
        self._overlay = overlay
        self._ranges: BoundedDict[Key, HashRange] = BoundedDict(RANGES_MAX, lambda low, _range: self._lows.remove(low))
        self._lows: list[Key] = []
        """Where they begin, in order."""
        self._silent: BoundedDict[Address, float] = BoundedDict(RANGES_MAX)
        """Registrars that did not answer, and until when they are passed by."""

    async def find(self, hash_key: Key) -> HashRange | None:
        """The registrar of a hash, remembered or looked up."""
        known = self._known(hash_key)
        silent_until = 0.0 if known is None else self._silent.get(known.registrar.address, 0.0)
        if known is not None and (not silent_until or silent_until > self._overlay.host.now()):
            return known
        self.lookups += 1
        found = await self._overlay.lookup(hash_key)
        if found is None:
            return known
        self.hops += found.hops
        hash_range = _range_of(found)
        if hash_range is not None:
            self._silent.pop(hash_range.registrar.address, None)
            self._remember(hash_range)
        return hash_range

    def _known(self, hash_key: Key) -> HashRange | None:
        at = bisect_right(self._lows, hash_key) - 1
        hash_range = self._ranges[self._lows[at]] if at >= 0 else None
        return hash_range if hash_range is not None and hash_key < hash_range.high else None

    def refine(self, hash_range: HashRange, registrar: Peer | None) -> None:
        """A registrar has named another one for a part of its hash range: on its right, or the first of all."""
        self.forget(hash_range.low)
        if registrar is None:
            return
        if hash_range.low < registrar.key < hash_range.high and hash_range.registrar.key < registrar.key:
            self._remember(HashRange(hash_range.low, registrar.key, hash_range.registrar, registrar))
            self._remember(HashRange(registrar.key, hash_range.high, registrar, None))
        elif registrar.key < hash_range.registrar.key:
            self._remember(HashRange(LOW, registrar.key, registrar, hash_range.registrar))
            self._remember(HashRange(registrar.key, hash_range.registrar.key, registrar, hash_range.registrar))

    def _remember(self, hash_range: HashRange) -> None:
        self.forget(hash_range.low)
        insort(self._lows, hash_range.low)
        self._ranges[hash_range.low] = hash_range

    def forget(self, low: Key) -> None:
        if self._ranges.pop(low, None) is not None:
            self._lows.remove(low)

    def part(self, address: Address) -> None:
        """A registrar has ended, and given its entries to its heir: who that is is looked up."""
        for low, known in list(self._ranges.items()):
            if known.registrar.address == address or (known.heir is not None and known.heir.address == address):
                self.forget(low)

    async def heir_of(self, hash_range: HashRange) -> Peer | None:
        found = await self._overlay.lookup(hash_range.registrar.key[:-1])
        if found is not None and is_inside(found.owner.key) and found.owner.key < hash_range.registrar.key:
            return found.owner
        return next(
            (one.heir for one in self._ranges.values() if one.registrar == hash_range.registrar and one.heir), None
        )

    def is_silent(self, registrar: Address) -> bool:
        return self._silent.get(registrar, 0.0) > self._overlay.host.now()

    def note_silent(self, registrar: Peer) -> None:
        self._silent[registrar.address] = self._overlay.host.now() + SILENT_S


def _range_of(found: FoundOwner) -> HashRange | None:
    """What a lookup says about the registrars around a hash."""
    owner, right = found.owner, found.right
    if is_inside(owner.key):
        has_next = owner.key < right.key < HIGH
        return HashRange(owner.key, right.key if has_next else HIGH, owner, right if has_next else None)
    if is_inside(right.key):
        return HashRange(LOW, right.key, right, None)
    return None
