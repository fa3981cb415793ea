"""A converged Suzaku network, laid out at once: what the protocol reaches by messages, without sending them."""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import NEIGHBOURS_MAX, Status
from braidmq.overlay.suzaku import Finger, Suzaku, SuzakuNode
from braidmq.sim.engine import Simulator


def lay_out_suzaku(sim: Simulator, keys: Sequence[tuple[Key, Address]]) -> dict[Address, Suzaku]:
    """One node for each key, on its host, with all links and fingers as they are once nothing changes any more."""
    ordered = sorted(keys)
    peers = [Peer(key, address) for key, address in ordered]
    count = len(peers)
    overlays: dict[Address, Suzaku] = {}
    nodes: list[SuzakuNode] = []
    for peer in peers:
        overlay = overlays.get(peer.address)
        if overlay is None:
            overlay = overlays[peer.address] = Suzaku(sim.hosts.get(peer.address) or sim.host(peer.address))
        nodes.append(overlay.node(peer))
    neighbours = [
        tuple(peers[place - step] for step in range(1, min(NEIGHBOURS_MAX, count - 1) + 1)) for place in range(count)
    ]
    fingers = [Finger(peer, near) for peer, near in zip(peers, neighbours, strict=True)]
    levels = [level for level in range(1, count.bit_length() + 1) if 1 << level < count]
    for place, node in enumerate(nodes):
        link = node.link
        link.status = Status.IN
        link.left, link.right = peers[place - 1], peers[(place + 1) % count]
        link.neighbours = neighbours[place]
        node.forward = [fingers[(place + (1 << level)) % count] for level in levels]
        node.backward = [fingers[place - (1 << level)] for level in levels]
    return overlays
