"""Retained messages (§3.3.1.3, §3.8.3.1): one a topic, sent to new subscriptions, gone with an empty payload."""

from __future__ import annotations

import pytest

from . import wire
from .pair import V3, V5, Will, World, persistent
from .wire import props

SEND, SEND_IF_NEW, DO_NOT_SEND = 0, 0x10, 0x20


@pytest.mark.statement(
    "3.1.1:MQTT-3.3.1-5",
    "3.1.1:MQTT-3.3.1-6",
    "3.1.1:MQTT-3.3.1-8",
    "3.1.1:MQTT-3.8.4-6",
    "5.0:MQTT-3.3.1-5",
    "5.0:MQTT-3.3.1-9",
    "5.0:MQTT-3.8.4-8",
)
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_new_subscription_gets_it(world: World, version: int, published: int, granted: int) -> None:
    world.client("p", version).publish("a/b", b"x", published, retain=True)
    for topic_filter in ("a/b", "a/+", "#"):
        subscriber = world.client("s", version)
        subscriber.subscribe(topic_filter, granted)
        subscriber.acknowledge(subscriber.expect_publish("a/b", b"x", retain=True, qos=min(published, granted)))
        subscriber.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-3.3.1-6", "3.1.1:MQTT-3.3.2-3", "5.0:MQTT-3.3.1-9", "5.0:MQTT-3.3.2-3")
def test_only_those_that_match(world: World, version: int) -> None:
    publisher = world.client("p", version)
    for topic in ("a", "a/b", "a/c", "a/b/c", "b/b", "/a", "a/"):
        publisher.publish(topic, topic.encode(), retain=True)
    for topic_filter, wanted in {
        "a/+": ["a/", "a/b", "a/c"],
        "a/#": ["a", "a/", "a/b", "a/b/c", "a/c"],
        "+/b": ["a/b", "b/b"],
        "+": ["a"],
        "/+": ["/a"],
        "+/+": ["/a", "a/", "a/b", "a/c", "b/b"],
        "x": [],
    }.items():
        subscriber = world.client("s", version)
        subscriber.subscribe(topic_filter)
        got = subscriber.take()
        assert sorted(one.topic for one in got) == wanted
        assert all(one.payload == one.topic.encode() and one.retain for one in got)


@pytest.mark.statement("3.1.1:MQTT-3.3.1-7", "5.0:MQTT-3.3.1-5")
@pytest.mark.parametrize("qos", [0, 1])
def test_the_last_one_wins(world: World, version: int, qos: int) -> None:
    publisher = world.client("p", version)
    publisher.publish("t", b"old", 2, retain=True)
    publisher.publish("t", b"new", qos, retain=True)
    subscriber = world.client("s", version)
    subscriber.subscribe("t", 2)
    subscriber.expect_publish("t", b"new", qos=qos, retain=True)
    subscriber.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-3.3.1-12", "5.0:MQTT-3.3.1-8")
@pytest.mark.parametrize("payload", [b"live", b""])
def test_a_plain_publication_leaves_it_alone(world: World, version: int, payload: bytes) -> None:
    publisher = world.client("p", version)
    publisher.publish("t", b"plain")
    subscriber = world.client("s", version)
    subscriber.subscribe("t")
    subscriber.expect_nothing()
    publisher.publish("t", b"kept", retain=True)
    publisher.publish("t", payload)
    other = world.client("o", version)
    other.subscribe("t")
    other.expect_publish("t", b"kept", retain=True)


