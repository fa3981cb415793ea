"""The routing view of a broker with many keys: made anew now and then, and in between kept right by small changes.

What tables have learnt may wait for the next time; a new link may not, nor what is gone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from braidmq.keys import Key
from braidmq.overlay.ring import RingNode
from braidmq.overlay.view import RoutingEntry, View


class FlexibleView(View):
    """A view that can follow its broker's links."""

    __slots__ = ()

    def _all_entries(self) -> Iterable[RoutingEntry]:
        return [*links_of(self.own.values()), *super()._all_entries()]

    def following(self, own: Iterable[RingNode]) -> FlexibleView:
        """This view with the own nodes as they are now, and their neighbours; what is none any more stays for now.

        It is another one: whoever has kept what followed from this one, such as who sees to which part of a range,
        must see that links have changed.
        """
        view = FlexibleView(self._address, own, self._find_entries, self.vector)
        if self._entries is None:
            return view
        keys, entries = view._keys, view._entries = self._keys, self._entries
        for entry in links_of(view.own.values()):
            index = bisect_left(keys, entry.peer.key)
            is_known = index < len(keys) and keys[index] == entry.peer.key
            if entry.peer.address == self._address:
                continue
            if not is_known:
                keys.insert(index, entry.peer.key)
                entries.insert(index, entry)
            elif entries[index].peer != entry.peer:
                entries[index] = entry
        return view

    def drop(self, key: Key) -> None:
        """Takes an entry out."""
        index = bisect_left(self._keys, key)
        if self._entries is not None and index < len(self._keys) and self._keys[index] == key:
            del self._keys[index], self._entries[index]


def links_of(nodes: Iterable[RingNode]) -> list[RoutingEntry]:
    return [RoutingEntry(peer, 0, node.known) for node in nodes for peer in (node.left, node.right)]
