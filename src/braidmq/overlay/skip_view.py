"""The routing view of a broker: all links of all its virtual nodes on all levels, in the order of keys.

Siblings share what they are linked to, so a message at one of them goes on from whichever is nearest to its goal.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from braidmq.host import Address
from braidmq.keys import Key, in_arc
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import RingNode, Status


class Entry(NamedTuple):
    """A node of another broker, the highest level on which it is a neighbour, and the list that holds the link."""

    peer: Peer
    level: int
    holder: RingNode

    def is_suspected(self, now: float) -> bool:
        return self.holder.known.is_suspected(self.peer.key, now)


class SkipView:
    """Made from the links as they are; made anew when one has changed."""

    __slots__ = ("_entries", "_keys", "own", "own_keys")

    def __init__(self, address: Address, nodes: Iterable[list[RingNode]]) -> None:
        self.own: dict[Key, RingNode] = {}
        found: dict[Key, Entry] = {}
        for levels in nodes:
            if levels and levels[0].status in (Status.IN, Status.DELETING):
                self.own[levels[0].me.key] = levels[0]
            for level, node in enumerate(levels):
                if node.status not in (Status.IN, Status.DELETING):
                    continue
                for peer in (node.left, node.right):
                    known = found.get(peer.key)
                    if peer.address != address and (known is None or known.level < level):
                        found[peer.key] = Entry(peer, level, node)
        self.own_keys = sorted(self.own)
        self._keys = sorted(found)
        self._entries = [found[key] for key in self._keys]

    def inside(self, low: Key, high: Key, now: float) -> list[Entry]:
        """The entries in [low, high), in order."""
        some = self._entries[bisect_left(self._keys, low) : bisect_left(self._keys, high)]
        return [entry for entry in some if not entry.is_suspected(now)]

    def own_inside(self, low: Key, high: Key) -> list[Key]:
        return self.own_keys[bisect_left(self.own_keys, low) : bisect_left(self.own_keys, high)]

    def own_up_to(self, key: Key, before: bool = False) -> RingNode | None:
        """The own node nearest to the left of a key, or at it if not `before`; the circle is closed."""
        if not self.own_keys:
            return None
        bisect = bisect_left if before else bisect_right
        return self.own[self.own_keys[bisect(self.own_keys, key) - 1]]

    def up_to(self, key: Key, now: float, before: bool = False) -> Entry | None:
        """The entry nearest to the left of a key, or at it if not `before`; the circle is closed."""
        bisect = bisect_left if before else bisect_right
        place = bisect(self._keys, key) - 1
        for back in range(len(self._keys)):
            entry = self._entries[place - back]
            if not entry.is_suspected(now):
                return entry
        return None

    def step_towards(self, key: Key, now: float, before: bool = False) -> Entry | None:
        """The entry nearest to a key without passing it, if that is nearer than the nearest own node."""
        own, entry = self.own_up_to(key, before), self.up_to(key, now, before)
        if own is None or entry is None or (own.me.key == key and not before):
            return None
        end = key if before else key + b"\0"
        return entry if in_arc(own.me.key, entry.peer.key, end) else None

    def own_from(self, key: Key) -> RingNode | None:
        """The own node nearest to the right of a key, or at it; None if there is none before the end of the keys."""
        place = bisect_left(self.own_keys, key)
        return self.own[self.own_keys[place]] if place < len(self.own_keys) else None

    def own_before(self, key: Key) -> RingNode | None:
        """The own node nearest to the left of a key; None if there is none after the beginning of the keys."""
        place = bisect_left(self.own_keys, key)
        return self.own[self.own_keys[place - 1]] if place else None
