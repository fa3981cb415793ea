"""What brokers say to each other about what they publish and want: when they meet, and from then on."""

from __future__ import annotations

from typing import Annotated

import msgspec

from braidmq.host import Address, Message
from braidmq.pubsub.covers.cover_set import COVERS_MAX

PUBLISHER_MET, SUBSCRIBER_MET = b"p", b"s"
"""The first byte of what is delivered to covers: a broker that publishes, or one that wants, introduces itself."""


class PublishingBroker(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A broker, and what its clients publish: nothing that none of these covers matches."""

    name: str
    address: Address
    epoch: int
    """Of its process: a broker that was restarted has a later one."""
    version: int
    """Of its covers."""
    covers: Annotated[tuple[str, ...], msgspec.Meta(max_length=COVERS_MAX)]


class WantingBroker(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A broker whose clients want something; what it is, the brokers that publish it are told (`TellWants`)."""

    name: str
    epoch: int


class TellWants(Message, frozen=True, array_like=True, gc=False):
    """What my clients want of what you publish: what has changed from one number to the next.

    The changes from 0 on are all there is, a page at a time. Without changes it says that I am here.
    """

    name: str
    cluster: str
    epoch: int
    to_epoch: int
    """Of the broker that it is told to."""
    version: int
    """Of the covers of which it is all, when `page` is the last one."""
    since: int
    number: int
    digest: int
    """Of all filters that this broker was told of, these included."""
    page: int = 0
    more: bool = False
    """Whether another page of the same change follows."""
    added: bytes = b""
    removed: bytes = b""
    period_s: float = 0.0
    """How often this broker says that it is here, if it does only that."""


class WantsTaken(Message, frozen=True, array_like=True, gc=False):
    """I know what your clients want, up to here."""

    number: int


class TellAllWants(Message, frozen=True, array_like=True, gc=False):
    """I do not know what your clients want, or something else: tell me all of it."""


class PublishedNow(Message, frozen=True, array_like=True, gc=False):
    """I publish other things than you think."""

    broker: PublishingBroker


class NotPublishing(Message, frozen=True, array_like=True, gc=False):
    """I am not the broker that you mean, or publish nothing any more."""


class PublishesNoMore(Message, frozen=True, array_like=True, gc=False):
    """I leave: do not tell me what your clients want any more."""

    name: str
    epoch: int


class NotWanting(Message, frozen=True, array_like=True, gc=False):
    """You sent me a publication, and I have not told you what my clients want: forget what an earlier process said."""

    name: str
    epoch: int


class AskWanting(Message, frozen=True, array_like=True, gc=False):
    """A question to a broker that wants a topic."""

    topic: str
    body: bytes


class WantingAnswer(Message, frozen=True, array_like=True, gc=False):
    body: bytes | None
