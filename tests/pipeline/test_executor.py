"""A processor on a real cluster: what a `kill -9` of its executor leaves is taken up again, each answer once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipeline.conftest import START_TIMEOUT_S
from tests.pipeline.test_stateful import LOGGED, alone, heard, processor_file, publish
from tests.raw import subscriber, wait_until

if TYPE_CHECKING:
    from tests.conftest import StartBroker
    from tests.pipeline.conftest import Cluster, StartDriver

EXECUTOR = "CoarseGrainedExecutorBackend"
MESSAGES = 900

DRIVER = """
import sys

from braidmq.pipeline.session import session
from braidmq.pipeline.portable import PortableProcessor
from braidmq.pipeline.stateful import start

master, url, file, checkpoint = sys.argv[1:]
spark = session("processor", master, quick=True, **{"spark.executor.memory": "512m"})
options = {"brokers": url, "startingOffsets": "earliest", "maxRowsPerTrigger": "50"}
start(spark, PortableProcessor.of(file), options, checkpoint).awaitTermination()
"""


def test_kill_9_of_an_executor(
    cluster: Cluster, start_broker: StartBroker, start_driver: StartDriver, tmp_path: Path
) -> None:
    """Twice, while answers are on their way. Spark starts another one, which has no spools in its memory. Answers come
    once; errors are not kept by the broker, and those of a batch that is run again are told again."""
    broker = start_broker(f"[admin]\nport = 0\n{LOGGED}")
    listener = subscriber(broker, "listener", "out")
    told = subscriber(broker, "operator", "$processor/+/errors")
    file = processor_file(tmp_path)
    publish(broker, 0, MESSAGES)
    wait_until(lambda: len(alone(file, broker.data / "log")) == MESSAGES, "all of it is in the log")
    start_driver(DRIVER, cluster.url, broker.address("http"), str(file), str(tmp_path / "checkpoint"))
    expected = alone(file, broker.data / "log")
    answers = [one for one in expected if isinstance(one[2], list)]
    got = []
    killed: set[int] = set()
    for count in (100, 200):
        got += heard(listener, count)
        [executor] = [pid for pid in cluster.workers[0].pids(EXECUTOR) if pid not in killed]
        os.kill(executor, signal.SIGKILL)
        killed.add(executor)
        wait_until(
            lambda: not killed.issuperset(cluster.workers[0].pids(EXECUTOR)), "another executor", START_TIMEOUT_S
        )
    got += heard(listener, len(answers) - len(got))
    assert [one for one, count in Counter((topic, offset) for topic, offset, _ in got).items() if count > 1] == []
    assert sorted(got) == answers
    assert listener.so_far() == []
    errors = [json.loads(message.payload) for message in told.so_far()]
    found = {(error["topic"], error["offset"], error["what"]) for error in errors}
    assert found == {tuple(one) for one in expected if one not in answers}
