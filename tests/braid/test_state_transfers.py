"""A stream goes on at another instance: with what the old one knew, nothing lost, nothing twice, in order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from braidmq.braid.selection.state_transfers import STATE_BYTES_MAX, TRANSFER_S
from tests.conformance import wire
from tests.conformance.pair import Type
from tests.conformance.wire import V5

from .reserving import Device, Worker, subscribe
from .sites import Sites


class Knowing(Worker):
    """An instance that knows what it has had of its stream, and hands that over."""

    def __init__(self, sites: Sites, site: int, name: str, **options: Any) -> None:
        super().__init__(sites, site, name, version=V5, **options)
        subscribe(self.client, f"$state/{self.component}/+")
        self.frames: list[bytes] = []
        self.reason: int | None = None

    def tell_state(self, known_as: str, payload: bytes) -> int | None:
        packet_id = self.client.new_id()
        self.client.send(wire.publish(f"$state/{known_as}", payload, version=V5, qos=1, packet_id=packet_id))
        return self.client.pick(Type.PUBACK, packet_id).reason

    def work(self) -> None:
        """Handles what has come, in its order."""
        for topic, payload in self.seen():
            if topic.startswith("$state/"):
                self.frames = payload.split()
            elif topic.startswith("$reservation/"):
                event = json.loads(payload)
                if event["event"] == "handing-over":
                    self.reason = self.tell_state(event["id"], b" ".join(self.frames))
            else:
                self.frames.append(payload)


def going_on_from(old: dict[str, Any]) -> dict[str, Any]:
    return {"from": old["id"]}


def answered(sites: Sites, device: Device, workers: list[Knowing], timeout_s: float = 5.0) -> dict[str, Any]:
    """The next answer that a device gets, while the instances work."""
    sites.settle_s = 0.01
    ends_at = sites.sim.now + timeout_s
    while sites.sim.now < ends_at:
        sites.run(0.01)
        for worker in workers:
            worker.work()
        answers = device.answers()
        if answers:
            sites.settle_s = 1.0
            return answers[0]
    raise AssertionError("no answer")


@pytest.mark.parametrize("method", ["covers", "relayfree"])
def test_what_the_old_instance_knew_goes_to_the_new_one(method: str) -> None:
    sites = Sites(4, method=method)
    first = Knowing(sites, 1, "cam1")
    device = Device(sites, 0)
    old = device.reserve()
    assert old["instance"] == "cam1"
    second = Knowing(sites, 2, "cam2")
    for number in range(20):
        device.client.publish(old["topic"], b"%d" % number, qos=1)
    device.ask("$reserve/detector", **going_on_from(old))
    new = answered(sites, device, [first, second])
    assert (new["ok"], new["instance"], new["state"]) == (True, "cam2", True)
    assert first.reason == 0
    for number in range(20, 40):
        device.client.publish(new["topic"], b"%d" % number, qos=1)
    sites.run(1)
    second.work()
    first.work()
    assert second.frames == [b"%d" % number for number in range(40)]
    assert first.frames == [b"%d" % number for number in range(20)]
    assert Device(sites, 3, "other").reserve()["instance"] == "cam1"  # it is free again


def test_a_client_that_has_moved_goes_on_near_where_it_is() -> None:
    sites = Sites(4)
    options: dict[str, Any] = {"clean": False, "properties": wire.props(session_expiry=1000)}
    first = Knowing(sites, 1, "cam1")
    device = Device(sites, 1, **options)
    old = device.reserve()
    second = Knowing(sites, 2, "cam2")
    for number in range(10):
        device.client.publish(old["topic"], b"%d" % number, qos=1)
    device.client.drop()
    device = Device(sites, 2, **options)
    device.ask("$reserve/detector", **going_on_from(old))
    new = answered(sites, device, [first, second])
    assert (new["instance"], new["state"]) == ("cam2", True)
    device.client.publish(new["topic"], b"10", qos=1)
    sites.run(1)
    second.work()
    assert second.frames == [b"%d" % number for number in range(11)]


def test_an_instance_that_has_no_state_is_not_waited_for() -> None:
    sites = Sites(3)
    Worker(sites, 1, "cam1")
    device = Device(sites, 0)
    old = device.reserve()
    Worker(sites, 2, "cam2")
    device.ask("$reserve/detector", **going_on_from(old))
    new = answered(sites, device, [])
    assert (new["ok"], new["instance"], new["state"]) == (True, "cam2", False)
    assert sites[0].braid.selection.transfers.given_up == 0


def test_an_instance_that_says_nothing_is_waited_for_within_a_bound() -> None:
    sites = Sites(3)
    Knowing(sites, 1, "cam1")
    device = Device(sites, 0)
    old = device.reserve()
    second = Knowing(sites, 2, "cam2")
    device.ask("$reserve/detector", **going_on_from(old))
    new = answered(sites, device, [second], timeout_s=TRANSFER_S + 3)
    assert (new["ok"], new["instance"], new["state"]) == (True, "cam2", False)
    assert sites[0].braid.selection.transfers.given_up == 1


def test_a_stream_whose_old_broker_is_gone_goes_on() -> None:
    sites = Sites(4)
    Knowing(sites, 1, "cam1")
    device = Device(sites, 0)
    old = device.reserve()
    second = Knowing(sites, 2, "cam2")
    sites[1].crash()
    sites.run(10)
    device.ask("$reserve/detector", **going_on_from(old))
    new = answered(sites, device, [second], timeout_s=30)
    assert (new["ok"], new["instance"], new["state"]) == (True, "cam2", False)


def test_where_none_is_free_the_old_one_stays() -> None:
    sites = Sites(3)
    first = Knowing(sites, 1, "cam1")
    device = Device(sites, 0)
    old = device.reserve()
    device.ask("$reserve/detector", **going_on_from(old))
    assert answered(sites, device, [first])["reason"] == "none-free"
    assert device.request(f"$renew/{old['id']}")["ok"]
    device.client.publish(old["topic"], b"on", qos=1)
    sites.run(1)
    first.work()
    assert first.frames == [b"on"]


def test_what_cannot_be_handed_over_is_said() -> None:
    sites = Sites(3)
    first = Knowing(sites, 1, "cam1")
    device, thief = Device(sites, 0, version=V5), Device(sites, 2, "thief", version=V5)
    old = device.reserve()
    assert device.request("$reserve/detector", **going_on_from({"id": "nothing"}))["reason"] == "bad-request"
    assert first.tell_state(old["id"], b"unasked") == 0x83
    Knowing(sites, 2, "cam2")
    assert thief.reserve(**going_on_from(old))["state"] is False  # it has what was free, and not another's stream
    assert device.request(f"$renew/{old['id']}")["ok"]
    Knowing(sites, 0, "cam3")
    device.ask("$reserve/detector", **going_on_from(old))
    sites.run(0.5)
    assert first.tell_state(old["id"], b"x" * (STATE_BYTES_MAX + 1)) == 0x83
