"""A processor as a query on Spark, until Ctrl-C: a line every few seconds says how it goes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from braidmq.cli import output
from braidmq.cli.errors import CliError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

MASTER: Final = "local[*,4]"
"""This machine; a task whose worker was killed is tried again."""
CHECKPOINTS: Final = Path("state")
PROGRESS_S: Final = 5.0
POLL_S: Final = 1.0


class Progress:
    """What a query has done since the last line."""

    def __init__(self, *, json_lines: bool) -> None:
        self._json = json_lines
        self._batch = -1
        self._rows = 0
        self._answers = 0
        self._at = time.monotonic()

    def take(self, query: StreamingQuery) -> None:
        """Counts what batches did that were not counted yet."""
        for each in query.recentProgress:
            if each["batchId"] > self._batch:
                self._batch = each["batchId"]
                self._answers += each["numInputRows"]
                self._rows += sum(map(rows_of, each["sources"]))

    def show(self, query: StreamingQuery) -> None:
        if self._batch < 0:
            output.note("No batch yet: nothing has come, or Spark is still starting.", "dim")
            return
        now = time.monotonic()
        rate = self._rows / (now - self._at)
        last = query.lastProgress
        took_ms = last["durationMs"].get("triggerExecution", 0) if last else 0
        if self._json:
            content: dict[str, Any] = {"batch": self._batch, "rows": self._rows, "rows_per_s": round(rate, 1)}
            output.print_json(content | {"answers": self._answers, "batch_ms": took_ms})
        else:
            output.say(
                f"batch {self._batch}: {self._rows:,} rows of the log ({rate:,.0f} a second), "
                f"{self._answers:,} answers; the last batch took {took_ms} ms"
            )
        self._rows = self._answers = 0
        self._at = now


def rows_of(source: dict[str, Any]) -> int:
    """How far a batch went in the logs."""
    end, start = _offsets(source["endOffset"]), _offsets(source["startOffset"])
    return sum(max(0, offset - start.get(broker, offset)) for broker, offset in end.items())


def _offsets(written: Any) -> dict[str, int]:
    """As Spark shows them: before the first batch there are none."""
    found = json.loads(written) if isinstance(written, str) else written
    return {} if found is None else {broker: one["offset"] for broker, one in found["brokers"].items()}


def run(
    file: str,
    *,
    options: dict[str, str],
    master: str | None,
    checkpoint: Path | None,
    delegated: bool,
    name: str | None,
    topic: str | None,
    spool: int | None,
    json_lines: bool,
) -> None:
    """Until Ctrl-C; an error says why it ended before."""
    from braidmq.pipeline.errors import from_spark
    from braidmq.pipeline.session import session
    from braidmq.pipeline.shipped import Shipped
    from braidmq.pipeline.stateful import start

    shipped = Shipped.of(file, name=name, topic=topic, spool=spool)
    folder = checkpoint or CHECKPOINTS / shipped.name
    where = master or (None if os.environ.get("SPARK_REMOTE") else MASTER)
    spark = session(f"processor {shipped.name}", where, quick=True)  # many small batches, and soon
    ending = _ending()
    query = start(spark, shipped, options, str(folder.absolute()), delegated=delegated)
    what = "what edges leave to Spark of" if delegated else "all of"
    output.note(f"{shipped.name} takes {what} {shipped.topic}; its checkpoint is {folder}. Ctrl-C ends.", "green")
    progress = Progress(json_lines=json_lines)
    shown_at = time.monotonic()
    while not ending.wait(POLL_S) and query.isActive:
        progress.take(query)
        if time.monotonic() - shown_at >= PROGRESS_S:
            shown_at = time.monotonic()
            progress.show(query)
    error = query.exception()
    if context := getattr(spark, "_sc", None):  # there is none with Spark Connect
        context.setLogLevel("OFF")  # a batch that is under way is broken off, and run again the next time
    query.stop()
    progress.take(query)
    progress.show(query)
    spark.stop()
    if error is not None:
        found = from_spark(error)
        raise CliError(found.text, hint=found.hint or "Start it again with the same checkpoint: it goes on there.")


def _ending() -> Event:
    """Set by Ctrl-C. An exception would come in the middle of a call into Java; Spark's own handler is replaced."""
    ending = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: ending.set())
    return ending
