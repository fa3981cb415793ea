"""What brokers tell each other about deliveries to ranges (see `ranges`), and how a delivery is to travel."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from msgspec import Meta

from braidmq.host import Address, Message
from braidmq.keys import Key
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.peers import Peer
from braidmq.overlay.ranges.conditions import Condition
from braidmq.overlay.ranges.splitting import Cut
from braidmq.overlay.vectors import DIGITS_MAX, ListNumber


class Answering(IntEnum):
    DIRECT = 1
    UP_THE_TREE = 2


class Retrying(IntEnum):
    NONE = 0
    FAST = 1
    SLOW = 2
    BOTH = 3


RETRIED_FAST: Final = (Retrying.FAST, Retrying.BOTH)
RETRIED_SLOWLY: Final = (Retrying.SLOW, Retrying.BOTH)

AVOID_MAX = 8
"""How many silent peers a hop goes round before it leaves the rest to the sender."""


class Plan(Message, frozen=True, array_like=True, gc=False):
    """How a message is to travel. Without `answering` there are no answers, and nothing is proven."""

    cut: Cut = Cut.SFB
    answering: Answering | None = None
    retrying: Retrying = Retrying.NONE
    condition: Condition | None = None
    within: KeyRange | None = None
    """No node outside may get the message: what could only go through others is left to the sender."""


PROVEN = Plan(Cut.RIGHT, Answering.DIRECT, Retrying.BOTH)
"""What `deliver` does if it is told nothing else."""


class Errand(Message, frozen=True, array_like=True, gc=False):
    """To which brokers of a range a message is brought over a Skip Graph (`errands`): those of one list of it.

    `others` are errands, each with a node of its list, that wait until one is found of the lists `sought`.
    """

    ring: ListNumber
    others: Annotated[tuple[tuple[Peer, ListNumber], ...], Meta(max_length=DIGITS_MAX)] = ()
    sought: Annotated[tuple[ListNumber, ...], Meta(max_length=DIGITS_MAX)] = ()


class Deliver(Message, frozen=True, array_like=True, gc=False):
    """(root, number) names the delivery, `attempt` counts its repetitions by the root.

    `to` are the nodes for which the receiver gets it; `avoid` are nodes that others still know, and that are gone.
    Without an errand the receiver sees to all nodes in the ranges; with one to the brokers of its list there.
    """

    root: Address
    number: int
    attempt: int
    ranges: tuple[KeyRange, ...]
    hops: int
    body: bytes
    plan: Plan
    to: tuple[Key, ...] = ()
    avoid: tuple[Key, ...] = ()
    errand: Errand | None = None


class ProbeRange(Message, frozen=True, array_like=True, tag="Probe", gc=False):
    """As `Deliver`, without what is delivered, for ranges in which no node is known.

    Of `only_head` the owner of a range's first key answers for what it owns of it, and no other.
    """

    root: Address
    number: int
    attempt: int
    ranges: tuple[KeyRange, ...]
    hops: int
    to: tuple[Key, ...]
    avoid: tuple[Key, ...]
    only_head: bool = False


class BodyWanted(Message, frozen=True, array_like=True, tag="Wanted", gc=False):
    """There are nodes in ranges of a probe, and what each of them has to see to."""

    number: int
    attempt: int
    pieces: tuple[tuple[Peer, KeyRange], ...]
    hops: int


class Vacant(Message, frozen=True, array_like=True, gc=False):
    """Nodes that stand here no longer, though a message was sent here for them."""

    keys: tuple[Key, ...]


class Accepted(Message, frozen=True, array_like=True, gc=False):
    """This host sees to the ranges from now on."""


class Covered(Message, frozen=True, array_like=True, gc=False):
    """Ranges of which every node has the message, and its answers by key.

    `ruled_out` are those of the ranges where aggregates, the oldest of this age, say that no node matches.
    """

    root: Address
    number: int
    attempt: int
    ranges: tuple[KeyRange, ...]
    ruled_out: tuple[KeyRange, ...]
    age_s: float
    answers: tuple[tuple[Key, bytes], ...]
