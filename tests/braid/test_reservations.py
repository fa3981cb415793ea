"""Reservations of components by clients: one of many, with a topic of its own, a lease and a fencing number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from braidmq.broker.journal_store import JournalStore
from braidmq.security.access import AccessRules
from braidmq.security.settings import AccessConfig, Rule
from tests.conformance import wire

from .reserving import VERSIONS, Device, Worker
from .sites import Sites

METHODS = pytest.mark.parametrize("method", ["covers", "relayfree", "suzaku"])


@METHODS
@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_reserves_a_component_at_another_broker(method: str, version: int) -> None:
    sites = Sites(4, method=method)
    worker = Worker(sites, 2, "cam", version=version)
    device = Device(sites, 0, version=version)
    answer = device.reserve()
    assert answer["ok"], answer
    assert (answer["component"], answer["instance"], answer["broker"]) == ("detector", "cam", "site2")
    assert answer["lease"] == 60
    assert worker.events() == [
        {"event": "reserved", "id": answer["id"], "by": "device", "fence": answer["fence"]},
    ]
    device.client.publish(answer["topic"], b"frame 1", qos=1)
    assert worker.seen() == [(answer["topic"], b"frame 1")]


@METHODS
def test_of_two_requests_for_one_slot_one_wins_and_the_other_is_told_when_to_expect_one(method: str) -> None:
    sites = Sites(4, method=method)
    Worker(sites, 1, "cam")
    devices = [Device(sites, site, f"device{site}") for site in (0, 2)]
    answers = [device.reserve(lease=30) for device in devices]
    assert [one["ok"] for one in answers] == [True, False]
    assert answers[1]["reason"] == "none-free"
    assert 0 < answers[1]["expected_in"] <= 30 / 0.9
    sites.run(40)
    assert devices[1].reserve()["ok"]


@METHODS
def test_each_of_several_devices_gets_another_instance(method: str) -> None:
    sites = Sites(5, method=method)
    for site in range(1, 5):
        Worker(sites, site, f"cam{site}")
    devices = [Device(sites, site, f"device{site}") for site in (0, 1, 2, 3, 4)]
    answers = [device.reserve() for device in devices]
    assert sorted(one["instance"] for one in answers if one["ok"]) == ["cam1", "cam2", "cam3", "cam4"]
    assert [one["reason"] for one in answers if not one["ok"]] == ["none-free"]


def test_what_is_released_can_be_reserved_again_with_a_higher_fencing_number() -> None:
    sites = Sites(3)
    worker = Worker(sites, 1, "cam")
    first, second = Device(sites, 0, "one"), Device(sites, 2, "two")
    answer = first.reserve()
    assert not second.reserve()["ok"]
    assert first.request(f"$release/{answer['id']}") == {"ok": True, "id": answer["id"]}
    again = second.reserve()
    assert again["ok"]
    assert again["fence"] > answer["fence"]
    assert [one["event"] for one in worker.events()] == ["reserved", "released", "reserved"]
    assert first.request(f"$release/{answer['id']}")["reason"] == "not-held"


def test_nobody_renews_or_releases_what_another_client_has_reserved() -> None:
    sites = Sites(3)
    Worker(sites, 1, "cam")
    owner, thief = Device(sites, 0, "owner"), Device(sites, 2, "thief")
    answer = owner.reserve()
    for verb in ("renew", "release"):
        told = thief.request(f"${verb}/{answer['id']}")
        assert (told["ok"], told["reason"]) == (False, "not-held")
    assert owner.request(f"$renew/{answer['id']}")["ok"]


@pytest.mark.parametrize("lease", [10, 60])
def test_a_lease_runs_out_unless_it_is_renewed(lease: int) -> None:
    sites = Sites(3)
    worker = Worker(sites, 1, "cam")
    device, other = Device(sites, 0, "device"), Device(sites, 2, "other")
    answer = device.reserve(lease=lease)
    for _ in range(3):
        sites.run(0.4 * lease)
        assert device.request(f"$renew/{answer['id']}")["lease"] == pytest.approx(lease)
        assert not other.reserve()["ok"]
    sites.run(1.2 * lease)
    assert [(one["id"], one["reason"]) for one in device.answers()] == [(answer["id"], "expired")]
    assert [one["event"] for one in worker.events()] == ["reserved", "expired"]
    assert other.reserve()["ok"]


def test_the_end_of_the_holder_s_session_frees_it() -> None:
    sites = Sites(3)
    Worker(sites, 1, "cam")
    device, other = Device(sites, 0, "device"), Device(sites, 2, "other")
    assert device.reserve()["ok"]
    device.client.drop()
    sites.run(1)
    assert other.reserve()["ok"]


def test_a_holder_that_is_only_away_keeps_what_it_has() -> None:
    sites = Sites(3)
    Worker(sites, 1, "cam")
    device = Device(sites, 0, "device", clean=False, properties=wire.props(session_expiry=1000))
    other = Device(sites, 2, "other")
    assert device.reserve()["ok"]
    device.client.drop()
    sites.run(5)
    assert not other.reserve()["ok"]


def test_the_end_of_the_component_s_session_is_told_to_the_holder() -> None:
    sites = Sites(3)
    worker = Worker(sites, 1, "cam")
    device = Device(sites, 0, "device")
    answer = device.reserve()
    worker.client.drop()
    sites.run(1)
    assert [(one["id"], one["reason"]) for one in device.answers()] == [(answer["id"], "gone")]
    assert device.reserve()["reason"] in ("none-free", "unknown-component")
    Worker(sites, 2, "cam")
    again = device.reserve()
    assert again["broker"] == "site2"
    assert again["fence"] > answer["fence"]


def test_the_same_key_is_the_same_reservation() -> None:
    sites = Sites(3)
    Worker(sites, 1, "cam1")
    Worker(sites, 2, "cam2")
    device = Device(sites, 0, "device")
    first, same, other = (device.reserve(key=key) for key in ("bus 7", "bus 7", "bus 8"))
    assert first == same
    assert other["instance"] != first["instance"]


def test_the_nearest_comes_first_and_a_cluster_can_be_named() -> None:
    sites = Sites(4, clusters=["c1/e1", "c2/e1", "c1/e2", "c1/e1"])
    for site in (1, 2, 3):
        Worker(sites, site, f"cam{site}")
    device = Device(sites, 0, "device")
    assert device.reserve(cluster="c2")["instance"] == "cam1"
    assert device.reserve(cluster="c2")["reason"] == "none-free"
    assert device.reserve(cluster="c3")["reason"] == "unknown-component"
    assert [device.reserve()["instance"] for _ in range(2)] == ["cam3", "cam2"]
    assert not device.reserve()["ok"]


def test_conditions_and_a_score_choose_among_what_components_report() -> None:
    sites = Sites(4)
    for site, cpu in ((1, 80.0), (2, 20.0), (3, 50.0)):
        worker = Worker(sites, site, f"cam{site}")
        assert worker.load(cpu=cpu, slots=2) == 0
    device = Device(sites, 0, "device")
    assert device.reserve(conditions=["cpu <= 30"])["instance"] == "cam2"
    assert device.reserve(score="least cpu")["instance"] == "cam2"
    assert device.reserve(score="least cpu")["instance"] == "cam3"
    assert device.reserve(score={"cpu": -1.0})["instance"] == "cam1"
    assert device.reserve(conditions=["memory >= 1"])["reason"] == "none-free"
    assert device.reserve(conditions=["cpu <= 30"])["reason"] == "none-free"


PROBLEMS = [
    b"{",
    b"[]",
    b'{"lease": 31536000}',
    b'{"lease": 0}',
    b'{"lease": "a minute"}',
    b'{"conditions": ["cpu below 50"]}',
    b'{"conditions": ["cpu <= nan"]}',
    b'{"conditions": "cpu <= 50"}',
    b'{"score": "best"}',
    b'{"cluster": "a/+"}',
    b'{"colour": "red"}',
    b" " * 5000,
]


@pytest.mark.parametrize("payload", PROBLEMS)
def test_a_request_that_makes_no_sense_is_answered_with_a_reason(payload: bytes) -> None:
    sites = Sites(1)
    Worker(sites, 0, "cam")
    device = Device(sites, 0)
    assert device.ask("$reserve/detector", payload) == 0x99
    (answer,) = device.answers()
    assert answer["reason"] == "bad-request"
    assert answer["text"]
    assert sites[0].braid.selection.requests_refused == 1


def test_an_unknown_component_is_named() -> None:
    sites = Sites(2)
    device = Device(sites, 0)
    answer = device.reserve("spectrometer")
    assert answer["reason"] == "unknown-component"
    assert "spectrometer" in answer["text"]


def test_a_request_whose_answer_nobody_would_hear_reserves_nothing() -> None:
    sites = Sites(2)
    worker = Worker(sites, 1, "cam")
    deaf = sites.client(0, "deaf")
    assert deaf.publish("$reserve/detector", qos=1) == 0x83
    assert worker.events() == []


LOADS = [b'{"cpu": NaN}', b'{"cpu": "much"}', b"{" + b" " * 1_000_000 + b"}", b'{"slots": -1}', b'{"slots": 1.5}', b"7"]


@pytest.mark.parametrize("payload", LOADS)
def test_a_load_that_makes_no_sense_is_refused_and_counted(payload: bytes) -> None:
    sites = Sites(1)
    worker = Worker(sites, 0, "cam")
    assert worker.client.publish("$load/detector", payload, qos=1) == 0x99
    assert sites[0].braid.selection.loads_refused == 1
    assert worker.load(cpu=5.0) == 0


def test_load_is_reported_by_instances_only_and_not_too_often() -> None:
    sites = Sites(1)
    worker = Worker(sites, 0, "cam")
    assert sites.client(0, "stranger").publish("$load/detector", b'{"cpu": 1}', qos=1) == 0x83
    body = b'{"cpu": 1}'
    ids = [worker.client.new_id() for _ in range(2)]
    worker.client.send(*(wire.publish("$load/detector", body, qos=1, packet_id=one) for one in ids))
    reasons = [one.reason for one in worker.client.take() if one.packet_id in ids]
    assert reasons == [0, 0x97]


def test_nobody_reads_what_others_are_told_and_nobody_subscribes_to_requests() -> None:
    sites = Sites(1)
    client = sites.client(0, "curious")
    assert client.subscribe("$reserved/device/#") == 0x87
    assert client.subscribe("$reserved/+/#") == 0x87
    assert client.subscribe("$reserve/#") == 0x8F
    assert client.publish("$reserved/device/x", b"{}", qos=1) == 0x87


def crashed(sites: Sites, number: int, folder: Path) -> None:
    """The broker's process dies, and another one begins with its store."""
    site = sites[number]
    store = site.options["store"]
    site.crash()
    store.close()
    sites.run(1)
    sites.add(number, store=JournalStore(folder))
    sites.run(10)


