"""Retained messages across brokers: kept where they are published, found from everywhere, the newest alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from braidmq.braid.retained import queries, replication
from braidmq.braid.retained.replication import RetainedReplication
from braidmq.broker.journal_store import JournalStore
from braidmq.sim.network import Network, Uniform
from tests.conformance import wire
from tests.conformance.pair import Peer, Rules, Type, persistent
from tests.conformance.wire import V3, V5

from .sites import Site, Sites, payloads

METHODS = pytest.mark.parametrize("method", ["covers", "relayfree", "suzaku"])

SEND_IF_NEW, DO_NOT_SEND = 0x10, 0x20
AS_PUBLISHED = 0x08


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client does may meet a join or a crash that others are busy with: the braid gets time for it."""
    monkeypatch.setattr("tests.braid.sites.SETTLE_S", 3.0)


def retained(peer: Peer) -> list[tuple[str, bytes]]:
    """What has come with RETAIN set, in the order of topics; nothing else has."""
    got = [one for one in peer.take() if one.type is Type.PUBLISH]
    for one in got:
        peer.acknowledge(one)
        assert one.retain, f"{one} without RETAIN"
    return sorted((one.topic, one.payload) for one in got)


def keep(sites: Sites, number: int, topic: str, payload: bytes, qos: int = 1, **options: Any) -> None:
    """A client of a site publishes a retained message, and leaves."""
    client = sites.client(number, f"replica{number}")
    client.publish(topic, payload, qos, retain=True, **options)
    client.disconnect()


def seen(sites: Sites, number: int, topic_filter: str) -> list[tuple[str, bytes]]:
    """What a new client of a site gets that subscribes."""
    client = sites.client(number, f"reader{number}")
    client.subscribe(topic_filter, 1)
    sites.run(4)
    found = retained(client)
    client.disconnect()
    return found


def kept_at(site: Site) -> dict[str, bytes]:
    """What a site keeps, tombstones included."""
    return {message.topic: message.payload for message in site.broker.retained.values()}


def restart(sites: Sites, number: int, folder: Path) -> Site:
    """The broker is killed, and comes back with its store."""
    stop(sites[number])
    site = sites.add(number, store=JournalStore(folder))
    sites.run(5)
    return site


def stop(site: Site) -> None:
    site.crash()
    site.broker.store.close()


# Finding


@pytest.mark.parametrize(("method", "version"), [("relayfree", V3), ("relayfree", V5), ("suzaku", V5), ("covers", V5)])
@pytest.mark.parametrize(
    ("topic_filter", "found"),
    [
        ("tide/west/high", ["tide/west/high"]),
        ("tide/+/high", ["tide/east/high", "tide/west/high"]),
        ("tide/#", ["tide", "tide/east/high", "tide/west/high"]),
        ("+", ["tide", "wind"]),
        ("+/+/+", ["tide/east/high", "tide/west/high"]),
        ("#", ["tide", "tide/east/high", "tide/west/high", "wind"]),
        ("$things/#", ["$things/a"]),
        ("+/a", []),
    ],
)
def test_a_new_subscription_is_sent_what_other_sites_keep(
    method: str, version: int, topic_filter: str, found: list[str]
) -> None:
    sites = Sites(4, method=method)
    for number, topic in ((0, "tide/west/high"), (1, "tide/east/high"), (2, "wind"), (3, "tide"), (1, "$things/a")):
        keep(sites, number, topic, topic.encode())
    subscriber = sites.client(3, version=version)
    subscriber.subscribe(topic_filter, 1)
    assert retained(subscriber) == [(topic, topic.encode()) for topic in found]


def test_properties_qos_and_identifier_come_along() -> None:
    sites = Sites(3)
    keep(sites, 0, "tide", b"x", 2, properties=wire.props(content_type="text/plain", user=("a", "b")))
    subscriber = sites.client(2)
    subscriber.subscribe("tide", 1, properties=wire.props(subscription_id=7))
    (got,) = [one for one in subscriber.take() if one.type is Type.PUBLISH]
    assert (got.qos, got.retain, got.properties["subscription_id"]) == (1, True, [7])
    assert got.properties["content_type"] == "text/plain"


