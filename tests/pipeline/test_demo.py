"""Spark's half of `braidmq demo`: what the edges have no room for, its alerts, and its way back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import TIMEOUT_S, Process

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Demonstrations with the same data."""
    started: list[Process] = []

    def start(*options: str) -> Process:
        words = ["--port", "0", "--admin-port", "0", "--data", str(tmp_path / "data"), "--json", *options]
        log = tmp_path / f"log{len(started)}"
        started.append(Process([sys.executable, "-m", "braidmq", "demo", *words], log))
        return started[-1]

    yield start
    for process in started:
        process.end()


def summary_of(demo: Process) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(demo.wait_for(r'\{"event":"summary".*\}\n')[0])
    return found


def missing(bus: dict[str, Any]) -> int:
    return int(bus["alerts_expected"]) - int(bus["alerts"])


def test_spark_has_what_the_edges_have_no_room_for(start: Start) -> None:
    """Without a Spark that can be reached its topics wait in the log; the next one has them, and others, and all of
    them are back at the edge in the end."""
    alone = start("--seconds", "5", "--master", "nowhere", "--once")
    half = summary_of(alone)
    assert alone.wait() == 1
    assert half["spark"]["state"] == "failed"
    assert "Spark did not start" in half["spark"]["words"]
    assert {bus["topic"] for bus in half["buses"] if bus["place"] == "spark"} == {"bus/3/frames", "bus/6/frames"}
    assert half["still_on_spark"] == ["bus/3/frames", "bus/6/frames"]
    left = sum(missing(bus) for bus in half["buses"] if bus["place"] == "spark")
    assert left >= 2
    assert not any(missing(bus) for bus in half["buses"] if bus["place"] == "edge")

    both = start("--seconds", "8")
    both.wait_for(r'"event":"spark","state":"running"')
    whole = summary_of(both)
    assert whole["is_well"], both.log
    assert whole["spark"]["state"] == "ended"
    assert whole["alerts_of_earlier_trips"] == left
    places = {bus["topic"]: bus["place"] for bus in whole["buses"]}
    assert places == {f"bus/{number}/frames": "spark" if number in (4, 8) else "edge" for number in (1, 2, 4, 5, 7, 8)}
    frames = sum(bus["frames"] for trip in (half, whole) for bus in trip["buses"] if bus["place"] == "spark")
    assert f" processed {frames:,} frames." in whole["spark"]["words"]
    for bus in whole["buses"]:
        assert bus["alerts"] == bus["alerts_expected"] >= 1
    for site in whole["sites"][:2]:
        buses = [bus for bus in whole["buses"] if bus["site"] == site["site"]]
        frames = {place: sum(bus["frames"] for bus in buses if bus["place"] == place) for place in ("edge", "spark")}
        assert (site["processed"], site["delegated"]) == (frames["edge"], frames["spark"])
    assert sorted(whole["returned_to_the_edge"]) == [f"bus/{number}/frames" for number in (3, 4, 6, 8)]
    assert whole["still_on_spark"] == []
    assert "Traceback" not in both.log
    assert both.running
    both.end()
    assert both.wait() == 0
