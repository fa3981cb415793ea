"""What must hold of a whole network once it is quiet. A checker returns what is wrong, in words."""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.overlay.ring import RingNode, Status


def ring_is_closed_and_sorted(nodes: Sequence[RingNode]) -> list[str]:
    """Every living node is in, and left and right links name exactly the neighbours in key order."""
    wrong = [f"{_name(node)} is {node.status.value}" for node in nodes if node.status is not Status.IN]
    ordered = sorted(nodes, key=lambda node: node.me.key)
    for place, node in enumerate(ordered):
        left, right = ordered[place - 1], ordered[(place + 1) % len(ordered)]
        if node.right != right.me:
            wrong.append(f"{_name(node)} has {node.right.key!r} on its right, not {_name(right)}")
        if node.left != left.me:
            wrong.append(f"{_name(node)} has {node.left.key!r} on its left, not {_name(left)}")
        if node.lseq != left.rseq:
            wrong.append(f"{_name(node)} counts its left link {node.lseq}, {_name(left)} {left.rseq}")
    return wrong


def _name(node: RingNode) -> str:
    return repr(node.me.key)
