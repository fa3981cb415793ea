"""Rows on their way over the network: an Arrow IPC stream whose last batch is empty and says where to go on.

Without that batch the stream was cut short, and the rest is to be asked for again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from braidmq.log.schema import SCHEMA, SCHEMA_BYTES

NEXT: Final = b"next"


class CutShortError(OSError):
    """The stream ended before its end."""


def end_bytes(following: int) -> bytes:
    """The empty batch, and the mark of Arrow behind a stream's last one."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([], SCHEMA), custom_metadata={NEXT: str(following)})
    return bytes(sink.getvalue().to_pybytes()[len(SCHEMA_BYTES) :])


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
