"""What a broker and a worker say to each other, in frames over a pair of sockets (`system.framing`).

broker ──Setup──▶ worker        which processor to run
       ◀──Ready── or ◀──LoadRefused──
       ──Fill──▶                the spool of a topic, before the first message of it that this worker gets
       ──Feed──▶                messages, in their order; some of them only for the spool
       ◀──Done──                how many more are processed, and their results
       ──Forget──▶              a topic is processed elsewhere from now on
"""

from __future__ import annotations

import msgspec

from braidmq.processors.processor import Failure, Message, Output


class Setup(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Which processor to run: `source` as `load_processor` takes it; the other fields override what the source says."""

    source: str
    name: str | None
    topic: str | None
    spool: int | None
    output: str | None
    time_limit_s: float | None


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The processor is loaded: how it describes itself, overrides included."""

    name: str
    topic: str
    spool: int
    output: str | None
    time_limit_s: float


class LoadRefused(msgspec.Struct, frozen=True, tag="Refused", array_like=True):
    """There is no such processor, or it cannot be used."""

    text: str


class Fill(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The messages of a spool, each as MessagePack of a `Message`; the next has an offset above `last`."""

    topic: str
    last: int
    messages: list[msgspec.Raw]


class Feed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Messages, in their order: all but the `copies` are processed, which are only put into their spools."""

    messages: list[msgspec.Raw]
    copies: list[int] = []
    """The places in `messages` of those that other brokers process."""


class Forget(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The spool of a topic is not needed any more."""

    topic: str


class MessageResult(msgspec.Struct, frozen=True, array_like=True):
    """What came of one message: `index` counts the messages of its Done from 0."""

    index: int
    output: Output | None
    failure: Failure | None


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`count` more messages are done, in `busy_s` seconds; most led to nothing, and have no result."""

    count: int
    busy_s: float
    results: list[MessageResult]


ToWorker = Setup | Fill | Feed | Forget
FromWorker = Ready | LoadRefused | Done

encode_message = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Message).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
