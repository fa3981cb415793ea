"""Rows that become publications at a real broker, once each, however often Spark runs their batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from braidmq.log.log import Log
from braidmq.log.run import Run
from braidmq.pipeline.errors import from_spark
from tests.raw import payloads, subscriber

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker
    from tests.pipeline.conftest import StartDriver

ADMIN = "[admin]\nport = 0\n"
AT_US = 1_700_000_000_000_000
END_S = TIMEOUT_S = 300


def written(folder: Path, first: int, count: int) -> None:
    """Messages in a log, one commit."""
    log = Log(folder, broker="b", partitions=4)
    log.append([Run.of(f"in/{number % 5}", b"%d" % number, AT_US + number) for number in range(first, first + count)])
    log.close()


def copy(spark: SparkSession, broker: Broker, log: Path, state: Path) -> StreamingQuery:
    """A query that publishes what is in the log, and ends."""
    rows = spark.readStream.format("braidmq").option("startingOffsets", "earliest").load(str(log))
    out = rows.select(f.concat(f.lit("out/"), "topic").alias("topic"), "payload")
    sink = out.writeStream.format("braidmq").option("brokers", broker.address("http"))
    query = sink.option("checkpointLocation", str(state)).trigger(availableNow=True).start()
    query.awaitTermination(END_S)
    return query


def test_rows_are_published_with_all_that_they_say(spark: SparkSession, start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    reader = subscriber(broker, "reader", "#")
    rows = spark.sql(
        "SELECT * FROM VALUES ('a', 'text', 0, false, NULL), ('b', 'kept', 2, true, map('unit', 'C')), "
        "('c', NULL, NULL, NULL, NULL) AS t(topic, payload, qos, retain, properties)"
    )
    rows.write.format("braidmq").option("brokers", broker.address("http")).mode("append").save()
    got = {one.topic: one for one in reader.messages(3)}
    assert {topic: (one.payload, one.qos) for topic, one in got.items()} == {
        "a": (b"text", 0),
        "b": (b"kept", 2),
        "c": (b"", 1),
    }
    assert got["b"].properties["user"] == [("unit", "C")]
    (kept,) = subscriber(broker, "late", "#").messages(1)
    assert kept.payload == b"kept"
    pairs = spark.sql("SELECT encode('x', 'utf-8') AS payload, array(struct('k' AS name, 'v' AS value)) AS properties")
    pairs.write.format("braidmq").option("brokers", broker.address("http")).option("topic", "d").mode("append").save()
    (last,) = reader.messages(1)
    assert (last.topic, last.properties["user"]) == ("d", [("k", "v")])


def test_a_job_that_names_its_writer_publishes_once(spark: SparkSession, start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    reader = subscriber(broker, "reader", "#")
    rows = spark.range(0, 3000, 1, 3).select(f.lit("t").alias("topic"), f.col("id").cast("string").alias("payload"))
    sink = rows.write.format("braidmq").option("brokers", broker.address("http")).option("writer", "nightly")
    for _ in range(2):
        sink.mode("append").save()
    assert sorted(map(int, payloads(reader.messages(3000)))) == list(range(3000))
    assert reader.so_far() == []


def test_a_batch_that_spark_runs_again_is_not_published_again(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    """A query that died after its batch was published and before it was noted down: its last commit is missing."""
    broker = start_broker(ADMIN)
    reader = subscriber(broker, "reader", "out/#")
    log, state = tmp_path / "log", tmp_path / "state"
    written(log, 0, 500)
    copy(spark, broker, log, state)
    assert sorted(map(int, payloads(reader.messages(500)))) == list(range(500))
    (state / "commits" / "0").unlink()
    copy(spark, broker, log, state)
    written(log, 500, 10)
    query = copy(spark, broker, log, state)
    assert query.exception() is None
    assert sorted(map(int, payloads(reader.messages(10)))) == list(range(500, 510))
    assert reader.so_far() == []


def test_what_cannot_be_published_is_said(spark: SparkSession, start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    url = broker.address("http")

    def refusal(sql: str, **options: str) -> str:
        sink = spark.sql(sql).write.format("braidmq").mode("append").options(**{"retrySeconds": "0"} | options)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark has many kinds
            sink.save()
        return str(from_spark(caught.value))

    row = "SELECT 'a' AS topic, 'x' AS payload"
    assert "admin port of a broker" in refusal(row)
    assert "no column payload" in refusal("SELECT 'a' AS topic", brokers=url)
    assert "no column topic" in refusal("SELECT 'x' AS payload", brokers=url)
    assert "a publication has no 'color'" in refusal("SELECT 'a' AS topic, 'x' AS payload, 1 AS color", brokers=url)
    assert "of type int" in refusal("SELECT 'a' AS topic, 1 AS payload", brokers=url)
    assert "a wildcard in the topic name 'a/#'" in refusal("SELECT 'a/#' AS topic, 'x' AS payload", brokers=url)
    assert "has no topic" in refusal("SELECT CAST(NULL AS string) AS topic, 'x' AS payload", brokers=url)
    assert "does not answer" in refusal(row, brokers="http://127.0.0.1:9")
    assert "cannot be overwritten" in _overwritten(spark, url)


def _overwritten(spark: SparkSession, url: str) -> str:
    sink = spark.sql("SELECT 'a' AS topic, 'x' AS payload").write.format("braidmq").option("brokers", url)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark has many kinds
        sink.mode("overwrite").save()
    return str(from_spark(caught.value))


DRIVER = """
import sys
from braidmq.pipeline.session import session
url, log, state = sys.argv[1:]
spark = session("copy", "local[2]", quick=True)
rows = spark.readStream.format("braidmq").option("maxRowsPerTrigger", "40")
rows = rows.option("startingOffsets", "earliest").load(log)
query = rows.selectExpr("concat('out/', topic) AS topic", "payload").writeStream.format("braidmq")
query = query.option("brokers", url).option("checkpointLocation", state).trigger(availableNow=True).start()
print("started", flush=True)
query.awaitTermination()
print("ended", query.exception(), flush=True)
"""


def test_a_driver_that_is_killed_publishes_the_rest_and_nothing_twice(
    start_broker: StartBroker, start_driver: StartDriver, tmp_path: Path
) -> None:
    broker = start_broker(ADMIN)
    reader = subscriber(broker, "reader", "out/#")
    log, state = tmp_path / "log", tmp_path / "state"
    for first in range(0, 2000, 100):
        written(log, first, 100)
    arguments = (broker.address("http"), str(log), str(state))
    first_run = start_driver(DRIVER, *arguments)
    first_run.wait_for("started")
    got = [reader.next_message(timeout_s=TIMEOUT_S).payload]
    got += payloads(reader.messages(200))  # in the middle of its work
    first_run.kill9()
    again = start_driver(DRIVER, *arguments)
    again.wait_for("ended None")
    got += payloads(reader.messages(2000 - len(got)))
    assert sorted(map(int, got)) == list(range(2000))
    assert reader.so_far() == []
