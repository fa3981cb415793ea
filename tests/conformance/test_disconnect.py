"""DISCONNECT (§3.14): the client's, in all its forms, and the session that it leaves behind."""

from __future__ import annotations

import pytest

from . import wire
from .pair import TIMER_SLACK_S, V5, Type, Will, World
from .wire import props


@pytest.mark.statement("3.1.1:MQTT-3.14.4-1", "5.0:MQTT-3.14.4-2", "5.0:MQTT-3.14.0-1")
def test_the_server_closes_and_says_nothing(world: World, version: int) -> None:
    forms = [wire.disconnect()]
    if version == V5:
        forms += [wire.disconnect(0), wire.disconnect(0, b""), wire.disconnect(4), wire.disconnect(0x80, b"")]
    for raw in forms:
        peer = world.client("c", version)
        peer.send(raw)
        peer.expect_closed()


@pytest.mark.statement("3.1.1:MQTT-3.14.4-2", "5.0:MQTT-3.14.4-1")
def test_what_follows_is_not_processed(world: World, version: int) -> None:
    watcher = world.client("w", version)
    watcher.subscribe("#")
    peer = world.client("c", version)
    peer.send(
        wire.publish("t", b"before", version=version),
        wire.disconnect(),
        wire.publish("t", b"after", version=version),
        wire.PINGREQ,
    )
    peer.expect_closed()
    watcher.expect_payloads(b"before")


@pytest.mark.statement("3.1.1:MQTT-3.14.4-3", "5.0:MQTT-3.14.4-3", "3.1.1:MQTT-4.5.0-1")
def test_publications_before_it_are_delivered_in_full(world: World, version: int) -> None:
    watcher = world.client("w", version)
    watcher.subscribe("#", 2)
    peer = world.client("c", version)
    peer.send(
        *[wire.publish("t", b"%d" % n, version=version, qos=n % 3, packet_id=n if n % 3 else None) for n in range(9)],
        wire.disconnect(),
    )
    assert [one.payload for one in watcher.take()] == [b"%d" % n for n in range(9)]


@pytest.mark.statement("5.0:MQTT-3.1.2-23", "5.0:MQTT-4.1.0-2")
@pytest.mark.parametrize(("first", "then", "kept"), [(100, 10, 10), (10, 100, 100), (100, 0, 0), (10, None, 10)])
def test_it_may_change_the_session_expiry(world: World, first: int, then: int | None, kept: int) -> None:
    for wait, present in ((kept - 2, True), (kept + TIMER_SLACK_S, False)):
        if wait < 0:
            continue
        peer = world.client("c", properties=props(session_expiry=first))
        peer.disconnect(0, b"" if then is None else props(session_expiry=then))
        world.advance(wait)
        again = world.client("c", clean=False)
        assert again.connack is not None
        assert again.connack.session_present is present
        again.drop()


@pytest.mark.statement("5.0:MQTT-4.13.1-1", "5.0:MQTT-3.1.2-8")
@pytest.mark.parametrize("properties", [b"", props(session_expiry=0)])
def test_it_may_not_raise_the_session_expiry_from_0(world: World, properties: bytes) -> None:
    """Such a packet is no valid DISCONNECT: it is answered, and the will is published."""
    watcher = world.client("w")
    watcher.subscribe("will")
    peer = world.client("c", will=Will(), properties=properties)
    peer.send(wire.disconnect(0, props(session_expiry=10)))
    peer.expect_closed(0x82)
    watcher.expect_publish("will", b"gone")
    again = world.client("c", clean=False)
    assert again.connack is not None
    assert not again.connack.session_present


def test_zero_stays_zero(world: World) -> None:
    peer = world.client("c")
    peer.send(wire.disconnect(0, props(session_expiry=0)))
    peer.expect_closed()


@pytest.mark.statement("5.0:MQTT-3.14.2-1")
@pytest.mark.parametrize("reason", [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99])
def test_every_reason_that_a_client_may_give(world: World, reason: int) -> None:
    peer = world.client("c")
    peer.send(wire.disconnect(reason, props(reason_string="so", user=[("a", "b")])))
    peer.expect_closed()


@pytest.mark.statement("5.0:MQTT-3.14.2-1")
@pytest.mark.parametrize("reason", [0x8B, 0x8D, 0x8E, 0x9C, 0x9D, 0xA0])
def test_reasons_that_only_a_server_may_give(world: World, reason: int) -> None:
    """The client is going either way; its will counts as after any other failure."""
    watcher = world.client("w")
    watcher.subscribe("will")
    peer = world.client("c", will=Will())
    peer.send(wire.disconnect(reason))
    assert peer.link.closed
    assert [one.type for one in peer.take()] in ([], [Type.DISCONNECT])
    watcher.expect_publish("will", b"gone")
