"""Batches of a segment, decoded many at a time, and only in the columns that are asked for.

A broker with a few messages in each commit writes small batches. They follow each other in the file, so a stretch of
them after the schema is an Arrow IPC stream, which Arrow reads as a whole, and without the other columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

from braidmq.log.index import IndexEntry
from braidmq.log.schema import SCHEMA, SCHEMA_BYTES

STRETCH_BYTES: Final = 1 << 21
STRETCH_ROWS: Final = 1 << 15
"""About how much is decoded at a time; a larger batch is decoded alone."""

SELECTIONS_MAX: Final = 16
"""Selections of columns whose options are kept."""


def stretches(entries: Iterable[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """Entries whose batches follow each other, as many as are decoded at a time."""
    stretch: list[IndexEntry] = []
    size = rows = end = 0
    for entry in entries:
        if stretch and (entry.position != end or size >= STRETCH_BYTES or rows >= STRETCH_ROWS):
            yield stretch
            stretch, size, rows = [], 0, 0
        stretch.append(entry)
        size += entry.length
        rows += entry.rows
        end = entry.position + entry.length
    if stretch:
        yield stretch


def decoded(data: pa.Buffer, stretch: Sequence[IndexEntry], columns: tuple[str, ...]) -> pa.RecordBatch | None:
    """The rows of a stretch as one batch; None if a part of it cannot be decoded."""
    start, end = stretch[0].position, stretch[-1].position + stretch[-1].length
    stream = pa.py_buffer(b"".join((SCHEMA_BYTES, data.slice(start, end - start))))
    try:
        table = pa.ipc.open_stream(stream, options=_only(columns)).read_all()
    except (pa.ArrowException, OSError):
        return None
    if table.num_rows != sum([entry.rows for entry in stretch]):
        return None
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else None


@lru_cache(SELECTIONS_MAX)
def _only(columns: tuple[str, ...]) -> pa.ipc.IpcReadOptions:
    indexes = [SCHEMA.get_field_index(name) for name in columns]
    return pa.ipc.IpcReadOptions(included_fields=indexes, use_threads=False)
