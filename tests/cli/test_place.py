"""`braidmq place` on real brokers: a plan is approved, carried out exactly, looked at, and taken back."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from braidmq.placement.plan import ClientMove, HomePlan, PlanFigures, ServerFigures, write_plan
from tests.cli.commands import in_process
from tests.cli.test_drain import at, braid_of
from tests.conformance.wire import V3, V5
from tests.raw import Client, opened, persistent, subscriber

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker


def figures(delay_ms: float, names: list[str]) -> PlanFigures:
    servers = tuple(ServerFigures(name, 1, 1.0, 10.0, 1.0, 10.0, 1.0) for name in names)
    return PlanFigures(delay_ms, delay_ms, 0.0, servers)


def plan_file(folder: Path, homes: dict[str, tuple[str, str]], names: list[str]) -> Path:
    """A plan in which clients go from one site to another."""
    plan = HomePlan(
        braid="of a test",
        method="by hand",
        homes={client: target for client, (_, target) in homes.items()},
        moves=tuple(ClientMove(client, *way) for client, way in homes.items() if way[0] != way[1]),
        planned=figures(1.0, names),
        now=figures(9.0, names),
    )
    path = folder / "plan.json"
    path.write_bytes(write_plan(plan))
    return path


def place(brokers: list[Broker], *words: Any) -> subprocess.CompletedProcess[str]:
    return in_process("place", *words, "--brokers", ",".join(one.address("http") for one in brokers))


@contextmanager
def following(brokers: list[Broker], client: Client, found: list[Client]) -> Iterator[None]:
    """A client that goes where it is told to, once."""

    def follow() -> None:
        ended = client.expect_end()
        assert ended is not None
        there = at(brokers, ended.properties["server_reference"])
        found.append(Client(there, client.client_id, V5, **persistent(V5)))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_plan_is_carried_out_and_taken_back(start_broker: StartBroker, tmp_path: Path) -> None:
    brokers = braid_of(start_broker, tmp_path, 2)
    follower = subscriber(brokers[0], "follower", "tide/#")
    old = subscriber(brokers[0], "old", "tide/#", version=V3)
    path = plan_file(tmp_path, {"follower": ("b0", "b1"), "old": ("b0", "b1")}, ["b0", "b1"])

    refused = place(brokers, "apply", path)
    assert refused.returncode == 1
    assert "was not approved" in refused.stderr
    assert in_process("place", "approve", path).returncode == 0

    there: list[Client] = []
    with following(brokers, follower, there):
        done = place(brokers, "apply", path, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["outcomes"] == {"sent": 1, "cannot be told": 1}
    assert (told["arrived"], told["elsewhere"], told["absent"]) == (1, 0, 0)
    with opened(brokers[0], "pub") as publisher:
        publisher.publish("tide/level", b"high", 2)
    (moved,) = there
    assert moved.present
    assert moved.next_message().payload == b"high"
    assert old.next_message().payload == b"high", "it is served where it is"

    status = [json.loads(line) for line in place(brokers, "status", "--json").stdout.splitlines()]
    assert [(one["broker"], one["homes"], one["sent"]) for one in status] == [("b0", 2, 1), ("b1", 2, 0)]
    back: list[Client] = []
    with following(brokers, moved, back):
        done = place(brokers, "apply", path, "--back")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 client that were sent home have arrived" in done.stdout
    assert back[0].present
    assert place(brokers, "cancel").returncode == 0
    assert {json.loads(line)["plan"] for line in place(brokers, "status", "--json").stdout.splitlines()} == {""}


def test_what_was_not_approved_or_fits_another_braid_moves_nobody(start_broker: StartBroker, tmp_path: Path) -> None:
    (broker,) = brokers = braid_of(start_broker, tmp_path, 1)
    stays = subscriber(broker, "stays", "tide/#")
    path = plan_file(tmp_path, {"stays": ("b0", "atlantis")}, ["b0", "atlantis"])
    in_process("place", "approve", path)
    done = place(brokers, "apply", path)
    assert done.returncode == 1
    assert "is for another braid: this one is without atlantis" in done.stderr

    path = plan_file(tmp_path, {f"gone{number}": ("b0", "b0x") for number in range(3)}, ["b0", "b0x"])
    text = path.read_text()
    path.write_text(text.replace('"gone1": "b0x"', '"gone1": "b0"'))
    done = place(brokers, "apply", path)
    assert done.returncode == 2
    path.write_text(text.replace("by hand", "by foot"))
    done = place(brokers, "apply", path)
    assert done.returncode == 2
    assert "the plan was changed" in done.stderr
    path.write_text(text)
    done = place(brokers, "apply", path)
    assert "another plan was approved" in done.stderr
    with opened(broker, "pub") as publisher:
        publisher.publish("tide/level", b"high", 1)
    assert stays.next_message().payload == b"high"


def test_a_braid_that_has_changed_too_much_is_left_alone(start_broker: StartBroker, tmp_path: Path) -> None:
    brokers = braid_of(start_broker, tmp_path, 2)
    path = plan_file(tmp_path, {f"gone{number}": ("b0", "b1") for number in range(3)}, ["b0", "b1"])
    in_process("place", "approve", path)
    done = place(brokers, "apply", path)
    assert done.returncode == 1
    assert "of 3 clients that are to move, 3 are gone (gone0, gone1, gone2)" in done.stderr
    done = place(brokers[:1], "apply", path)
    assert "the braid has sites that were not asked: b1" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("apply", "nowhere.json"), "nowhere.json cannot be read"),
        (("apply", "nowhere.json", "--rate", "0"), "Give clients a second"),
        (("plan", "--minutes", "-1", "-d", "x"), "--minutes above 0"),
        (("plan",), "which braid?"),
        (("auto", "--every", "10x", "-d", "x"), "Give a number and a unit"),
        (("auto", "--rate", "-1", "-d", "x"), "Give clients a second"),
        (("plan", "-d", "x", "--latencies", "bad.csv"), "row 2: expected client,site,ms"),
        (("plan", "-d", "x", "--latencies", "nan.csv"), "nan ms is no delay"),
        (("show", "bad.csv"), "the plan is not JSON"),
    ],
)
def test_what_makes_no_sense_is_said(
    words: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("client,site,ms\na,b\n")
    Path("nan.csv").write_text("a,b,nan\n")
    done = in_process("place", *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
