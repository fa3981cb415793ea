"""What Suzaku's nodes tell each other, and what a finger is."""

from __future__ import annotations

import msgspec

from braidmq.host import Message
from braidmq.keys import Key
from braidmq.overlay.aggregates import Aggregate
from braidmq.overlay.peers import Peer
from braidmq.overlay.suzaku.totals import PackedTotal, RangeTotal


class Finger(msgspec.Struct, frozen=True, gc=False):
    """A node some way off, those to its left in case it is gone, and what the nodes from it on add up to."""

    peer: Peer
    backups: tuple[Peer, ...] = ()
    total: RangeTotal | None = None
    learnt_at: float = 0.0

    def age_s(self, now: float) -> float:
        """How old the oldest part of the total is by now."""
        return now - self.learnt_at + (self.total.age_s if self.total else 0.0)


class Update(Message, frozen=True, array_like=True, gc=False):
    """What is your finger at this level? I stand that far on your other side.

    `labels` are those of the answer's total that are wanted: None is all, () is no total.
    """

    to: Key
    asker: Peer
    backups: tuple[Peer, ...]
    level: int
    forward: bool
    total: PackedTotal | None
    labels: tuple[str, ...] | None


class Updated(Message, frozen=True, array_like=True, gc=False):
    """`me` is the node that answers, in its present incarnation; `beyond` its finger at the level, if it has one."""

    me: Peer
    backups: tuple[Peer, ...]
    total: PackedTotal | None
    beyond: Peer | None


class Revised(Message, frozen=True, array_like=True, gc=False):
    """A node that you point at, at this level of your forward or backward table, adds up to something else now."""

    to: Key
    me: Peer
    level: int
    forward: bool
    total: PackedTotal | None


class AskSum(Message, frozen=True, array_like=True, tag="Sum", gc=False):
    """What do you and the nodes up to a key add up to?"""

    to: Key
    until: Key
    labels: tuple[str, ...] | None


class TellSum(Message, frozen=True, array_like=True, tag="Summed", gc=False):
    """As far as whole fingers reach; from `rest` on, that node must be asked."""

    aggregate: Aggregate
    age_s: float
    rest: Peer | None


class FindAlongFingers(Message, frozen=True, array_like=True, tag="Find", gc=False):
    """Goes to the node that owns the key."""

    to: Key
    key: Key
    hops: int = 0


class FindLost(Message, frozen=True, array_like=True, tag="Lost", gc=False):
    """A lookup met a node that is gone: it is better to ask carefully."""


class AskNearer(Message, frozen=True, array_like=True, tag="Ask", gc=False):
    """Where would you go for this key? The careful lookup asks hop by hop, and so learns which nodes are silent.

    `to` is None when only the host is known: any of its nodes will do.
    """

    to: Key | None
    key: Key
    avoid: tuple[Key, ...] = ()


class TellNearer(Message, frozen=True, array_like=True, tag="Told", gc=False):
    """Peers that are nearer to the key, nearest first; none if the one that answers owns it."""

    is_in: bool
    me: Peer
    right: Peer
    nearer: tuple[Peer, ...]


class Leaving(Message, frozen=True, array_like=True, gc=False):
    """The sender is going: nodes that point at it may point at `instead`."""

    to: Key
    gone: Peer
    instead: Peer
