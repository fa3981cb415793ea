"""The nodes of a broker as searches see them, whatever the overlay is.

Suzaku has fingers, with aggregates. Of any other overlay it is known which nodes stand to the right, as far as the
broker's view has them: these serve as the fingers of a node, nearest first, and nothing is known of what lies between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from braidmq.keys import Key
from braidmq.overlay import Overlay, Peer
from braidmq.overlay.aggregates import Aggregate
from braidmq.overlay.ring import RingNode
from braidmq.overlay.suzaku import Finger, Suzaku


class SearchNode(Protocol):
    """One key of this broker, and where a search can go from it."""

    @property
    def me(self) -> Peer: ...

    @property
    def link(self) -> RingNode: ...

    @property
    def forward(self) -> Sequence[Finger]:
        """Levels 1 and up, without holes; level 0 is the ring's right link."""
        ...

    @property
    def backward(self) -> Sequence[Finger]: ...

    def finger(self, level: int, forward: bool) -> Finger | None: ...

    def value(self) -> Aggregate:
        """What it adds to the aggregates."""
        ...


class ViewNode:
    """A node of any overlay: its fingers are the nodes to its right that the broker knows of, in the order of keys."""

    __slots__ = ("_forward", "link")

    def __init__(self, overlay: Overlay, link: RingNode) -> None:
        self.link = link
        right = link.right.key
        known = overlay.view.inside(right, _behind(link.me.key, right), overlay.host.now())
        self._forward = [Finger(entry.peer) for entry in known if entry.peer.key != right]

    @property
    def me(self) -> Peer:
        return self.link.me

    @property
    def forward(self) -> Sequence[Finger]:
        return self._forward

    @property
    def backward(self) -> Sequence[Finger]:
        return ()

    def finger(self, level: int, forward: bool) -> Finger | None:
        if not forward:
            return None
        if level == 0:
            return Finger(self.link.right)
        return self._forward[level - 1] if level <= len(self._forward) else None

    def value(self) -> Aggregate:
        return {}


def _behind(me: Key, right: Key) -> Key:
    """Where what lies right of a node ends: where the circle is closed, or at once if its neighbour is behind that."""
    return b"\xff" if me < right else right


def node_of(overlay: Overlay, key: Key) -> SearchNode | None:
    """The node of a key that this broker stands for; None if it does not, or not yet."""
    node: SearchNode | None
    if isinstance(overlay, Suzaku):
        node = overlay.nodes.get(key)
    else:
        link = overlay.view.own.get(key)
        node = None if link is None else ViewNode(overlay, link)
    return node if node is not None and node.link.is_in else None