@pytest.mark.parametrize("lease", [40, 120])
def test_a_broker_that_was_killed_gives_nothing_twice(tmp_path: Path, lease: int) -> None:
    sites = Sites(2)
    sites.add(2, store=JournalStore(tmp_path))
    sites.run(10)
    Worker(sites, 2, "cam")
    device, other = Device(sites, 0, "device"), Device(sites, 1, "other")
    answer = device.reserve(lease=lease)
    assert answer["ok"]
    crashed(sites, 2, tmp_path)
    worker = Worker(sites, 2, "cam")
    assert other.reserve()["reason"] == "none-free"
    renewed = device.request(f"$renew/{answer['id']}")
    assert renewed == {"ok": True, "id": answer["id"], "lease": lease}
    assert device.request(f"$release/{answer['id']}")["ok"]
    again = other.reserve()
    assert again["instance"] == "cam"
    assert again["fence"] > answer["fence"]
    assert [one["event"] for one in worker.events()] == ["released", "reserved"]


def test_what_nobody_renews_after_a_crash_is_free_when_the_lease_is_over(tmp_path: Path) -> None:
    sites = Sites(1)
    sites.add(1, store=JournalStore(tmp_path))
    sites.run(10)
    Worker(sites, 1, "cam")
    device = Device(sites, 0, "device")
    assert device.reserve(lease=30)["ok"]
    crashed(sites, 1, tmp_path)
    Worker(sites, 1, "cam")
    assert not device.reserve()["ok"]
    sites.run(30)
    assert [one["reason"] for one in device.answers()] == ["expired"]
    assert device.reserve()["ok"]
    assert len(sites[1].braid.selection.holds) == 1


