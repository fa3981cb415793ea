"""Keep-alive and PINGREQ (§3.1.2.10, §3.12): one and a half times the interval, then the client counts as lost."""

from __future__ import annotations

import pytest

from braidmq.broker.limits import Limits

from . import wire
from .pair import TIMER_SLACK_S, V5, Type, World


@pytest.mark.statement("3.1.1:MQTT-3.12.4-1", "5.0:MQTT-3.12.4-1")
def test_pingreq_is_answered(world: World, version: int) -> None:
    peer = world.client("c", version)
    peer.send(wire.PINGREQ)
    peer.expect(Type.PINGRESP)
    peer.send(wire.PINGREQ * 3)
    assert [one.type for one in peer.take()] == [Type.PINGRESP] * 3


@pytest.mark.statement("3.1.1:MQTT-3.1.2-24", "5.0:MQTT-3.1.2-22", "5.0:MQTT-3.2.2-22")
@pytest.mark.parametrize("keep_alive", [2, 10, 65_535])
def test_silence_of_one_and_a_half_intervals(world: World, version: int, keep_alive: int) -> None:
    peer = world.client("c", version, keep_alive=keep_alive)
    world.advance(keep_alive * 1.5 - 0.5)
    peer.expect_nothing()
    assert not peer.link.closed
    world.advance(0.5 + TIMER_SLACK_S)
    peer.expect_closed(0x8D)


@pytest.mark.statement("3.1.1:MQTT-3.1.2-24", "5.0:MQTT-3.1.2-22")
@pytest.mark.parametrize("kind", ["PINGREQ", "PUBLISH", "PUBACK", "SUBSCRIBE"])
def test_any_packet_is_a_sign_of_life(world: World, version: int, kind: str) -> None:
    raw = {
        "PINGREQ": wire.PINGREQ,
        "PUBLISH": wire.publish("t", version=version),
        "PUBACK": wire.ack(Type.PUBACK, 9),
        "SUBSCRIBE": wire.subscribe(1, ("t", 0), version=version),
    }[kind]
    peer = world.client("c", version, keep_alive=10)
    for _ in range(5):
        world.advance(14)
        assert not peer.link.closed
        peer.send(raw)
        peer.take()
    world.advance(15 + TIMER_SLACK_S)
    assert peer.link.closed


@pytest.mark.statement("3.1.1:MQTT-3.1.2-24", "5.0:MQTT-3.1.2-22")
def test_what_the_server_sends_is_no_sign_of_life(world: World, version: int) -> None:
    peer = world.client("c", version, keep_alive=10)
    peer.subscribe("t")
    publisher = world.client("p", version)
    for _ in range(4):
        world.advance(4)
        publisher.publish("t", b"x")
    peer.take()
    assert peer.link.closed


@pytest.mark.statement("3.1.1:MQTT-3.1.2-24", "5.0:MQTT-3.1.2-22")
def test_keep_alive_0_is_for_ever(world: World, version: int) -> None:
    peer = world.client("c", version, keep_alive=0)
    for _ in range(10):
        world.advance(100_000)
    peer.expect_open()


@pytest.mark.statement("5.0:MQTT-3.2.2-22", "5.0:MQTT-3.1.2-22")
@pytest.mark.parametrize("wanted", [0, 31, 65_535])
def test_the_servers_own_keep_alive(wanted: int) -> None:
    world = World(limits=Limits(keep_alive_max_s=30))
    peer = world.peer()
    assert peer.connect("c", keep_alive=wanted).properties["server_keep_alive"] == 30
    world.advance(44)
    peer.expect_open()
    world.advance(45 + TIMER_SLACK_S)
    peer.expect_closed(0x8D)


@pytest.mark.statement("5.0:MQTT-3.2.2-22")
def test_no_keep_alive_of_the_servers_where_the_clients_will_do() -> None:
    world = World(limits=Limits(keep_alive_max_s=30))
    peer = world.peer(V5)
    assert "server_keep_alive" not in peer.connect("c", keep_alive=20).properties
    world.advance(30 + TIMER_SLACK_S)
    peer.expect_closed(0x8D)
