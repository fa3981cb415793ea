"""The `$SYS` topics: retained, in memory only, and as often as they are told to."""

from __future__ import annotations

from pathlib import Path

import pytest

import braidmq
from braidmq.broker.journal_store import JournalStore
from braidmq.broker.limits import Limits
from braidmq.server.metrics.exposition import METRICS
from braidmq.server.metrics.sys_topics import PREFIX, SysTopics
from tests.conformance.pair import V3, V5, Peer, Type, Will, World, persistent
from tests.store_rows import rows

INTERVAL_S = 10.0


def readings(peer: Peer) -> dict[str, str]:
    return {one.topic.removeprefix(PREFIX): one.payload.decode() for one in peer.take()}


def started(world: World) -> SysTopics:
    topics = SysTopics(world.broker)
    topics.set_interval(INTERVAL_S)
    return topics


@pytest.mark.parametrize("version", [V3, V5])
def test_a_new_subscriber_gets_every_number_as_a_retained_message(version: int) -> None:
    world = World()
    started(world)
    client = world.client("c", version)
    client.subscribe("$SYS/#")
    got = client.take()
    assert all(one.type is Type.PUBLISH and one.retain for one in got)
    assert {one.topic.removeprefix(PREFIX) for one in got} == {"version", "uptime"} | {one.topic for one in METRICS}
    assert {one.topic: one.payload for one in got}[f"{PREFIX}version"] == f"braidmq {braidmq.__version__}".encode()
    assert len({measure.topic for measure in METRICS}) == len(METRICS)


def test_what_has_changed_is_published_once_an_interval() -> None:
    world = World()
    started(world)
    client = world.client("c")
    client.subscribe("$SYS/#")
    client.take()
    world.advance(INTERVAL_S - 1)
    client.expect_nothing()
    world.advance(1)
    first = readings(client)
    assert first["uptime"] == "10 seconds"
    assert first["clients/connected"] == first["clients/total"] == first["subscriptions/count"] == "1"
    assert "version" not in first, "it has not changed"
    assert "messages/received" not in first, "nobody has published"
    world.client("p").publish("x", b"1")
    world.advance(INTERVAL_S)
    second = readings(client)
    assert second["uptime"] == "20 seconds"
    assert (second["clients/connected"], second["messages/received"]) == ("2", "1")


def test_they_are_no_part_of_the_wildcard_and_carry_no_retain_flag_when_live() -> None:
    world = World()
    started(world)
    everything = world.client("c")
    everything.subscribe("#")
    named = world.client("d")
    named.subscribe(f"{PREFIX}uptime")
    named.take()
    world.advance(INTERVAL_S)
    everything.expect_nothing()
    named.expect_publish(f"{PREFIX}uptime", b"10 seconds", retain=False)


def test_the_interval_can_be_changed_and_stopped() -> None:
    world = World()
    topics = started(world)
    client = world.client("c")
    client.subscribe(f"{PREFIX}uptime")
    client.take()
    topics.set_interval(1.0)
    client.take()
    for second in range(1, 4):
        world.advance(1)
        client.expect_publish(f"{PREFIX}uptime", b"%d seconds" % second)
        client.expect_nothing()
    topics.set_interval(0)
    world.advance(100)
    client.expect_nothing()
    topics.set_interval(5.0)
    world.broker.flush()
    client.expect_publish(f"{PREFIX}uptime", b"103 seconds")


def test_they_are_not_in_the_store(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    world = World(store=store)
    started(world)
    world.client("c").publish("kept", b"1", 1, retain=True)
    for _ in range(8):
        world.advance(INTERVAL_S)
    assert list(rows(store, "retained")) == ["kept"]
    store.close()


def test_a_kept_session_gets_them_like_any_other_message(tmp_path: Path) -> None:
    world = World(store=JournalStore(tmp_path))
    started(world)
    client = world.client("c", **persistent(V5))
    client.subscribe(f"{PREFIX}uptime", 1)
    for one in client.take():
        client.acknowledge(one)
    client.drop()
    world.advance(INTERVAL_S)
    back = world.client("c", **persistent(V5))
    assert back.connack is not None
    assert back.connack.session_present
    back.expect_publish(f"{PREFIX}uptime", b"10 seconds", qos=1)


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_nobody_else_can_publish_there(version: int, qos: int) -> None:
    world = World()
    started(world)
    client = world.client("c", version)
    client.subscribe(f"{PREFIX}version")
    client.take()
    for _ in range(2):
        reason = client.publish(f"{PREFIX}version", b"false", qos, retain=True)
        assert reason == (None if qos == 0 else 0x87 if version == V5 else 0)
    client.expect_nothing()
    client.subscribe(f"{PREFIX}version")
    client.expect_publish(f"{PREFIX}version", f"braidmq {braidmq.__version__}".encode())


def test_nobody_can_leave_a_will_there() -> None:
    world = World()
    started(world)
    peer = world.peer(V5)
    peer.connect("c", will=Will(f"{PREFIX}version", b"false", 0, True), reason=0x87)
    assert peer.link.closed
    old = world.peer(V3)
    old.connect("c", will=Will(f"{PREFIX}version", b"false", 0, True), reason=5)
    assert old.link.closed


def test_they_take_no_room_from_the_clients_retained_messages() -> None:
    """The bounds are for what clients keep here: the broker's own numbers are as many as they are."""
    world = World(limits=Limits(retained_messages_max=1))
    started(world)
    client = world.client("c")
    assert client.publish("mine", b"1", 1, retain=True) == 0x10
    assert client.publish("more", b"1", 1, retain=True) == 0x97
    client.subscribe("$SYS/#")
    assert len(client.take()) == len(METRICS) + 2
