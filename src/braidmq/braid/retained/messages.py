"""What brokers tell each other of the retained messages that they keep."""

from __future__ import annotations

import msgspec

from braidmq.broker.message import Message as Publication
from braidmq.broker.retained import tombstone
from braidmq.host import Address, Message
from braidmq.mqtt.wire import string


class AskReplicas(msgspec.Struct, frozen=True, array_like=True, tag="AskKept"):
    """What do you keep that this filter matches?"""

    origin: str
    topic_filter: str


class AskManyReplicas(msgspec.Struct, frozen=True, array_like=True, tag="AskManyKept"):
    """What do you keep that each of these filters matches?"""

    origin: str
    filters: tuple[str, ...]


class CompareReplicas(msgspec.Struct, frozen=True, array_like=True, tag="CompareKept"):
    """I keep these topics, or tombstones of them, of these times: drop what is older. What is newer with you?"""

    origin: str
    topics: tuple[tuple[str, float], ...]


class NewerReplicas(msgspec.Struct, frozen=True, array_like=True):
    """Topics of which this broker has something newer, with its time."""

    origin: str
    topics: tuple[tuple[str, float], ...]


class RetainedReplica(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A retained message; a tombstone if it has no payload."""

    topic: str
    payload: bytes
    qos: int
    forward: bytes
    expires_in_s: float | None
    at: float


class ReplicaPage(Message, tag="KeptPage", frozen=True, array_like=True, gc=False):
    """What a broker keeps, in the order of topics; `more` if that is not all."""

    origin: str
    address: Address
    replicas: tuple[RetainedReplica, ...]
    more: bool


class ReplicaPages(msgspec.Struct, frozen=True, array_like=True):
    """What a broker keeps for many filters: pages, by the positions of the filters; those that it keeps something for
    and that have to be asked about once more, for it was too much."""

    pages: tuple[tuple[int, ReplicaPage], ...]
    later: tuple[int, ...]


class AskReplicaPage(Message, tag="AskKeptPage", frozen=True, array_like=True, gc=False):
    """What do you keep that this filter matches, behind this topic?"""

    topic_filter: str
    after: str


class TakeRetained(Message, frozen=True, array_like=True, gc=False):
    """I am about to leave: keep these retained messages, and tombstones, from now on. Pages are numbered."""

    page: int
    replicas: tuple[RetainedReplica, ...]


class RetainedTaken(Message, frozen=True, array_like=True, gc=False):
    """Those of a page are in my store and its copies, and who asks finds them here; but not those at these positions:
    there is no room for them."""

    page: int
    refused: tuple[int, ...]


def message_of(replica: RetainedReplica, now: float) -> Publication:
    if not replica.payload:
        return tombstone(replica.topic, replica.at, now)
    expires_at = None if replica.expires_in_s is None else now + replica.expires_in_s
    name = string(replica.topic)
    return Publication(
        replica.topic, name, replica.payload, replica.qos, True, "", replica.forward, expires_at, at=replica.at
    )


def replica_of(entry: Publication, now: float) -> RetainedReplica:
    """What expired is a tombstone."""
    if not entry.payload or entry.expired(now):
        return RetainedReplica(entry.topic, b"", 0, b"", None, entry.at)
    expires_in_s = None if entry.expires_at is None else entry.expires_at - now
    return RetainedReplica(entry.topic, entry.payload, entry.qos, entry.forward, expires_in_s, entry.at)
