"""Record batches of rows: cut to a range of offsets, and put together to a size that is worth handling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

BATCH_BYTES: Final = 1024 * 1024
"""The approximate size of batches that readers give out; smaller ones are put together."""

BATCH_ROWS_MAX: Final = 64 * 1024


def between(batch: pa.RecordBatch, start: int, until: int) -> pa.RecordBatch:
    """The rows of a batch in a range of offsets, which increase in it."""
    offsets = batch.column("offset").to_numpy()
    if offsets[0] >= start and offsets[-1] < until:
        return batch
    first, end = np.searchsorted(offsets, (start, until)).tolist()
    return batch.slice(first, max(0, end - first))


def together(batches: Iterable[pa.RecordBatch], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are worth their handling."""
    gathered: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.append(batch)
        size += batch.get_total_buffer_size()  # of a part of a batch it is too much, and `nbytes` takes far longer
        rows += batch.num_rows
        if size >= batch_bytes or rows >= BATCH_ROWS_MAX:
            yield pa.concat_batches(gathered) if len(gathered) > 1 else gathered[0]
            gathered, size, rows = [], 0, 0
    if gathered:
        yield pa.concat_batches(gathered) if len(gathered) > 1 else gathered[0]
