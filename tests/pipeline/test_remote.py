"""The source over the admin ports of real brokers: published by MQTT, read by Spark, with brokers that go and come."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import paho.mqtt.publish as paho_publish
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from braidmq.log.remote import idle_connections
from braidmq.log.schema import schema_of
from braidmq.pipeline.source.format import BatchReader
from braidmq.pipeline.source.logs import Logs, SourceError
from braidmq.pipeline.source.options import ReadOptions
from tests.conftest import Broker, StartBroker
from tests.raw import wait_until

TOKEN = "between-us"
SCHEMA = schema_of(("topic", "payload", "origin", "offset"))


def started(start_broker: StartBroker, name: str, admin_port: int = 0) -> Broker:
    return start_broker(f"""
name = "{name}"
[log]
topics = ["plant/#"]
partitions = 4
[admin]
port = {admin_port}
token = "{TOKEN}"
""")


def publish(broker: Broker, texts: range) -> None:
    """Publishes, and waits until all of it can be read."""
    messages: list[Any] = [(f"plant/{number % 5}", str(number).encode(), 1, False) for number in texts]
    paho_publish.multiple(messages, broker.host, broker.port)
    url = broker.address("http")
    wait_until(lambda: texts[-1] in numbers(options(url)), "what was published is in the log")


def options(*urls: str, **more: str) -> ReadOptions:
    return ReadOptions.parse({"brokers": ",".join(urls), "token": TOKEN, "retrySeconds": "60", **more})


def batches(reading: ReadOptions) -> list[pa.RecordBatch]:
    reader = BatchReader(reading, SCHEMA)
    return [batch for task in reader.partitions() for batch in reader.read(task)]


def numbers(reading: ReadOptions) -> list[int]:
    return sorted(int(payload) for batch in batches(reading) for payload in batch["payload"].to_pylist())


def test_rows_of_a_broker_are_those_of_its_files(start_broker: StartBroker) -> None:
    broker = started(start_broker, "site1")
    publish(broker, range(100))
    url = broker.address("http")
    remote = batches(options(url, topics="plant/1,plant/3"))
    local = batches(ReadOptions.parse({"path": str(broker.data), "topics": "plant/1,plant/3"}))
    assert pa.Table.from_batches(remote).sort_by("offset") == pa.Table.from_batches(local).sort_by("offset")
    assert numbers(options(url, startingOffsets='{"site1": 90}')) == list(range(90, 100))


def test_the_wrong_token_is_told_at_once(start_broker: StartBroker) -> None:
    broker = started(start_broker, "site1")
    with pytest.raises(SourceError, match="asks for the right token"):
        Logs(options(broker.address("http"), token="a guess"))


def test_a_broker_that_comes_back_in_time_is_waited_for(start_broker: StartBroker) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    broker = started(start_broker, "site1", port)
    publish(broker, range(20))
    broker.kill9()
    back = threading.Timer(1.0, broker.start)
    back.start()
    try:
        assert numbers(options(f"http://127.0.0.1:{port}")) == list(range(20))
    finally:
        back.join()


def test_connections_are_kept_and_a_broker_that_started_again_is_read(start_broker: StartBroker) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    broker = started(start_broker, "site1", port)
    publish(broker, range(20))
    url = f"http://127.0.0.1:{port}"
    for _ in range(2):
        assert numbers(options(url)) == list(range(20))
        assert len(idle_connections(url)) == 1  # whatever was asked, one after the other, was asked over it
        broker.kill9()
        broker.start()


def test_a_stream_over_two_brokers(spark: SparkSession, start_broker: StartBroker) -> None:
    brokers = [started(start_broker, f"site{number}") for number in (1, 2)]
    urls = ",".join(broker.address("http") for broker in brokers)
    publish(brokers[0], range(10))
    reader = spark.readStream.format("braidmq").options(brokers=urls, token=TOKEN, topics="plant/+")
    query = (
        reader.option("startingOffsets", json.dumps({"site1": 5, "site2": "earliest"}))
        .load()
        .writeStream.format("memory")
        .queryName("both")
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        publish(brokers[1], range(100, 110))
        deadline = time.monotonic() + 300
        while spark.table("both").count() < 15 and time.monotonic() < deadline:
            query.processAllAvailable()
    finally:
        query.stop()
    found = sorted((row.origin, int(bytes(row.payload))) for row in spark.table("both").collect())
    assert found == [("site1", number) for number in range(5, 10)] + [("site2", number) for number in range(100, 110)]
