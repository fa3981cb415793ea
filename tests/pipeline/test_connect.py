"""Spark Connect: a real server in a process of its own, and programs that have no Java."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from braidmq.pipeline.launch import java
from braidmq.pipeline.session import LOOPBACK, QUICK_JVM
from tests.pipeline.conftest import TIMEOUT_S, Process, StartDriver
from tests.pipeline.logs import written

SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
ROWS = 200
READING = """
    import sys
    from braidmq.pipeline.session import session

    spark = session("report")
    rows = spark.read.format("braidmq").option("path", sys.argv[1]).load()
    print("batch:", rows.count(), rows.where("qos = 0").count())
    stream = spark.readStream.format("braidmq").option("path", sys.argv[1]).option("startingOffsets", "earliest")
    writer = stream.load().writeStream.format("memory").queryName("seen").option("checkpointLocation", sys.argv[2])
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    print("stream:", spark.table("seen").count())
"""

pytestmark = pytest.mark.timeout(TIMEOUT_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": LOOPBACK,
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.ui.enabled": "false",
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--class", SERVER_CLASS]
    command += ["--master", "local[2]", *(word for one in settings.items() for word in ("--conf", "=".join(one)))]
    env = {"JAVA_HOME": str(java.find().home), "SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
    made = Process([*command, "spark-internal"], tmp_path_factory.mktemp("connect") / "server.log", env)
    yield f"sc://{made.wait_for(r'Spark Connect server started at: (127.0.0.1:[1-9][0-9]*)')[1]}"
    made.end()


def test_a_program_without_java_reads_logs(server: str, start_driver: StartDriver, tmp_path: Path) -> None:
    log = written(tmp_path / "log", ROWS)
    driver = start_driver(READING, str(log), str(tmp_path / "checkpoint"), env={"SPARK_REMOTE": server})
    driver.wait_for(rf"batch: {ROWS} {len(range(0, ROWS, 3))}\n")
    driver.wait_for(f"stream: {ROWS}\n")


def test_a_pipeline_runs_there(server: str, tmp_path: Path) -> None:
    log = written(tmp_path / "log", ROWS)
    out = tmp_path / "archive"
    command = [sys.executable, "-m", "braidmq", "pipeline", "run", "archive", "--once"]
    env = os.environ | {"SPARK_REMOTE": server}
    done = subprocess.run([*command, "--path", str(log), "--out", str(out)], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert len(list(out.glob("day=*/site=site1/*.parquet"))) > 0