def test_a_holder_goes_on_by_the_id_when_its_broker_was_killed(tmp_path: Path) -> None:
    sites = Sites(3)
    Worker(sites, 1, "cam")
    answer = Device(sites, 0, "device").reserve()
    sites[0].crash()
    device = Device(sites, 2, "device")
    assert device.request(f"$renew/{answer['id']}")["ok"]
    device.client.drop()
    sites.run(1)
    assert Device(sites, 1, "other").reserve()["ok"]


def test_the_delegate_may_be_killed(tmp_path: Path) -> None:
    sites = Sites(4)
    for site in (0, 1, 2):
        Worker(sites, site, f"cam{site}")
    device = Device(sites, 3, "device")
    kept = [device.reserve() for _ in range(3)]
    (first,) = [one for one in kept if one["broker"] == "site0"]
    sites[0].crash()
    sites.run(60)
    assert device.reserve()["reason"] == "none-free"
    second = next(one for one in kept if one is not first)
    assert device.request(f"$release/{second['id']}")["ok"]
    assert device.reserve()["instance"] == second["instance"]


def test_a_session_that_moves_takes_its_reservations_along() -> None:
    sites = Sites(3)
    Worker(sites, 1, "cam")
    options: dict[str, Any] = {"clean": False, "properties": wire.props(session_expiry=1000)}
    answer = Device(sites, 0, "device", **options).reserve()
    device, other = Device(sites, 2, "device", **options), Device(sites, 0, "other")
    assert not other.reserve()["ok"]
    assert device.request(f"$renew/{answer['id']}")["ok"]
    assert device.request(f"$release/{answer['id']}")["ok"]
    assert other.reserve()["ok"]


