"""A processor on a real cluster: what a `kill -9` of its executor leaves is taken up again, each answer once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

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
from braidmq.pipeline.shipped import Shipped
from braidmq.pipeline.stateful import start

master, url, file, checkpoint = sys.argv[1:]
spark = session("processor", master, quick=True, **{"spark.executor.memory": "512m"})
options = {"brokers": url, "startingOffsets": "earliest", "maxRowsPerTrigger": "50"}
start(spark, Shipped.of(file), options, checkpoint).awaitTermination()
"""


def test_kill_9_of_an_executor(
    cluster: Cluster, start_broker: StartBroker, start_driver: StartDriver, tmp_path: Path
) -> None:
    """Twice, while answers are on their way. Spark starts another one, which has no spools in its memory."""
    broker = start_broker(f"[admin]\nport = 0\n{LOGGED}")
    listener = subscriber(broker, "listener", "out", "$processor/+/errors")
    file = processor_file(tmp_path)
    publish(broker, 0, MESSAGES)
    start_driver(DRIVER, cluster.url, broker.address("http"), str(file), str(tmp_path / "checkpoint"))
    got = []
    killed: set[int] = set()
    for count in (100, 200):
        got += heard(listener, count)
        [executor] = [pid for pid in cluster.workers[0].pids(EXECUTOR) if pid not in killed]
        os.kill(executor, signal.SIGKILL)
        killed.add(executor)
        wait_until(lambda: not killed.issuperset(cluster.workers[0].pids(EXECUTOR)), "another executor", 60)
    got += heard(listener, MESSAGES - len(got))
    assert sorted(got) == alone(file, broker.data / "log")
    assert listener.so_far() == []
