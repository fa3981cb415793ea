"""A converged Suzaku network, laid out at once: what the protocol reaches by messages, without sending them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.aggregates import cut_to, merged
from braidmq.overlay.ring import NEIGHBOURS_MAX, LinkEvent
from braidmq.overlay.suzaku import Finger, RangeTotal, Suzaku, SuzakuNode
from braidmq.sim.engine import Simulator

Wants = Callable[[Key, Key], tuple[str, ...] | None]
"""The labels that the node at one key wants of a range that begins at another."""


def lay_out_suzaku(
    sim: Simulator, keys_by_broker: Mapping[Address, Sequence[Key]], *, plain: bool = False
) -> dict[Address, Suzaku]:
    """One node for each key, on its host, with all links and fingers as they are once nothing changes any more."""
    overlays = {address: Suzaku(sim.host(address), lambda: None, plain=plain) for address in keys_by_broker}
    nodes: list[SuzakuNode] = []
    for key, address in sorted((key, address) for address, keys in keys_by_broker.items() for key in keys):
        overlay = overlays[address]
        nodes.append(overlay.node(overlay.new_peer(key)))
    peers = [node.me for node in nodes]
    count = len(peers)
    neighbours = [
        tuple([peers[position - step] for step in range(1, min(NEIGHBOURS_MAX, count - 1) + 1)])
        for position in range(count)
    ]
    fingers = [Finger(peer, near) for peer, near in zip(peers, neighbours, strict=True)]
    levels = [level for level in range(1, count.bit_length() + 1) if 1 << level < count]
    for position, node in enumerate(nodes):
        link = node.link
        link.become(LinkEvent.FOUNDED)
        link.left, link.right = peers[position - 1], peers[(position + 1) % count]
        link.neighbours = neighbours[position]
        node.forward = [fingers[(position + (1 << level)) % count] for level in levels]
        node.backward = [fingers[position - (1 << level)] for level in levels]
    return overlays


def lay_out_totals(sim: Simulator, overlays: Mapping[Address, Suzaku]) -> None:
    """What every finger adds up to, as it is once updates have carried all values everywhere."""
    by_key = {key: node for overlay in overlays.values() for key, node in overlay.nodes.items()}
    keys = sorted(by_key)
    nodes = [by_key[key] for key in keys]
    count = len(nodes)
    summed = [[node.value() for node in nodes]]
    """By level and position: what 2^level nodes add up to."""
    while 2 << len(summed) <= count:
        below, half = summed[-1], 1 << (len(summed) - 1)
        summed.append([merged((below[at], below[(at + half) % count])) for at in range(count)])
    for position, node in enumerate(nodes):
        wants = overlays[node.me.address].labels_of

        def finger_at(start: int, size: int, node: SuzakuNode = node, wants: Wants = wants) -> Finger:
            known = by_key[keys[start % count]]
            labels = wants(node.me.key, known.me.key)
            total = None
            if labels != ():
                parts = [
                    summed[bit][(start + (size >> (bit + 1) << (bit + 1))) % count]
                    for bit in range(size.bit_length())
                    if size >> bit & 1
                ]
                total = RangeTotal(cut_to(labels, merged(parts)), keys[(start + size) % count], 0.0)
            return Finger(known.me, known.link.neighbours, total, sim.now)

        levels = range(len(node.forward) + 1)
        forward = [finger_at(position + (1 << level), min(1 << level, count - (1 << level))) for level in levels]
        backward = [finger_at(position - (1 << level), max(1, (1 << level) >> 1)) for level in levels]
        node.know(forward, backward)
