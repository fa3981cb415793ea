"""What a broker and the process that writes its log say to each other, over two pipes.

The broker sends an order, and waits for the report on it before it sends the next. The first report comes by itself:
the log is open, or why it cannot be.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from braidmq.log.write_buffer import BufferContents

HEAD_BYTES: Final = 4
"""Before each message: its length."""

_READ_BYTES: Final = 1 << 20


class Settings(msgspec.Struct):
    """How the log is to be opened. `memory` is the file of the memory that both see."""

    folder: str
    broker: str
    partitions: int
    segment_bytes: int
    retain_bytes: int
    retain_age_s: float
    sync: str
    memory: int = -1


class Order(msgspec.Struct):
    """Rows to write, their data in the memory that both see; and the bounds that hold from now on."""

    filling: BufferContents
    retain_bytes: int
    retain_age_s: float


class Report(msgspec.Struct):
    """How it went, and how the log is."""

    error: str | None = None
    first_offset: int = 0
    next_offset: int = 0
    rows: int = 0
    bytes: int = 0
    bytes_written: int = 0
    cut_bytes: int = 0
    notes: list[tuple[int, str]] = []
    """What the writer has to say to the broker's log lines: level and text."""


class Sender:
    """Sends messages, and uses the same memory for all of them."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()

    def send(self, pipe: int, message: msgspec.Struct) -> None:
        buffer = self._buffer
        self._encoder.encode_into(message, buffer, HEAD_BYTES)
        buffer[:HEAD_BYTES] = (len(buffer) - HEAD_BYTES).to_bytes(HEAD_BYTES, "little")
        with memoryview(buffer) as data:
            written = 0
            while written < len(data):
                written += os.write(pipe, data[written:])


def receive(pipe: int) -> bytes | None:
    """The next message; None if the other side is gone, even in the middle of one."""
    head = _read(pipe, HEAD_BYTES)
    return None if head is None else _read(pipe, int.from_bytes(head, "little"))


def _read(pipe: int, size: int) -> bytes | None:
    pieces: list[bytes] = []
    while size:
        piece = os.read(pipe, min(size, _READ_BYTES))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
