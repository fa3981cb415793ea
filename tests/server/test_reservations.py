"""Reservations by real clients at real brokers, of which any may be killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from braidmq.admin.client import AdminClient
from tests.cli.commands import in_process
from tests.conformance import wire
from tests.conformance.wire import V3, V5
from tests.raw import Client, metrics, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

LEASE_S = 60
Answer = dict[str, Any]


@pytest.fixture
def brokers(start_broker: StartBroker, tmp_path: Path) -> list[Broker]:
    """Three brokers of one braid."""
    made: list[Broker] = []
    for number in range(3):
        join = f'join = ["{made[0].address("braid").removeprefix("braid://")}"]' if made else ""
        config = f'[admin]\nport = 0\n[braid]\nlisten = "127.0.0.1:0"\nname = "b{number}"\n{join}\n'
        made.append(start_broker(config, data=tmp_path / f"b{number}"))
    for broker in made:
        wait_until(lambda broker=broker: links_of(broker) == 2, "all know each other")  # type: ignore[misc]
    return made


def links_of(broker: Broker) -> int:
    with AdminClient(broker.address("http")) as admin:
        return len(admin.ring().brokers) - 1


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def worker(clients: ExitStack, broker: Broker, name: str, version: int = V5) -> Client:
    client = clients.enter_context(Client(broker, name, version))
    assert client.subscribe("$share/detector/frames", 1) == 1
    assert client.subscribe("$reservation/detector", 1) == 1
    return client


class Holder:
    """A client that reserves."""

    def __init__(self, clients: ExitStack, broker: Broker, name: str, version: int = V5) -> None:
        self.topic = f"answers/{name}" if version == V5 else f"$reserved/{name}/#"
        self.client = clients.enter_context(Client(broker, name, version))
        assert self.client.subscribe(self.topic, 1) == 1

    def ask(self, topic: str, **asked: Any) -> Answer:
        properties = wire.props(response_topic=self.topic) if self.client.version == V5 else b""
        assert self.client.publish(topic, json.dumps(asked).encode(), 1, properties=properties) == 0
        answer: Answer = json.loads(self.client.next_message().payload)
        return answer

    def reserve(self, **asked: Any) -> Answer:
        return self.ask("$reserve/detector", lease=LEASE_S, **asked)

    def reserved(self) -> Answer:
        """What it reserves as soon as the component can be: not yet when its subscription is acknowledged."""
        answers: list[Answer] = []

        def is_reserved() -> bool:
            answers.append(self.reserve())
            return bool(answers[-1]["ok"])

        wait_until(is_reserved, "it can be reserved")
        return answers[-1]


@pytest.mark.parametrize("version", [V3, V5])
def test_a_component_is_reserved_across_brokers(brokers: list[Broker], clients: ExitStack, version: int) -> None:
    instance = worker(clients, brokers[2], "cam", version)
    holder = Holder(clients, brokers[0], "bus", version)
    answer = holder.reserved()
    assert (answer["ok"], answer["instance"], answer["broker"]) == (True, "cam", "b2")
    event = json.loads(instance.next_message().payload)
    assert (event["event"], event["id"], event["fence"]) == ("reserved", answer["id"], answer["fence"])
    holder.client.publish(answer["topic"], b"frame 1", 1)
    frame = instance.next_message()
    assert (frame.topic, frame.payload) == (answer["topic"], b"frame 1")
    other = Holder(clients, brokers[1], "tram", version)
    refused = other.reserve()
    assert refused["reason"] == "none-free"
    assert 0 < refused["expected_in"] <= LEASE_S / 0.9
    assert holder.ask(f"$release/{answer['id']}")["ok"]
    assert other.reserve()["fence"] > answer["fence"]


def test_kill_9_of_the_component_s_broker_gives_nothing_twice(brokers: list[Broker], clients: ExitStack) -> None:
    worker(clients, brokers[2], "cam")
    holder, other = Holder(clients, brokers[0], "bus"), Holder(clients, brokers[1], "tram")
    answer = holder.reserved()
    brokers[2].kill9()
    brokers[2].restart()
    worker(clients, brokers[2], "cam")
    wait_until(lambda: metrics(brokers[2]).get("braid_components_instances") == 1, "it is an instance again")
    refused = other.reserve()
    assert refused["reason"] in ("none-free", "unknown-component", "no-answer"), refused
    wait_until(lambda: holder.ask(f"$renew/{answer['id']}").get("lease") == LEASE_S, "it is held")
    assert not other.reserve()["ok"]
    assert holder.ask(f"$release/{answer['id']}")["ok"]
    wait_until(lambda: bool(other.reserve()["ok"]), "it is free")


def test_kill_9_of_the_holder_s_broker_loses_nothing(brokers: list[Broker], clients: ExitStack) -> None:
    worker(clients, brokers[2], "cam")
    answer = Holder(clients, brokers[0], "bus").reserved()
    brokers[0].kill9()
    brokers[0].restart()
    holder = Holder(clients, brokers[1], "bus")
    assert holder.ask(f"$renew/{answer['id']}")["ok"]
    assert not Holder(clients, brokers[0], "tram").reserve()["ok"]
    assert holder.ask(f"$release/{answer['id']}")["ok"]


def test_what_people_see_and_do_on_the_command_line(brokers: list[Broker], clients: ExitStack) -> None:
    instance = worker(clients, brokers[2], "cam")
    instance.publish("$load/detector", b'{"cpu": 20, "slots": 2}', 1)
    wait_until(lambda: metrics(brokers[2]).get("braid_components_slots") == 2, "it is an instance")
    holder = Holder(clients, brokers[0], "bus")
    answer = holder.reserved()
    at = ("--admin", brokers[1].address("http"))
    shown = json.loads(in_process("components", *at, "--json").stdout)
    (one,) = shown["instances"]
    assert (one["instance"], one["broker"], one["slots"], one["taken"]) == ("cam", "b2", 2, 1)
    assert one["load"] == {"cpu": 20.0}
    assert [(each["id"], each["by"]) for each in shown["reservations"]] == [(answer["id"], "bus")]
    assert "cam" in in_process("components", *at).stdout
    explained = in_process("select", "detector", "--explain", "--where", "cpu <= 50", *at)
    assert explained.returncode == 0, explained.stderr
    assert "b2 is asked" in explained.stdout
    unfit = in_process("select", "detector", "--where", "cpu <= 10", "--json", *at)
    assert unfit.returncode == 1
    assert json.loads(unfit.stdout)["candidates"][0]["problem"] == "not cpu <= 10: 20"
    reserved = in_process("reserve", "detector", "--lease", "30", "--json", *at)
    assert reserved.returncode == 0, reserved.stderr
    own = json.loads(reserved.stdout)
    full = in_process("reserve", "detector", *at)
    assert full.returncode == 1
    assert "expected to be free in" in full.stderr
    assert in_process("reserve", own["id"], "--renew", *at).returncode == 0
    assert in_process("release", own["id"], *at).returncode == 0
    assert in_process("release", own["id"], *at).returncode == 1
    assert in_process("release", answer["id"], *at).returncode == 0
    assert json.loads(holder.client.next_message().payload)["reason"] == "withdrawn"
    assert in_process("reserve", "a/b", *at).returncode == 2
    assert in_process("reserve", "detector", "--lease", "31536000", *at).returncode == 1
