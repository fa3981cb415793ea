"""What must hold of a whole flexible graph once it is quiet. A checker returns what is wrong, in words."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from braidmq.overlay.flexible import Contact, FlexibleGraph, FlexibleNode
from braidmq.overlay.vectors import common_digits
from braidmq.sim.checkers.ring import ring_is_closed_and_sorted


def graph_is_whole(graphs: Sequence[FlexibleGraph]) -> list[str]:
    """The ring is closed and sorted, and the tables hold what they must."""
    ring = ring_is_closed_and_sorted([node.base for graph in graphs for node in graph.nodes.values()])
    return ring + entries_are_there(graphs) + levels_have_entries(graphs) + topics_are_known(graphs)


def _nodes(graphs: Iterable[FlexibleGraph]) -> list[tuple[FlexibleGraph, FlexibleNode]]:
    return [(graph, node) for graph in graphs for node in graph.nodes.values()]


def entries_are_there(graphs: Sequence[FlexibleGraph]) -> list[str]:
    """Every entry is a living node in its present incarnation, and no table is too large."""
    there = {node.contact.peer: node.contact.vector for _, node in _nodes(graphs)}
    wrong = []
    for graph, node in _nodes(graphs):
        if len(node.table) > graph.size:
            wrong.append(f"{node.key!r} has {len(node.table)} entries, more than {graph.size}")
        wrong += [
            f"{node.key!r} has {contact.peer} as an entry, which is not there"
            for contact in node.table.contacts
            if there.get(contact.peer) != contact.vector
        ]
    return wrong


def levels_have_entries(graphs: Sequence[FlexibleGraph]) -> list[str]:
    """Every node has an entry on each level on which there is another broker for it."""
    present = [graph for graph in graphs if graph.nodes]
    wrong = []
    for graph in present:
        levels = sorted({common_digits(graph.vector, other.vector) for other in present if other is not graph})
        for node in graph.nodes.values():
            mine = node.table.levels()
            missing = [level for level in levels if level not in mine]
            if missing:
                wrong.append(f"{node.key!r} has no entry on levels {missing}")
    return wrong


def topics_are_known(graphs: Sequence[FlexibleGraph]) -> list[str]:
    """Every subscriber of a node's own topic is an entry, where all fit beside one entry a level and the neighbours."""
    contacts = sorted((node.contact for _, node in _nodes(graphs)), key=lambda contact: contact.peer.key)
    keys = [contact.peer.key for contact in contacts]
    wrong = []
    for graph, node in _nodes(graphs):
        low, high = node.table.subscribers
        subscribers = [
            c for c in contacts[bisect_left(keys, low) : bisect_left(keys, high)] if c.vector != graph.vector
        ]
        if len(subscribers) + len(node.table.levels()) + 2 > graph.size:
            continue
        missing = [contact.peer.key for contact in subscribers if node.table.get(contact.peer.key) is None]
        if missing:
            wrong.append(f"{node.key!r} has no entry for {missing} of its topic")
    return wrong


def missing_part(node: FlexibleNode, ideal: Sequence[Contact]) -> float:
    """The part of the best table's entries that a node's table does not have: 0 if it has all."""
    return sum(node.table.get(contact.peer.key) is None for contact in ideal) / max(len(ideal), 1)
