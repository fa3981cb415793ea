"""A pipeline at work, and what people see of it: a table of a batch, lines and progress of a stream."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, TypeVar

from braidmq.cli import output
from braidmq.cli.errors import CliError, ExitCode
from braidmq.pipeline.errors import MissingExtra, from_spark
from braidmq.pipeline.library.job import Job, ToBrokers, ToFolder, ToFunction
from braidmq.pipeline.session import session

try:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.utils import is_remote
except ImportError as error:
    raise MissingExtra(error.name) from None

T = TypeVar("T")

POLL_S: Final = 0.2
"""How often it is looked how far a stream is."""
SETTLE_S: Final = 30.0
"""How long a micro-batch may take to end after Ctrl-C."""


@dataclass(frozen=True)
class Settings:
    master: str | None
    rows_max: int
    """To show, of a batch or of each micro-batch."""
    json_lines: bool


def run_batch(job: Job, to: ToFolder | ToBrokers | None, settings: Settings) -> None:
    """What is there now."""

    def work() -> tuple[list[str], list[Any]]:
        found = job.batch(_session(job, settings))
        if to is not None:
            job.write(found, to)
            return [], []
        keys = [name for name in job.pipeline.key if name in found.columns]
        return found.columns, found.orderBy(*keys).limit(settings.rows_max + 1).collect()

    with _in_our_words(), _ending() as ending:
        columns, rows = _in_thread(work, ending)
    if isinstance(to, ToFolder):
        output.say(f"Written to {to.folder}.")
    elif to is not None:
        output.say(f"Published through {to.brokers}.")
    else:
        _show(job, columns, rows, settings)


def run_stream(
    job: Job,
    to: ToFolder | ToBrokers | None,
    settings: Settings,
    checkpoint: str | None,
    *,
    is_once: bool,
    trigger_s: float,
) -> None:
    """What comes, until Ctrl-C, or with `is_once` what is there."""
    lines = Lines(settings)

    def begin() -> StreamingQuery:
        target = ToFunction(lines.print) if to is None else to
        return job.start(_session(job, settings), target, checkpoint, is_once=is_once, trigger_s=trigger_s)

    with _in_our_words(), _ending() as ending:
        query = _in_thread(begin, ending)
        if not is_once:
            output.note(f"{job.pipeline.name} runs. Ctrl-C ends.", "green")
        _follow(query, lines, ending)
        is_ended = ending.is_set()
        if is_ended:
            _settle(query, ending)
            if not is_remote():  # a micro-batch that has just begun is stopped: that is no error
                _session(job, settings).sparkContext.setLogLevel("OFF")
        failure = query.exception()
        query.stop()
    if lines.broken is not None:
        raise lines.broken
    if failure is not None:
        raise from_spark(failure)
    if is_ended:
        output.note("Ended." if checkpoint is None else "Ended; the same command goes on from here.")


def _session(job: Job, settings: Settings) -> SparkSession:
    return session(f"braidmq pipeline {job.pipeline.name}", settings.master)


@contextmanager
def _ending() -> Iterator[threading.Event]:
    """Set by Ctrl-C or SIGTERM."""
    ending = threading.Event()
    before = {number: signal.signal(number, lambda *_: ending.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_thread(work: Callable[[], T], ending: threading.Event) -> T:
    """Its result; or the end, without waiting for it. In the main thread Spark would take Ctrl-C for itself, and answer
    it with an exception amid a call to Java."""
    results: list[T] = []
    failures: list[Exception] = []
    is_done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            failures.append(error)
        is_done.set()

    threading.Thread(target=run, name="pipeline", daemon=True).start()
    while not is_done.wait(POLL_S):
        if ending.is_set():
            raise CliError("interrupted", ExitCode.INTERRUPTED)
    if failures:
        raise failures[0]
    return results[0]


def _follow(query: StreamingQuery, lines: Lines, ending: threading.Event) -> None:
    """Tells of each micro-batch that has read something, until the query ends or shall end."""
    told = -1
    while True:
        is_over = not query.isActive or lines.broken is not None
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > told and progress["numInputRows"]:
            told = progress["batchId"]
            output.note(_words(progress), "dim")
        if is_over or ending.wait(POLL_S):
            return


def _settle(query: StreamingQuery, ending: threading.Event) -> None:
    """Lets the micro-batch that is under way come to its end: so it is not run again. A second Ctrl-C does not wait."""
    ending.clear()
    ends_at = time.monotonic() + SETTLE_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < ends_at:
        if ending.wait(POLL_S):
            return


def _words(progress: Any) -> str:
    words = f"batch {progress['batchId']}: {output.counted(progress['numInputRows'], 'row')} read"
    state = sum(one["numRowsTotal"] for one in progress["stateOperators"])
    return f"{words} in {progress['batchDuration'] / 1000:.1f} s" + (f", {state:,} in state" if state else "")


class Lines:
    """The rows of micro-batches, printed as they come. Spark calls it in a thread of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.broken: BrokenPipeError | None = None
        """Nobody reads what is printed any more."""

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
            output.note(f"more than {rows_max:,} rows came at a time: the others are not shown", "yellow")


def _show(job: Job, columns: list[str], rows: list[Any], settings: Settings) -> None:
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
    """As JSON can say it."""
    return {name: _time(value) if isinstance(value, date) else value for name, value in row.items()}


def _time(value: date) -> str:
    return value.astimezone().isoformat() if isinstance(value, datetime) else value.isoformat()


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise from_spark(error) from None
