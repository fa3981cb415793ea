"""What a broker and the process that writes its log say to each other, in frames over two pipes.

The broker sends its settings, then append requests; it waits for the report on each before it sends the next. The first
report comes by itself: the log is open, or why it cannot be opened.
"""

from __future__ import annotations

import msgspec

from braidmq.log.write_buffer import BufferContents


class WriterSettings(msgspec.Struct):
    """How to open the log. `memory` is the file descriptor of the memory that both processes see."""

    folder: str
    broker: str
    partitions: int
    segment_bytes: int
    retain_bytes: int
    retain_age_s: float
    sync: str
    memory: int = -1


class AppendRequest(msgspec.Struct):
    """Rows to write, their data in shared memory; and the retention bounds that hold from now on."""

    contents: BufferContents
    retain_bytes: int
    retain_age_s: float


class WriterReport(msgspec.Struct):
    """How a request went, and the state of the log after it."""

    error: str | None = None
    first_offset: int = 0
    next_offset: int = 0
    rows: int = 0
    bytes: int = 0
    bytes_written: int = 0
    cut_bytes: int = 0
    notes: list[tuple[int, str]] = []
    """Lines for the broker's own log: level and text."""
