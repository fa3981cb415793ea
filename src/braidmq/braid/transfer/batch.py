"""What brokers send each other: publications of one topic, in their order, a batch at a time.

Plain publications travel as the PUBLISH packets that they came in, one behind the other, and go out to clients at the
other end without being taken apart: those of QoS 0 of any size, those of QoS 1 and 2 as a run (one sender, one size;
`AcknowledgedRun`). Everything else is a `BatchItem`.

A batch is numbered by its origin, topic by topic without holes, so that a receiver sees what is missing, what comes a
second time, and what has overtaken. All items of a batch have the same scope (`scope`). Brokers outside it do not get
it, and learn with the next batch that they do get that nothing is missing there (`skips`).

A client that has roamed goes on with its topics at another broker. Its first publication there on a topic names the
last one before (`Predecessor`), and waits for it wherever it comes.
"""

from __future__ import annotations

import msgspec

from braidmq.broker.acknowledged_run import AcknowledgedRun
from braidmq.broker.message import Message
from braidmq.host import Address
from braidmq.mqtt.packets import V5
from braidmq.mqtt.wire import string

Skip = tuple[int, int, str]
"""The first of some publications that only a cluster gets, how many they are, and the cluster."""


class Predecessor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last publication of a client on a topic, at the broker that it was at before."""

    origin: str
    offset: int
    at: Address
    """The broker that answers for the history of the origin."""


class BatchItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A publication that is more than a topic and a payload."""

    payload: bytes
    qos: int
    retain: bool
    sender: str
    forward: bytes
    """The properties that travel unchanged, as they stand on the wire."""
    expires_in_s: float | None
    offset: int = 0
    """In the origin's history, if it is kept there (QoS 1 and 2)."""
    at: float = 0.0
    """When it was published (Unix time), if it is retained."""


class KeptRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """That the packets of a batch are of QoS 1 or 2."""

    offset: int
    """Of the first one in the origin's history; those behind it follow."""
    sender: str


class PublicationBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Publications of one topic. `first` is the number of the first one; (origin, incarnation) began to count at 1."""

    origin: str
    incarnation: int
    topic: str
    first: int
    count: int
    version: int
    """The MQTT version of the packets in `run`."""
    run: bytes
    items: tuple[BatchItem, ...]
    skips: tuple[Skip, ...] = ()
    """What was published before it and stays in clusters, since the last one that all of its receivers had."""
    kept: KeptRun | None = None
    """Of packets of QoS 1 and 2."""
    follows: Predecessor | None = None
    """What its publisher published elsewhere just before the first of them."""

    @property
    def offset(self) -> int:
        """Where it begins in the origin's history; 0 if it is of QoS 0."""
        if self.kept is not None:
            return self.kept.offset
        return self.items[0].offset if self.items else 0

    @property
    def acknowledged_run(self) -> AcknowledgedRun:
        """The packets, if they are of QoS 1 or 2."""
        return run_of(self.topic, self.run, self.count, self.version)

    def with_items(self) -> PublicationBatch:
        """The same, with an item for each packet of QoS 1 or 2, so that they can be told apart."""
        if self.kept is None:
            return self
        items = items_of(self.acknowledged_run, self.kept)
        return msgspec.structs.replace(self, version=V5, run=b"", items=items, kept=None)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PublicationBatch).decode


def pack(batch: PublicationBatch) -> bytes:
    return _encode(batch)


def unpack(body: bytes) -> PublicationBatch:
    """Raises msgspec.MsgspecError if it is none."""
    return _decode(body)


def run_of(topic: str, packets: bytes, count: int, version: int) -> AcknowledgedRun:
    """Packets of QoS 1 or 2, all of one size."""
    name = string(topic)
    return AcknowledgedRun(packets, len(packets) // count, version, name, packets.index(name) + len(name))


def items_of(run: AcknowledgedRun, kept: KeptRun) -> tuple[BatchItem, ...]:
    return tuple(
        [
            BatchItem(payload, run.qos, False, kept.sender, b"", None, offset)
            for offset, payload in enumerate(run.payloads(), kept.offset)
        ]
    )


def item_of(message: Message, now: float) -> BatchItem:
    expires_in_s = None if message.expires_at is None else max(0.0, message.expires_at - now)
    return BatchItem(
        message.payload,
        message.qos,
        message.retain,
        message.sender,
        message.forward,
        expires_in_s,
        at=message.at,
    )


def message_of(item: BatchItem, topic: str, now: float) -> Message:
    expires_at = None if item.expires_in_s is None else now + item.expires_in_s
    return Message(
        topic,
        string(topic),
        item.payload,
        item.qos,
        item.retain,
        item.sender,
        item.forward,
        expires_at,
        at=item.at,
    )
