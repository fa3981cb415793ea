"""The rows of a log as processors get them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from braidmq.processors.processor import Message, Properties


def messages_of(batch: pa.RecordBatch) -> Iterator[Message]:
    """The rows of a log as processors get them, the same as at the edge."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    received = _seconds(columns["received_at"])
    is_same = columns["published_at"].equals(columns["received_at"])
    return map(
        Message,
        _texts(columns["topic"]),
        columns["payload"].to_pylist(),
        columns["qos"].to_pylist(),
        columns["retain"].to_pylist(),
        received if is_same else _seconds(columns["published_at"]),
        received,
        _texts(columns["origin"]),
        _texts(columns["client"]),
        _pairs(columns["properties"]),
        columns["offset"].to_pylist(),
    )


def _texts(column: pa.Array) -> Iterator[Any]:
    """Texts that are repeated: one object each, in however many spools they are."""
    coded = column.dictionary_encode()
    known = [None if text is None else sys.intern(text) for text in coded.dictionary.to_pylist()]
    if len(known) == 1 and not coded.null_count:
        return repeat(known[0], len(column))
    if coded.null_count:
        return (None if code is None else known[code] for code in coded.indices.to_pylist())
    return map(known.__getitem__, coded.indices.to_pylist())


def _seconds(column: pa.Array) -> list[float]:
    found: list[float] = (np.asarray(column.cast(pa.int64())) / 1e6).tolist()
    return found


def _pairs(column: pa.Array) -> list[Properties]:
    if column.null_count == len(column):
        return [()] * len(column)
    return [tuple([(one["name"], one["value"]) for one in row or ()]) for row in column.to_pylist()]


def latest_of(batch: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """The last `count` rows of each topic, in their order."""
    codes = np.asarray(batch.column("topic").dictionary_encode().indices)
    order = np.argsort(codes, kind="stable")
    # A row is kept if the row `count` after it, with rows sorted by topic, is another topic's, or there is none.
    behind = np.full(len(order), -1)
    behind[: max(0, len(order) - count)] = codes[order][count:]
    kept = np.sort(order[behind != codes[order]])
    return batch if len(kept) == batch.num_rows else batch.take(pa.array(kept))