def test_what_is_published_later_comes_live_and_once() -> None:
    sites = Sites(3)
    keep(sites, 0, "tide", b"1")
    subscriber = sites.client(2)
    subscriber.subscribe("tide", 1)
    assert retained(subscriber) == [("tide", b"1")]
    keep(sites, 0, "tide", b"2")
    keep(sites, 1, "tide", b"3")
    got = subscriber.take()
    assert [(one.payload, one.retain) for one in got] == [(b"2", False), (b"3", False)]
    assert seen(sites, 1, "tide") == [("tide", b"3")]


def test_many_first_levels_are_found_under_a_common_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "KEEP_LEVELS_MAX", 6)
    sites = Sites(3)
    client = sites.client(0, "replica")
    levels = [f"level{number}" for number in range(replication.KEEP_LEVELS_MAX + 5)]
    client.send(*(wire.publish(level, b"x", retain=True, version=V5) for level in levels))
    sites.run(3)
    assert sorted(sites[0].braid.retained.replication._announced) == [replication.KEEP, replication.KEEP_MANY]
    assert seen(sites, 2, "level3") == [("level3", b"x")]
    assert seen(sites, 2, "level3/#") == [("level3", b"x")]
    assert seen(sites, 1, "+") == sorted((level, b"x") for level in levels)
    for level in levels[4:]:
        sites[0].broker.drop_retained(level)
    sites.run(3)
    assert sorted(sites[0].braid.retained.replication._announced) == [replication.KEEP, replication.KEEP_MANY]
    sites[0].broker.drop_retained(levels[3])
    sites.run(3)
    assert sorted(sites[0].braid.retained.replication._announced) == [
        replication.KEEP,
        *(f"{replication.KEEP}/{one}" for one in levels[:3]),
    ]
    assert seen(sites, 2, "level2") == [("level2", b"x")]


@pytest.mark.parametrize("topic_filter", ["#", "tide/+"])
def test_more_than_one_answer_holds_is_fetched_page_by_page(topic_filter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "ANSWER_BYTES_MAX", 1000)
    sites = Sites(4)
    expected: dict[str, bytes] = {}
    for number, step in ((0, 2), (1, 3), (2, 5), (3, 7)):
        client = sites.client(number, "replica")
        topics = [f"tide/{index:02}" for index in range(0, 40, step)]
        expected |= dict.fromkeys(topics, b"%d" % number * 200)
        client.send(*(wire.publish(one, expected[one], retain=True, version=V5) for one in topics))
    sites.run(10)
    assert sum(len(site.broker.retained) for site in sites) == len(expected)
    subscriber = sites.client(3)
    subscriber.subscribe(topic_filter)
    sites.run(5)
    assert retained(subscriber) == sorted(expected.items())


