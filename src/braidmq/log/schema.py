"""What a row of the log is: one publication of a client of one broker, as an Arrow record.

The same columns in the same order stand in every segment, go over the admin port and come out of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

FORMAT: Final = 1
"""The version of the files; another one is refused."""

TIME: Final = pa.timestamp("us", tz="UTC")

PROPERTIES: Final = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())]))
"""MQTT 5: the user properties in their order, then content-type and its like under their names."""

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("qos", pa.int32()),
        pa.field("retain", pa.bool_()),
        pa.field("published_at", TIME),
        pa.field("received_at", TIME),
        pa.field("origin", pa.string()),
        pa.field("client", pa.string()),
        pa.field("properties", PROPERTIES),
        pa.field("offset", pa.int64()),
    ]
)
"""`origin` is the broker where the client published; `client` is its client id, null if it came from no client but from
a processor."""

COLUMNS: Final[tuple[str, ...]] = tuple(SCHEMA.names)

SCHEMA_BYTES: Final[bytes] = SCHEMA.serialize().to_pybytes()
"""The beginning of each segment."""


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Some columns, in the order in which rows have them; a ValueError names one that there is not."""
    wanted = set(names)
    for name in sorted(wanted.difference(COLUMNS)):
        raise ValueError(f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
    return tuple([name for name in COLUMNS if name in wanted])


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """The schema of rows that have these columns only."""
    return pa.schema([SCHEMA.field(name) for name in columns])


COMPRESS_ROWS_MIN: Final = 256
"""Rows from which a batch is compressed: in smaller ones there is little to gain."""

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def batch_bytes(record: pa.RecordBatch) -> memoryview:
    """A batch as it stands behind the schema in a segment: an Arrow IPC message."""
    if record.num_rows < COMPRESS_ROWS_MIN:
        return memoryview(record.serialize())
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, SCHEMA, options=_COMPRESSED)
    writer.write_batch(record)
    return memoryview(sink.getvalue())[len(SCHEMA_BYTES) :]
