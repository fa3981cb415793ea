"""`braidmq flow` with a real broker, and real processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.braids import Subscriber
from tests.cli.commands import COMMAND, braidmq, environment, in_process
from tests.cli.mqtt import send
from tests.conftest import Broker
from tests.patience import PATIENCE_S

FLOW = """
name = "words"

[[component]]
name = "source"
topic = "in/+/words"

[[component]]
name = "upper"
from = ["source"]
file = "words.py:upper"
instances = 2
slots = 4
needs = {cpu = 0.5}

[[component]]
name = "last"
from = ["upper"]
file = "words.py:last"
layer = "cloud"
"""
PROCESSORS = """
import os
import signal
from braidmq.processors import Notification, processor

@processor(topic="in/+/words", spool=1, time_limit_s=5.0)
def upper(spool, message):
    if message.payload == b"stop":
        raise ValueError("I was told to")
    return Notification(message.text().upper())

@processor(topic="flow/words/upper/+", spool=2)
def last(spool, message):
    return Notification(" ".join(one.text() for one in spool))
"""


class Running:
    """`braidmq flow run`, at sites that are all at one broker."""

    def __init__(self, folder: Path, broker: Broker, *clusters: str) -> None:
        sites = [word for cluster in clusters for word in ("--at", f"{cluster}=mqtt://127.0.0.1:{broker.port}")]
        self.errors = folder / f"{clusters[0].replace('/', '-')}.err"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, "flow", "run", str(folder / "words.toml"), *sites, "--cpu", "2"],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment(),
            )

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "words.toml").write_text(FLOW)
    (tmp_path / "words.py").write_text(PROCESSORS)
    return tmp_path


@pytest.fixture
def run(folder: Path, broker: Broker) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(*clusters: str) -> Running:
        running.append(Running(folder, broker, *clusters))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.end()


def state_of(folder: Path, broker: Broker) -> dict[str, Any]:
    done = in_process("flow", "show", folder / "words.toml", "-p", broker.port, "--json")
    state: dict[str, Any] = json.loads(done.stdout)
    return state


def wait_for(folder: Path, broker: Broker, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    ends_at = time.monotonic() + PATIENCE_S
    while not is_so(state := state_of(folder, broker)):
        assert time.monotonic() < ends_at, state
    return state


def sites_of(state: dict[str, Any]) -> dict[tuple[str, int], str]:
    return {(one["component"], one["number"]): one["site"] for one in state["instances"]}


def processes_of(flow: Running) -> list[int]:
    """Of the instances: children of the command."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(flow.process.pid)], capture_output=True, text=True)
    return [int(word) for word in listed.stdout.split()]


def test_messages_go_through_all_components(folder: Path, broker: Broker, run: Callable[..., Running]) -> None:
    flow = run("cloud", "cloud/edge")
    state = wait_for(folder, broker, lambda state: len(state["instances"]) == 3)
    assert sites_of(state)["last", 0] == "cloud"
    results = Subscriber(broker.port, "flow/words/last/+")
    for word in ("one", "two"):
        send(broker, "in/7/words", word)
        topic, payload = results.got.get(timeout=PATIENCE_S)
        assert topic == "flow/words/last/7"
    assert payload == b"ONE TWO"
    send(broker, "in/8/words", "stop")
    state = wait_for(folder, broker, lambda state: any(one["failed"] for one in state["instances"]))
    assert any("ValueError: I was told to" in one["problem"] for one in state["instances"])
    done = in_process("flow", "show", folder / "words.toml", "-p", broker.port)
    assert done.returncode == 0
    assert "source" in done.stdout
    results.close()
    assert flow.end() == 0
    done = in_process("flow", "show", folder / "words.toml", "-p", broker.port)
    assert done.returncode == 1
    assert "nothing runs of upper, last" in done.stderr


def test_what_a_killed_instance_had_is_done_by_another(
    folder: Path, broker: Broker, run: Callable[..., Running]
) -> None:
    flow = run("cloud")
    wait_for(folder, broker, lambda state: len(state["instances"]) == 3)
    results = Subscriber(broker.port, "flow/words/upper/+")
    wanted = [f"word {number}" for number in range(60)]
    send(broker, "in/1/words", *wanted[:20])
    for number in processes_of(flow):
        os.kill(number, signal.SIGKILL)
    send(broker, "in/1/words", *wanted[20:])
    left = {word.upper().encode() for word in wanted}
    while left:
        _, payload = results.got.get(timeout=PATIENCE_S)
        left.discard(payload)
    results.close()
    assert "again in" in flow.errors.read_text()


def test_a_site_that_goes_leaves_its_work_to_the_others(
    folder: Path, broker: Broker, run: Callable[..., Running]
) -> None:
    first = run("cloud")
    second = run("cloud2")
    wait_for(folder, broker, lambda state: set(sites_of(state).values()) == {"cloud", "cloud2"})
    second.process.kill()
    wait_for(folder, broker, lambda state: list(sites_of(state).values()) == ["cloud"] * 3)
    assert first.process.poll() is None


def test_a_site_is_run_once(folder: Path, broker: Broker, run: Callable[..., Running]) -> None:
    first = run("cloud")
    wait_for(folder, broker, lambda state: len(state["sites"]) == 1)
    run("cloud")
    assert first.process.wait(PATIENCE_S) == 1
    assert "another command runs words as the site cloud" in first.errors.read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "nowhere.toml", "--at", "cloud=mqtt://x"), 2, "nowhere.toml cannot be read"),
        (("run", "words.toml", "--at", "cloud"), 2, "--at cloud has no broker"),
        (("run", "words.toml", "--at", "a/b/c/d=mqtt://x"), 2, "has 4 levels"),
        (("run", "words.toml", "--at", "cloud=mqtt://x", "--at", "cloud=mqtt://y"), 2, "is given twice"),
        (("run", "words.toml", "--at", "cloud=mqtt://127.0.0.1:1"), 3, "nothing listens at"),
        (("plan", "words.toml", "--at", "a/b=mqtt://x"), 1, "no room for last in the layer cloud"),
    ],
)
def test_what_cannot_be_is_said(folder: Path, words: tuple[str, ...], code: int, said: str) -> None:
    done = in_process("flow", *(folder / word if word.endswith(".toml") else word for word in words))
    assert done.returncode == code, done.stderr
    assert said in done.stderr.replace("\n", " ")


def test_the_example_can_be_laid_out(tmp_path: Path) -> None:
    assert in_process("flow", "example", tmp_path).returncode == 0
    at = ("--at", "c=mqtt://x", "--at", "c/e1=mqtt://x", "--at", "c/e2=mqtt://x", "--cpu", "4")
    done = in_process("flow", "plan", tmp_path / "bus.toml", *at, "--json")
    layers = json.loads(done.stdout)["layers"]
    assert layers["danger"] == "edge"
    assert layers["database"] == "cloud"
    again = in_process("flow", "example", tmp_path)
    assert again.returncode == 1
    assert "is there already" in again.stderr


def test_the_demonstration_loses_nothing_while_buses_change_their_edges(tmp_path: Path) -> None:
    """Streams that go on at another edge take along what was known of them: no change of passengers is missed, and
    none is seen that was not."""
    done = braidmq("flow", "demo", "--port", "0", "--data", tmp_path / "data", "--seconds", "8", "--json", "--once")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["moves"] == 8
    assert summary["acknowledged"] == summary["frames"]
    assert summary["counts"] == summary["changes"] > 0
    assert summary["warnings"] == summary["brakings"] > 0
