"""Processors on Spark: the same answers as `spool_step` alone, whatever is lost on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from braidmq.cli.process.local_run import _logged
from braidmq.log.log import Log
from braidmq.log.run import Run as Row
from braidmq.pipeline.portable import PortableProcessor
from braidmq.pipeline.source.logs import LogLocation
from braidmq.pipeline.source.options import ReadOptions
from braidmq.pipeline.source.plan import Piece
from braidmq.pipeline.stateful import answers, start
from braidmq.pipeline.stateful.running import TOPICS_MAX, PartitionBatch, SpoolCache, TaskRunner
from braidmq.processors import Spool, SpoolState, spool_step
from braidmq.processors.hops import HOPS
from braidmq.processors.loading import load_processor
from braidmq.processors.processor import Failure, ProcessorError
from tests.processors.site import Site
from tests.raw import Client, opened, subscriber, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker
    from tests.pipeline.conftest import StartDriver

DIGEST = """
from braidmq.processors import Message, Notification, Spool, processor

@processor(topic="in/+", spool=3, output="out")
def digest(spool, message):
    return Notification([message.topic, message.offset, [one.text() for one in spool]])
"""
BEGAN_US = 1_794_800_000_000_000
TOPICS = 7
PARTITIONS = 4
MESSAGES = 400
POISON = 77
TIMEOUT_S = 300.0
LOGGED = '[log]\ntopics = ["in/#"]\n'


def processor_file(folder: Path, text: str = DIGEST) -> Path:
    path = folder / "digest.py"
    path.write_text(text)
    return path


def write(log: Log, first: int, count: int, poison: Iterable[int] = ()) -> None:
    """Messages with their number as payload, over all topics in turn; other topics between them."""
    for number in range(first, first + count):
        payload = b"\xff" if number in poison else str(number).encode()
        at = BEGAN_US + number * 1_000
        log.append([Row.of(f"in/{number % TOPICS}", payload, at, client="c", qos=1), Row.of("other", b"", at)])


def alone(file: Path, log: Path) -> list[Any]:
    """What comes of a log in one place: notifications, and the offsets of failures."""
    processor = load_processor(str(file))
    spools: dict[str, Spool] = {}
    found: list[Any] = []
    for message in _logged(str(log), None, processor.topic):
        outcome = spool_step(processor, spools.setdefault(message.topic, Spool(processor.spool)), message)
        if isinstance(outcome, Failure):
            found.append([message.topic, message.offset, outcome.what])
        elif outcome is not None:
            found.append(json.loads(outcome.payload))
    return sorted(found)


def of_rows(rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    return sorted(
        [row["of"], row["offset"], row["error"]] if row["error"] else json.loads(row["payload"]) for row in rows
    )


class Tasks:
    """What tasks do, without Spark: batch after batch over the log's partitions."""

    def __init__(self, file: Path, log: Path, folder: Path, spool: int | None = None) -> None:
        self.portable = PortableProcessor.of(str(file), spool=spool)
        self.options = ReadOptions.parse({"path": str(log)})
        self.location = LogLocation(str(log), None, 0)
        self.folder = str(folder)
        self.topics_max = TOPICS_MAX

    def batch(self, start: int, until: int) -> list[dict[str, Any]]:
        state = self.location.ask(lambda log: log.state())
        runner = TaskRunner(self.portable.load(), self.options, self.folder, _no_state, self.topics_max)
        rows: list[dict[str, Any]] = []
        for partition in range(state.partitions):
            piece = Piece(state.broker, self.location, state.id, partition, start, until)
            rows += [row for found in runner.answers(PartitionBatch(piece)) for row in found.to_pylist()]
        return rows


def _no_state(_piece: Piece, topic: str) -> SpoolState:
    raise AssertionError(topic)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "log", "site1", partitions=PARTITIONS)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> list[SpoolCache]:
    """Workers whose memory a test can take away."""
    held = [SpoolCache()]
    monkeypatch.setattr("braidmq.pipeline.stateful.running.spool_cache", lambda: held[0])
    monkeypatch.setattr("braidmq.pipeline.stateful.running.SNAPSHOT_ROWS_MIN", 1)
    monkeypatch.setattr("braidmq.pipeline.stateful.running.SNAPSHOT_SHARE", 0)
    return held


