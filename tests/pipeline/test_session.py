"""The one place that makes a SparkSession: here, on a real cluster, and where something is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from braidmq.pipeline.errors import PipelineError
from braidmq.pipeline.session import defaults, on_this_machine, session
from tests.pipeline.conftest import START_TIMEOUT_S, Cluster, StartDriver

ON_CLUSTER = """
    import sys
    from braidmq.pipeline.session import session

    spark = session("shipped", sys.argv[1], quick=True, **{"spark.executor.memory": "512m"})

    def where(batches):
        import braidmq.pipeline.errors
        import pyarrow as pa
        for batch in batches:
            yield pa.record_batch({"file": [braidmq.pipeline.errors.__file__] * batch.num_rows})

    found = spark.range(0, 4, 1, 2).mapInArrow(where, "file string").distinct().collect()
    print("files:", *(row.file for row in found))
    spark.stop()
"""
WITHOUT_PYSPARK = """
import importlib.abc, sys

class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("pyspark", "pyarrow", "pandas", "numpy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

sys.meta_path.insert(0, Nothing())
"""


def test_a_session_is_made_once_and_is_quiet(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    assert session("again") is not None
    assert session("again", "local[2]").sparkContext is spark.sparkContext
    assert spark.range(10).count() == 10
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert "RocksDB" in (spark.conf.get("spark.sql.streaming.stateStore.providerClass") or "")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_second_master_in_one_process_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"has a Spark session on local\[2\] already"):
        session("other", "spark://127.0.0.1:1")


def test_a_real_cluster_gets_the_package_shipped(cluster: Cluster, start_driver: StartDriver) -> None:
    # A Python that finds nothing of BraidMQ before the zip: that of the session has it in its daemon already.
    driver = start_driver(ON_CLUSTER, cluster.url, env={"PYSPARK_PYTHON": sys.executable})
    assert driver.wait() == 0, driver.log
    files = driver.wait_for(r"files: (.*)")[1].split()
    assert files
    assert all("braidmq.zip/braidmq/pipeline/errors.py" in file for file in files)


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local", True),
        ("local[*]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077,localhost:7078", True),
        ("spark://spark.example.org:7077", False),
        ("spark://10.0.0.7:7077", False),
        ("yarn", False),
        ("k8s://https://10.0.0.7:6443", False),
    ],
)
def test_only_a_master_of_this_machine_is_kept_to_loopback(master: str, here: bool) -> None:
    assert on_this_machine(master) is here
    assert ("spark.driver.bindAddress" in defaults(master)) is here


@pytest.mark.parametrize("master", [None, "sc://127.0.0.1:1"])
def test_without_the_extra_everything_else_works_and_the_pipeline_says_what_to_install(
    master: str | None, tmp_path: Path
) -> None:
    program = f"""{WITHOUT_PYSPARK}
import braidmq, braidmq.cli.main, braidmq.pipeline.launch.java, braidmq.pipeline.session
try:
    braidmq.pipeline.session.session("x", {master!r})
except ImportError as error:
    print(error)
try:
    import braidmq.pipeline.source.format
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=START_TIMEOUT_S)
    expected = 'the pipeline needs pyspark, which is not installed. Install it with `pip install "braidmq[spark]"`'
    assert done.stdout.splitlines() == [expected, expected], done.stderr
