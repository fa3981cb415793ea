"""Sessions (§3.1.2.4, §4.1): kept, resumed, and gone when their time is over; in memory and in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from braidmq.broker.journal_store import JournalStore
from braidmq.broker.limits import Limits

from . import wire
from .pair import TIMER_SLACK_S, V3, V5, Peer, Type, Will, World, persistent
from .wire import ack, props


def _present(peer: Peer) -> bool:
    assert peer.connack is not None
    return peer.connack.session_present


@pytest.mark.statement(
    "3.1.1:MQTT-3.1.2-4",
    "3.1.1:MQTT-3.1.2-5",
    "3.1.1:MQTT-3.1.4-3",
    "3.1.1:MQTT-3.2.2-2",
    "3.1.1:MQTT-3.2.2-3",
    "3.1.1:MQTT-4.1.0-1",
    "5.0:MQTT-3.1.2-5",
    "5.0:MQTT-3.1.2-6",
    "5.0:MQTT-3.1.2-23",
    "5.0:MQTT-3.1.4-4",
    "5.0:MQTT-3.2.2-3",
    "5.0:MQTT-3.1.3-2",
)
@pytest.mark.parametrize("how", ["drop", "disconnect"])
def test_a_kept_session_is_resumed(world: World, version: int, how: str) -> None:
    peer = world.client("c", version, **persistent(version))
    assert not _present(peer)
    peer.subscribe("t", 2)
    peer.drop() if how == "drop" else peer.disconnect()
    publisher = world.client("p", version)
    for number, qos in enumerate((1, 2, 1, 2)):
        publisher.publish("t", b"%d" % number, qos)
    peer = world.client("c", version, **persistent(version))
    assert _present(peer)
    got = peer.expect_payloads(b"0", b"1", b"2", b"3")
    assert [one.qos for one in got] == [1, 2, 1, 2]
    publisher.publish("t", b"live", 0)
    peer.expect_publish("t", b"live")  # the subscription is there too


@pytest.mark.statement(
    "3.1.1:MQTT-3.1.2-6",
    "3.1.1:MQTT-3.2.2-1",
    "3.1.1:MQTT-3.1.4-3",
    "5.0:MQTT-3.1.2-4",
    "5.0:MQTT-3.2.2-2",
    "5.0:MQTT-3.1.4-4",
)
def test_a_clean_start_drops_it(world: World, version: int) -> None:
    peer = world.client("c", version, **persistent(version))
    peer.subscribe("t", 1)
    publisher = world.client("p", version)
    publisher.publish("t", b"held", 1)
    peer.drop()
    publisher.publish("t", b"queued", 1)
    peer = world.client("c", version, clean=True)
    assert not _present(peer)
    publisher.publish("t", b"live", 1)
    peer.expect_nothing()
    peer.drop()
    peer = world.client("c", version, **persistent(version))
    assert not _present(peer)  # nor is the old one back
    publisher.publish("t", b"live", 1)
    peer.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-3.1.2-6", "5.0:MQTT-4.1.0-2")
def test_a_session_that_is_not_kept_ends_with_its_connection(world: World, version: int) -> None:
    """3.1.1: clean session 1; 5.0: no session expiry, even with clean start 0."""
    peer = world.client("c", version, clean=version == V3)
    peer.subscribe("t", 1)
    peer.drop()
    world.client("p", version).publish("t", b"x", 1)
    peer = world.client("c", version, clean=False)
    assert not _present(peer)
    peer.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-4.1.0-2", "5.0:MQTT-4.1.0-1")
def test_an_open_connection_keeps_its_session(world: World, version: int) -> None:
    peer = world.client("c", version, properties=props(session_expiry=1) if version == V5 else b"")
    peer.subscribe("t", 1)
    for _ in range(10):
        world.advance(10_000)
    world.client("p", version).publish("t", b"x", 1)
    peer.expect_publish("t", b"x")


@pytest.mark.statement("3.1.1:MQTT-3.1.2-5")
def test_qos_0_is_not_kept_unless_configured(version: int) -> None:
    for kept in (False, True):
        world = World(limits=Limits(queue_qos0=kept))
        peer = world.client("c", version, **persistent(version))
        peer.subscribe("t", 1)
        peer.drop()
        publisher = world.client("p", version)
        publisher.publish("t", b"0", 0)
        publisher.publish("t", b"1", 1)
        peer = world.client("c", version, **persistent(version))
        assert [one.payload for one in peer.take()] == ([b"0", b"1"] if kept else [b"1"])


@pytest.mark.statement("5.0:MQTT-3.1.2-23", "5.0:MQTT-4.1.0-2")
def test_session_expiry(world: World) -> None:
    options: dict[str, Any] = {"clean": False, "properties": props(session_expiry=100)}
    world.client("c", **options).drop()
    world.advance(98)
    peer = world.client("c", **options)
    assert _present(peer)
    world.advance(500)  # does not run while connected
    peer.drop()
    world.advance(100 + TIMER_SLACK_S)
    assert not _present(world.client("c", **options))


@pytest.mark.statement("5.0:MQTT-3.1.2-23")
def test_session_expiry_is_that_of_the_last_connect(world: World) -> None:
    world.client("c", properties=props(session_expiry=1000)).drop()
    peer = world.client("c", clean=False, properties=props(session_expiry=10))
    assert _present(peer)
    peer.drop()
    world.advance(10 + TIMER_SLACK_S)
    assert not _present(world.client("c", clean=False))


@pytest.mark.statement("5.0:MQTT-3.1.2-23")
def test_session_expiry_of_all_ones_is_never(world: World) -> None:
    world.client("c", properties=props(session_expiry=0xFFFFFFFF)).drop()
    world.advance(10 * 365 * 86_400)
    assert _present(world.client("c", clean=False))


@pytest.mark.statement("5.0:MQTT-3.1.2-5", "3.1.1:MQTT-3.1.2-4")
def test_a_session_passes_from_one_version_to_the_other(world: World) -> None:
    peer = world.client("c", V3, clean=False)
    peer.subscribe("t", 1)
    peer.drop()
    publisher = world.client("p")
    publisher.publish("t", b"1", 1, properties=props(content_type="x"))
    peer = world.client("c", V5, clean=False, properties=props(session_expiry=100))
    assert _present(peer)
    received = peer.expect_publish("t", b"1")
    assert received.properties == {"content_type": "x"}
    peer.drop()
    peer = world.client("c", V3, clean=False)
    assert _present(peer)
    peer.expect_publish("t", b"1", packet_id=received.packet_id, dup=True)


@pytest.mark.statement("5.0:MQTT-3.1.4-3", "3.1.1:MQTT-3.1.4-2", "5.0:MQTT-4.4.0-1")
def test_take_over_resumes_at_once(world: World, version: int) -> None:
    older = world.client("c", version, **persistent(version))
    older.subscribe("t", 1)
    publisher = world.client("p", version)
    publisher.publish("t", b"1", 1)
    first = older.expect_publish("t", b"1")
    younger = world.client("c", version, **persistent(version))
    older.expect_closed(0x8E)
    assert _present(younger)
    younger.expect_publish("t", b"1", packet_id=first.packet_id, dup=True)
    publisher.publish("t", b"2", 1)
    younger.expect_publish("t", b"2")
    older.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.1.3-2", "3.1.1:MQTT-3.1.3-2")
def test_client_ids_are_compared_exactly(world: World, version: int) -> None:
    first = world.client("Client", version)
    for other in ("client", "Client ", "Cliént", "Clie\u0301nt"):
        world.client(other, version)
    first.expect_open()


# Bounds


@pytest.mark.parametrize(("policy", "kept"), [("drop_oldest", [b"2", b"3", b"4"]), ("drop_newest", [b"0", b"1", b"2"])])
def test_an_offline_queue_has_a_bound(version: int, policy: str, kept: list[bytes]) -> None:
    world = World(limits=Limits(queue_messages_max=3, queue_full=policy))  # type: ignore[arg-type]
    peer = world.client("c", version, **persistent(version))
    peer.subscribe("t", 1)
    peer.drop()
    publisher = world.client("p", version)
    for number in range(5):
        publisher.publish("t", b"%d" % number, 1)
    world.client("c", version, **persistent(version)).expect_payloads(*kept)


def test_the_servers_bound_on_session_expiry_is_told_and_kept() -> None:
    world = World(limits=Limits(session_expiry_max_s=50))
    peer = world.peer()
    assert peer.connect("c", properties=props(session_expiry=0xFFFFFFFF)).properties["session_expiry"] == 50
    peer.drop()
    world.advance(50 + TIMER_SLACK_S)
    assert not _present(world.client("c", clean=False))


# Across a restart of the broker


def _restart(world: World, folder: Path) -> World:
    """The process dies without a word; another one opens the same store."""
    world.options["store"].close()
    other = World(**(world.options | {"store": JournalStore(folder)}))
    other.now = world.now + 5
    return other


@pytest.mark.statement("3.1.1:MQTT-4.1.0-1", "5.0:MQTT-3.1.2-23", "3.1.1:MQTT-4.4.0-1", "5.0:MQTT-4.4.0-1")
@pytest.mark.parametrize("online", [True, False], ids=["online", "offline"])
def test_a_session_survives_the_process(tmp_path: Path, version: int, online: bool) -> None:
    world = World(store=JournalStore(tmp_path))
    peer = world.client("c", version, **persistent(version))
    peer.subscribe("t/#", 2)
    publisher = world.client("p", version)
    publisher.publish("t/1", b"1", 1)
    publisher.publish("t/2", b"2", 2)
    publisher.publish("t/3", b"3", 2)
    first, second, third = peer.take()
    assert second.packet_id
    peer.send(ack(Type.PUBREC, second.packet_id))
    peer.expect(Type.PUBREL)
    if not online:
        peer.drop()
        publisher.publish("t/4", b"4", 1)
    world = _restart(world, tmp_path)
    peer = world.client("c", version, **persistent(version))
    assert _present(peer)
    got = peer.take()
    again = {one.packet_id: one for one in got}
    assert again[first.packet_id].payload == b"1"
    assert again[first.packet_id].dup
    assert again[second.packet_id].type is Type.PUBREL
    assert again[third.packet_id].payload == b"3"
    assert [one.payload for one in got if one.type is Type.PUBLISH] == [b"1", b"3"] + ([] if online else [b"4"])
    world.client("p", version).publish("t/5", b"5", 1)
    peer.expect_publish("t/5", b"5")
    world.options["store"].close()


@pytest.mark.statement("3.1.1:MQTT-4.3.3-2", "5.0:MQTT-4.3.3-10")
def test_half_done_qos_2_survives_the_process(tmp_path: Path, version: int) -> None:
    world = World(store=JournalStore(tmp_path))
    subscriber = world.client("s", version, **persistent(version))
    subscriber.subscribe("t", 1)
    peer = world.client("p", version, **persistent(version))
    peer.send(wire.publish("t", b"once", qos=2, packet_id=7, version=version))
    peer.expect(Type.PUBREC, packet_id=7)
    subscriber.acknowledge(subscriber.expect_publish("t", b"once"))
    world = _restart(world, tmp_path)
    subscriber = world.client("s", version, **persistent(version))
    peer = world.client("p", version, **persistent(version))
    peer.send(wire.publish("t", b"once", qos=2, packet_id=7, dup=True, version=version), ack(Type.PUBREL, 7))
    peer.expect(Type.PUBREC, packet_id=7)
    peer.expect(Type.PUBCOMP, packet_id=7, reason=0)
    subscriber.expect_nothing()
    world.options["store"].close()


@pytest.mark.statement("3.1.1:MQTT-3.3.1-5", "5.0:MQTT-3.3.1-5", "3.1.1:MQTT-3.1.2-8", "5.0:MQTT-3.1.2-8")
def test_retained_messages_and_wills_survive_the_process(tmp_path: Path, version: int) -> None:
    world = World(store=JournalStore(tmp_path))
    publisher = world.client("p", version)
    publisher.publish("r/1", b"kept", 1, retain=True)
    publisher.publish("r/2", b"gone", 1, retain=True)
    publisher.publish("r/2", b"", 1, retain=True)
    world.client("w", version, will=Will("r/will", b"lost", 1, retain=True))
    world = _restart(world, tmp_path)
    world.advance(1)
    subscriber = world.client("s", version)
    subscriber.subscribe("r/#", 1)
    got = {one.topic: one.payload for one in subscriber.take()}
    assert got == {"r/1": b"kept", "r/will": b"lost"}
    world.options["store"].close()


@pytest.mark.statement("5.0:MQTT-4.1.0-2", "5.0:MQTT-3.3.2-5")
def test_time_goes_on_while_the_process_is_dead(tmp_path: Path) -> None:
    world = World(store=JournalStore(tmp_path))
    for name, expiry in (("short", 20), ("long", 1000)):
        peer = world.client(name, properties=props(session_expiry=expiry))
        peer.subscribe("t", 1)
        peer.drop()
    publisher = world.client("p")
    publisher.publish("t", b"brief", 1, properties=props(message_expiry=20))
    publisher.publish("t", b"lasting", 1, properties=props(message_expiry=500))
    world.now += 100
    world = _restart(world, tmp_path)
    world.advance(1)
    assert not _present(world.client("short", clean=False))
    peer = world.client("long", clean=False)
    assert _present(peer)
    (received,) = peer.expect_payloads(b"lasting")
    assert 390 <= received.properties["message_expiry"] <= 396
    world.options["store"].close()
