"""Many trials of the simulator into one table of Parquet, here or on Spark, in rounds.

A table is a folder with a file for each round. Trials that it has already are not played again: a run that was stopped
goes on where it was. Each round is as large as to take some seconds, so that little is lost and progress can be seen,
and the next round knows from it how long trials take.
"""

from __future__ import annotations

import gc
import os
import time
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from braidmq.pipeline.errors import MissingExtra, PipelineError
from braidmq.pipeline.trials.trial_process import played
from braidmq.sim.trials.rows import COLUMNS, Row, name_of, row_of, trial_of

try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from braidmq.log.arrays import bits, flags, single_texts
except ImportError as error:
    raise MissingExtra(error.name) from None

import braidmq

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from braidmq.sim.trials.trial import Trial

ROUND_S: Final = 10.0
"""What a round should take."""

ROUND_TRIALS_MAX: Final = 20_000
TASKS_A_CORE: Final = 2
"""More tasks than cores, for they do not take equally long; each costs some milliseconds."""

_ARROW: Final[dict[type, pa.DataType]] = {str: pa.string(), int: pa.int64(), float: pa.float64()}
SCHEMA: Final = pa.schema([(name, _ARROW[kind]) for name, kind in COLUMNS.items()])

Play = Callable[[list[str]], pa.Table]
"""Plays trials, given by their names, and returns their rows."""


class TrialTable:
    """The folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PipelineError(f"the table cannot be in {folder}: {error.strerror}", "Give another folder") from None

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """All rows of this version; another one's may be there as well, for its protocols may give others."""
        parts = [pq.ParquetFile(file).read(columns) for file in self._files()]
        table = pa.concat_tables(parts) if parts else table_of([])
        mine = [version == braidmq.__version__ for version in table["version"].to_pylist()]
        return table.filter(flags(mine))

    def done(self) -> set[str]:
        """The names of all trials whose rows are there."""
        return set(self.read(["trial", "version"])["trial"].to_pylist())

    def add(self, rows: pa.Table) -> None:
        """One more file, whole or not at all."""
        name = f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}.parquet"
        unfinished = self.folder / f".{name}"
        try:
            pq.write_table(rows, unfinished)
            os.replace(unfinished, self.folder / name)
        except OSError as error:
            raise PipelineError(f"{self.folder} cannot be written: {error.strerror or error}") from None
        finally:
            unfinished.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        for file in sorted(self.folder.glob("[!.]*.parquet")):
            try:
                known = pq.read_schema(file)
            except (pa.ArrowInvalid, OSError) as error:
                raise PipelineError(
                    f"{file} is no table of trials: {error}", "Move it away, or give another folder"
                ) from None
            if not {"trial", "version"} <= set(known.names):
                raise PipelineError(f"{file} is no table of trials", "Give a folder of its own")
            yield file


def table_of(rows: Sequence[Row]) -> pa.Table:
    """As `pa.Table.from_pylist` would make it; but that would first import pandas."""
    columns = [_column(kind, [row[name] for row in rows]) for name, kind in COLUMNS.items()]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _column(kind: type, values: list[Any]) -> pa.Array:
    if kind is str:
        return single_texts(_ARROW[str], [None if value is None else value.encode() for value in values])
    missing = values.count(None)
    mask = bits(np.array([value is not None for value in values])) if missing else None
    numbers = array("q" if kind is int else "d", [value or 0 for value in values])
    return pa.Array.from_buffers(_ARROW[kind], len(values), [mask, pa.py_buffer(numbers)], missing)


def play_all(
    trials: Iterable[Trial], table: TrialTable, play: Play, cores: int, on_progress: Callable[[int, int], None]
) -> int:
    """Plays what the table does not have yet, and returns how many it had. Calls back with how many of all are done."""
    names = [name_of(trial) for trial in trials]
    had = table.done() & set(names)
    left = [name for name in names if name not in had]
    total = len(names)
    size = TASKS_A_CORE * cores
    while left:
        on_progress(total - len(left), total)
        some, left = left[:size], left[size:]
        began_at = time.monotonic()
        table.add(play(some))
        took_s = time.monotonic() - began_at
        size = max(cores, min(ROUND_TRIALS_MAX, 4 * size, int(size * ROUND_S / max(took_s, 0.001))))
    on_progress(total, total)
    return len(had)


def play_here(names: list[str]) -> pa.Table:
    """In this process, one after the other."""
    rows: list[Row] = []
    for name in names:
        rows.append(row_of(trial_of(name)))
        gc.collect()  # a network is all circles, and old by now
    return table_of(rows)


def on_spark(context: SparkContext, cores: int) -> Play:
    """As tasks of Spark: each plays some trials, and what they are travels with it."""

    def play(names: list[str]) -> pa.Table:
        tasks = min(len(names), TASKS_A_CORE * cores)
        parts = [names[number::tasks] for number in range(tasks)]
        rows = context.parallelize(parts, tasks).flatMap(played).collect()
        return table_of(rows)

    return play


def on_connect(spark: SparkSession, cores: int) -> Play:
    """The same over Spark Connect, which has tables alone."""

    def play(names: list[str]) -> pa.Table:
        def some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rows = played([names[number] for number in batch.column(0).to_pylist()])
                yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)

        numbers = spark.range(0, len(names), 1, min(len(names), TASKS_A_CORE * cores))
        return numbers.mapInArrow(some, _spark_schema()).toArrow().cast(SCHEMA)

    return play


def _spark_schema() -> str:
    words = {str: "string", int: "bigint", float: "double"}
    return ", ".join(f"{name} {words[kind]}" for name, kind in COLUMNS.items())
