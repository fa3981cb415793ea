"""Shortages of components are told before they are there, to clients anywhere in the braid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from braidmq.braid.selection.shortages import REPEAT_S, SAMPLE_S
from braidmq.mqtt.reasons import Reason
from braidmq.security.access import AccessRules
from braidmq.security.settings import AccessConfig, Rule
from tests.conformance.pair import Peer

from .reserving import Device, Worker, subscribe
from .sites import Sites, payloads

TOPIC = "$shortage/detector"


def watcher(sites: Sites, number: int) -> Peer:
    peer = sites.client(number, f"watcher{number}")
    subscribe(peer, "$shortage/#")
    return peer


def told(peer: Peer) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload in payloads(peer)]


@pytest.mark.parametrize("method", ["covers", "relayfree"])
def test_a_shortage_is_told_before_it_is_there_and_when_it_is_over(method: str) -> None:
    sites = Sites(3, method=method)
    for number in (1, 2):
        Worker(sites, number, f"cam{number}").load(slots=10)
    peers = [watcher(sites, number) for number in range(3)]
    device = Device(sites, 0)
    sites.run(3 * SAMPLE_S)
    held: list[dict[str, Any]] = []
    forecasts: list[dict[str, Any]] = []
    due: list[float] = []
    for _ in range(20):
        held.append(device.reserve(lease=600, key=f"stream{len(held)}"))
        sites.run(SAMPLE_S)
        heard = told(peers[0])
        forecasts += heard
        due += [sites.sim.now + one["in"] for one in heard if one["in"]]
    first = forecasts[0]
    assert all(one["ok"] for one in held)
    assert [one["in"] for one in forecasts] == sorted([one["in"] for one in forecasts], reverse=True)
    assert (first["component"], first["slots"]) == ("detector", 20)
    assert 0 < first["free"] < 20
    assert len(forecasts) >= 3, "it is told again when it comes closer"
    assert abs(due[-1] - sites.sim.now) < 10 * SAMPLE_S, "that is when none was left"
    sites.run(2 * SAMPLE_S)
    forecasts += told(peers[0])
    assert told(peers[1]) == told(peers[2]) == forecasts
    assert (forecasts[-1]["in"], forecasts[-1]["free"]) == (0.0, 0)
    for one in held[:10]:
        device.request(f"$release/{one['id']}")
    sites.run(30 * SAMPLE_S)
    assert told(peers[0])[-1] == {"component": "detector", "in": None, "free": 10, "slots": 20}


def test_what_stays_as_it_is_is_not_told_and_instances_that_come_are_no_trend() -> None:
    sites = Sites(2)
    peer, device = watcher(sites, 0), Device(sites, 0)
    for number in range(5):
        Worker(sites, number % 2, f"cam{number}").load(slots=2)
        sites.run(SAMPLE_S)
    assert device.reserve(lease=3600)["ok"]
    assert all("in" in one for one in told(peer)), "one that was reserved may look like a trend for a while"
    sites.run(4 * REPEAT_S)
    told(peer)
    for number in range(4):
        sites[number % 2].client(f"cam{number}").disconnect()
        sites.run(SAMPLE_S)
    sites.run(3 * REPEAT_S)
    assert told(peer) == []


def test_another_delegate_goes_on() -> None:
    sites = Sites(3)
    for number in range(3):
        Worker(sites, number, f"cam{number}").load(slots=1)
    devices = [Device(sites, number, f"device{number}") for number in (1, 2)]
    sites.run(20.0)
    seats = [number for number, site in sites.all.items() if site.braid.selection.shortages._watched]
    assert len(seats) == 1
    left = [number for number in range(3) if number not in seats]
    sites[seats[0]].crash()
    sites.run(60.0)
    peer = watcher(sites, left[0])
    for number, device in zip((1, 2), devices, strict=True):
        if number in left:
            device.reserve(lease=600)
    others = Device(sites, left[0], "late")
    while others.reserve(lease=600)["ok"]:
        sites.run(1.0)
    sites.run(REPEAT_S)
    assert told(peer)[-1]["in"] == 0.0


def test_clients_cannot_publish_a_shortage_and_need_the_right_to_read_it() -> None:
    sites = Sites(1)
    assert sites.client(0, "c").publish(TOPIC, b"{}", 1) == Reason.NOT_AUTHORIZED
    rules = (Rule(topics=(TOPIC,), deny=("subscribe",)), Rule(topics=("#", "$shortage/#"), allow=("subscribe",)))
    sites.add(1, access=AccessRules(AccessConfig(rules=rules)))
    peer = sites.client(1, "d")
    assert peer.subscribe(TOPIC, 1) == Reason.NOT_AUTHORIZED
    assert peer.subscribe("$shortage/counter", 1) == 1
