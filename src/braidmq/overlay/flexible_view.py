"""The routing view of a broker with many keys: made anew now and then, and in between kept right by small changes.

What tables have learnt may wait for the next time; a new link may not, nor what is gone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.ring import RingNode
from braidmq.overlay.view import Entry, View


class FlexibleView(View):
    """A view that can follow its broker's links."""

    __slots__ = ("_address",)

    def __init__(self, address: Address, own: Iterable[RingNode], entries: Iterable[Entry]) -> None:
        nodes = list(own)
        super().__init__(address, nodes, [*links_of(nodes), *entries])
        self._address = address

    def follow(self, own: Iterable[RingNode]) -> None:
        """These are the own nodes now: takes their neighbours in; who is no neighbour any more stays for now."""
        nodes = list(own)
        self.own = {node.me.key: node for node in nodes}
        self.own_keys = sorted(self.own)
        for entry in links_of(nodes):
            place = bisect_left(self._keys, entry.peer.key)
            is_known = place < len(self._keys) and self._keys[place] == entry.peer.key
            if entry.peer.address == self._address:
                continue
            if not is_known:
                self._keys.insert(place, entry.peer.key)
                self.entries.insert(place, entry)
            elif self.entries[place].peer != entry.peer:
                self.entries[place] = entry

    def drop(self, key: Key) -> None:
        """Takes an entry out."""
        place = bisect_left(self._keys, key)
        if place < len(self._keys) and self._keys[place] == key:
            del self._keys[place], self.entries[place]


def links_of(nodes: Iterable[RingNode]) -> list[Entry]:
    return [Entry(peer, 0, node.known) for node in nodes for peer in (node.left, node.right)]