@pytest.mark.statement(
    "3.1.1:MQTT-3.3.1-10", "3.1.1:MQTT-3.3.1-11", "5.0:MQTT-3.3.1-6", "5.0:MQTT-3.3.1-7", "3.1.1:MQTT-3.3.1-9"
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_payload_deletes_it(world: World, version: int, qos: int) -> None:
    publisher = world.client("p", version)
    publisher.publish("t", b"x", retain=True)
    watcher = world.client("w", version)
    watcher.subscribe("t", 2)
    watcher.expect_publish("t", b"x")
    publisher.publish("t", b"", qos, retain=True)
    watcher.expect_publish("t", b"", qos=qos, retain=False)  # still forwarded
    late = world.client("l", version)
    late.subscribe("#")
    late.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-3.1.2-7", "5.0:MQTT-4.1.0-2")
def test_it_outlives_its_publisher(world: World, version: int) -> None:
    publisher = world.client("p", version)
    publisher.publish("t", b"x", retain=True)
    publisher.disconnect()
    world.client("p", version).disconnect()
    world.advance(10_000)
    subscriber = world.client("s", version)
    subscriber.subscribe("t")
    subscriber.expect_publish("t", b"x", retain=True)


@pytest.mark.statement("3.1.1:MQTT-3.8.4-3", "5.0:MQTT-3.8.4-4", "5.0:MQTT-3.3.1-9")
def test_subscribing_again_sends_it_again(world: World, version: int) -> None:
    world.client("p", version).publish("t", b"x", retain=True)
    subscriber = world.client("s", version)
    for _ in range(3):
        subscriber.subscribe("t")
        subscriber.expect_publish("t", b"x", retain=True)
        subscriber.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.3.1-10")
def test_retain_handling_1(world: World) -> None:
    world.client("p").publish("t", b"x", retain=True)
    subscriber = world.client("s", **persistent(V5))
    subscriber.subscribe("t", options=SEND_IF_NEW)
    subscriber.expect_publish("t", b"x", retain=True)
    subscriber.subscribe("t", 1, options=SEND_IF_NEW)
    subscriber.expect_nothing()
    subscriber.subscribe("+", options=SEND_IF_NEW)
    subscriber.expect_publish("t", b"x", retain=True)
    subscriber.drop()
    subscriber = world.client("s", **persistent(V5))
    subscriber.subscribe("t", options=SEND_IF_NEW)
    subscriber.expect_nothing()
    subscriber.unsubscribe("t")
    subscriber.subscribe("t", options=SEND_IF_NEW)
    subscriber.expect_publish("t", b"x", retain=True)


@pytest.mark.statement("5.0:MQTT-3.3.1-11")
def test_retain_handling_2(world: World) -> None:
    world.client("p").publish("t", b"x", retain=True)
    subscriber = world.client("s")
    for _ in range(2):
        subscriber.subscribe("t", options=DO_NOT_SEND)
        subscriber.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.3.1-9", "5.0:MQTT-3.3.1-11")
def test_each_filter_of_a_packet_has_its_own_handling(world: World) -> None:
    publisher = world.client("p")
    for topic in ("a", "b", "c"):
        publisher.publish(topic, b"x", retain=True)
    subscriber = world.client("s")
    subscriber.send(wire.subscribe(1, ("a", SEND), ("b", DO_NOT_SEND), ("c", SEND_IF_NEW)))
    got = subscriber.take()
    assert sorted(one.topic for one in got if one.topic) == ["a", "c"]


@pytest.mark.statement("5.0:MQTT-3.3.4-3", "5.0:MQTT-3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1])
def test_it_carries_the_identifier_of_its_subscription(world: World, qos: int) -> None:
    world.client("p").publish("a/b", b"x", qos, retain=True)
    subscriber = world.client("s")
    subscriber.subscribe("a/b", qos, properties=props(subscription_id=1))
    assert subscriber.expect_publish("a/b", b"x").properties["subscription_id"] == [1]
    subscriber.subscribe("a/#", qos, properties=props(subscription_id=2))
    assert subscriber.expect_publish("a/b", b"x").properties["subscription_id"] == [2]
    subscriber.subscribe("#", qos)
    assert "subscription_id" not in subscriber.expect_publish("a/b", b"x").properties


@pytest.mark.parametrize("no_local", [0, 4])
def test_no_local_says_nothing_about_retained_messages_of_others(world: World, no_local: int) -> None:
    world.client("p").publish("t", b"x", retain=True)
    subscriber = world.client("s")
    subscriber.subscribe("t", options=no_local)
    subscriber.expect_publish("t", b"x", retain=True)


@pytest.mark.statement("5.0:MQTT-3.3.2-6", "5.0:MQTT-3.3.2-5")
def test_it_expires(world: World) -> None:
    publisher = world.client("p")
    publisher.publish("t", b"x", retain=True, properties=props(message_expiry=100))
    world.advance(40)
    subscriber = world.client("s")
    subscriber.subscribe("t")
    left = subscriber.expect_publish("t", b"x", retain=True).properties["message_expiry"]
    assert 59 <= left <= 60
    world.advance(61)
    subscriber.subscribe("t")
    subscriber.expect_nothing()
    old = world.client("old", V3)
    old.subscribe("#")
    old.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.3.1-9")
def test_shared_subscriptions_get_none(world: World) -> None:
    world.client("p").publish("t", b"x", retain=True)
    subscriber = world.client("s")
    subscriber.subscribe("$share/g/t")
    subscriber.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-3.1.2-17", "5.0:MQTT-3.1.2-15", "3.1.1:MQTT-3.1.2-16", "5.0:MQTT-3.1.2-14")
@pytest.mark.parametrize("retain", [False, True])
def test_wills_are_retained_if_they_say_so(world: World, version: int, retain: bool) -> None:
    watcher = world.client("watcher", version)
    watcher.subscribe("w", 1)
    world.client("c", version, will=Will("w", b"gone", 1, retain=retain)).drop()
    watcher.expect_publish("w", b"gone", qos=1, retain=False)
    late = world.client("late", version)
    late.subscribe("w")
    if retain:
        late.expect_publish("w", b"gone", retain=True)
    late.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-3.3.1-10", "5.0:MQTT-3.3.1-6")
def test_an_empty_retained_will_deletes(world: World, version: int) -> None:
    world.client("p", version).publish("w", b"here", retain=True)
    world.client("c", version, will=Will("w", b"", retain=True)).drop()
    late = world.client("late", version)
    late.subscribe("w")
    late.expect_nothing()
