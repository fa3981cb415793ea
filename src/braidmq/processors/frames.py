"""What a broker and a worker say to each other: MessagePack with its length before it, over a pair of sockets.

broker ──Setup──▶ worker        which processor it is to run
       ◀──Ready── or ◀──Refused──
       ──Fill──▶                the spool of a topic, before its first message in this worker's life
       ──Feed──▶                messages, in their order
       ◀──Done──                how many more are done, and what came of them
       ──Forget──▶              a topic is processed elsewhere from now on
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from braidmq.processors.processor import Failure, Message, Output

LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 1 << 30
"""The largest frame; a worker that announces a larger one is broken."""


class Setup(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`source` as `load_processor` takes it; the others go over what the source says."""

    source: str
    name: str | None
    topic: str | None
    spool: int | None
    output: str | None
    time_limit_s: float | None


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    name: str
    topic: str
    spool: int
    output: str | None
    time_limit_s: float


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """There is no such processor, or it cannot be used."""

    text: str


class Fill(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The messages of a spool, each as MessagePack of a `Message`; the next has an offset above `last`."""

    topic: str
    last: int
    messages: list[msgspec.Raw]


class Feed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    messages: list[msgspec.Raw]


class Forget(msgspec.Struct, frozen=True, tag=True, array_like=True):
    topic: str


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What came of one message: `place` counts the messages of its Done from 0."""

    place: int
    output: Output | None
    failure: Failure | None


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`count` more messages are done, in `busy_s` seconds; most came to nothing, and have no result."""

    count: int
    busy_s: float
    results: list[Result]


ToWorker = Setup | Fill | Feed | Forget
FromWorker = Ready | Refused | Done

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)
_message = msgspec.msgpack.Decoder(Message)

encode_message = _encoder.encode
decode_message = _message.decode
decode_to_worker = _to_worker.decode
decode_from_worker = _from_worker.decode


class BrokenFrame(ValueError):
    """Something that no worker sends."""


def frame(message: ToWorker | FromWorker) -> bytes:
    """A message as it stands on the wire."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES) + body


class Frames:
    """Takes bytes in any pieces, and gives the bodies of whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def take(self, data: bytes) -> Iterator[bytes]:
        """Raises BrokenFrame for one that is too large."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= LENGTH_BYTES:
            body = at + LENGTH_BYTES
            size = int.from_bytes(buffer[at:body])
            if size > FRAME_BYTES_MAX:
                raise BrokenFrame(f"a frame of {size:,} bytes (at most {FRAME_BYTES_MAX:,})")
            if len(buffer) - body < size:
                break
            at = body + size
            yield bytes(buffer[body:at])
        del buffer[:at]
