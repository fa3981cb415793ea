"""A pipeline at work, and what people see of it: a table of a batch, lines and progress of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from braidmq.cli import output
from braidmq.cli.ending import Ending
from braidmq.cli.on_spark import in_our_words, in_thread, own_java, stop
from braidmq.pipeline.errors import MissingExtra, from_spark
from braidmq.pipeline.library.job import Job, ToBrokers, ToFolder, ToFunction
from braidmq.pipeline.progress import MicroBatches
from braidmq.pipeline.session import is_connect, session

try:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
except ImportError as error:
    raise MissingExtra(error.name) from None

POLL_S: Final = 0.2
"""How often the progress of a stream is read."""


@dataclass(frozen=True)
class RunSettings:
    master: str | None
    rows_max: int
    """Rows to show, of a batch or of each micro-batch."""
    json_lines: bool


def run_batch(job: Job, to: ToFolder | ToBrokers | None, settings: RunSettings) -> None:
    """Runs a pipeline over what is there now."""

    def work() -> tuple[list[str], list[Any]]:
        found = job.batch(_session(job, settings))
        if to is not None:
            job.write(found, to)
            return [], []
        keys = [name for name in job.pipeline.key if name in found.columns]
        return found.columns, found.orderBy(*keys).limit(settings.rows_max + 1).collect()

    with in_our_words(), Ending() as ending:
        columns, rows = in_thread(work, ending)
    if isinstance(to, ToFolder):
        output.say(f"Written to {to.folder}.")
    elif to is not None:
        output.say(f"Published through {to.brokers}.")
    else:
        _show(job, columns, rows, settings)


def run_stream(
    job: Job,
    to: ToFolder | ToBrokers | None,
    settings: RunSettings,
    checkpoint: str | None,
    *,
    is_once: bool,
    trigger_s: float,
) -> None:
    """Runs a pipeline over what comes, until Ctrl-C; with `is_once` over what is there."""
    lines = RowPrinter(settings)

    def begin() -> StreamingQuery:
        target = ToFunction(lines.print) if to is None else to
        known = job if is_once or is_connect(settings.master) else _settled(job)
        return known.start(_session(job, settings), target, checkpoint, is_once=is_once, trigger_s=trigger_s)

    with in_our_words(), Ending() as ending, own_java():
        query = in_thread(begin, ending)
        if not is_once:
            output.note(f"{job.pipeline.name} runs. Ctrl-C ends.", "green")
        batches = MicroBatches(query)
        while query.isActive and lines.broken is None and not ending.wait(POLL_S):
            _tell(batches)
        failure = query.exception()
        stop(query, ending)
        _tell(batches)
    if lines.broken is not None:
        raise lines.broken
    if failure is not None:
        raise from_spark(failure)
    if ending.is_set():
        output.note("Ended." if checkpoint is None else "Ended; the same command goes on from here.")


def _settled(job: Job) -> Job:
    """Fixes where the stream begins: with what is published from now on, although Spark has yet to start."""
    known = job.starting_now()
    if known != job:
        output.note(f"{job.pipeline.name} takes what comes from now on; Spark starts, which takes some seconds.", "dim")
    return known


def _session(job: Job, settings: RunSettings) -> SparkSession:
    return session(f"braidmq pipeline {job.pipeline.name}", settings.master)


def _tell(batches: MicroBatches) -> None:
    """Notes each micro-batch that has read something."""
    for progress in batches.new():
        if progress.numInputRows:
            output.note(_words(progress), "dim")


def _words(progress: StreamingQueryProgress) -> str:
    words = f"batch {progress.batchId}: {output.counted(progress.numInputRows, 'row')} read"
    state = sum(one.numRowsTotal for one in progress.stateOperators)
    return f"{words} in {progress.batchDuration / 1000:.1f} s" + (f", {state:,} in state" if state else "")


class RowPrinter:
    """The rows of micro-batches, printed as they come. Spark calls it in a thread of its own."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self.broken: BrokenPipeError | None = None
        """Set when the reader of the output is gone."""

    def print(self, batch: DataFrame) -> None:
        rows_max = self._settings.rows_max
        rows = batch.limit(rows_max + 1).collect()
        try:
            for row in rows[:rows_max]:
                if self._settings.json_lines:
                    output.print_json(_plain(row.asDict()))
                else:
                    pairs = ((name, _cell(value)) for name, value in row.asDict().items())
                    output.say("  ".join(f"{name} {cell}" for name, cell in pairs if cell))
        except BrokenPipeError as error:
            self.broken = error
        if len(rows) > rows_max:
            output.note(f"more than {rows_max:,} rows came at a time: the rest are not shown", "yellow")


def _show(job: Job, columns: list[str], rows: list[Any], settings: RunSettings) -> None:
    shown = rows[: settings.rows_max]
    if settings.json_lines:
        for row in shown:
            output.print_json(_plain(row.asDict()))
    elif not shown:
        output.say("There are no rows.")
    else:
        from rich.table import Table

        table = Table(title=job.pipeline.name, title_justify="left")
        for column, value in zip(columns, shown[-1], strict=True):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            words = column.replace("_", " ")
            width = max(10 if isinstance(value, datetime) else 0, *map(len, words.split()))
            table.add_column(words, justify="right" if is_number else "left", overflow="fold", min_width=width)
        for row in shown:
            named = row.asDict() | {
                key: job.pipeline.blank for key in job.pipeline.key if row.asDict().get(key) is None
            }
            table.add_row(*(output.plain(_cell(named[column])) for column in columns))
        output.console().print(table)
    if len(rows) > len(shown):
        output.note(f"There are more rows than these {len(shown):,}: -n shows more, --out writes all.", "yellow")


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
        case int() if not isinstance(value, bool):
            return f"{value:,}"
        case datetime():
            return value.isoformat(" ", "milliseconds" if value.microsecond else "seconds")  # of this machine's zone
        case _:
            return str(value)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """With values that JSON has."""
    return {name: _time(value) if isinstance(value, date) else value for name, value in row.items()}


def _time(value: date) -> str:
    return value.astimezone().isoformat() if isinstance(value, datetime) else value.isoformat()
