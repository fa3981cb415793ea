"""Rows on their way over the network: an Arrow IPC stream whose last batch is empty and says where to go on.

Without that batch the stream was cut short, and the rest has to be requested again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from braidmq.log.schema import schema_of

NEXT: Final = b"next"


class CutShortError(OSError):
    """The stream ended before its end."""


def rows_stream(
    batches: Iterator[pa.RecordBatch], until: int, bytes_max: int, columns: tuple[str, ...]
) -> Iterator[bytes]:
    """The schema with the first batch, the other batches, and the end that says where to go on."""
    schema = schema_of(columns)
    head: bytes = schema.serialize().to_pybytes()
    size = 0
    for batch in batches:
        piece = head + batch.serialize().to_pybytes()
        head = b""
        size += len(piece)
        yield piece
        if size >= bytes_max:
            until = batch.column("offset")[-1].as_py() + 1
            break
    yield head + _end_bytes(until, schema)


def _end_bytes(following: int, schema: pa.Schema) -> bytes:
    """The empty batch, and Arrow's end-of-stream mark."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([], schema), custom_metadata={NEXT: str(following)})
    return bytes(sink.getvalue().to_pybytes()[schema.serialize().size :])


def read_stream(file: object) -> Iterator[pa.RecordBatch | int]:
    """The batches of a stream and, last, the offset where to go on."""
    try:
        with pa.ipc.open_stream(file) as reader:
            while True:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
                if metadata is not None and NEXT in metadata:
                    yield int(metadata[NEXT])
                    return
                yield batch
    except (StopIteration, pa.ArrowException, EOFError) as error:
        raise CutShortError(f"the stream broke off: {error or 'no end'}") from None
