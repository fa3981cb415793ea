"""A component of a dataflow on Spark: from the log of a real broker, and back to a topic for each stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from braidmq.flows import read_flow
from braidmq.pipeline.flow_component import portable_of
from braidmq.pipeline.stateful import start
from tests.raw import opened, subscriber

if TYPE_CHECKING:
    from tests.conftest import StartBroker

FLOW = """
name = "words"

[[component]]
name = "source"
topic = "in/+/words"

[[component]]
name = "last"
from = ["source"]
file = "words.py:last"
runs = "spark"
"""
PROCESSORS = """
from braidmq.processors import Notification, processor

@processor(topic="elsewhere/+", spool=2, output="not/this")
def last(spool, message):
    return Notification(" ".join(one.text() for one in spool))
"""
TIMEOUT_S = 120.0


def test_a_component_on_spark_answers_each_stream_on_its_topic(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    (tmp_path / "words.py").write_text(PROCESSORS)
    flow = read_flow(FLOW)
    broker = start_broker('[admin]\nport = 0\n[log]\ntopics = ["in/#"]\n')
    portable = portable_of(flow, flow.component("last"), str(tmp_path / "words.py:last"), "flow-since")
    options = {"brokers": broker.address("http"), "startingOffsets": "earliest"}
    with subscriber(broker, "listener", "flow/words/last/+") as listener, opened(broker) as device:
        for stream, text in (("a", b"one"), ("b", b"two"), ("a", b"three")):
            device.publish(f"in/{stream}/words", text, 1)
        query = start(spark, portable, options, str(tmp_path / "checkpoint"))
        try:
            got = [listener.next_message(timeout_s=TIMEOUT_S) for _ in range(3)]
        finally:
            query.stop()
    assert all("flow-since" in dict(one.properties["user"]) for one in got)
    assert sorted((one.topic, one.payload) for one in got) == [
        ("flow/words/last/a", b"one"),
        ("flow/words/last/a", b"one three"),
        ("flow/words/last/b", b"two"),
    ]
