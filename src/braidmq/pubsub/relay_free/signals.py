"""What relay-free brokers say to each other about demand (`demand`)."""

from __future__ import annotations

from braidmq.host import Message
from braidmq.keys import Key

MESSAGE, QUESTION, SUSPEND, RESUME = b"m", b"q", b"0", b"1"
"""The first byte of what is delivered to a segment: a publication, a question, or a signal.

The signals are also what a publisher says of itself to a new right neighbour."""

EFFECTIVE, UNSURE = b"e", b"?"
"""What other nodes say to it: a subscriber of which all publishers know; one that does not know enough."""


class AskDemand(Message, frozen=True, array_like=True, gc=False):
    """Is the topic of this publisher's key wanted, as far as you know?"""

    key: Key


class KnownDemand(Message, tag="Demand", frozen=True, array_like=True, gc=False):
    """`known` is False if no publisher here has the key, or it does not know itself."""

    known: bool
    wanted: bool


class DemandDisagreement(Message, tag="Report", frozen=True, array_like=True, gc=False):
    """Publishers of this topic disagree: the rendezvous point shall signal again."""

    topic: str


class Suspend(Message, frozen=True, array_like=True, gc=False):
    """Your publication found no subscriber: nobody wants this topic."""

    topic: str
