"""What commands that run on Spark have in common: a start that can be interrupted, and an orderly end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from braidmq.cli import output
from braidmq.cli.ending import Ending, Interrupted
from braidmq.pipeline.errors import MissingExtra, from_spark
from braidmq.pipeline.launch.gateway import end_java, silence

try:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.utils import is_remote
except ImportError as error:
    raise MissingExtra(error.name) from None

T = TypeVar("T")

POLL_S: Final = 0.2
FINISH_S: Final = 10.0
"""How long a micro-batch may take to end after Ctrl-C; one that was broken off is done again by the next run."""
FINISH_POLL_S: Final = 0.05
STOP_S: Final = 5.0
"""How long a query and Spark may take to stop: a query that asks a broker that is down cannot be told to."""
JAVA_END_S: Final = 5.0


@contextmanager
def in_our_words() -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise from_spark(error) from None


def in_thread(work: Callable[[], T], ending: Ending) -> T:
    """Returns the result of the work, or raises Interrupted when the command is to end. In the main thread Spark would
    handle Ctrl-C itself, with an exception in the middle of a call to Java."""
    results: list[T] = []
    failures: list[Exception] = []
    is_done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            failures.append(error)
        is_done.set()

    threading.Thread(target=run, name="spark", daemon=True).start()
    while not is_done.wait(POLL_S):
        if ending.is_set():
            _within(STOP_S, silence)
            raise Interrupted
    if failures:
        raise failures[0]
    return results[0]


@contextmanager
def own_java() -> Iterator[None]:
    """Ends Spark and its Java afterwards, unless they were there before."""
    was_there = SparkContext._gateway is not None
    try:
        yield
    finally:
        if not was_there:
            _within(STOP_S, _stop_spark)
            end_java(JAVA_END_S)


def stop(query: StreamingQuery, ending: Ending) -> None:
    """Ends a query. After Ctrl-C the micro-batch under way is finished first, so that it is not run again; a second
    Ctrl-C does not wait for it."""
    if ending.is_set():
        output.note("Ending: what is under way is finished first. Ctrl-C again ends at once.", "dim")
        _within(STOP_S, silence)
        _finish_batch(query)
    _within(STOP_S, query.stop)


def _finish_batch(query: StreamingQuery) -> None:
    """Waits for the micro-batch under way. Spark may begin the next one at once, so its progress tells the end."""
    done = _last_batch(query)
    ends_at = time.monotonic() + FINISH_S
    while query.isActive and query.status["isTriggerActive"] and _last_batch(query) == done:
        if time.monotonic() > ends_at:
            return
        time.sleep(FINISH_POLL_S)


def _last_batch(query: StreamingQuery) -> Any:
    last = query.lastProgress
    return None if last is None else last["batchId"]


def _stop_spark() -> None:
    running: Any = SparkContext._active_spark_context
    if is_remote():
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        running = ConnectSession._default_session
    if running is not None:
        running.stop()


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Runs it, and waits for it no longer than that: Java may not answer."""

    def run() -> None:
        with contextlib.suppress(Exception):  # whatever is left of it
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
