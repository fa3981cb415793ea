"""A converged flexible graph, laid out at once: the best tables by their order, for networks too large to grow."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.flexible import SIZE, Contact, FlexibleGraph, FlexibleNode
from braidmq.overlay.ring import LinkEvent, link_all
from braidmq.overlay.vectors import DIGITS_MAX, list_of
from braidmq.sim.engine import Simulator
from braidmq.sim.layouts.skip_graph import vectors_of

NEAREST_MIN = 8
"""Nodes of a level that are looked at first, on each side, when a table is laid out."""


def lay_out(
    sim: Simulator,
    keys_by_broker: Mapping[Address, Sequence[Key]],
    seed: int,
    size: int = SIZE,
    is_ideal: Callable[[Key], bool] | None = None,
) -> dict[Address, FlexibleGraph]:
    """One host and graph a broker, linked in a ring. Nothing is checked, mended or learnt: it is as it is.

    Nodes for which `is_ideal` holds (all, if it is not given) have the best table there is; others have what they would
    be linked to in a Skip Graph, which takes less time to find.
    """
    collecting = gc.isenabled()
    gc.disable()  # millions of new objects, and no garbage among them
    try:
        vectors = vectors_of(keys_by_broker, seed)
        graphs: dict[Address, FlexibleGraph] = {}
        for address, keys in keys_by_broker.items():
            graphs[address] = FlexibleGraph(sim.host(address), vectors[address], lambda: None, 0, size)
            for key in keys:
                graphs[address].add_node(key)
        nodes = sorted((node for graph in graphs.values() for node in graph.nodes.values()), key=lambda node: node.key)
        for node in nodes:
            node.base.become(LinkEvent.FOUNDED)
        link_all([node.base for node in nodes])
        crowd = Crowd([node.contact for node in nodes])
        for node in nodes:
            if is_ideal is None or is_ideal(node.key):
                crowd.make_ideal(node)
            else:
                crowd.make_plain(node)
        return graphs
    finally:
        if collecting:
            gc.enable()


class Crowd:
    """All nodes there are, in the lists that a Skip Graph has of them."""

    def __init__(self, contacts: Sequence[Contact]) -> None:
        """The contacts come in the order of keys."""
        self._lists: dict[int, tuple[list[Key], list[Contact]]] = {}
        self._divide(list(contacts), 0)

    def _divide(self, contacts: list[Contact], level: int) -> None:
        """Makes a list and the two above it; a list of siblings alone has none above."""
        number = list_of(contacts[0].vector, level)
        self._lists[number] = [contact.peer.key for contact in contacts], contacts
        if level == DIGITS_MAX or all(contact.vector == contacts[0].vector for contact in contacts):
            return
        shift = DIGITS_MAX - 1 - level
        for digit in (0, 1):
            above = [contact for contact in contacts if contact.vector >> shift & 1 == digit]
            if above:
                self._divide(above, level + 1)

    def levels(self, node: FlexibleNode) -> Iterator[tuple[list[Key], list[Contact]]]:
        """The nodes of each level that is not empty: those that share so many digits with this node, and no more."""
        vector = node.contact.vector
        for level in range(DIGITS_MAX):
            others = self._lists.get(list_of(vector ^ 1 << (DIGITS_MAX - 1 - level), level + 1))
            if others is not None:
                yield others
            if list_of(vector, level + 1) not in self._lists:
                return

    def make_ideal(self, node: FlexibleNode) -> None:
        """Learns the nearest nodes and subscribers of each level, more and more until no more would help."""
        count = NEAREST_MIN
        while True:
            node.table.contacts = ()
            nearest, there_are_more = self._nearest(node, count)
            node.learn(nearest)
            table = node.table
            fullest = max(map(len, table.levels().values()), default=0)
            others = len(table) - len(table.own_subscribers())
            is_full = len(table) >= table.size or others >= table.others_max
            if not there_are_more or (fullest < count and is_full):
                return
            count *= 2

    def _nearest(self, node: FlexibleNode, count: int) -> tuple[list[Contact], bool]:
        """The nodes and subscribers of each level that are nearest on each side, and whether there are more."""
        found: list[Contact] = [*self._beside(node)]
        there_are_more = False
        for keys, contacts in self.levels(node):
            position = bisect_left(keys, node.key)
            found += contacts[max(position - count, 0) : position + count]
            there_are_more = there_are_more or position > count or position + count < len(contacts)
            low, high = (bisect_left(keys, end) for end in node.table.subscribers)
            position = min(max(position, low), high)
            found += contacts[max(position - count, low) : min(position + count, high)]
        return found, there_are_more

    def make_plain(self, node: FlexibleNode) -> None:
        """Learns the neighbours that it would have in a Skip Graph, on all levels."""
        vector = node.contact.vector
        found: dict[Key, Contact] = {contact.peer.key: contact for contact in self._beside(node)}
        for level in range(1, DIGITS_MAX):
            keys, contacts = self._lists.get(list_of(vector, level), ((), ()))
            if len(contacts) < 2:
                break
            position = bisect_left(keys, node.key)
            for contact in (contacts[position - 1], contacts[position + 1 - len(contacts)]):
                found[contact.peer.key] = contact
        node.learn(found.values())

    def _beside(self, node: FlexibleNode) -> list[Contact]:
        """The neighbours in the ring."""
        keys, contacts = self._lists[0]
        position = bisect_left(keys, node.key)
        return [contacts[position - 1], contacts[position + 1 - len(contacts)]]
