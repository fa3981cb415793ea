"""Commands on Spark from their first word to their end: what is published from then on is seen, and signals to the
whole group, as Ctrl-C is one, end them in good order."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow.parquet as pq
import pytest

from braidmq.cli.ending import AGAIN_S
from braidmq.log.log import Log
from tests.conftest import StartBroker
from tests.pipeline.conftest import TIMEOUT_S, Process
from tests.pipeline.logs import fill
from tests.raw import opened, wait_until

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)

Start = Callable[..., Process]
ECHO = """
from braidmq.processors import Notification, processor

@processor(topic="in/+", spool=1, output="out")
def echo(spool, message):
    return Notification(message.payload) if message.payload.endswith(b"0") else None
"""
ROWS = 140


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def start(*words: object) -> Process:
        log = tmp_path / f"log{len(started)}"
        started.append(Process([sys.executable, "-m", "braidmq", *map(str, words)], log))
        return started[-1]

    yield start
    for process in started:
        process.kill9()


def is_well(process: Process) -> bool:
    """Whether nothing was said that only its makers understand."""
    return not re.search(r"Traceback|Exception|ERROR|\tat ", process.log)


def wait_until_alone(process: Process) -> None:
    wait_until(lambda: process.pids("") == [], "Java and its workers end as well", TIMEOUT_S)


def rows_read(process: Process) -> int:
    return sum(int(count) for count in re.findall(r"batch \d+: (\d+) rows? read", process.log))


def test_what_is_published_from_the_first_word_on_is_seen(start: Start, tmp_path: Path) -> None:
    """Though Spark needs its time. The micro-batch that is under way at Ctrl-C is finished."""
    log = Log(tmp_path / "data" / "log", "site1", partitions=2)
    fill(log, 10)
    stream = start("pipeline", "run", "sessions", "--path", tmp_path / "data")
    stream.wait_for("sessions takes what comes from now on")
    fill(log, 20, 10)
    stream.wait_for(r"sessions runs\. Ctrl-C ends")
    fill(log, 30, 30)
    wait_until(lambda: rows_read(stream) >= 50, f"all rows are read: {stream.log}", TIMEOUT_S)
    stream.signal_group(signal.SIGINT)
    assert stream.wait() == 0, stream.log
    assert rows_read(stream) == 50, stream.log
    assert stream.log.endswith("Ending: what is under way is finished first. Ctrl-C again ends at once.\nEnded.\n")
    wait_until_alone(stream)
    log.close()


def test_a_checkpoint_is_whole_after_sigterm_to_the_group(start: Start, tmp_path: Path) -> None:
    """In the midst of it; the next run goes on there, and each row is in the archive once."""
    log = Log(tmp_path / "data" / "log", "site1", partitions=2)
    to = ("--out", tmp_path / "out", "--checkpoint", tmp_path / "state")
    words = ("pipeline", "run", "archive", "--path", tmp_path / "data", *to)
    is_enough = Event()

    def write() -> None:
        number = 0
        while not is_enough.wait(0.01):
            fill(log, 10, number)
            number += 10

    writer = Thread(target=write)
    writer.start()
    try:
        first = start(*words, "--trigger", "10ms")
        first.wait_for(r"batch [1-9]\d*: ")
        first.signal_group(signal.SIGTERM)
        assert first.wait() == 0, first.log
    finally:
        is_enough.set()
        writer.join()
    assert is_well(first), first.log
    assert "Ended; the same command goes on from here." in first.log
    last = start(*words, "--once")
    assert last.wait() == 0, last.log
    read = pq.read_table(tmp_path / "out", columns=["offset"])["offset"].to_pylist()
    assert sorted(read) == list(range(log.next_offset))
    log.close()


def has_unread(port: int) -> bool:
    """Whether somebody has said something to who listens at a port, and it was not read yet."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == port and int(queues.partition(":")[2], 16):
            return True
    return False


def test_a_second_ctrl_c_waits_for_nothing(start: Start, start_broker: StartBroker) -> None:
    """Here for a broker that does not answer; a line has said what is waited for."""
    broker = start_broker('[admin]\nport = 0\n[log]\ntopics = ["in/#"]\n')
    stream = start("pipeline", "run", "alarms", "--brokers", broker.address("http"))
    stream.wait_for("alarms runs")
    broker.signal(signal.SIGSTOP)
    try:
        wait_until(lambda: has_unread(broker.port_of("http")), "it waits for the broker", TIMEOUT_S)
        is_over = Event()

        def interrupt() -> None:
            while stream.running and not is_over.wait(2 * AGAIN_S):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    stream.signal_group(signal.SIGINT)

        insistent = Thread(target=interrupt)
        insistent.start()
        assert stream.wait() == 130, stream.log
        is_over.set()
        insistent.join()
    finally:
        broker.signal(signal.SIGCONT)
    assert "Ctrl-C again ends at once." in stream.log
    wait_until_alone(stream)
    assert is_well(stream), stream.log


def test_a_processor_counts_what_it_has_done(start: Start, start_broker: StartBroker, tmp_path: Path) -> None:
    """From the first row on, and none that is not its own."""
    broker = start_broker('[admin]\nport = 0\n[log]\ntopics = ["#"]\n')
    (tmp_path / "echo.py").write_text(ECHO)
    with opened(broker, "device") as device:
        for number in range(ROWS):
            device.publish(f"in/{number % 3}", str(number).encode(), 1)
            device.publish("other", b"", 1)
    words = ("process", "spark", tmp_path / "echo.py", "--brokers", broker.address("http"), "--from", "earliest")
    query = start(*words, "--checkpoint", tmp_path / "state", "--json")

    def told() -> list[dict[str, Any]]:
        return [json.loads(line) for line in query.log.splitlines() if line.startswith("{")]

    wait_until(lambda: sum(one["rows"] for one in told()) >= ROWS, "it tells of all rows", TIMEOUT_S)
    query.signal_group(signal.SIGINT)
    assert query.wait() == 0, query.log
    assert is_well(query), query.log
    assert (sum(one["rows"] for one in told()), sum(one["answers"] for one in told())) == (ROWS, ROWS // 10)
    wait_until_alone(query)


def test_a_start_can_be_broken_off(start: Start, tmp_path: Path) -> None:
    log = Log(tmp_path / "data" / "log", "site1", partitions=2)
    log.close()
    stream = start("pipeline", "run", "windows", "--path", tmp_path / "data")
    stream.wait_for("Spark starts")
    stream.signal_group(signal.SIGINT)
    assert stream.wait() == 130, stream.log
    wait_until_alone(stream)
    assert is_well(stream), stream.log
    assert stream.log.endswith("Error: interrupted\n")


def test_trials_on_spark_can_be_stopped(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "trials"
    trials = start("sim", "-n", "100", "--seeds", "1-100000", "--spark", "local[2]", "--out", out)
    wait_until(lambda: any(out.glob("[!.]*.parquet")), "some trials are done", TIMEOUT_S)
    trials.signal_group(signal.SIGINT)
    assert trials.wait() == 130, trials.log
    assert is_well(trials), trials.log
    assert "of 100,000 trials are in" in trials.log
    wait_until_alone(trials)
