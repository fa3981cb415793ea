"""What the brokers of a Skip Graph say to each other, besides what its rings say."""

from __future__ import annotations

from braidmq.host import Message
from braidmq.keys import Key
from braidmq.overlay.peers import Peer


class Seek(Message, frozen=True, array_like=True, gc=False):
    """Walks to the left, below the list `ring`, to the next node that belongs into it; answered with a Gap there.

    `foreign`: nodes of the seeker's own broker do not count.
    """

    ring: int
    to: Key
    me: Peer
    foreign: bool
    hops: int


class Nobody(Message, frozen=True, array_like=True, gc=False):
    """The walk came round and met none."""
