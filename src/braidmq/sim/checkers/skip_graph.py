"""What must hold of a whole Skip Graph once it is quiet. A checker returns what is wrong, in words."""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.keys import Key
from braidmq.overlay.ranges import Cut, RangeArrival, RangeDelivery
from braidmq.overlay.ring import RingNode
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.overlay.vectors import common_digits, list_of
from braidmq.sim.checkers.ring import LOOKUP_S, ring_is_closed_and_sorted
from braidmq.sim.engine import Simulator


def levels_are_right(graphs: Sequence[SkipGraph]) -> list[str]:
    """Every node is on as many levels as its broker has others to share them with, and every list is whole."""
    wrong: list[str] = []
    present = sorted((graph for graph in graphs if graph.nodes), key=lambda graph: graph.vector)
    lists: dict[int, list[RingNode]] = {}
    for position, graph in enumerate(present):
        beside = present[max(position - 1, 0) : position] + present[position + 1 : position + 2]
        levels = 1 + max((common_digits(graph.vector, other.vector) for other in beside), default=0)
        for key, node in graph.nodes.items():
            if len(node.levels) != levels:
                wrong.append(f"{key!r} of {graph.host.address} is on {len(node.levels)} levels, not {levels}")
            for level, ring_node in enumerate(node.levels):
                if ring_node.ring != list_of(graph.vector, level):
                    wrong.append(f"{key!r} is in list {ring_node.ring} on level {level}")
                lists.setdefault(ring_node.ring, []).append(ring_node)
    for number in sorted(lists):
        wrong += [f"list {number}: {what}" for what in ring_is_closed_and_sorted(lists[number])]
    return wrong


def ranges_reach_each_once(sim: Simulator, graphs: Sequence[SkipGraph], low: Key, high: Key) -> list[str]:
    """A message from any broker to [low, high), cut either way, reaches each key in it exactly once, and no other."""
    reached: dict[int, list[Key]] = {}

    def note(delivery: RangeArrival) -> None:
        reached[int(delivery.body)] += delivery.keys

    expected = sorted(key for graph in graphs for key in graph.nodes if low <= key < high)
    senders = [RangeDelivery(graph, note) for graph in graphs]
    for number, sender in enumerate(senders * len(Cut)):
        reached[number] = []
        sender.send(low, high, b"%d" % number, list(Cut)[number // len(senders)])
    sim.run(sim.now + LOOKUP_S)
    wrong = []
    for number, keys in reached.items():
        if sorted(keys) != expected:
            cut, position = list(Cut)[number // len(senders)], graphs[number % len(senders)].host.address
            wrong.append(f"{cut.name} from {position} to [{low!r}, {high!r}) reached {sorted(keys)}, not {expected}")
    return wrong
