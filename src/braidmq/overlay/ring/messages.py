"""What the nodes of a ring ask and tell each other."""

from __future__ import annotations

from braidmq.host import Address, Message
from braidmq.keys import Key
from braidmq.overlay.peers import Peer

LinkSequence = tuple[int, int]
"""A link sequence number: (repair, n)."""

ZERO: LinkSequence = (0, 0)


class Gap(Message, frozen=True, array_like=True, gc=False):
    """Two nodes with nothing between them, as far as the left one knows."""

    left: Peer
    right: Peer


class FindGap(Message, frozen=True, array_like=True, gc=False):
    """Walks to the right until it meets the node that owns the key: the way of a ring without fingers."""

    ring: int
    to: Key
    key: Key


class SetRight(Message, frozen=True, array_like=True, gc=False):
    """Asks `to` to move its right link from `expected` to `new`; `number` tells a repetition from a new wish."""

    ring: int
    to: Key
    new: Peer
    expected: Peer
    seq: LinkSequence
    joining: bool
    number: int


class LinkGranted(Message, frozen=True, array_like=True, tag="Granted", gc=False):
    """The right link is moved. `note` is what the layer above has to say to a new right neighbour."""

    seq: LinkSequence
    neighbours: tuple[Peer, ...]
    note: bytes = b""


class LinkRefused(Message, frozen=True, array_like=True, tag="Refused", gc=False):
    """The right link was not what was expected; `hint` is where to try instead, if that is known."""

    hint: Gap | None


class SetLeft(Message, frozen=True, array_like=True, gc=False):
    """The receiver has a new left neighbour, and these to the left of it; older sequence numbers are ignored."""

    ring: int
    to: Key
    left: Peer
    seq: LinkSequence
    neighbours: tuple[Peer, ...]


class Neighbours(Message, frozen=True, array_like=True, gc=False):
    """The nodes to the left of the receiver, told by its left neighbour when they change."""

    ring: int
    to: Key
    left: Peer
    neighbours: tuple[Peer, ...]


class CheckLinks(Message, frozen=True, array_like=True, gc=False):
    """A host does not answer: make sure of the links that lead there. Of a host that says so of itself, nodes of
    incarnations before that are gone."""

    address: Address
    before: int = 0


class AskLeft(Message, frozen=True, array_like=True, gc=False):
    """Which nodes between `to` and `me` do you know?"""

    ring: int
    to: Key
    me: Peer


class TellLeft(Message, frozen=True, array_like=True, gc=False):
    """`is_in` is False for a node that is not (or no longer) part of the ring."""

    is_in: bool
    incarnation: int
    right: Peer
    seq: LinkSequence
    nearer: tuple[Peer, ...]
