"""What travels on a link: frames, each a batch of envelopes, each with one message.

    frame     length (4 bytes, of what follows), then one msgpack array of envelopes, its header always array 32;
              sealed, if the link has a braid key
    Tell      [0, hops, message]
    Request   [1, call, origin, hops, message]     origin "": the sender itself
    Reply     [2, call, message]
    Refused   [3, call, reason]

A message is [class name, fields …]: a tagged union of the classes that both sides know. A request that is passed on
keeps its call and its origin, so the host that answers does so directly.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Generic, TypeVar, Union

import msgspec

from braidmq.detours.messages import NotPassed
from braidmq.host import Message
from braidmq.net.faults import Fault, LinkError

REASON_LENGTH_MAX = 200
"""Characters of a refusal."""

LENGTH_BYTES = 4
_ARRAY_32 = 0xDD
_HEADER = struct.Struct(">IBI")
_ARRAY_HEADER = struct.Struct(">BI")

Body = TypeVar("Body")
Hops = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
CallNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Tell(msgspec.Struct, Generic[Body], frozen=True, array_like=True, tag=0, gc=False):
    hops: Hops
    body: Body


class Request(msgspec.Struct, Generic[Body], frozen=True, array_like=True, tag=1, gc=False):
    call: CallNumber
    origin: str
    hops: Hops
    body: Body


class Reply(msgspec.Struct, Generic[Body], frozen=True, array_like=True, tag=2, gc=False):
    call: CallNumber
    body: Body


class Refused(Message, frozen=True, array_like=True, tag=3, gc=False):
    """A message itself: traces show it as the reply that it is."""

    call: CallNumber
    reason: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)]


class Farewell(Message, frozen=True, array_like=True, gc=False):
    """A message that every host knows. I end: do not look for me until I am heard of again."""


class Passed(Message, frozen=True, array_like=True, gc=False):
    """A message that every host knows. What one host sends to another by a third, which passes it on as it is."""

    to: str
    origin: str
    frame: bytes
    """Without its length."""


Envelope = Tell[Message] | Request[Message] | Reply[Message] | Refused


class Codec:
    """Envelopes to bytes and back, for the message classes that a host knows."""

    def __init__(self, messages: Sequence[type[Message]], frame_messages_max: int) -> None:
        if not messages:
            raise ValueError("a host needs the classes of the messages that it may hear")
        kinds: tuple[type[Message], ...] = (*messages, Farewell, Passed, NotPassed)
        self.known = frozenset(kinds)
        names: dict[object, type[Message]] = {}
        for kind in kinds:
            tag = kind.__struct_config__.tag
            if names.setdefault(tag, kind) is not kind:
                raise ValueError(f"two message classes are called {tag!r}: {names[tag]!r} and {kind!r}")
        body: Any = Union[tuple(names.values())]  # noqa: UP007 - made of a tuple
        self._frame_messages_max = frame_messages_max
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[list[Envelope]] = msgspec.msgpack.Decoder(
            list[Tell[body] | Request[body] | Reply[body] | Refused]
        )

    def check(self, message: Message) -> None:
        """A TypeError if this is no message of this host's; the other side could not read it."""
        if type(message) not in self.known:
            raise TypeError(f"{type(message).__name__} is not among the messages that this host was made with")

    def append(self, envelope: Envelope, batch: bytearray) -> int:
        """Writes an envelope behind what is there; its size."""
        start = len(batch)
        try:
            self._encoder.encode_into(envelope, batch, start)
        except BaseException:
            del batch[start:]
            raise
        return len(batch) - start

    def frame(self, envelope: Envelope) -> bytes:
        """A frame, with its length, that holds nothing else."""
        frame = bytearray(_HEADER.size)
        self.append(envelope, frame)
        _HEADER.pack_into(frame, 0, len(frame) - LENGTH_BYTES, _ARRAY_32, 1)
        return bytes(frame)

    def decode(self, frame: bytes) -> list[Envelope]:
        """The envelopes of a frame (without its length)."""
        if len(frame) < _ARRAY_HEADER.size or frame[0] != _ARRAY_32:
            raise LinkError(Fault.GARBAGE, f"a frame that does not begin with a batch: {frame[:16].hex()}")
        count = _ARRAY_HEADER.unpack_from(frame)[1]
        if count > self._frame_messages_max:
            raise LinkError(Fault.OVERSIZE, f"a frame of {count} messages; at most {self._frame_messages_max} are read")
        try:
            return self._decoder.decode(frame)
        except msgspec.ValidationError as error:
            raise LinkError(Fault.MESSAGE, f"a message that this host does not know or cannot read: {error}") from None
        except (ValueError, RecursionError) as error:
            raise LinkError(Fault.GARBAGE, f"a frame that is no msgpack: {error}") from None


class FrameBatch:
    """The envelopes of one tick for one peer, as frames: one, unless they are more than fit in one."""

    __slots__ = ("_codec", "_frame_bytes_max", "_frame_messages_max", "_open", "_open_messages", "_sealed", "messages")

    def __init__(self, codec: Codec, frame_bytes_max: int, frame_messages_max: int) -> None:
        self._codec = codec
        self._frame_bytes_max = frame_bytes_max
        self._frame_messages_max = frame_messages_max
        self._open = bytearray(_HEADER.size)
        self._open_messages = 0
        self._sealed: list[bytearray] = []
        self.messages = 0

    def __len__(self) -> int:
        return len(self._open) + (sum(map(len, self._sealed)) if self._sealed else 0)

    def add(self, envelope: Envelope) -> bool:
        """False if it is too large for any frame."""
        size = self._codec.append(envelope, self._open)
        if len(self._open) - LENGTH_BYTES > self._frame_bytes_max or self._open_messages == self._frame_messages_max:
            encoded = self._open[-size:]
            del self._open[-size:]
            if size + _ARRAY_HEADER.size > self._frame_bytes_max:
                return False
            self._seal()
            self._open += encoded
        self._open_messages += 1
        self.messages += 1
        return True

    def take(self) -> list[bytearray]:
        """The frames, ready to be written; the batch is empty then."""
        if self._open_messages:
            self._seal()
        frames, self._sealed = self._sealed, []
        self.messages = 0
        return frames

    def _seal(self) -> None:
        _HEADER.pack_into(self._open, 0, len(self._open) - LENGTH_BYTES, _ARRAY_32, self._open_messages)
        self._sealed.append(self._open)
        self._open = bytearray(_HEADER.size)
        self._open_messages = 0


class FrameReader:
    """Cuts a stream of bytes into frames. `bytes_max` may change between two of them."""

    __slots__ = ("_buffer", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._buffer = bytearray()

    def __len__(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterable[bytes]:
        """The frames that are complete now, without their lengths."""
        size = int.from_bytes(data[:LENGTH_BYTES]) if not self._buffer and len(data) > LENGTH_BYTES else 0
        if size and size == len(data) - LENGTH_BYTES <= self.bytes_max:
            return (data[LENGTH_BYTES:],)  # most often what is read is one frame
        return self._cut(data)

    def _cut(self, data: bytes) -> Iterator[bytes]:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(buffer[:LENGTH_BYTES], "big")
            if end - LENGTH_BYTES > self.bytes_max:
                text = f"a frame of {end - LENGTH_BYTES} bytes; at most {self.bytes_max} are read"
                raise LinkError(Fault.OVERSIZE, text)
            if len(buffer) < end:
                return
            with memoryview(buffer) as view, view[LENGTH_BYTES:end] as part:
                frame = bytes(part)
            del buffer[:end]
            yield frame


def framed(payload: bytes) -> bytes:
    """One frame with this in it."""
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload
