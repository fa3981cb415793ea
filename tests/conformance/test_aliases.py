"""Topic aliases (§3.3.2.3.4): the client's and the server's, each as long as the connection."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.broker.limits import Limits

from . import wire
from .pair import V3, Peer, Type, World, persistent
from .wire import V5, props


@pytest.fixture
def watcher(world: World) -> Peer:
    peer = world.client("watcher", V3)
    peer.subscribe("#", 2)
    return peer


def _aliased(topic: str, alias: int, payload: bytes = b"x", qos: int = 0) -> bytes:
    packet_id = 1 if qos else None
    return wire.publish(topic, payload, qos=qos, packet_id=packet_id, properties=props(topic_alias=alias))


# The client's


@pytest.mark.statement("5.0:MQTT-3.3.2-12")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_alias_up_to_the_maximum_is_taken(world: World, watcher: Peer, qos: int) -> None:
    peer = world.client("c")
    assert peer.connack is not None
    largest = peer.connack.properties["topic_alias_maximum"]
    for alias in range(1, largest + 1):
        peer.send(_aliased(f"t/{alias}", alias))
    for alias in range(1, largest + 1):
        peer.send(_aliased("", alias, b"y", qos))
        if qos == 2:
            peer.send(wire.ack(Type.PUBREL, 1))
    got = watcher.take()
    assert [one.topic for one in got] == [f"t/{alias}" for alias in range(1, largest + 1)] * 2
    assert not peer.link.closed


@pytest.mark.statement("5.0:MQTT-3.3.2-12")
def test_an_alias_can_be_set_anew(world: World, watcher: Peer) -> None:
    peer = world.client("c")
    peer.send(_aliased("a", 1), _aliased("", 1), _aliased("b", 1), _aliased("", 1), _aliased("a", 2), _aliased("", 1))
    assert [one.topic for one in watcher.take()] == ["a", "a", "b", "b", "a", "b"]


@pytest.mark.statement("5.0:MQTT-3.3.2-8", "5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("topic", ["t", ""])
def test_alias_0(world: World, topic: str) -> None:
    peer = world.client("c")
    peer.send(_aliased(topic, 0))
    peer.expect_closed(0x94)


@pytest.mark.statement("5.0:MQTT-3.2.2-17", "5.0:MQTT-3.3.2-9", "5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("topic", ["t", ""])
def test_alias_above_the_servers_maximum(topic: str) -> None:
    world = World(limits=Limits(topic_alias_max=3))
    peer = world.client("c")
    peer.send(_aliased("t", 3))
    peer.expect_open()
    peer.send(_aliased(topic, 4))
    peer.expect_closed(0x94)


@pytest.mark.statement("5.0:MQTT-3.2.2-18")
def test_alias_where_the_server_takes_none() -> None:
    world = World(limits=Limits(topic_alias_max=0))
    peer = world.client("c")
    assert peer.connack is not None
    assert peer.connack.properties.get("topic_alias_maximum", 0) == 0
    peer.send(_aliased("t", 1))
    peer.expect_closed(0x94)


@pytest.mark.statement("5.0:MQTT-4.13.1-1")
def test_alias_that_was_never_set(world: World) -> None:
    peer = world.client("c")
    peer.send(_aliased("t", 1), _aliased("", 2))
    peer.expect_closed(0x82)


@pytest.mark.statement("5.0:MQTT-3.3.2-7")
def test_aliases_of_a_client_end_with_its_connection(world: World) -> None:
    peer = world.client("c", **persistent(V5))
    peer.send(_aliased("t", 1))
    peer.drop()
    peer = world.client("c", **persistent(V5))
    peer.send(_aliased("", 1))
    peer.expect_closed(0x82)


@pytest.mark.statement("5.0:MQTT-3.3.2-7")
def test_aliases_of_two_clients_are_apart(world: World, watcher: Peer) -> None:
    first, second = world.client("a"), world.client("b")
    first.send(_aliased("a", 1))
    second.send(_aliased("b", 1))
    first.send(_aliased("", 1))
    second.send(_aliased("", 1))
    assert [one.topic for one in watcher.take()] == ["a", "b", "a", "b"]


@pytest.mark.statement("5.0:MQTT-3.1.2-27")
def test_an_alias_is_not_passed_on(world: World) -> None:
    subscriber = world.client("s")
    subscriber.subscribe("#", 1)
    peer = world.client("c")
    for qos in (0, 1):
        peer.send(_aliased("t", 1, b"1", qos))
        peer.send(_aliased("", 1, b"2", qos))
        for payload in (b"1", b"2"):
            assert "topic_alias" not in subscriber.expect_publish("t", payload).properties


@pytest.mark.statement("5.0:MQTT-3.3.2-12", "5.0:MQTT-3.3.2-2")
def test_a_bad_topic_with_an_alias_is_a_bad_topic(world: World) -> None:
    peer = world.client("c")
    peer.send(_aliased("a/+", 1))
    peer.expect_closed(0x81, 0x82, 0x90)


# The server's


@pytest.mark.statement("5.0:MQTT-3.1.2-27")
@pytest.mark.parametrize("properties", [b"", props(topic_alias_maximum=0)])
def test_no_aliases_to_a_client_that_takes_none(world: World, properties: bytes) -> None:
    subscriber = world.client("s", properties=properties)
    subscriber.subscribe("#", 1)
    publisher = world.client("p")
    for qos in (0, 0, 1, 1):
        publisher.publish("t", b"x", qos)
        assert "topic_alias" not in subscriber.expect_publish("t", b"x").properties


@pytest.mark.statement("5.0:MQTT-3.1.2-26", "5.0:MQTT-3.3.2-11", "5.0:MQTT-3.3.2-8", "5.0:MQTT-3.3.2-7")
@pytest.mark.parametrize("largest", [1, 2, 65_535])
def test_aliases_of_the_server_stay_within_the_clients_maximum(world: World, largest: int) -> None:
    options: dict[str, Any] = {"clean": False, "properties": props(session_expiry=1000, topic_alias_maximum=largest)}
    publisher = world.client("p")
    subscriber = world.client("s", **options)
    subscriber.subscribe("#", 1)
    for round_ in range(2):
        known: dict[int, str] = {}
        used = 0
        for number in range(60):
            topic = f"t/{number % 20}"
            publisher.publish(topic, b"%d" % number, number % 2)
            received = subscriber.expect(Type.PUBLISH, payload=b"%d" % number)
            alias = received.properties.get("topic_alias")
            if alias is not None:
                assert 0 < alias <= largest
                if received.topic:
                    known[alias] = received.topic
                else:
                    used += 1
            assert received.topic == topic or (not received.topic and alias and known[alias] == topic)
            subscriber.acknowledge(received)
        assert used > 0, f"no alias was used in round {round_}"
        subscriber.drop()
        subscriber = world.client("s", **options)  # a new connection begins without any


@pytest.mark.statement("5.0:MQTT-3.3.2-7")
def test_a_redelivery_says_its_topic(world: World) -> None:
    options: dict[str, Any] = {"clean": False, "properties": props(session_expiry=1000, topic_alias_maximum=5)}
    subscriber = world.client("s", **options)
    subscriber.subscribe("#", 1)
    publisher = world.client("p")
    for payload in (b"1", b"2"):
        publisher.publish("t", payload, 1)
    subscriber.take()
    subscriber.drop()
    subscriber = world.client("s", **options)
    first, _second = subscriber.expect_payloads(b"1", b"2")
    assert first.topic == "t"


@pytest.mark.statement("5.0:MQTT-3.1.2-24", "5.0:MQTT-3.1.2-26")
def test_an_alias_that_did_not_go_out_is_not_used(world: World) -> None:
    """The PUBLISH that would have set the alias is too large and dropped: the next one must say the topic."""
    subscriber = world.client("s", properties=props(topic_alias_maximum=5, maximum_packet_size=60))
    subscriber.subscribe("#", 1)
    publisher = world.client("p")
    publisher.publish("t/1", bytes(60), 1)
    publisher.publish("t/1", b"x", 1)
    subscriber.expect_publish("t/1", b"x")
