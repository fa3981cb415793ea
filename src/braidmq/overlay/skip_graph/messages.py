"""What the brokers of a Skip Graph say to each other, besides what its rings say."""

from __future__ import annotations

from braidmq.host import Message
from braidmq.keys import Key
from braidmq.overlay.peers import Peer


class FindOwner(Message, frozen=True, array_like=True, tag="Find", gc=False):
    """Goes to the owner of `key`, who answers; `to` is the node that the sender took for the nearest, if any.

    `before`: a node that stands at the key itself does not count. So it can ask for its own place, and is not led to
    itself by the links of higher levels when level 0 has lost it.
    """

    key: Key
    to: Key | None
    hops: int
    before: bool = False


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


class Nowhere(Message, frozen=True, array_like=True, gc=False):
    """The message met a node that is not there, or went on for too long: try again later."""
