"""Structs between two processes of one machine: MessagePack with its length before it, over pipes or socket pairs.

    file descriptors: `FrameWriter().write(file, message)` and `read_frame(file)`, which block
    event loops and sockets: `frame(message)` gives the bytes, `FrameSplitter` finds the frames in what arrives

Both ends are of the same release, so frames carry no version. Their bodies are decoded by the receiver, which knows the
type that it expects.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import msgspec

LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 1 << 30
"""The largest frame; a peer that announces a larger one is broken."""

_READ_BYTES: Final = 1 << 20
_encode: Final = msgspec.msgpack.Encoder().encode


class BrokenFrame(ValueError):
    """A frame that no peer sends."""


def frame(message: object) -> bytes:
    """A message as it is sent."""
    body = _encode(message)
    return len(body).to_bytes(LENGTH_BYTES) + body


class FrameSplitter:
    """Takes bytes in any pieces, and gives the bodies of whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def split(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are whole with this piece. Raises BrokenFrame for one that is too large."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= LENGTH_BYTES:
            body = at + LENGTH_BYTES
            size = _checked(int.from_bytes(buffer[at:body]))
            if len(buffer) - body < size:
                break
            at = body + size
            yield bytes(buffer[body:at])
        del buffer[:at]


class FrameWriter:
    """Writes frames to file descriptors, and uses the same memory for all of them."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()

    def write(self, file: int, message: object) -> None:
        buffer = self._buffer
        self._encoder.encode_into(message, buffer, LENGTH_BYTES)
        buffer[:LENGTH_BYTES] = (len(buffer) - LENGTH_BYTES).to_bytes(LENGTH_BYTES)
        with memoryview(buffer) as data:
            written = 0
            while written < len(data):
                written += os.write(file, data[written:])


def read_frame(file: int) -> bytes | None:
    """The next body; None if the other side is gone, even in the middle of a frame."""
    head = _read(file, LENGTH_BYTES)
    return None if head is None else _read(file, _checked(int.from_bytes(head)))


def _read(file: int, size: int) -> bytes | None:
    pieces: list[bytes] = []
    while size:
        piece = os.read(file, min(size, _READ_BYTES))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _checked(size: int) -> int:
    if size > FRAME_BYTES_MAX:
        raise BrokenFrame(f"a frame of {size:,} bytes (at most {FRAME_BYTES_MAX:,})")
    return size
