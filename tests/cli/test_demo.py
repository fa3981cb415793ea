"""`braidmq demo` as people and scripts run it: real brokers, real clients, and a clean end at any moment. Spark's half
is in tests/pipeline/test_demo.py."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.publish as paho_publish
import pytest

from braidmq.cli.demo.command import _why_no_spark
from braidmq.cli.demo.plan import DemoPlan
from braidmq.cli.demo.process import DemoProcess
from braidmq.processors import Message, Spool, spool_step
from braidmq.processors.examples.passengers import passengers
from braidmq.processors.processor import Output
from tests.cli.commands import COMMAND, braidmq, environment, in_process

TIMEOUT_S = 90.0
ROOT = Path(__file__).parents[2]
MARK = "DEMO_UNDER_TEST"
"""A variable of all processes of a demonstration, by which they are found."""


class Demo:
    """The command, and the events that it prints as JSON."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.errors = data.with_suffix(".err")
        environ = environment({MARK: str(data)})
        command = [*COMMAND, "demo", "--port", "0", "--admin-port", "0", "--data", str(data), "--json", *options]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environ, text=True)
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))

    def wait_for(self, name: str) -> dict[str, Any]:
        """The next event of a name; others are passed over."""
        ends_at = time.monotonic() + TIMEOUT_S
        while True:
            try:
                event = self._events.get(timeout=max(0.0, ends_at - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {name}: {self.errors.read_text()}") from None
            if event["event"] == name:
                return event

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def others(self) -> list[str]:
        """The processes that it started and that are still there."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.data}\0".encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found

    def wait_until_alone(self) -> None:
        ends_at = time.monotonic() + TIMEOUT_S
        while self.others():
            assert time.monotonic() < ends_at, self.others()
            time.sleep(0.05)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.wait_until_alone()
        self._reader.join(TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        demo.close()


def port(ready: dict[str, Any], number: int) -> int:
    [found] = [urlsplit(one).port for one in ready["sites"][number]["addresses"] if one.startswith("mqtt://")]
    return int(found or 0)


def test_the_edge_half(data: Path, demos: list[Demo]) -> None:
    """Buses at two sites, alerts at the third; clients of others beside it; brokers that stay until Ctrl-C."""
    demo = Demo(data, "--no-spark", "--seconds", "5")
    demos.append(demo)
    ready = demo.wait_for("ready")
    assert [site["name"] for site in ready["sites"]] == ["site1", "site2", "site3"]
    assert ready["pid"] == demo.process.pid
    alert = demo.wait_for("alert")
    assert alert["place"] == "edge"
    assert not alert["has_waited"]
    summary = demo.wait_for("summary")
    assert summary["is_well"], summary
    assert summary["spark"]["state"] == "off"
    assert "--no-spark" in summary["spark"]["words"]
    assert [(bus["topic"], bus["site"], bus["place"]) for bus in summary["buses"]] == [
        (f"bus/{number}/frames", "site1" if number <= 3 else "site2", "edge") for number in range(1, 7)
    ]
    for bus in summary["buses"]:
        assert bus["alerts"] == bus["alerts_expected"] >= 1
        assert bus["frames"] > passengers.spool
        assert bus["median_ms"] > 0
    for site, frames in zip(summary["sites"], (3, 3, 0), strict=True):
        told = sum(bus["frames"] for bus in summary["buses"] if bus["site"] == site["site"])
        assert (site["processed"], site["delegated"]) == (told, 0)
        assert (site["sent_bytes"] > 0) == (frames > 0)

    paho_publish.single("mine/own", "still there", 1, True, hostname="127.0.0.1", port=port(ready, 0))
    got = braidmq("sub", "-p", port(ready, 2), "mine/#", "-C", "1", "-W", "20", "--raw")
    assert got.stdout.strip() == "still there"
    listed = in_process("process", "list", "--data", data, "--json")
    assert listed.returncode == 0, listed.stderr
    [first, *_] = [json.loads(line)["processors"] for line in listed.stdout.splitlines()]
    assert (first[0]["name"], first[0]["topics"]) == ("passengers", {"edge": 3})
    logged = in_process("log", "list", "--folder", data / "site1" / "log", "--json")
    assert {one["topic"] for one in json.loads(logged.stdout)["topics"]} == {
        *(bus["topic"] for bus in summary["buses"] if bus["site"] == "site1"),
        "bus/alerts",
    }

    assert demo.end(signal.SIGINT) == 0
    assert demo.others() == []
    assert demo.errors.read_text() == ""
    assert not list(data.glob("*/admin.json"))


def test_it_can_be_killed_and_started_again(data: Path, demos: list[Demo]) -> None:
    """In the midst of it, without a word; all that it started ends, and the next run is as if nothing had happened."""
    demo = Demo(data, "--no-spark", "--seconds", "600")
    demos.append(demo)
    demo.wait_for("alert")
    demo.process.kill()
    demo.process.wait()
    demo.wait_until_alone()
    again = Demo(data, "--no-spark", "--seconds", "5", "--once")
    demos.append(again)
    summary = again.wait_for("summary")
    assert summary["is_well"], summary
    assert again.process.wait(TIMEOUT_S) == 0
    assert again.others() == []
    assert "Traceback" not in again.errors.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_ended_at_once(data: Path, demos: list[Demo], number: int) -> None:
    demo = Demo(data, "--no-spark")
    demos.append(demo)
    demo.wait_for("ready")
    assert demo.end(number) == 0
    assert demo.others() == []
    assert demo.errors.read_text() == ""


async def test_ctrl_c_may_come_as_the_buses_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their process is the brokers' for a moment, and ends with them before it has read anything."""

    class EndedProcess(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(["true"], **options)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", EndedProcess)
    process = DemoProcess("braidmq.cli.demo.demonstration", once=False)
    process.start(DemoPlan([], None, 1.0, "", None, "data", "braidmq", False, False))
    assert process.end() == 0


def test_one_site_is_enough(data: Path, demos: list[Demo]) -> None:
    demo = Demo(data, "--no-spark", "--seconds", "5", "--brokers", "1", "--once")
    demos.append(demo)
    summary = demo.wait_for("summary")
    assert summary["is_well"]
    assert (len(summary["buses"]), summary["control_room"]) == (3, "site1")
    assert demo.process.wait(TIMEOUT_S) == 0


def words_for_people(data: Path, *options: str) -> tuple[int, str]:
    """The exit code and what is printed; ended by Ctrl-C once it says that it can be, a second time."""
    command = [*COMMAND, "demo", "--port", "0", "--data", str(data), "--no-spark", "--seconds", "5", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if lines.count("Ctrl-C ends it.\n") == 2:
                process.send_signal(signal.SIGINT)
        return process.wait(TIMEOUT_S), "".join(lines)


def test_people_get_tables_and_what_to_try_next(data: Path) -> None:
    code, told = words_for_people(data)
    assert code == 0
    for words in (
        "BraidMQ is ready, a braid of 3 sites",
        "6 buses at site1 and site2, a control room at site3",
        "is crowded",
        "What the sites did",
        "Spark: took no part",
        "Every alert came that had to come, and none twice.",
        f"process list --data {data}",
    ):
        assert words in told


def test_what_ends_by_itself_does_not_wait_for_ctrl_c(data: Path) -> None:
    code, told = words_for_people(data, "--once")
    assert code == 0
    assert "Every alert came that had to come, and none twice." in told
    assert "It ends after the summary" in told
    assert "Ctrl-C ends it." not in told
    assert "while the brokers run" not in told


def test_what_makes_no_sense_is_said(tmp_path: Path) -> None:
    assert in_process("demo", "--no-spark", "--master", "local[2]").returncode == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [*COMMAND, "demo", "--brokers", "1", "--port", port, "--admin-port", "0", "--data", tmp_path / "d"],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=TIMEOUT_S,
        )
    assert done.returncode == 3
    assert "cannot listen" in done.stderr
    assert "Traceback" not in done.stderr
    helped = in_process("demo", "--help")
    assert helped.returncode == 0
    assert "Examples" in helped.stdout


def test_what_spark_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 'pip install "braidmq[spark]"' in _why_no_spark(False)
    monkeypatch.setattr("braidmq.pipeline.launch.java._candidates", lambda _environ: iter(()))
    assert "Spark needs Java 17 or later" in _why_no_spark(True)


@pytest.mark.parametrize(
    ("variables", "command"),
    [
        ([], "braidmq demo --brokers 3 --port 1883 --data data"),
        (["BROKERS=5", "PORT=2000", "DATA=d"], "braidmq demo --brokers 5 --port 2000 --data d"),
        (["DEMO="], "braidmq up --brokers 3 --port 1883 --data data"),
    ],
)
def test_make_run(variables: list[str], command: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--dry-run", "run", *variables], cwd=ROOT, capture_output=True, text=True, env=environ, check=True
    )
    assert done.stdout.splitlines()[-1].endswith(command)


@pytest.mark.parametrize("target", ["run", "test"])
def test_make_says_what_it_sets_up_and_how_long_that_takes(target: str, tmp_path: Path) -> None:
    """The real Makefile, with a Python that does nothing."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for program in (python, python.with_name("braidmq")):
        program.write_text('#!/bin/sh\necho "$@" >> calls\n')
        program.chmod(0o755)
    done = subprocess.run(
        ["make", target, f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True, env=environ, check=True
    )
    said = done.stdout.splitlines()
    assert "Setting up .venv, once" in said[0]
    assert "minute" in said[1]
    assert "packages" in said[2]
    assert ".venv/bin/braidmq is there" in said[3]
    calls = (tmp_path / "calls").read_text()
    assert "-m venv .venv\n" in calls
    assert "pip install --quiet --editable .[spark] --group dev\n" in calls
    again = subprocess.run(
        ["make", target, f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True, env=environ, check=True
    )
    assert "Setting up" not in again.stdout


def test_the_processor_tells_of_a_crowd_once() -> None:
    spool = Spool(passengers.spool)
    counts = [30] * 5 + [60] * 40 + [50] * 3 + [51] * 19 + [20]
    said = []
    for number, count in enumerate(counts):
        payload = json.dumps({"passengers": count}).encode()
        message = Message("bus/7/frames", payload, 1, False, 0.0, 0.0, "site1", None, (), number)
        outcome = spool_step(passengers, spool, message)
        if isinstance(outcome, Output):
            said.append((number, outcome.topic, json.loads(outcome.payload)))
    assert said == [
        (5 + 18, "bus/alerts", {"bus": "bus/7/frames", "passengers": 60}),
        (5 + 40 + 3 + 18, "bus/alerts", {"bus": "bus/7/frames", "passengers": 51}),
    ]