def test_a_component_that_is_away_cannot_be_reserved_and_keeps_who_has_it() -> None:
    sites = Sites(3)
    options: dict[str, Any] = {"clean": False, "properties": wire.props(session_expiry=1000)}
    worker = Worker(sites, 1, "cam", **options)
    worker.load(slots=2)
    device = Device(sites, 0, "device")
    answer = device.reserve()
    worker.client.drop()
    assert device.reserve()["reason"] == "none-free"
    device.client.publish(answer["topic"], b"frame", qos=1)
    worker = Worker(sites, 1, "cam", **options)
    assert (answer["topic"], b"frame") in worker.seen()
    assert device.reserve()["ok"]


def test_a_key_that_was_used_before_is_not_answered_from_memory() -> None:
    sites = Sites(3)
    Worker(sites, 1, "cam")
    device, other = Device(sites, 0, "device"), Device(sites, 2, "other")
    first = device.reserve(key="camera", lease=10)
    assert device.request(f"$release/{first['id']}")["ok"]
    assert other.reserve()["ok"]
    assert device.reserve(key="camera", lease=10)["reason"] == "none-free"


def test_requests_with_the_same_key_at_the_same_time_are_one() -> None:
    sites = Sites(3)
    Worker(sites, 1, "cam1")
    Worker(sites, 2, "cam2")
    device = Device(sites, 0, "device")
    properties = wire.props(response_topic="answers/device")
    ids = [device.client.new_id() for _ in range(3)]
    body = b'{"key": "camera"}'
    device.client.send(
        *(wire.publish("$reserve/detector", body, qos=1, packet_id=one, properties=properties) for one in ids)
    )
    answers = device.answers()
    assert len(answers) == 3
    assert len({one["id"] for one in answers}) == 1


