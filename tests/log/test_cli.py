"""`braidmq log`, as people and scripts run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from braidmq.log.log import Log
from braidmq.log.run import Run
from tests.log.rows import START_US, numbers_in, row
from tests.raw import opened, wait_until

if TYPE_CHECKING:
    from tests.conftest import StartBroker


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "braidmq", "log", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_from_a_folder(tmp_path: Path) -> None:
    log = Log(tmp_path, "edge1", partitions=3)
    log.append([row(number) for number in range(20)])
    log.append([Run.of("bin", b"\xff\x00", START_US + 10**9, client="c", qos=2, retain=True, properties=[("a", "b")])])
    log.close()
    listed = json.loads(run("list", "--folder", tmp_path, "--json").stdout)
    assert (listed["broker"], listed["first_offset"], listed["next_offset"]) == ("edge1", 0, 21)
    assert {one["topic"]: one["rows"] for one in listed["topics"]} == {f"t/{n}": 4 for n in range(5)} | {"bin": 1}
    shown = run("list", "--folder", tmp_path).stdout
    assert "offsets 0 up to 21" in shown
    lines = run("read", "--folder", tmp_path, "--json", "--topic", "t/1", "--topic", "bin", "--from", 5).stdout
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [one["offset"] for one in rows] == [6, 11, 16, 20]
    assert rows[-1] == {
        "offset": 20,
        "origin": "edge1",
        "client": "c",
        "topic": "bin",
        "payload": "/wA=",
        "encoding": "base64",
        "qos": 2,
        "retain": True,
        "received_at": "2027-01-15T08:16:40+00:00",
        "published_at": "2027-01-15T08:16:40+00:00",
        "properties": [["a", "b"]],
    }
    text = run("read", "--folder", tmp_path, "-n", 2, "--from", "2027-01-15T08:00:07+00:00").stdout
    assert [line.split(maxsplit=1)[1] for line in text.splitlines()] == ["t/2 payload 7", "t/3 payload 8"]


def test_from_a_broker(start_broker: StartBroker) -> None:
    broker = start_broker('[log]\ntopics = ["#"]\n[admin]\nport = 0\n')
    with opened(broker, "writer") as writer:
        for number in range(3):
            writer.publish("a/b", b"payload %d" % number, 1)
    wait_until(lambda: len(numbers_in(broker.data / "log")) == 3, "three rows")
    text = run("read", "--admin", broker.address("http")).stdout
    assert [line.split(maxsplit=1)[1] for line in text.splitlines()] == [f"a/b payload {n}" for n in range(3)]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for arguments, code, words in (
        (("read", "--folder", tmp_path), 3, "is no log, and there is none below it"),
        (("read", "--admin", "http://127.0.0.1:1"), 3, "there is no admin port"),
        (("read", "--admin", "x", "--folder", "y"), 2, "--admin together with --data"),
    ):
        done = run(*arguments)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    Log(tmp_path / "log", "b").close()
    for option, value in (("--from", "noon"), ("--topic", "a#")):
        done = run("read", "--folder", tmp_path / "log", option, value)
        assert (done.returncode, value in done.stderr) == (2, True), done.stderr
