"""Spark for the tests: one session for all of them, and a real cluster of two processes.

- `spark`: a session on local[2] in this process. It lives as long as the test run; use paths and names of your own.
- `cluster`: a standalone master and a worker, each a process of its own, on loopback. One process has one Spark context
  at most, so drivers for it (and those that are to be killed) are processes, too: `start_driver(script, *arguments)`.

All tests below this folder go to one worker of xdist (see tests/conftest.py), so that there is one Java.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pyspark
import pytest
from pyspark.sql import SparkSession

import braidmq
from braidmq.pipeline.launch import java
from braidmq.pipeline.session import LOOPBACK, QUICK_JVM, session

TIMEOUT_S = 600
"""A test of Spark may take this long: the first one waits for the session, on a machine that does other things."""
START_TIMEOUT_S = 240.0
"""Java alone may take a minute or two where eight others compute."""
END_TIMEOUT_S = 60.0
ROOT = str(Path(__file__).parents[2])
WORKER_PATH = os.pathsep.join([str(Path(braidmq.__file__).parents[1]), ROOT])
"""Spark's workers look for the functions of tests, too, and have the code that is tested."""
MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"spark", "cluster", "start_driver"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYTHONPATH"] = WORKER_PATH
    made = session("braidmq tests", "local[2]", quick=True)
    yield made
    made.stop()


class Process:
    """A process in a session of its own, with its output in a file."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": WORKER_PATH, **(env or {})},
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def pids(self, words: str) -> list[int]:
        """The processes of its session whose command line has these words."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if words in (folder / "cmdline").read_text() and os.getsid(int(folder.name)) == self._process.pid:
                    found.append(int(folder.name))
        return found

    def signal_group(self, number: int) -> None:
        """As Ctrl-C does, or `kill` with a group."""
        os.killpg(self._process.pid, number)

    def wait_for(self, pattern: str, timeout_s: float = START_TIMEOUT_S) -> re.Match[str]:
        """The first match in its output; an assertion fails if none comes."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, self.log)) is None:
            assert self.running or re.search(pattern, self.log), f"it ended without {pattern!r}:\n{self.log}"
            assert time.monotonic() < deadline, f"{pattern!r} did not come:\n{self.log}"
            time.sleep(0.05)
        return found

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Its exit code, once it has ended by itself."""
        return self._process.wait(timeout_s)

    def kill9(self) -> None:
        """Ends it, and the Java that it started, as a crash would."""
        for pid in self.pids(""):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        if self.running:
            self._process.terminate()
            try:
                self.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill9()


class StartDriver(Protocol):
    def __call__(self, script: str, *arguments: object, env: Mapping[str, str] | None = None) -> Process:
        """Runs a Python program with `sys.argv[1:]` of `arguments`; it is ended with the test."""
        ...


@pytest.fixture
def start_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartDriver]:
    started: list[Process] = []

    def start(script: str, *arguments: object, env: Mapping[str, str] | None = None) -> Process:
        folder = tmp_path_factory.mktemp("driver")
        program = folder / "driver.py"
        program.write_text(textwrap.dedent(script))
        driver = Process([sys.executable, str(program), *map(str, arguments)], folder / "log", env)
        started.append(driver)
        return driver

    yield start
    for driver in started:
        driver.kill9()


class Cluster:
    """A standalone cluster: a master, and one worker with two cores."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.workers: list[Process] = []
        self.master = self._start("master", MASTER_CLASS, "--host", LOOPBACK, "--port", "0", "--webui-port", "0")
        self.url = self.master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        self.add_worker()

    def add_worker(self) -> Process:
        number = len(self.workers)
        options = ("--host", LOOPBACK, "--webui-port", "0", "--cores", "2", "--memory", "1g")
        place = self._folder / f"work{number}"
        worker = self._start(f"worker{number}", WORKER_CLASS, *options, "--work-dir", str(place), self.url)
        self.workers.append(worker)
        worker.wait_for("Successfully registered with master")
        return worker

    def end(self) -> None:
        for process in (*self.workers, self.master):
            process.end()

    def _start(self, name: str, class_name: str, *arguments: str) -> Process:
        launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
        env = {
            "JAVA_HOME": str(java.find().home),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        }
        return Process([str(launcher), class_name, *arguments], self._folder / f"{name}.log", env)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.end()