def test_what_ended_unheard_does_not_count_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.braid.selection.reservations.HELD_MAX", 1)
    sites = Sites(3)
    Worker(sites, 2, "cam2")
    device = Device(sites, 0, "device")
    first = device.reserve(lease=15, key="camera")
    assert device.reserve()["reason"] == "too-many"
    sites[2].crash()
    sites.run(30)
    Worker(sites, 1, "cam1")
    device.ask("$reserve/detector", lease=15, key="camera")
    sites.run(10)
    (again,) = device.answers()
    assert again["instance"] == "cam1"
    assert again["id"] != first["id"]


def test_access_rules_hold_for_requests_and_loads() -> None:
    rules = (
        Rule(topics=("$reserve/detector", "$load/detector"), deny=("publish",)),
        Rule(topics=("#", "$reserve/#", "$reservation/#"), allow=("publish", "subscribe")),
    )
    sites = Sites(1)
    sites.add(1, access=AccessRules(AccessConfig(rules=rules)))
    sites.run(10)
    worker = Worker(sites, 1, "cam")
    assert worker.load(cpu=1.0) == 0x87
    other = Worker(sites, 1, "lidar", component="ranger")
    device = Device(sites, 1, "device")
    assert device.ask("$reserve/detector") == 0x87
    assert device.reserve("ranger")["instance"] == "lidar"
    assert [one["event"] for one in other.events()] == ["reserved"]
    assert worker.events() == []


def test_attributes_do_not_grow_without_bound() -> None:
    sites = Sites(1)
    worker = Worker(sites, 0, "cam")
    reasons = [worker.load(1, **{f"{letter}{number}": 1.0 for number in range(6)}) for letter in "abc"]
    assert reasons == [0, 0, 0x99]
    assert worker.load(a1=2.0) == 0


@pytest.mark.parametrize("away_s", [5.0, 29.9, 30.0, 30.1, 31.0, 120.0])
def test_a_component_can_be_reserved_again_whenever_it_comes_back(away_s: float) -> None:
    """Also just when its broker leaves the group that it had no instance of any more."""
    sites = Sites(3)
    device = Device(sites, 0, "device")
    worker = Worker(sites, 1, "cam")
    sites.settle_s = 0.0
    for _ in range(3):
        worker.client.drop()
        sites.run(away_s)
        worker.client = sites[1].client("cam")
        worker.client.send(wire.subscribe(1, ("$share/detector/frames", 1)))
        sites.run(5)
        sites.settle_s = 1.0
        answer = device.reserve(lease=5)
        assert answer["ok"], answer
        assert device.request(f"$release/{answer['id']}")["ok"]
        sites.settle_s = 0.0


def test_a_broker_that_has_no_instances_any_more_leaves_the_group() -> None:
    sites = Sites(2)
    worker = Worker(sites, 1, "cam")
    keys = len(sites[1].braid.overlay.view.own)
    worker.client.drop()
    sites.run(60)
    assert len(sites[1].braid.overlay.view.own) < keys
    assert not sites[1].braid.selection.instances.members
    assert Device(sites, 0).reserve()["reason"] == "unknown-component"


def test_an_instance_may_say_how_it_is_in_one_breath_with_its_subscription() -> None:
    sites = Sites(2)
    worker = sites.client(1, "cam")
    worker.send(
        wire.subscribe(1, ("$share/detector/frames", 1))
        + wire.publish("$load/detector", b'{"slots": 3}', qos=1, packet_id=2)
    )
    assert worker.pick(wire.Type.PUBACK, 2).reason == 0
    device = Device(sites, 0)
    assert [device.reserve()["ok"] for _ in range(4)] == [True, True, True, False]
