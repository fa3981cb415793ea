"""Processors on Spark over the logs of several brokers: one spool for a topic, in the order that homes have."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from braidmq.log.log import Log
from braidmq.log.run import Run as Row
from braidmq.pipeline.errors import PipelineError
from braidmq.pipeline.portable import PortableProcessor
from braidmq.pipeline.source.logs import LogLocation
from braidmq.pipeline.source.options import ReadOptions
from braidmq.pipeline.source.plan import Piece
from braidmq.pipeline.stateful import answers
from braidmq.pipeline.stateful.query import ProcessorStream, QuerySetup
from braidmq.pipeline.stateful.running import PartitionBatch, SpoolCache, TaskRunner
from tests.pipeline.test_stateful import BEGAN_US, PARTITIONS, _no_state

TELL = """
from braidmq.processors import Message, Notification, Spool, processor

@processor(topic="in/+", spool=3, output="out")
def tell(spool, message):
    return Notification([message.topic, [one.text() for one in spool]])
"""
SITES = ("site1", "site2", "site3")


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[dict[str, Log]]:
    made = {name: Log(tmp_path / "data" / name / "log", name, partitions=PARTITIONS) for name in SITES}
    yield made
    for one in made.values():
        one.close()


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> list[SpoolCache]:
    """Workers whose memory a test can take away."""
    held = [SpoolCache()]
    monkeypatch.setattr("braidmq.pipeline.stateful.running.spool_cache", lambda: held[0])
    monkeypatch.setattr("braidmq.pipeline.stateful.running.SNAPSHOT_ROWS_MIN", 1)
    monkeypatch.setattr("braidmq.pipeline.stateful.running.SNAPSHOT_SHARE", 0)
    return held


def write(logs: Mapping[str, Log], numbers: range) -> None:
    """Messages of two topics, at the brokers in turn; their numbers are their order in time."""
    for number in numbers:
        log = logs[SITES[number * 7 % len(SITES)]]
        log.append([Row.of(f"in/{number % 2}", str(number).encode(), BEGAN_US + number * 1_000, client="c", qos=1)])


def expected(numbers: range) -> list[Any]:
    """What is said if each message is processed when it comes."""
    return sorted(
        [f"in/{number % 2}", [str(one) for one in (number - 4, number - 2, number) if one >= 0]] for number in numbers
    )


class Tasks:
    """What tasks do, without Spark."""

    def __init__(self, folder: Path, logs: Mapping[str, Log]) -> None:
        (folder / "tell.py").write_text(TELL)
        self.portable = PortableProcessor.of(str(folder / "tell.py"))
        self.options = ReadOptions.parse({"path": str(folder / "data")})
        self.spools = folder / "spools"
        self.logs = logs
        self.at = dict.fromkeys(logs, 0)
        self.locations = {name: LogLocation(str(folder / "data" / name / "log"), None, 0) for name in logs}

    def batch(self, until: Mapping[str, int]) -> list[Any]:
        """Goes on up to these offsets; what was said to each message."""
        rows = self.run(self.at, until)
        self.at = dict(until)
        return rows

    def run(self, start: Mapping[str, int], until: Mapping[str, int]) -> list[Any]:
        runner = TaskRunner(self.portable.load(), self.options, str(self.spools), _no_state)
        found: list[Any] = []
        for number in range(PARTITIONS):
            pieces = []
            for name, location in self.locations.items():
                state = location.ask(lambda log: log.state())
                pieces.append(Piece(name, location, state.id, number, start[name], until[name]))
            part = PartitionBatch(pieces[0], beside=tuple(pieces[1:]))
            for batch in runner.answers_of([part]):
                for row in batch.to_pylist():
                    said = json.loads(row["payload"])
                    assert row["broker"] == SITES[int(said[1][-1]) * 7 % len(SITES)], "answered where it came from"
                    found.append(said)
        return sorted(found)

    @property
    def ends(self) -> dict[str, int]:
        return {name: log.next_offset for name, log in self.logs.items()}


def test_the_messages_of_all_logs_are_in_one_spool(
    logs: dict[str, Log], tmp_path: Path, forgetful: list[SpoolCache]
) -> None:
    """Wherever spools come from: memory, snapshots or the logs."""
    tasks = Tasks(tmp_path, logs)
    found = []
    for first in range(0, 50, 10):
        write(logs, range(first, first + 10))
        found += tasks.batch(tasks.ends)
        if first == 20:
            forgetful[0] = SpoolCache()
        if first == 30:
            forgetful[0] = SpoolCache()
            shutil.rmtree(tmp_path / "spools")
    assert sorted(found) == expected(range(50))


def test_a_late_row_is_put_in_its_place_and_a_batch_gives_the_same_again(
    logs: dict[str, Log], tmp_path: Path, forgetful: list[SpoolCache]
) -> None:
    """One log is read later than the others: its rows are the last of their spools when they are processed, and in
    their order afterwards."""
    tasks = Tasks(tmp_path, logs)
    write(logs, range(24))
    late = tasks.ends | {"site1": 0}
    tasks.batch(late)
    before = dict(tasks.at)
    found = tasks.batch(tasks.ends)
    assert {spool[-1] for _, spool in found} == {str(number) for number in range(0, 24, 3)}, "each once"
    ends = dict(tasks.at)
    forgetful[0] = SpoolCache()
    shutil.rmtree(tmp_path / "spools")
    assert tasks.run(before, ends) == found, "run again, without anything that was kept"
    write(logs, range(24, 26))
    assert tasks.batch(tasks.ends) == expected(range(24, 26)), "all are in their places"


def test_logs_with_other_partitions_are_refused(logs: dict[str, Log], tmp_path: Path) -> None:
    Log(tmp_path / "data" / "site4" / "log", "site4", partitions=PARTITIONS + 1).close()
    tasks = Tasks(tmp_path, logs)
    stream = ProcessorStream(QuerySetup(tasks.portable, "", is_delegated=False), tasks.options)
    with pytest.raises(PipelineError, match="same number of partitions"):
        stream.partitions(stream.initialOffset(), stream.initialOffset())
    alone = ProcessorStream(QuerySetup(tasks.portable, "", is_delegated=False, spool_scope="site"), tasks.options)
    assert alone.partitions(alone.initialOffset(), alone.initialOffset()) == []


def test_a_query_over_all_logs(spark: SparkSession, logs: dict[str, Log], tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, logs)
    write(logs, range(30))
    options = {"path": str(tmp_path / "data"), "startingOffsets": "earliest"}
    table = answers(spark, tasks.portable, options, folder=str(tmp_path / "spools"))
    writer = table.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    for last in (30, 40):
        if last > 30:
            write(logs, range(30, last))
        query = writer.option("path", str(tmp_path / "answers")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
    rows = spark.read.parquet(str(tmp_path / "answers")).collect()
    assert sorted(json.loads(row["payload"]) for row in rows) == expected(range(40))
