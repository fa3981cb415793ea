"""What a task does in a Python worker of Spark: reads its pieces of the logs, as Arrow record batches.

The same task gives the same rows again, or fails: what a log has lost between planning and reading is detected.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import cache

import pyarrow as pa

from braidmq.log.errors import LogError
from braidmq.log.reader import Damage
from braidmq.pipeline.source.logs import LOSS_HINT, Patience, RowsLost
from braidmq.pipeline.source.options import ReadOptions
from braidmq.pipeline.source.plan import Piece, ReadTask


def rows(task: ReadTask, options: ReadOptions, topics: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a task, with the columns of a table in their order."""
    for piece in task.pieces:
        for batch in piece_rows(piece, options, topics, schema.names):
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)
        if options.fail_on_data_loss:
            check(piece)
    freeze_imports()


def piece_rows(
    piece: Piece, options: ReadOptions, topics: Sequence[str], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, with some columns and the offset, or with all; `check` comes behind it.

    Goes on after the last row if the broker was away for a moment.
    """
    start = piece.start
    patience = Patience(piece.location)
    while True:
        try:
            log = piece.location.open(_refuse if options.fail_on_data_loss else None)
            for batch in log.read(piece.partition, start, piece.until, topics, columns=columns):
                yield batch
                start = batch.column("offset")[-1].as_py() + 1
                patience = Patience(piece.location)
            break
        except LogError as error:
            patience.wait(error)


def check(piece: Piece) -> None:
    """Whether the log still has all of a piece. It is asked after reading: what is there now was there all the time."""
    state = piece.location.ask(lambda log: log.state())
    where = f"{piece.broker!r} ({piece.location.where})"
    if state.id != piece.log_id:
        raise RowsLost(f"the log of {where} was made anew while it was read", LOSS_HINT)
    if state.first_offset > piece.start:
        text = f"retention removed offsets {piece.start} to {state.first_offset - 1} of {where} before they were read"
        raise RowsLost(text, LOSS_HINT)
    if state.next_offset < piece.until:
        text = f"{where} has lost the offsets from {state.next_offset} to {piece.until - 1}"
        raise RowsLost(text, LOSS_HINT)


def _refuse(damage: Damage) -> None:
    raise RowsLost(f"{damage.path}: {damage.text}", LOSS_HINT)


@cache
def freeze_imports() -> None:
    """Once a worker, at the end of its first task: Spark collects garbage after each task, and then skips everything
    that the imports left (15 ms less a task)."""
    gc.collect()
    gc.freeze()
