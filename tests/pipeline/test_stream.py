"""`spark.readStream.format("braidmq")`: each row once, and the same rows again after whatever went wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from braidmq.log.log import Log
from braidmq.pipeline.errors import from_spark
from tests.pipeline.conftest import StartDriver
from tests.pipeline.logs import fill, written

TIMEOUT_S = 300
KILLED = """
    import sys, time
    from braidmq.pipeline.session import session
    from tests.pipeline.test_stream import recorder, start

    data, checkpoint, found = sys.argv[1:]
    record = recorder(found)

    def last_breath(frame, number):
        record(frame, number)
        if number == 2:
            print("in the middle of it", flush=True)
            time.sleep(600)

    spark = session("killed", "local[2]", quick=True)
    start(spark, data, checkpoint, last_breath, maxRowsPerTrigger="100").awaitTermination()
"""


def start(
    spark: SparkSession,
    data: Path | str,
    checkpoint: Path | str,
    work: Callable[[DataFrame, int], None],
    **options: str,
) -> StreamingQuery:
    """A query over all that is there, which ends by itself."""
    reader = spark.readStream.format("braidmq").option("startingOffsets", "earliest")
    for name, value in options.items():
        reader = reader.option(name, value)
    writer = reader.load(str(data)).writeStream.foreachBatch(work).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def recorder(folder: Path | str) -> Callable[[DataFrame, int], None]:
    """Writes what a batch had, a file each time that it runs."""
    place = Path(folder)
    place.mkdir(exist_ok=True)

    def record(frame: DataFrame, number: int) -> None:
        rows = sorted([row.origin, row.offset, row.topic, bytes(row.payload).decode()] for row in frame.collect())
        attempt = len(list(place.glob(f"{number}-*")))
        (place / f"{number}-{attempt}").write_text(json.dumps(rows))

    return record


def recorded(folder: Path) -> dict[int, list[Any]]:
    """By batch; an assertion fails if one that ran again had other rows."""
    found: dict[int, list[Any]] = {}
    for path in sorted(folder.iterdir()):
        number, rows = int(path.name.partition("-")[0]), json.loads(path.read_text())
        assert found.setdefault(number, rows) == rows, f"batch {number} ran again with other rows"
    return found


def numbers(batches: dict[int, list[Any]]) -> list[int]:
    return sorted(int(payload) for rows in batches.values() for _, _, _, payload in rows)


def failure(query: StreamingQuery) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(TIMEOUT_S)
    return str(from_spark(caught.value))


def test_a_query_goes_on_where_it_was_and_a_batch_that_failed_has_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Log(tmp_path / "data" / "log", "site1", partitions=4)
    fill(log, 500)
    record = recorder(tmp_path / "found")

    def fails(frame: DataFrame, number: int) -> None:
        record(frame, number)
        if number == 3:
            raise RuntimeError("the sink is full")

    query = start(spark, tmp_path / "data", tmp_path / "checkpoint", fails, maxRowsPerTrigger="100")
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query.awaitTermination(TIMEOUT_S)
    fill(log, 200, 500)
    log.close()
    start(spark, tmp_path / "data", tmp_path / "checkpoint", record).awaitTermination(TIMEOUT_S)
    found = recorded(tmp_path / "found")
    assert {number: len(rows) for number, rows in found.items()} == {0: 100, 1: 100, 2: 100, 3: 100, 4: 300}
    assert (tmp_path / "found" / "3-1").exists()
    assert numbers(found) == list(range(700))


def test_a_driver_that_is_killed_is_taken_over_with_the_same_rows(
    spark: SparkSession, start_driver: StartDriver, tmp_path: Path
) -> None:
    for number in (1, 2):
        written(tmp_path / "data" / f"site{number}" / "log", 250, f"site{number}")
    driver = start_driver(KILLED, tmp_path / "data", tmp_path / "checkpoint", tmp_path / "found")
    driver.wait_for("in the middle of it")
    driver.kill9()
    record = recorder(tmp_path / "found")
    start(spark, tmp_path / "data", tmp_path / "checkpoint", record).awaitTermination(TIMEOUT_S)
    found = recorded(tmp_path / "found")
    assert (tmp_path / "found" / "2-1").exists()
    assert numbers(found) == sorted([*range(250), *range(250)])


def test_a_stream_follows_the_log_and_filters_it(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "log", "site1", partitions=4)
    fill(log, 100)
    reader = spark.readStream.format("braidmq").option("topics", "plant1/#").option("tasks", "partitions")
    query = (
        reader.option("columns", "topic,offset")
        .load(str(tmp_path))
        .writeStream.format("memory")
        .queryName("followed")
        .trigger(processingTime="50 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()  # it stands at the end of what is there: a stream starts with what comes
        for first in (100, 200):
            fill(log, 100, first)
            query.processAllAvailable()
    finally:
        query.stop()
    log.close()
    offsets = sorted(row.offset for row in spark.table("followed").collect())
    assert offsets == list(range(101, 300, 2))


def test_a_checkpoint_that_does_not_fit_is_told_in_words(spark: SparkSession, tmp_path: Path) -> None:
    for number in (1, 2):
        written(tmp_path / "data" / f"site{number}" / "log", 10, f"site{number}")
    record = recorder(tmp_path / "found")
    start(spark, tmp_path / "data", tmp_path / "checkpoint", record).awaitTermination(TIMEOUT_S)
    told = failure(start(spark, tmp_path / "data" / "site1", tmp_path / "checkpoint", record))
    assert "the checkpoint is of another set of brokers: site2 of it is not read here" in told
    offsets = tmp_path / "checkpoint" / "offsets" / "0"
    offsets.write_text(offsets.read_text().replace('"format": 1', '"format": 9').replace('"format":1', '"format":9'))
    told = failure(start(spark, tmp_path / "data", tmp_path / "checkpoint", record))
    assert "the checkpoint was written by another version (format 9, this one reads 1)" in told
