"""A processor as a query on Spark, until Ctrl-C: a line every few seconds says how it goes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from braidmq.cli import output
from braidmq.cli.ending import Ending
from braidmq.cli.errors import CliError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from braidmq.pipeline.portable import PortableProcessor
    from braidmq.pipeline.stateful.query import SpoolScope

MASTER: Final = "local[*,4]"
"""This machine; a task whose worker was killed is tried again."""
CHECKPOINTS: Final = Path("state")
PROGRESS_S: Final = 5.0
POLL_S: Final = 1.0


class QueryProgress:
    """What a query has done since the last line."""

    def __init__(self, query: StreamingQuery, *, json_lines: bool) -> None:
        from braidmq.pipeline.progress import MicroBatches
        from braidmq.pipeline.stateful import BatchCounts

        self._batches = MicroBatches(query)
        self._none = self._done = BatchCounts()
        self._json = json_lines
        self._at = time.monotonic()

    def count_new(self) -> None:
        """Adds the micro-batches that were not counted yet."""
        for each in self._batches.new():
            self._done += self._none.of(each)

    def show(self) -> None:
        last = self._batches.last
        if last is None:
            output.note("No batch yet: nothing has come, or Spark is still starting.", "dim")
            return
        now = time.monotonic()
        done, rate = self._done, self._done.rows / (now - self._at)
        took_ms = last.durationMs.get("triggerExecution", 0)
        if self._json:
            content: dict[str, Any] = {"batch": last.batchId, "rows": done.rows, "rows_per_s": round(rate, 1)}
            output.print_json(content | {"answers": done.answers, "batch_ms": took_ms})
        else:
            output.say(
                f"batch {last.batchId}: {output.counted(done.rows, 'row')} processed ({rate:,.0f} a second), "
                f"{output.counted(done.answers, 'answer')}; the last batch took {took_ms} ms"
            )
        self._done = self._none
        self._at = now


def run(
    file: str,
    *,
    options: dict[str, str],
    master: str | None,
    checkpoint: Path | None,
    delegated: bool,
    spool_scope: SpoolScope,
    name: str | None,
    topic: str | None,
    spool: int | None,
    json_lines: bool,
) -> None:
    """Runs the query until Ctrl-C; an error says why it ended before."""
    from braidmq.cli.on_spark import in_our_words, in_thread, own_java, stop
    from braidmq.pipeline.errors import from_spark
    from braidmq.pipeline.portable import PortableProcessor

    portable = PortableProcessor.of(file, name=name, topic=topic, spool=spool)
    folder = checkpoint or CHECKPOINTS / portable.name
    with in_our_words(), Ending() as ending, own_java():
        query = in_thread(
            lambda: start_query(portable, options, master, folder, delegated=delegated, spool_scope=spool_scope), ending
        )
        what = "what edges leave to Spark of" if delegated else "all of"
        output.note(f"{portable.name} takes {what} {portable.topic}; its checkpoint is {folder}. Ctrl-C ends.", "green")
        progress = QueryProgress(query, json_lines=json_lines)
        shown_at = time.monotonic()
        while not ending.wait(POLL_S) and query.isActive:
            progress.count_new()
            if time.monotonic() - shown_at >= PROGRESS_S:
                shown_at = time.monotonic()
                progress.show()
        error = query.exception()
        stop(query, ending)
        progress.count_new()
        progress.show()
    if error is not None:
        found = from_spark(error)
        raise CliError(found.text, hint=found.hint or "Start it again with the same checkpoint: it goes on there.")


def start_query(
    portable: PortableProcessor,
    options: dict[str, str],
    master: str | None,
    folder: Path,
    *,
    delegated: bool,
    spool_scope: SpoolScope = "braid",
) -> StreamingQuery:
    """A processor as a query, on a Spark of its own or the one that the environment names."""
    from braidmq.pipeline.session import session
    from braidmq.pipeline.stateful import start

    where = master or (None if os.environ.get("SPARK_REMOTE") else MASTER)
    spark = session(f"processor {portable.name}", where, quick=True)  # many small batches, and soon
    return start(spark, portable, options, str(folder.absolute()), delegated=delegated, spool_scope=spool_scope)
