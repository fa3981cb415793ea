"""What must hold of a whole network once it is quiet. A checker returns what is wrong, in words."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from braidmq.keys import Key
from braidmq.overlay import Overlay
from braidmq.overlay.ring import RingNode, RingStatus
from braidmq.overlay.suzaku import SuzakuNode
from braidmq.sim.engine import Simulator

LOOKUP_S = 30.0
"""Virtual time that lookups and deliveries get to end."""


def ring_is_closed_and_sorted(nodes: Sequence[RingNode]) -> list[str]:
    """Every living node is in, and left and right links name exactly the neighbours in key order."""
    wrong = [f"{_name(node)} is {node.status.value}" for node in nodes if node.status is not RingStatus.IN]
    ordered = sorted(nodes, key=lambda node: node.me.key)
    for position, node in enumerate(ordered):
        left, right = ordered[position - 1], ordered[(position + 1) % len(ordered)]
        if node.right != right.me:
            wrong.append(f"{_name(node)} has {node.right.key!r} on its right, not {_name(right)}")
        if node.left != left.me:
            wrong.append(f"{_name(node)} has {node.left.key!r} on its left, not {_name(left)}")
        if node.lseq != left.rseq:
            wrong.append(f"{_name(node)} counts its left link {node.lseq}, {_name(left)} {left.rseq}")
    return wrong


def _name(node: RingNode) -> str:
    return repr(node.me.key)


def fingers_are_right(nodes: Sequence[SuzakuNode]) -> list[str]:
    """Every finger leads 2^level nodes on, either way, and there is one for each level that there should be."""
    ordered = sorted(nodes, key=lambda node: node.me.key)
    count = len(ordered)
    wrong = []
    for position, node in enumerate(ordered):
        for forward in (True, False):
            level = 1
            while 1 << level < count:
                step = 1 << level if forward else -(1 << level)
                should = ordered[(position + step) % count].me
                finger = node.finger(level, forward)
                if finger is None or finger.peer != should:
                    side = "forward" if forward else "backward"
                    found = "none" if finger is None else repr(finger.peer.key)
                    wrong.append(f"{node.me.key!r} has {found} as its {side} finger {level}, not {should.key!r}")
                level += 1
            if node.finger(level, forward) is not None:
                wrong.append(f"{node.me.key!r} has a finger {level}, though nobody stands so far off")
    return wrong


def lookups_end_at_owners(sim: Simulator, overlays: Sequence[Overlay], keys: Iterable[Key]) -> list[str]:
    """Every broker finds every key at the node that owns it."""
    members = sorted(key for overlay in overlays for key in overlay.view.own_keys)
    wrong: list[str] = []
    left = 0

    async def look(overlay: Overlay, key: Key, owner: Key) -> None:
        nonlocal left
        found = await overlay.lookup(key)
        left -= 1
        if found is None or found.owner.key != owner:
            ended = "nowhere" if found is None else f"at {found.owner.key!r}"
            wrong.append(f"{overlay.host.address} looked for {key!r} and ended {ended}, not at {owner!r}")

    for key in keys:
        owner = members[bisect_right(members, key) - 1]
        for overlay in overlays:
            left += 1
            sim.hosts[overlay.host.address].spawn(look(overlay, key, owner))
    sim.run(sim.now + LOOKUP_S)
    return wrong + ([f"{left} lookups did not end"] if left else [])
