"""What relay-free brokers say to each other about demand, and what they note of it (see `relay_free`)."""

from __future__ import annotations

from math import inf

import msgspec

from braidmq.host import Message
from braidmq.keys import Key

MESSAGE, QUESTION, SUSPEND, RESUME = b"m", b"q", b"0", b"1"
"""The first byte of what is delivered to a segment: a publication, a question, or a signal.

The signals are also what a publisher says of itself to a new right neighbour."""

EFFECTIVE, UNSURE = b"e", b"?"
"""What others say to it: a subscriber of which all publishers know; whoever does not know enough."""


class AskDemand(Message, frozen=True, array_like=True, gc=False):
    """Is the topic of this publisher's key wanted, as far as you know?"""

    key: Key


class KnownDemand(Message, tag="Demand", frozen=True, array_like=True, gc=False):
    """`known` is False if the key does not stand here."""

    known: bool
    wanted: bool


class DemandDisagreement(Message, tag="Report", frozen=True, array_like=True, gc=False):
    """Publishers of this topic disagree: whoever is the rendezvous point, signal again."""

    topic: str


class Suspend(Message, frozen=True, array_like=True, gc=False):
    """Your publication found no subscriber: nobody wants this topic."""

    topic: str


class Advert(msgspec.Struct):
    """A topic that clients here publish."""

    wanted: bool = False
    learnt: bool = False
    """Whether `wanted` was found out since the publisher's node was inserted."""
    right: Key | None = None
    """The right neighbour of the publisher's node, when it was last looked at."""
    resumes: int = 0
    """How many signals have come that it is wanted: one that has come since others were asked is newer than that."""
    wanted_at: float = -inf
    """When it was last heard or seen that it is wanted."""
