"""Tables on a terminal of 80 columns: three sites with long topics, a log and a processor; nothing is cut or torn."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import paho.mqtt.publish as paho_publish
import pytest
from rich.console import Console

from braidmq.admin.ring_contract import RingMember
from braidmq.cli.braid import ring
from braidmq.cli.doctor.checks import CheckResult, CheckState
from braidmq.cli.doctor.command import _show
from braidmq.cli.topic_cell import TopicCell
from tests.cli.braids import Subscriber
from tests.cli.commands import COMMAND, environment, in_process
from tests.conftest import READY_TIMEOUT_S, _first_line
from tests.raw import wait_until

COLUMNS = 80
LONG = "plant1/building-north/line3/packaging-machine/17/vibration/rms"
WANTED = "plant1/building-north/line3/#"
SITES = ["site1", "site2", "site3"]
SETTINGS = (
    'log.topics=["#"]',
    'processor=[{file="braidmq.processors.examples.passengers"}]',
)


class Sites:
    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        options = [word for setting in SETTINGS for word in ("--set", setting)]
        self.process = subprocess.Popen(
            [*COMMAND, "up", "--brokers", "3", "--port", "0", "--json", "--data", str(self.data), *options],
            stdout=subprocess.PIPE,
            stderr=(folder / "log").open("wb"),
            env=environment(),
        )
        assert self.process.stdout is not None
        ready: dict[str, Any] = json.loads(_first_line(self.process.stdout, READY_TIMEOUT_S))
        self.addresses = [site["addresses"] for site in ready["sites"]]

    def port(self, number: int) -> int:
        return int(self.addresses[number][0].rpartition(":")[2])

    def ask(self, *words: str) -> str:
        done = in_process(*words, "--data", self.data, env={"COLUMNS": str(COLUMNS)})
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    made = Sites(tmp_path_factory.mktemp("sites"))
    subscriber = Subscriber(made.port(2), WANTED)
    paho_publish.single(LONG, "1", 1, hostname="127.0.0.1", port=made.port(0))
    paho_publish.single("bus/7/frames", '{"passengers": 3}', 1, hostname="127.0.0.1", port=made.port(1))
    yield made
    subscriber.close()
    made.process.terminate()
    made.process.communicate()


def rows_of(text: str) -> list[dict[str, str]]:
    """The rows of all tables in an output, their cells put together again. Nothing may be wider than the terminal."""
    rows: list[dict[str, str]] = []
    names: list[str] = []
    for line in text.splitlines():
        assert len(line) <= COLUMNS or line[0] not in "┏┃┡│└", line
        if line.startswith("┃"):
            assert not names, f"a heading is torn: {line}"
            names = [cell.strip() for cell in line.strip("┃").split("┃")]
        elif line.startswith("│"):
            cells = [cell.strip() for cell in line.strip("│").split("│")]
            if cells[0] and not (rows and rows[-1].get(names[0], "").endswith("/")):
                rows.append(dict(zip(names, cells, strict=True)))
            else:
                for name, cell in zip(names, cells, strict=True):
                    rows[-1][name] += cell
        elif line.startswith("└"):
            names = []
    return rows


def test_ring(sites: Sites) -> None:
    rows = rows_of(sites.ask("ring"))
    assert sorted(row["broker"] for row in rows) == SITES
    assert {row["health"] for row in rows} == {"healthy"}
    assert all(row["address"].startswith("127.0.0.1:") for row in rows)


def test_names_that_brokers_have_made_up_are_not_torn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    names = ["broker-543e314b", "broker-f9b79a39"]
    one = RingMember(
        name="",
        address="127.0.0.1:41963",
        answers=True,
        cluster="",
        is_in=True,
        age_s=700.0,
        keys=12,
        routing_entries=60,
        links=9,
        is_healthy=True,
    )
    ring._show([msgspec.structs.replace(one, name=name) for name in names])
    rows = rows_of(capsys.readouterr().out)
    assert [(row["broker"], row["address"]) for row in rows] == [(name, "127.0.0.1:41963") for name in names]
    assert all("cluster" not in row for row in rows)


def test_topics(sites: Sites) -> None:
    shown = sites.ask("topics")
    rows = {row["topic"]: row for row in rows_of(shown) if "topic" in row}
    assert rows[LONG] | {"idle": ""} == {
        "broker": "site1",
        "topic": LONG,
        "sent": "1",
        "demand": "open",
        "wanted by": WANTED,
        "idle": "",
    }
    assert [row["filter"] for row in rows_of(shown) if "filter" in row] == [WANTED]
    assert "building-north/" in shown, "a level is torn"


def test_topics_of_one_broker_need_no_column_for_it(sites: Sites) -> None:
    [admin] = [address for address in sites.addresses[0] if address.startswith("http:")]
    done = in_process("topics", "--admin", admin, env={"COLUMNS": str(COLUMNS)})
    assert "Published at site1: 1 topic" in done.stdout
    [row] = [one for one in rows_of(done.stdout) if "topic" in one]
    assert list(row) == ["topic", "sent", "demand", "wanted by", "idle"]


def test_demand(sites: Sites) -> None:
    [row] = rows_of(sites.ask("demand", LONG))
    assert row == {"broker": "site3", "cluster": "site3", "by": WANTED}


def test_log_of_all_sites(sites: Sites) -> None:
    wait_until(lambda: LONG[-9:] in sites.ask("log", "list"), "the row in the log")
    shown = sites.ask("log", "list")
    assert [line.partition(":")[0] for line in shown.splitlines()[:3]] == SITES
    rows = {row["topic"]: row for row in rows_of(shown)}
    assert rows[LONG] == {"broker": "site1", "topic": LONG, "rows": "1", "payload bytes": "1"}
    assert rows["bus/7/frames"]["broker"] == "site2"
    told = [json.loads(line) for line in sites.ask("log", "list", "--json").splitlines()]
    assert [one["broker"] for one in told] == SITES
    lines = [json.loads(line) for line in sites.ask("log", "read", "--json").splitlines()]
    assert [(one["origin"], one["topic"]) for one in lines] == [("site1", LONG), ("site2", "bus/7/frames")]
    assert len(sites.ask("log", "read", "-n", "1").splitlines()) == 1


def test_processors_are_told_by_the_names_of_their_sites(sites: Sites) -> None:
    rows = rows_of(sites.ask("process", "list"))
    assert [row["broker"] for row in rows] == SITES
    assert {(row["processor"], row["topic"], row["state"]) for row in rows} == {
        ("passengers", "bus/+/frames", "running")
    }
    assert "(site2)" in sites.ask("process", "where", "bus/7/frames")
    told = [json.loads(line) for line in sites.ask("process", "list", "--json").splitlines()]
    assert [one["broker"] for one in told] == SITES
    assert all(one["admin"].startswith("http://") for one in told)


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("a/b", 10, ["a/b"]),
        ("plant1/line3/rms", 8, ["plant1/", "line3/", "rms"]),
        ("plant1/#, plant2/#", 9, ["plant1/#,", "plant2/#"]),
        ("temperature/1", 6, ["temper", "ature/", "1"]),
        ("工場/温度/一号機", 6, ["工場/", "温度/", "一号機"]),
        ("/a//b", 3, ["/a/", "/b"]),
    ],
)
def test_topics_are_broken_between_levels(text: str, width: int, lines: list[str]) -> None:
    assert [line.plain for line in TopicCell(text).wrap(Console(), width)] == lines


def test_pipelines() -> None:
    rows = rows_of(in_process("pipeline", "list", env={"COLUMNS": str(COLUMNS)}).stdout)
    assert {"windows", "archive"} <= {row["pipeline"] for row in rows}
    assert [row["options"] for row in rows if row["pipeline"] == "alarms"] == [
        "--interval --late --missing--forget"  # two lines
    ]


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    found = "20,000 open files: room for 19,872 connections of 100,000 (limits.connections_max)"
    fix = "For all of them: LimitNOFILE=100128 in the service, or /etc/security/limits.conf"
    _show(
        [
            CheckResult("files", CheckState.WARNING, found, fix),
            CheckResult("port tcp:1883", CheckState.OK, "127.0.0.1:1883 is free"),
        ]
    )
    shown = capsys.readouterr().out
    rows_of(shown)
    for word in [*found.split(), *fix.split(), "port tcp:1883"]:
        assert word in shown, f"{word} is torn"
