"""A converged Skip Graph, laid out at once: what the protocol reaches by messages, for networks too large to grow."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.ring import LinkEvent, RingNode, link_all
from braidmq.overlay.skip_graph import SkipGraph, VirtualNode
from braidmq.overlay.vectors import DIGITS_MAX, Vector
from braidmq.sim.engine import Simulator


def vectors_of(brokers: Iterable[Address], seed: int) -> dict[Address, Vector]:
    """A membership vector for each broker."""
    chance = Random(seed)  # noqa: S311 - reproducible on purpose
    return {broker: chance.getrandbits(DIGITS_MAX) for broker in brokers}


def lay_out(sim: Simulator, keys_by_broker: Mapping[Address, Sequence[Key]], seed: int) -> dict[Address, SkipGraph]:
    """One host and graph a broker, linked on all levels. Nothing is checked or mended: it is as it is."""
    collecting = gc.isenabled()
    gc.disable()  # millions of new objects, and no garbage among them
    try:
        return _lay_out(sim, keys_by_broker, seed)
    finally:
        if collecting:
            gc.enable()


def _lay_out(sim: Simulator, keys_by_broker: Mapping[Address, Sequence[Key]], seed: int) -> dict[Address, SkipGraph]:
    vectors = vectors_of(keys_by_broker, seed)
    graphs: dict[Address, SkipGraph] = {}
    placed: list[tuple[Key, SkipGraph, VirtualNode]] = []
    for address, keys in keys_by_broker.items():
        graph = graphs[address] = SkipGraph(sim.host(address), vectors[address], lambda: None)
        for key in keys:
            node = graph.nodes[key] = VirtualNode(key)
            placed.append((key, graph, node))
    placed.sort(key=lambda item: item[0])
    _lay_out_list([(graph, node) for _, graph, node in placed], 0)
    return graphs


def _lay_out_list(members: list[tuple[SkipGraph, VirtualNode]], level: int) -> None:
    """Links one list, and the two above it that its members fall into; a list of siblings alone is none."""
    linked: list[RingNode] = []
    for graph, node in members:
        me = node.levels[0].me if node.levels else graph.new_peer(node.key)
        ring_node = graph.add_level(node, me)
        ring_node.become(LinkEvent.FOUNDED)
        linked.append(ring_node)
    link_all(linked)
    if level == DIGITS_MAX:
        return
    shift = DIGITS_MAX - 1 - level
    for digit in (0, 1):
        above = [member for member in members if member[0].vector >> shift & 1 == digit]
        if above and any(graph is not above[0][0] for graph, _ in above):
            _lay_out_list(above, level + 1)