@pytest.mark.parametrize("room", [replication.ANSWER_BYTES_MAX, 1000])
def test_subscriptions_that_come_together_ask_together(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of it fits an answer: the rest is asked for once more."""
    monkeypatch.setattr(replication, "ANSWER_BYTES_MAX", room)
    asked: list[int] = []
    question_about = RetainedReplication.question_about

    def note(self: RetainedReplication, filters: Sequence[str]) -> bytes:
        asked.append(len(filters))
        return question_about(self, filters)

    monkeypatch.setattr(RetainedReplication, "question_about", note)
    sites = Sites(3, method="covers")
    for number in (0, 1):
        client = sites.client(number, f"replica{number}")
        for device in range(number, 400, 10):
            client.connection.receive(wire.publish(f"cmd/{device}/x", b"%d" % device * 20, retain=True, version=V5))
    sites.run(10)
    readers = [sites.client(2, f"reader{reader}") for reader in range(4)]
    asked.clear()
    for device in range(400):
        readers[device % 4].connection.receive(wire.subscribe(1 + device, (f"cmd/{device}/#", 1), version=V5))
    sites.run(10)
    got = [one for reader in readers for one in retained(reader)]
    kept = [device for number in (0, 1) for device in range(number, 400, 10)]
    assert sorted(got) == sorted((f"cmd/{device}/x", b"%d" % device * 20) for device in kept)
    again = sum(asked) - 400
    assert (again > 0) == (room == 1000)
    assert len(asked) < 20 + again
    assert max(asked) <= queries.BATCH_MAX


def test_pages_are_fetched_no_faster_than_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "ANSWER_BYTES_MAX", 1000)
    monkeypatch.setattr(queries, "FEED_MAX", 3)
    sites = Sites(3)
    client = sites.client(0, "replica")
    topics = [f"tide/{index:02}" for index in range(30)]
    for topic in topics:
        client.send(wire.publish(topic, b"x" * 400, version=V5, qos=1, packet_id=1, retain=True))
    subscriber = sites.client(2, properties=wire.props(receive_maximum=2))
    subscriber.subscribe("#", 1)
    sites.run(10)
    session = sites[2].broker.sessions["c2"]
    assert session.bulk_count <= 5
    got: list[str] = []
    for _ in range(60):
        for one in [one for one in subscriber.take() if one.type is Type.PUBLISH]:
            got.append(one.topic or "")
            subscriber.acknowledge(one)
    assert got == topics


def test_a_client_that_goes_before_it_has_read_a_page_is_given_the_rest_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replication, "ANSWER_BYTES_MAX", 1000)
    monkeypatch.setattr(queries, "FEED_MAX", 3)
    sites = Sites(3)
    client = sites.client(0, "replica")
    topics = [f"tide/{index:02}" for index in range(30)]
    for topic in topics:
        client.send(wire.publish(topic, b"x" * 400, version=V5, qos=1, packet_id=1, retain=True))
    options = wire.props(receive_maximum=2, session_expiry=3600)
    subscriber = sites.client(2, "ada", clean=False, properties=options)
    subscriber.subscribe("#", 1)
    sites.run(10)
    session = sites[2].broker.sessions["ada"]
    assert session.burden < len(topics), "it reads nothing, and so nothing more is fetched"
    subscriber.drop()
    sites.run(10)
    assert session.burden == len(topics)


def test_asking_again_and_again_costs_no_more_than_once() -> None:
    sites = Sites(3)
    keep(sites, 0, "tide", b"x")
    subscriber = sites.client(2)
    subscriber.send(*(wire.subscribe(number, ("#", 0), version=V5) for number in range(1, 101)))
    sites.run(4)
    got = subscriber.take()
    assert [one.type for one in got].count(Type.SUBACK) == 100
    assert [one.payload for one in got if one.type is Type.PUBLISH] == [b"x"]
    subscriber.subscribe("#")
    sites.run(4)
    assert retained(subscriber) == [("tide", b"x")]


# The newest wins


@METHODS
@pytest.mark.parametrize("reader", [0, 1, 2])
def test_the_newest_of_two_sites_wins(method: str, reader: int) -> None:
    sites = Sites(3, method=method)
    keep(sites, 0, "tide", b"old")
    keep(sites, 1, "tide", b"new")
    assert seen(sites, reader, "tide") == [("tide", b"new")]
    assert seen(sites, reader, "#") == [("tide", b"new")]
    assert kept_at(sites[0]) == {}
    keep(sites, 0, "tide", b"newest")
    assert seen(sites, reader, "+") == [("tide", b"newest")]
    assert kept_at(sites[1]) == {}


def test_two_copies_that_have_not_met_yet_make_one_message() -> None:
    sites = Sites(3)
    for number in (0, 1):
        sites[number].braid.retained.replication.is_in = False  # nobody is told
    keep(sites, 1, "tide", b"old")
    keep(sites, 0, "tide", b"new")
    for number in (0, 1):
        sites[number].braid.retained.replication.is_in = True
        sites[number].braid.retained.replication._early.clear()
        sites[number].braid.retained.replication._announce()
    sites.run(2)
    assert (kept_at(sites[0]), kept_at(sites[1])) == ({"tide": b"new"}, {"tide": b"old"})
    for number in range(3):
        assert seen(sites, number, "tide") == [("tide", b"new")]
        assert seen(sites, number, "#") == [("tide", b"new")]


def test_equal_times_are_ordered_by_origin() -> None:
    sites = Sites(3)
    clients = [sites.client(number) for number in (0, 1)]
    for number, client in enumerate(clients):
        client.connection.receive(wire.publish("tide", b"%d" % number, retain=True, version=V5))
    sites.run(3)
    assert [seen(sites, number, "tide") for number in range(3)] == 3 * [[("tide", b"1")]]
    assert kept_at(sites[0]) == {}


# Deletion


@METHODS
@pytest.mark.parametrize("deleter", [0, 1])
def test_a_deletion_anywhere_deletes_it_everywhere(method: str, deleter: int) -> None:
    sites = Sites(3, method=method)
    keep(sites, 0, "tide", b"x")
    keep(sites, deleter, "tide", b"")
    for number in range(3):
        assert seen(sites, number, "tide") == []
        assert seen(sites, number, "#") == []
    assert {payload for site in sites for payload in kept_at(site).values()} == {b""}
    assert sites[deleter].broker.metrics.retained_messages == 0
    keep(sites, 2, "tide", b"again")
    assert seen(sites, 1, "tide") == [("tide", b"again")]


def test_what_was_deleted_while_its_replica_was_down_does_not_come_back(tmp_path: Path) -> None:
    sites = Sites(3)
    sites[2].crash()
    sites.add(2, store=JournalStore(tmp_path / "two"))
    sites.run(3)
    keep(sites, 2, "tide", b"x")
    stop(sites[2])
    sites.run(10)
    keep(sites, 1, "tide", b"")
    site = sites.add(2, store=JournalStore(tmp_path / "two"))
    sites.run(0.2)
    assert kept_at(site) == {"tide": b"x"}
    sites.run(15)
    assert kept_at(site) == {}
    for number in range(3):
        assert seen(sites, number, "tide") == []
    stop(site)


def test_a_tombstone_survives_the_restart_of_its_broker(tmp_path: Path) -> None:
    sites = Sites(3)
    for number in (1, 2):
        sites[number].crash()
        sites.add(number, store=JournalStore(tmp_path / f"{number}"))
        sites.run(3)
    keep(sites, 2, "tide", b"x")
    stop(sites[2])
    sites.run(10)
    keep(sites, 1, "tide", b"")
    restart(sites, 1, tmp_path / "1")
    sites.add(2, store=JournalStore(tmp_path / "2"))
    sites.run(5)
    for number in range(3):
        assert seen(sites, number, "#") == []
    assert (kept_at(sites[1]), kept_at(sites[2])) == ({"tide": b""}, {})
    for number in (1, 2):
        stop(sites[number])


def test_an_older_copy_does_not_come_back_when_the_newer_one_goes_away(tmp_path: Path) -> None:
    sites = Sites(4)
    sites[2].crash()
    sites.add(2, store=JournalStore(tmp_path / "two"))
    sites.run(3)
    keep(sites, 2, "tide", b"old")
    stop(sites[2])
    sites.run(10)
    keep(sites, 1, "tide", b"new")
    sites.add(2, store=JournalStore(tmp_path / "two"))
    sites.run(5)
    reader = sites.client(3)
    sites[1].crash()
    sites.run(15)
    reader.send(wire.subscribe(1, ("tide", 0), version=V5))
    sites.run(10)
    assert retained(reader) == []
    stop(sites[2])


def test_tombstones_are_forgotten_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.broker.retained.TOMBSTONE_S", 100.0)
    monkeypatch.setattr("braidmq.broker.retained.TOMBSTONES_MAX", 3)
    sites = Sites(2)
    for number in range(5):
        keep(sites, 0, f"tide/{number}", b"")
    assert sorted(kept_at(sites[0])) == ["tide/2", "tide/3", "tide/4"]
    for _ in range(4):
        sites.run(60)
    assert kept_at(sites[0]) == {}
    assert sites[0].braid.retained.replication._announced == {}


# Retain Handling, retain as published, expiry


def test_retain_handling() -> None:
    sites = Sites(3)
    keep(sites, 0, "tide", b"x")
    subscriber = sites.client(2)
    subscriber.subscribe("tide", options=DO_NOT_SEND)
    assert retained(subscriber) == []
    subscriber.subscribe("tide", options=SEND_IF_NEW)
    assert retained(subscriber) == []
    subscriber.unsubscribe("tide")
    subscriber.subscribe("tide", options=SEND_IF_NEW)
    assert retained(subscriber) == [("tide", b"x")]
    subscriber.subscribe("tide", options=SEND_IF_NEW)
    assert retained(subscriber) == []
    subscriber.subscribe("tide")
    assert retained(subscriber) == [("tide", b"x")]
    subscriber.subscribe("$share/group/tide")
    assert retained(subscriber) == []


def test_retain_as_published() -> None:
    sites = Sites(3)
    plain, faithful = sites.client(2, "plain"), sites.client(2, "faithful")
    plain.subscribe("tide", 1)
    faithful.subscribe("tide", 1, options=AS_PUBLISHED)
    publisher = sites.client(0)
    publisher.publish("tide", b"1", 1, retain=True)
    publisher.publish("tide", b"2", 1)
    assert [one.retain for one in plain.take()] == [False, False]
    assert [one.retain for one in faithful.take()] == [True, False]


def test_expiry_runs_on_at_the_replica_and_leaves_nothing_older() -> None:
    sites = Sites(3)
    began_at = sites.sim.now
    keep(sites, 0, "tide", b"x", properties=wire.props(message_expiry=100))
    sites.run(40)
    subscriber = sites.client(2)
    subscriber.subscribe("tide")
    (got,) = [one for one in subscriber.take() if one.type is Type.PUBLISH]
    assert 100 - got.properties["message_expiry"] == pytest.approx(sites.sim.now - began_at, abs=8)
    sites.run(60)
    assert seen(sites, 1, "tide") == []
    sites.run(100)
    assert kept_at(sites[0]) == {"tide": b""}
    assert seen(sites, 1, "tide") == []


# Sites that are not there


def test_what_a_site_keeps_that_is_down_is_there_for_those_who_subscribe_when_it_is_back(tmp_path: Path) -> None:
    sites = Sites(4)
    sites[2].crash()
    sites.add(2, store=JournalStore(tmp_path / "two"))
    sites.run(3)
    keep(sites, 2, "tide", b"down")
    keep(sites, 1, "tide/up", b"up")
    waiting = sites.client(3, "waiting")
    stop(sites[2])
    sites.run(15)
    waiting.subscribe("#")
    sites.run(10)
    assert retained(waiting) == [("tide/up", b"up")]
    sites.add(2, store=JournalStore(tmp_path / "two"))
    sites.run(5)
    assert retained(waiting) == []
    assert seen(sites, 3, "#") == [("tide", b"down"), ("tide/up", b"up")]
    stop(sites[2])


def test_a_replica_that_has_just_crashed_delays_the_other_answers_and_loses_none() -> None:
    sites = Sites(5)
    for number in (1, 2, 4):
        keep(sites, number, f"tide/{number}", b"x")
    sites[2].crash()
    subscriber = sites.client(3)
    subscriber.send(wire.subscribe(1, ("#", 0), version=V5))
    sites.run(30)
    assert retained(subscriber) == [("tide/1", b"x"), ("tide/4", b"x")]


def test_a_subscription_made_before_the_broker_has_entered_is_answered_when_it_has() -> None:
    sites = Sites(3)
    keep(sites, 0, "tide", b"far")
    late = sites.add(9)
    client = late.peer(V5)
    client.connection.receive(wire.connect("early", version=V5))
    client.connection.receive(wire.publish("near", b"near", retain=True, version=V5))
    client.connection.receive(wire.subscribe(1, ("#", 0), version=V5))
    assert not late.braid.presence.is_in
    sites.run(10)
    assert late.braid.presence.is_in
    assert [client.expect(Type.CONNACK).reason, client.expect(Type.SUBACK).reasons] == [0, [0]]
    assert retained(client) == [("near", b"near"), ("tide", b"far")]
    assert late.broker.on_delivery is None
    assert seen(sites, 1, "#") == [("near", b"near"), ("tide", b"far")]


def test_a_session_that_goes_away_while_it_asks_gets_it_when_it_is_back() -> None:
    sites = Sites(3)
    keep(sites, 0, "tide", b"x")
    client = sites.client(2, "away", **persistent(V5))
    client.connection.receive(wire.subscribe(1, ("tide", 1), version=V5))
    while not client.link.stream:
        sites.run(0.001)
    client.drop()
    sites.run(3)
    client = sites.client(2, "away", **persistent(V5))
    assert retained(client) == [("tide", b"x")]


# What is newer comes first


class Far(Network):
    """One site is far from all others."""

    def __init__(self, site: int) -> None:
        self.site = site

    def delays(self, chance: Any, source: Any, to: Any, now: float) -> tuple[float, ...]:
        return (0.2 if self.site in (source, to) and source != to else 0.005,)


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("publisher", [1, 2])
def test_a_retained_message_does_not_come_behind_a_newer_one(publisher: int, qos: int, retain: bool) -> None:
    sites = Sites(3, network=Far(0))
    keep(sites, 0, "tide", b"old")
    other = sites.client(publisher, "other")
    other.publish("tide", b"before", 0)  # so that the way is known
    subscriber = sites.client(2, "reader")
    subscriber.connection.receive(wire.subscribe(1, ("tide", 1), version=V5))
    for _ in range(40):
        sites.run(0.05)
        other.connection.receive(
            wire.publish("tide", b"new", version=V5, qos=qos, packet_id=9 if qos else None, retain=retain)
        )
        if subscriber.link.stream:
            break
    sites.run(5)
    got = payloads(subscriber)
    assert b"new" in got
    assert b"old" not in got[got.index(b"new") :]
    assert sites[2].broker.on_delivery is None
    assert subscriber.connection.takes_plain


def test_what_is_retained_before_its_broker_can_be_asked_is_not_lost() -> None:
    sites = Sites(4, network=Far(0))
    publisher = sites.client(0, "publisher")
    publisher.publish("tide", b"warm", 1)
    assert publisher.publish("tide", b"warm", 1) == 0x10
    subscriber = sites.client(2, "reader")
    publisher.connection.receive(wire.publish("tide", b"x", retain=True, version=V5))
    subscriber.connection.receive(wire.subscribe(1, ("tide", 1), version=V5))
    sites.run(10)
    assert payloads(subscriber) == [b"x"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_is_retained_while_a_client_subscribes_comes_once(qos: int, seed: int) -> None:
    sites = Sites(3, seed=seed)
    publisher = sites.client(0, "publisher")
    publisher.publish("tide/low", b"x", 1, retain=True)
    publisher.publish("tide", b"warm", 1)
    subscriber = sites.client(2, "reader")
    subscriber.connection.receive(wire.subscribe(1, ("tide", 1), version=V5))
    sites.run(0.01 * seed)
    packet_id = 9 if qos else None
    publisher.connection.receive(wire.publish("tide", b"x", version=V5, qos=qos, packet_id=packet_id, retain=True))
    sites.run(10)
    assert payloads(subscriber) == [b"x"]
    assert sites[2].broker.on_delivery is None


# Rules


def test_who_may_not_subscribe_is_sent_nothing() -> None:
    sites = Sites(2)
    sites.add(5, access=Rules())
    sites.run(3)
    keep(sites, 0, "secret/x", b"x")
    client = sites.client(5)
    assert client.subscribe("secret/x") == 0x87
    assert retained(client) == []


def test_clients_have_nothing_to_do_with_internal_topics() -> None:
    sites = Sites(2)
    client = sites.client(0)
    for topic_filter in ("$braid/keep", "$braid/#", "$share/a/$braid/keep"):
        assert client.subscribe(topic_filter) == 0x87
    for topic in ("$braid/keep", "$demand/tide", "$SYS/broker/uptime"):
        for qos in (1, 2):
            assert client.publish(topic, b"x", qos, retain=True) == 0x87


def test_a_method_that_cannot_ask_leaves_retained_messages_where_they_are(caplog: pytest.LogCaptureFixture) -> None:
    sites = Sites(2, network=Uniform(0.001, 0.002))
    keep(sites, 0, "tide", b"x")
    for site in sites:
        site.braid.retained.replication.is_on = False
    assert seen(sites, 0, "tide") == [("tide", b"x")]
    assert seen(sites, 1, "tide") == []
