"""Wills (§3.1.2.5, §3.1.3.2): published when a client is lost, later where it asked for a delay, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from . import wire
from .pair import TIMER_SLACK_S, V3, V5, Peer, Rules, Will, World
from .wire import props


@pytest.fixture
def watcher(world: World, version: int) -> Peer:
    peer = world.client("watcher", version)
    peer.subscribe("w/#", 2)
    return peer


def _leaver(world: World, version: int, delay: int = 0, expiry: int = 0, **options: bool) -> Peer:
    will = Will("w/c", b"gone", 1, properties=props(will_delay=delay) if delay else b"")
    properties = props(session_expiry=expiry) if expiry else b""
    return world.client("c", version, will=will, properties=properties, **options)


@pytest.mark.statement(
    "3.1.1:MQTT-3.1.2-8", "5.0:MQTT-3.1.2-7", "5.0:MQTT-3.1.2-8", "3.1.1:MQTT-3.1.2-10", "5.0:MQTT-3.1.2-10"
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_published_once_when_the_network_fails(world: World, version: int, watcher: Peer, qos: int) -> None:
    peer = world.client("c", version, will=Will("w/c", b"gone", qos))
    watcher.expect_nothing()
    peer.drop()
    watcher.acknowledge(watcher.expect_publish("w/c", b"gone", qos=qos, retain=False))
    world.client("c", version).drop()
    world.advance(10_000)
    watcher.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-3.1.2-8", "5.0:MQTT-3.1.2-8")
@pytest.mark.parametrize("how", ["protocol error", "keep-alive", "take-over", "malformed"])
def test_published_when_the_server_closes(world: World, version: int, watcher: Peer, how: str) -> None:
    peer = world.client("c", version, will=Will("w/c", b"gone"), keep_alive=10)
    match how:
        case "protocol error":
            peer.send(wire.connect("c", version=version))
        case "keep-alive":
            world.advance(15 + TIMER_SLACK_S)
        case "take-over":
            world.client("c", version)
        case _:
            peer.send(b"\x00\x00")
    assert peer.link.closed
    watcher.expect_publish("w/c", b"gone")
    watcher.expect_nothing()


@pytest.mark.statement(
    "3.1.1:MQTT-3.1.2-10", "3.1.1:MQTT-3.14.4-3", "5.0:MQTT-3.1.2-10", "5.0:MQTT-3.14.4-3", "5.0:MQTT-3.1.2-8"
)
def test_discarded_by_disconnect(world: World, version: int, watcher: Peer) -> None:
    for reason in (None, 0) if version == V5 else (None,):
        _leaver(world, version).disconnect(reason)
        world.advance(1000)
        watcher.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.14.4-3", "5.0:MQTT-3.1.2-8")
@pytest.mark.parametrize("reason", [0x04, 0x80, 0x81, 0x82, 0x83, 0x93, 0x97, 0x98])
def test_published_after_a_disconnect_with_another_reason(world: World, reason: int) -> None:
    watcher = world.client("watcher")
    watcher.subscribe("w/#", 2)
    _leaver(world, V5).disconnect(reason)
    watcher.expect_publish("w/c", b"gone", qos=1)


@pytest.mark.statement("3.1.1:MQTT-3.1.2-12")
def test_none_without_a_will(world: World, version: int, watcher: Peer) -> None:
    watcher.subscribe("#")
    world.client("c", version).drop()
    watcher.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-3.1.2-10", "5.0:MQTT-3.1.2-10")
def test_a_new_connection_has_the_will_it_brings(world: World, version: int, watcher: Peer) -> None:
    world.client("c", version, will=Will("w/1", b"1")).disconnect()
    peer = world.client("c", version, will=Will("w/2", b"2"))
    peer.drop()
    watcher.expect_publish("w/2", b"2")
    watcher.expect_nothing()


# Delay


@pytest.mark.statement("5.0:MQTT-3.1.2-8")
def test_delay_shorter_than_the_session(world: World) -> None:
    watcher = world.client("watcher")
    watcher.subscribe("w/#", 2)
    _leaver(world, V5, delay=10, expiry=100).drop()
    watcher.expect_nothing()
    world.advance(9)
    watcher.expect_nothing()
    world.advance(1 + TIMER_SLACK_S)
    watcher.acknowledge(watcher.expect_publish("w/c", b"gone"))
    world.advance(1000)
    watcher.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.1.2-8")
def test_delay_longer_than_the_session(world: World) -> None:
    watcher = world.client("watcher")
    watcher.subscribe("w/#", 2)
    _leaver(world, V5, delay=100, expiry=10).drop()
    world.advance(9)
    watcher.expect_nothing()
    world.advance(1 + TIMER_SLACK_S)
    watcher.acknowledge(watcher.expect_publish("w/c", b"gone"))
    world.advance(1000)
    watcher.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.1.2-8")
def test_delay_of_a_session_that_ends_with_its_connection(world: World) -> None:
    watcher = world.client("watcher")
    watcher.subscribe("w/#", 2)
    _leaver(world, V5, delay=100).drop()
    watcher.expect_publish("w/c", b"gone")


@pytest.mark.statement("5.0:MQTT-3.1.3-9", "5.0:MQTT-3.1.2-8")
def test_a_reconnect_within_the_delay_cancels(world: World) -> None:
    watcher = world.client("watcher")
    watcher.subscribe("w/#", 2)
    _leaver(world, V5, delay=10, expiry=100).drop()
    world.advance(5)
    peer = world.client("c", clean=False, properties=props(session_expiry=100))
    world.advance(1000)
    watcher.expect_nothing()
    peer.drop()  # it brought no will of its own
    world.advance(1000)
    watcher.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.1.2-8", "5.0:MQTT-3.1.2-4")
def test_a_clean_start_within_the_delay_ends_the_session_and_publishes(world: World) -> None:
    watcher = world.client("watcher")
    watcher.subscribe("w/#", 2)
    _leaver(world, V5, delay=10, expiry=100).drop()
    world.client("c", clean=True)
    watcher.expect_publish("w/c", b"gone")
    world.advance(1000)
    watcher.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.1.3-9")
@pytest.mark.parametrize(("delay", "published"), [(0, True), (10, False)])
def test_take_over_that_resumes(world: World, delay: int, published: bool) -> None:
    watcher = world.client("watcher")
    watcher.subscribe("w/#", 2)
    _leaver(world, V5, delay=delay, expiry=100)
    world.client("c", clean=False, properties=props(session_expiry=100))
    world.advance(60)
    assert [one.payload for one in watcher.take()] == ([b"gone"] if published else [])


@pytest.mark.statement("5.0:MQTT-3.1.2-8")
def test_take_over_with_a_clean_start_publishes_at_once(world: World) -> None:
    watcher = world.client("watcher")
    watcher.subscribe("w/#", 2)
    _leaver(world, V5, delay=10, expiry=100)
    world.client("c", clean=True)
    watcher.expect_publish("w/c", b"gone")


@pytest.mark.statement("5.0:MQTT-3.1.2-8", "5.0:MQTT-3.14.4-3")
def test_disconnect_with_will_may_end_the_session_too(world: World) -> None:
    watcher = world.client("watcher")
    watcher.subscribe("w/#", 2)
    _leaver(world, V5, delay=50, expiry=100).disconnect(0x04, props(session_expiry=0))
    watcher.expect_publish("w/c", b"gone")


@pytest.mark.statement("5.0:MQTT-3.1.3-10")
def test_properties_of_the_will_are_passed_on(world: World) -> None:
    watcher = world.client("watcher")
    watcher.subscribe("w/#", 2)
    sent = {
        "payload_format": 1,
        "content_type": "text/plain",
        "response_topic": "r",
        "correlation_data": b"\x00\x01",
        "user": [("b", "1"), ("a", "2"), ("b", "0")],
    }
    world.client("c", will=Will("w/c", b"x", 2, properties=props(will_delay=0, **sent))).drop()
    assert watcher.expect_publish("w/c", b"x", qos=2).properties == sent


@pytest.mark.statement("5.0:MQTT-3.3.2-6")
def test_expiry_of_the_will_counts_from_its_publication(world: World) -> None:
    watcher = world.client("watcher")
    watcher.subscribe("w/#", 2)
    will = Will("w/c", b"x", properties=props(will_delay=20, message_expiry=30))
    world.client("c", will=will, properties=props(session_expiry=100)).drop()
    world.advance(20 + TIMER_SLACK_S)
    assert 29 <= watcher.expect_publish("w/c", b"x").properties["message_expiry"] <= 30


@pytest.mark.statement("3.1.1:MQTT-3.3.2-2", "5.0:MQTT-4.7.0-1", "3.1.1:MQTT-4.7.1-1")
@pytest.mark.parametrize("topic", ["", "a/+", "#", "a/#/b"])
def test_a_will_topic_is_a_topic_name(world: World, version: int, topic: str) -> None:
    peer = world.peer(version)
    peer.send(wire.connect("c", version=version, will=Will(topic)))
    peer.expect_refused(0x81, 0x82, 0x90)


@pytest.mark.parametrize("client_version", [V3, V5])
def test_a_forbidden_will_is_not_published(client_version: int) -> None:
    world = World(access=Rules())
    watcher = world.client("watcher")
    watcher.subscribe("#")
    peer = world.peer(client_version)
    peer.send(wire.connect("c", version=client_version, will=Will("secret/1")))
    if not peer.link.closed:
        peer.drop()
    world.advance(100)
    watcher.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.8.3-3")
def test_no_local_holds_for_the_will(world: World) -> None:
    """The session's own will, published while it is away, is a message of its own."""
    options: dict[str, Any] = {"clean": False, "properties": props(session_expiry=1000)}
    peer = world.client("c", will=Will("w/c", b"gone", 1), **options)
    peer.subscribe("w/c", 1, options=4)
    peer.drop()
    world.client("c", **options).expect_nothing()
