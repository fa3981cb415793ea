"""One spool for a topic over the logs of several brokers, as homes have it at the edge (`processing.homes`).

Where logs have the same number of partitions, a topic is in the same partition of each. A task takes that partition of
all logs, and steps through the rows in the order of spools: by time, broker and offset. A row that is older than one of
an earlier batch is put in its place; the function is called with it as the last of its spool, as ever. So what is in
the spools before a batch is a function of the logs and of the offsets at which the batch begins, and a batch that is
run again gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from heapq import merge
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa

from braidmq.pipeline.source.plan import Piece
from braidmq.processors.processor import (
    NO_OFFSET,
    Failure,
    Message,
    Output,
    Processor,
    Spool,
    SpoolState,
    order_of,
    spool_step,
)
from braidmq.processors.rows import latest_of, messages_of

CHUNK_ROWS: Final = 4_096
"""Rows that are in memory at a time, beside what was read of each log."""

RowsOf = Callable[[Piece], Iterator[pa.RecordBatch]]
MergedRow = tuple[Message, Piece]
"""A row, and the log it is of."""


def name_of(logs: Sequence[str]) -> str:
    """Several logs as one, in the names of snapshots."""
    return f"merged-{sha256(' '.join(sorted(logs)).encode()).hexdigest()[:16]}"


def is_reached(ats: Mapping[str, int], starts: Mapping[str, int]) -> bool:
    """Whether spools of so much of each log come before a batch that begins there."""
    return ats.keys() == starts.keys() and all(at <= starts[log] for log, at in ats.items())


def chunks(pieces: Sequence[Piece], rows_of: RowsOf) -> Iterator[list[MergedRow]]:
    """The rows of all pieces in their order."""
    rows = merge(*[_rows(piece, rows_of) for piece in pieces], key=lambda row: order_of(row[0]))
    while chunk := list(islice(rows, CHUNK_ROWS)):
        yield chunk


def _rows(piece: Piece, rows_of: RowsOf) -> Iterator[MergedRow]:
    for batch in rows_of(piece):
        for message in messages_of(batch):
            yield message, piece


def put(batch: pa.RecordBatch, by_topic: dict[str, Spool], size: int) -> None:
    """Puts rows that were processed before into their spools, in any order."""
    times = np.asarray(batch.column("received_at").cast(pa.int64()))
    if bool(np.all(times[1:] >= times[:-1])):  # else the last by offset need not be the last by time
        batch = latest_of(batch, size)
    for message in messages_of(batch):
        spool = by_topic.get(message.topic)
        if spool is None:
            spool = by_topic[message.topic] = Spool(size)
        spool.insert(message)


def step(processor: Processor, spool: Spool, message: Message) -> Output | Failure | None:
    """`spool_step` for a row of any of the logs; each row comes once, so numbers of different logs do not matter."""
    if len(spool) and order_of(spool[-1]) > order_of(message):
        seen = Spool(spool.size, SpoolState(NO_OFFSET, tuple(spool)))
        spool.insert(message)
        return spool_step(processor, seen, message)
    spool.last = NO_OFFSET
    return spool_step(processor, spool, message)
