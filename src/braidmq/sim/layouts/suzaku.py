"""A converged Suzaku network, laid out at once: what the protocol reaches by messages, without sending them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.ring import NEIGHBOURS_MAX, LinkEvent
from braidmq.overlay.suzaku import Finger, Suzaku, SuzakuNode
from braidmq.sim.engine import Simulator


def lay_out_suzaku(sim: Simulator, keys_by_broker: Mapping[Address, Sequence[Key]]) -> dict[Address, Suzaku]:
    """One node for each key, on its host, with all links and fingers as they are once nothing changes any more."""
    overlays = {address: Suzaku(sim.host(address), lambda: None) for address in keys_by_broker}
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
