"""The keepers of the directory, and which hashes are whose: looked up once, and remembered until that proves wrong."""

from __future__ import annotations

from bisect import bisect_right, insort
from hashlib import blake2b

import msgspec

from braidmq.host import Address
from braidmq.keys import Key, Role, key_of, segment
from braidmq.overlay import FoundOwner, Overlay, Peer

TOPIC = "$braid/dir"
LOW, HIGH = segment(TOPIC, Role.SUBSCRIBER)

ARCS_MAX = 1024
"""RetainedReplication that a broker remembers, with the hashes that are theirs."""

SILENT_S = 10.0
"""For how long the heir of a keeper that does not answer is asked at once."""


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def place_of(client_id: str) -> Key:
    """Where a client id belongs."""
    return key_of(TOPIC, Role.SUBSCRIBER, _hash(client_id), "")


def stand_of(name: str) -> Key:
    """Where a broker stands."""
    return key_of(TOPIC, Role.SUBSCRIBER, _hash(name), name)


def is_inside(key: Key) -> bool:
    return LOW <= key < HIGH


class HashRange(msgspec.Struct, frozen=True):
    """The hashes of one keeper, as they were when they were looked up; `heir` is known for the first one."""

    low: Key
    high: Key
    keeper: Peer
    heir: Peer | None


class HashRanges:
    """What one broker remembers of the keepers."""

    def __init__(self, overlay: Overlay) -> None:
        self.lookups = 0
        """How often a keeper had to be looked up: it was not remembered."""
        self.hops = 0
        """How many hops these took."""
        self._overlay = overlay
        self._arcs: dict[Key, HashRange] = {}
        self._lows: list[Key] = []
        """Where they begin, in order."""
        self._silent: dict[Address, float] = {}
        """RetainedReplication that did not answer, and until when they are passed by."""

    async def find(self, place: Key) -> HashRange | None:
        """The keeper of a place, remembered or looked up."""
        known = self._known(place)
        silent_until = 0.0 if known is None else self._silent.get(known.keeper.address, 0.0)
        if known is not None and (not silent_until or silent_until > self._overlay.host.now()):
            return known
        self.lookups += 1
        found = await self._overlay.lookup(place)
        if found is None:
            return known
        self.hops += found.hops
        arc = _arc(found)
        if arc is not None:
            self._silent.pop(arc.keeper.address, None)
            self._remember(arc)
        return arc

    def _known(self, place: Key) -> HashRange | None:
        at = bisect_right(self._lows, place) - 1
        arc = self._arcs[self._lows[at]] if at >= 0 else None
        return arc if arc is not None and place < arc.high else None

    def refine(self, arc: HashRange, keeper: Peer | None) -> None:
        """A keeper has named another one for a part of its arc: on its right, or the first of all."""
        self.forget(arc.low)
        if keeper is None:
            return
        if arc.low < keeper.key < arc.high and arc.keeper.key < keeper.key:
            self._remember(HashRange(arc.low, keeper.key, arc.keeper, keeper))
            self._remember(HashRange(keeper.key, arc.high, keeper, None))
        elif keeper.key < arc.keeper.key:
            self._remember(HashRange(LOW, keeper.key, keeper, arc.keeper))
            self._remember(HashRange(keeper.key, arc.keeper.key, keeper, arc.keeper))

    def _remember(self, arc: HashRange) -> None:
        self.forget(arc.low)
        self._arcs[arc.low] = arc
        insort(self._lows, arc.low)
        if len(self._arcs) > ARCS_MAX:
            self.forget(next(iter(self._arcs)))

    def forget(self, low: Key) -> None:
        if self._arcs.pop(low, None) is not None:
            self._lows.remove(low)

    async def heir_of(self, arc: HashRange) -> Peer | None:
        found = await self._overlay.lookup(arc.keeper.key[:-1])
        if found is not None and is_inside(found.owner.key) and found.owner.key < arc.keeper.key:
            return found.owner
        return next((one.heir for one in self._arcs.values() if one.keeper == arc.keeper and one.heir), None)

    def is_silent(self, keeper: Peer) -> bool:
        return self._silent.get(keeper.address, 0.0) > self._overlay.host.now()

    def note_silent(self, keeper: Peer) -> None:
        self._silent[keeper.address] = self._overlay.host.now() + SILENT_S
        if len(self._silent) > ARCS_MAX:
            self._silent.pop(next(iter(self._silent)))


def _arc(found: FoundOwner) -> HashRange | None:
    """What a lookup says about the keepers around a place."""
    owner, right = found.owner, found.right
    if is_inside(owner.key):
        has_next = owner.key < right.key < HIGH
        return HashRange(owner.key, right.key if has_next else HIGH, owner, right if has_next else None)
    if is_inside(right.key):
        return HashRange(LOW, right.key, right, None)
    return None
