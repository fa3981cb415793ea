"""The routing view of a broker: its own nodes and all that they know of others, in the order of keys.

Siblings share what they are linked to, so a message at one of them goes on from whichever is nearest to its goal. Every
overlay offers this one view, whatever its tables look like: lookups and range delivery need no more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

import msgspec

from braidmq.host import Address
from braidmq.keys import Key, in_arc
from braidmq.overlay.aggregates import Aggregate
from braidmq.overlay.peers import Acquaintances, Peer
from braidmq.overlay.ring import RingNode
from braidmq.overlay.vectors import Vector


class RoutingEntry(msgspec.Struct, frozen=True, gc=False):
    """A node of another broker, the highest level on which it is known, and what knows whether it is silent.

    `aggregate` is what the nodes from it up to, not including, `until` added up to, if that is known: at the time
    `as_of` or later.
    """

    peer: Peer
    level: int
    known: Acquaintances
    until: Key | None = None
    aggregate: Aggregate | None = None
    as_of: float = 0.0

    def is_suspected(self, now: float) -> bool:
        return self.known.is_suspected(self.peer.key, now)


class View:
    """Made from the tables as they are; made anew when one has changed.

    The own nodes are there at once, the entries when they are asked for: a broker that only takes a message for itself
    does not ask.
    """

    __slots__ = ("_address", "_entries", "_find_entries", "_keys", "own", "own_keys", "vector")

    def __init__(
        self,
        address: Address,
        own: Iterable[RingNode],
        find_entries: Callable[[], Iterable[RoutingEntry]],
        vector: Vector | None = None,
    ) -> None:
        self._address = address
        self.vector = vector
        """The broker's membership vector, if levels of entries are those of a Skip Graph, each with all its links."""
        self._find_entries = find_entries
        self._keys: list[Key] = []
        self._entries: list[RoutingEntry] | None = None
        self.set_own(own)

    def set_own(self, nodes: Iterable[RingNode]) -> None:
        self.own: dict[Key, RingNode] = {node.me.key: node for node in nodes}
        """The level-0 nodes that are linked."""
        self.own_keys = sorted(self.own)

    @property
    def entries(self) -> list[RoutingEntry]:
        """In the order of keys, each node once."""
        if self._entries is None:
            address = self._address
            found: dict[Key, RoutingEntry] = {}
            for entry in self._all_entries():
                peer = entry.peer
                known = found.get(peer.key)
                if (known is None or known.level < entry.level) and peer.address != address:
                    found[peer.key] = entry
            self._keys = sorted(found)
            self._entries = [found[key] for key in self._keys]
        return self._entries

    def _all_entries(self) -> Iterable[RoutingEntry]:
        """In any order, a node perhaps more than once."""
        return self._find_entries()

    def inside(self, low: Key, high: Key, now: float, avoid: tuple[Key, ...] = ()) -> list[RoutingEntry]:
        """The entries in [low, high), in order."""
        entries = self.entries
        some = entries[bisect_left(self._keys, low) : bisect_left(self._keys, high)]
        return [entry for entry in some if not entry.is_suspected(now) and entry.peer.key not in avoid]

    def at(self, key: Key) -> RoutingEntry | None:
        entries = self.entries
        index = bisect_left(self._keys, key)
        return entries[index] if index < len(self._keys) and self._keys[index] == key else None

    def own_inside(self, low: Key, high: Key) -> list[Key]:
        return self.own_keys[bisect_left(self.own_keys, low) : bisect_left(self.own_keys, high)]

    def own_up_to(self, key: Key, before: bool = False) -> RingNode | None:
        """The own node nearest to the left of a key, or at it if not `before`; the circle is closed."""
        if not self.own_keys:
            return None
        bisect = bisect_left if before else bisect_right
        return self.own[self.own_keys[bisect(self.own_keys, key) - 1]]

    def own_from(self, key: Key) -> RingNode | None:
        """The own node nearest to the right of a key, or at it; the circle is closed."""
        if not self.own_keys:
            return None
        index = bisect_left(self.own_keys, key)
        return self.own[self.own_keys[index % len(self.own_keys)]]

    def up_to(self, key: Key, now: float, before: bool = False, avoid: tuple[Key, ...] = ()) -> RoutingEntry | None:
        """The entry nearest to the left of a key, or at it if not `before`; the circle is closed."""
        entries = self.entries
        bisect = bisect_left if before else bisect_right
        index = bisect(self._keys, key) - 1
        for back in range(len(entries)):
            entry = entries[index - back]
            if not entry.is_suspected(now) and entry.peer.key not in avoid:
                return entry
        return None

    def step_towards(
        self, key: Key, now: float, before: bool = False, avoid: tuple[Key, ...] = ()
    ) -> RoutingEntry | None:
        """The entry nearest to a key without passing it, if that is nearer than the nearest own node."""
        own, entry = self.own_up_to(key, before), self.up_to(key, now, before, avoid)
        if own is None or entry is None or (own.me.key == key and not before):
            return None
        end = key if before else key + b"\0"
        return entry if in_arc(own.me.key, entry.peer.key, end) else None

    def aggregate_over(self, low: Key, high: Key) -> RoutingEntry | None:
        """An entry with the aggregate of a range that holds all of [low, high); None if there is none."""
        entries = self.entries
        for index in range(bisect_right(self._keys, low) - 1, -1, -1):
            entry = entries[index]
            if entry.until is None or entry.aggregate is None:
                continue
            if entry.until <= entry.peer.key or entry.until >= high:
                return entry
        return None
