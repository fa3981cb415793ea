"""`spark.read.format("braidmq")` over real logs: every column, every option, and what cannot be read."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.functions import sum as total

from braidmq.log.segment import DATA
from braidmq.pipeline.errors import from_spark
from tests.pipeline.logs import BEGAN_US, TOPICS, written

COUNT = 1000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's data folder with its log."""
    folder = tmp_path_factory.mktemp("data")
    written(folder / "log", COUNT)
    return folder


@pytest.fixture(scope="module")
def braid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of three sites."""
    folder = tmp_path_factory.mktemp("braid")
    for number in (1, 2, 3):
        written(folder / f"site{number}" / "log", 100 * number, f"site{number}")
    return folder


def read(spark: SparkSession, path: Path | None, **options: Any) -> DataFrame:
    reader = spark.read.format("braidmq")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load() if path is None else reader.load(str(path))


def numbers(frame: DataFrame) -> list[int]:
    """The rows by the number that is in their payload."""
    return sorted(int(bytes(row.payload)) for row in frame.select("payload").collect())


def refusal(frame: DataFrame) -> str:
    with pytest.raises(PySparkException) as caught:
        frame.count()
    return str(from_spark(caught.value))


def test_all_columns_come_as_they_were_logged(spark: SparkSession, data: Path) -> None:
    found = read(spark, data).orderBy("offset").collect()
    assert [row.offset for row in found] == list(range(COUNT))
    assert found[0].asDict(recursive=True) == {
        "topic": "plant0/line0/temperature",
        "payload": bytearray(b"0"),
        "qos": 0,
        "retain": True,
        "published_at": local(0),
        "received_at": local(0),
        "origin": "site1",
        "client": None,
        "properties": [{"name": "number", "value": "0"}],
        "offset": 0,
    }
    last = found[-2]
    assert (last.topic, last.client, last.qos, last.retain, last.properties) == (TOPICS[8], "device2", 2, False, None)
    assert read(spark, data / "log").count() == COUNT


def local(number: int) -> datetime:
    """As `collect` gives times: in the zone of this process, without saying so."""
    return datetime.fromtimestamp((BEGAN_US + number * 1_000_000) / 1e6)


def test_topic_filters_are_mqtts(spark: SparkSession, data: Path) -> None:
    assert numbers(read(spark, data, topics="plant1/#")) == list(range(1, COUNT, 2))
    two = read(spark, data, topics=json.dumps([TOPICS[0], "+/line3/temperature"]))
    assert {row.topic for row in two.collect()} == {TOPICS[0], TOPICS[3]}
    assert read(spark, data, topics="nobody/#").count() == 0


def test_conditions_are_looked_at_before_reading(spark: SparkSession, data: Path) -> None:
    """The same rows come as without that; that fewer are read is in test_logs."""
    all_rows = read(spark, data)
    assert numbers(all_rows.where(col("topic") == TOPICS[4])) == list(range(4, COUNT, 10))
    assert numbers(all_rows.where(col("topic").isin(TOPICS[1], TOPICS[2], "a/#"))) == sorted(
        [*range(1, COUNT, 10), *range(2, COUNT, 10)]
    )
    assert numbers(all_rows.where("offset >= 10 and offset < 20 and offset <> 15")) == [*range(10, 15), *range(16, 20)]
    late = datetime.fromtimestamp(BEGAN_US / 1e6, UTC) + timedelta(seconds=990)
    assert numbers(all_rows.where(col("received_at") >= lit(late))) == list(range(990, COUNT))
    assert numbers(all_rows.where(f"topic = '{TOPICS[4]}' and topic = '{TOPICS[5]}'")) == []
    assert numbers(all_rows) == list(range(COUNT))  # what one query left out is there for the next
    assert numbers(read(spark, data, topics="plant0/#").where(f"topic = '{TOPICS[5]}'")) == []


def test_a_range_by_offsets_or_by_time(spark: SparkSession, data: Path) -> None:
    part = read(spark, data, startingOffsets='{"site1": 100}', endingOffsets='{"site1": 200}')
    assert numbers(part) == list(range(100, 200))
    start = datetime.fromtimestamp(BEGAN_US / 1e6, UTC) + timedelta(seconds=300)
    end = start + timedelta(seconds=5)
    timed = read(spark, data, startingTime=start.isoformat(), endingTime=end.isoformat().replace("+00:00", "Z"))
    assert numbers(timed) == list(range(300, 305))
    assert read(spark, data, startingOffsets="latest").count() == 0


def test_only_some_columns_need_to_be_moved(spark: SparkSession, data: Path) -> None:
    few = read(spark, data, columns="offset,topic")
    assert few.columns == ["offset", "topic"]
    assert few.agg(total("offset")).first()[0] == sum(range(COUNT))  # type: ignore[index]
    typed = spark.read.format("braidmq").schema("topic string, qos int").load(str(data))
    assert typed.where("qos = 2").count() == len(range(2, COUNT, 3))


def test_columns_that_are_always_there_are_not_nullable(spark: SparkSession, data: Path) -> None:
    found = {each.name for each in read(spark, data).schema.fields if each.nullable}
    assert found == {"client", "properties"}
    given = spark.read.format("braidmq").schema("client string, offset bigint, topic string NOT NULL").load(str(data))
    assert [each.nullable for each in given.schema.fields] == [True, True, False]
    assert given.where("offset < 3").count() == 3


def test_a_braids_folder_has_all_its_brokers(spark: SparkSession, braid: Path) -> None:
    found = {row.origin: row["count"] for row in read(spark, braid).groupBy("origin").count().collect()}
    assert found == {"site1": 100, "site2": 200, "site3": 300}
    part = read(spark, braid, startingOffsets='{"site2": 150, "site3": "latest"}')
    found = {row.origin: row["count"] for row in part.groupBy("origin").count().collect()}
    assert found == {"site1": 100, "site2": 50}


def test_what_cannot_be_read_is_told_in_words(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    """All that there are: test_options and test_logs."""
    with pytest.raises(PySparkException) as caught:
        read(spark, data, topcs="a")
    assert str(from_spark(caught.value)) == "there is no option `topcs`. Is `topics` meant?"
    assert f"{tmp_path} is no log, and there is none below it" in refusal(read(spark, tmp_path))


def test_a_corrupt_segment_is_named_and_costs_no_other_row(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path, 500, partitions=1)
    segment = next(tmp_path.rglob(f"*{DATA}"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    told = refusal(read(spark, tmp_path))
    assert str(segment) in told
    assert "are damaged" in told
    assert "failOnDataLoss" in told
    assert numbers(read(spark, tmp_path, failOnDataLoss="false")) == [*range(200), *range(300, 500)]