def test_spools_come_from_memory_snapshots_or_the_log(
    log: Log, tmp_path: Path, forgetful: list[SpoolCache], caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever they come from, a batch gives the same."""
    file, folder = processor_file(tmp_path), tmp_path / "spools"
    write(log, 0, 60, poison=(13, 31))
    tasks = Tasks(file, tmp_path / "log", folder)
    end = log.next_offset
    found = tasks.batch(0, 40) + tasks.batch(40, 80)
    again = tasks.batch(40, 80)  # what is in memory is too far on
    forgetful[0] = SpoolCache()
    found += tasks.batch(80, 100)  # from snapshots
    shutil.rmtree(folder)
    forgetful[0] = SpoolCache()
    found += tasks.batch(100, end)  # from the log
    assert of_rows(found) == alone(file, tmp_path / "log")
    assert of_rows(again) == [one for one in of_rows(found) if 40 <= one[1] < 80]
    assert {row["error"] for row in found if row["error"]} == {"payload"}
    assert all({"name": HOPS, "value": "1"} in row["properties"] for row in found if not row["error"])

    write(log, 60, 7)
    wider = Tasks(file, tmp_path / "log", folder, spool=5)
    rows = wider.batch(end, log.next_offset)
    assert {len(json.loads(row["payload"])[2]) for row in rows} == {5}
    assert "with a spool of 3" in caplog.text
    assert "spools are made from the log" in caplog.text

    for path in folder.rglob("*.spools"):
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    forgetful[0] = SpoolCache()
    last = [one for one in alone(file, tmp_path / "log") if one[1] >= end]
    assert of_rows(tasks.batch(end, log.next_offset)) == last
    assert "it is damaged" in caplog.text


def test_snapshots_are_few(log: Log, tmp_path: Path) -> None:
    file = processor_file(tmp_path)
    write(log, 0, 100)
    tasks = Tasks(file, tmp_path / "log", tmp_path / "spools")
    for at in range(0, 200, 10):
        tasks.batch(at, at + 10)
    sizes = [len(list(folder.iterdir())) for folder in (tmp_path / "spools").iterdir()]
    assert len(sizes) == PARTITIONS
    assert max(sizes) <= 5


def test_memory_is_bounded(
    log: Log,
    tmp_path: Path,
    forgetful: list[SpoolCache],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker keeps so much, and no more; a partition with too many topics forgets the most silent ones."""
    monkeypatch.setattr("braidmq.pipeline.stateful.running.CACHED_MESSAGES_MAX", 10)
    file = processor_file(tmp_path)
    write(log, 0, 200)
    tasks = Tasks(file, tmp_path / "log", tmp_path / "spools")
    found = []
    for at in range(0, 400, 40):
        found += tasks.batch(at, at + 40)
        assert 0 < len(forgetful[0]) <= 10
    assert of_rows(found) == alone(file, tmp_path / "log")

    tasks.topics_max = 1
    tasks.batch(360, 400)
    assert "had their spools taken" in caplog.text
    assert len(forgetful[0]) <= PARTITIONS * 3


def test_a_function_that_never_ends_is_ended(log: Log, tmp_path: Path) -> None:
    text = DIGEST.replace('output="out"', 'output="out", time_limit_s=0.1').replace(
        "    return", "    while message.text() == '3':\n        pass\n    return"
    )
    write(log, 0, 14)
    rows = Tasks(processor_file(tmp_path, text), tmp_path / "log", tmp_path / "spools").batch(0, 28)
    [failed] = [row for row in rows if row["error"]]
    assert (failed["of"], failed["payload"]) == ("in/3", b"it took more than 0.1 s")
    assert len(rows) == 14


def test_a_processor_that_workers_cannot_load(tmp_path: Path) -> None:
    portable = PortableProcessor.of(str(processor_file(tmp_path)))
    broken = PortableProcessor.decode(
        portable.encode().replace("from braidmq.processors import", "import nothing_like_it #")
    )
    with pytest.raises(ProcessorError, match=r"by a worker of Spark: ModuleNotFoundError.*\(line 2\)"):
        broken.load()


def test_a_query_gives_what_one_place_gives(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    """As a stream in several micro-batches, stopped and started again without its snapshots."""
    file = processor_file(tmp_path)
    write(log, 0, 50, poison=(20,))
    options = {"path": str(tmp_path / "log"), "startingOffsets": "earliest", "maxRowsPerTrigger": "30"}
    folder = str(tmp_path / "spools")
    table = answers(spark, PortableProcessor.of(str(file)), options, folder=folder)

    def run() -> None:
        writer = table.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.option("path", str(tmp_path / "answers")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    run()
    shutil.rmtree(folder, ignore_errors=True)
    write(log, 50, 30)
    run()
    rows = [row.asDict() for row in spark.read.parquet(str(tmp_path / "answers")).collect()]
    assert of_rows(rows) == alone(file, tmp_path / "log")
    assert len(rows) == 80


# With a real broker


def publish(broker: Broker, first: int, count: int, pause_s: float = 0.0) -> None:
    """Over three topics in turn, QoS 1."""
    with opened(broker, "device") as device:
        for number in range(first, first + count):
            device.publish(f"in/{number % 3}", b"\xff" if number == POISON else str(number).encode(), 1)
            time.sleep(pause_s)


def heard(listener: Client, count: int) -> list[Any]:
    """The next notifications, and the offsets of errors, as `alone` gives them."""
    found = []
    for _ in range(count):
        said = json.loads(listener.next_message(timeout_s=TIMEOUT_S).payload)
        found.append([said["topic"], said["offset"], said["what"]] if isinstance(said, dict) else said)
    return sorted(found)


def test_topics_go_to_spark_and_come_back(spark: SparkSession, start_broker: StartBroker, tmp_path: Path) -> None:
    """While messages come all the time, each has one answer; errors of Spark are told by the broker."""
    site = Site(start_broker, tmp_path, DIGEST, more=LOGGED)
    listener = site.listener("out", "$processor/+/errors")
    options = {"brokers": site.broker.address("http")}
    query = start(spark, PortableProcessor.of(str(site.file)), options, str(tmp_path / "checkpoint"), delegated=True)
    device = Thread(target=publish, args=(site.broker, 0, MESSAGES, 0.05))
    device.start()

    def move(topic: str, place: str) -> None:
        body = json.dumps({"processor": "digest", "topic": topic, "place": place}).encode()
        wait_until(lambda: site.post("/processing/move", body)[0] == 200, f"{topic} moves")

    def place(topic: str) -> str:
        [found] = site.get(f"/processing/topics?processor=digest&topic={topic}")["topics"]
        return str(found["place"])

    def is_back(topic: str) -> bool:
        """It is asked for again where Spark took so long that the edge gave up."""
        if place(topic) == "spark":
            move(topic, "edge")
        return place(topic) == "edge"

    try:
        wait_until(lambda: len(site.get("/processing/topics")["topics"]) == 3, "all topics came")
        move("in/0", "spark")  # it may be asked back by itself, since there is room
        for _ in range(2):
            move("in/1", "spark")
            wait_until(lambda: query.lastProgress is not None, "a batch", TIMEOUT_S)
            wait_until(lambda: is_back("in/1"), "the topic is back", TIMEOUT_S)
        device.join()
        got = heard(listener, MESSAGES)
    finally:
        query.stop()
        device.join()
    assert query.exception() is None
    assert (place("in/1"), place("in/2")) == ("edge", "edge")
    assert got == alone(site.file, site.broker.data / "log")
    assert listener.so_far() == []
    assert site.one["processed"] < MESSAGES


DRIVER = """
import sys

from braidmq.pipeline.session import session
from braidmq.pipeline.portable import PortableProcessor
from braidmq.pipeline.stateful import start

url, file, checkpoint = sys.argv[1:]
spark = session("processor", "local[2,4]", quick=True)
options = {"brokers": url, "startingOffsets": "earliest", "maxRowsPerTrigger": "50"}
query = start(spark, PortableProcessor.of(file), options, checkpoint)
print("started", flush=True)
query.awaitTermination()
"""


def test_kill_9_of_workers_and_of_the_driver(
    start_broker: StartBroker, start_driver: StartDriver, tmp_path: Path
) -> None:
    """Nothing is lost, nothing is said twice, and spools are as if nothing had happened."""
    broker = start_broker(f"[admin]\nport = 0\n{LOGGED}")
    listener = subscriber(broker, "listener", "out", "$processor/+/errors")
    file = processor_file(tmp_path)
    arguments = (broker.address("http"), str(file), str(tmp_path / "checkpoint"))
    publish(broker, 0, 600)
    driver = start_driver(DRIVER, *arguments)
    got = heard(listener, 100)
    for pid in driver.pids("pipeline.daemon"):
        os.kill(pid, signal.SIGKILL)
    publish(broker, 600, 300)
    got += heard(listener, 350)
    driver.kill9()
    publish(broker, 900, 300)
    start_driver(DRIVER, *arguments)
    got += heard(listener, 1200 - len(got))
    assert sorted(got) == alone(file, broker.data / "log")
    assert listener.so_far() == []
