"""SUBSCRIBE, UNSUBSCRIBE and their answers (§3.8 to §3.11)."""

from __future__ import annotations

import pytest

from braidmq.broker.limits import Limits

from . import wire
from .pair import V3, V5, Rules, Type, World, persistent
from .wire import ack, props

MALFORMED, VIOLATION = 0x81, 0x82
NO_LOCAL, AS_PUBLISHED, SEND_IF_NEW, DO_NOT_SEND = 4, 8, 0x10, 0x20


@pytest.mark.statement(
    "3.1.1:MQTT-2.3.1-7",
    "3.1.1:MQTT-3.8.4-1",
    "3.1.1:MQTT-3.8.4-2",
    "3.1.1:MQTT-3.8.4-4",
    "3.1.1:MQTT-3.8.4-5",
    "3.1.1:MQTT-3.9.3-1",
    "3.1.1:MQTT-3.9.3-2",
    "5.0:MQTT-2.2.1-6",
    "5.0:MQTT-3.8.4-1",
    "5.0:MQTT-3.8.4-2",
    "5.0:MQTT-3.8.4-5",
    "5.0:MQTT-3.8.4-6",
    "5.0:MQTT-3.8.4-7",
    "5.0:MQTT-3.9.3-1",
    "5.0:MQTT-3.9.3-2",
)
@pytest.mark.parametrize("packet_id", [1, 258, 65_535])
def test_one_code_a_filter_in_their_order(version: int, packet_id: int) -> None:
    world = World(access=Rules())
    peer = world.client("c", version)
    wanted = [("a", 2), ("b/+", 0), ("secret/1", 1), ("#", 1), ("a", 0), ("/", 2), ("secret", 0)]
    peer.send(wire.subscribe(packet_id, *wanted, version=version))
    failure = 0x80 if version == V3 else 0x87
    peer.expect(Type.SUBACK, packet_id=packet_id, reasons=[2, 0, failure, 1, 0, 2, failure])
    peer.expect_open()


@pytest.mark.statement("3.1.1:MQTT-3.8.4-4", "5.0:MQTT-3.8.4-5")
def test_many_filters_work_like_many_packets(world: World, version: int) -> None:
    peer = world.client("c", version)
    peer.send(wire.subscribe(1, ("a", 0), ("b", 1), ("a", 2), version=version))
    peer.expect(Type.SUBACK, reasons=[0, 1, 2])
    publisher = world.client("p", version)
    for topic in ("a", "b", "c"):
        publisher.publish(topic, b"x", 2)
    assert [(one.topic, one.qos) for one in peer.take()] == [("a", 2), ("b", 1)]


@pytest.mark.statement("3.1.1:MQTT-3.8.3-3", "5.0:MQTT-3.8.3-2", "5.0:MQTT-4.13.1-1")
def test_subscribe_without_a_filter(world: World, version: int) -> None:
    peer = world.client("c", version)
    peer.send(wire.subscribe(1, version=version))
    peer.expect_closed(VIOLATION)


@pytest.mark.statement("3.1.1:MQTT-3.10.3-2", "5.0:MQTT-3.10.3-2", "5.0:MQTT-4.13.1-1")
def test_unsubscribe_without_a_filter(world: World, version: int) -> None:
    peer = world.client("c", version)
    peer.send(wire.unsubscribe(1, version=version))
    peer.expect_closed(VIOLATION)


@pytest.mark.statement("3.1.1:MQTT-3.8.3-4", "5.0:MQTT-3.8.3-5")
@pytest.mark.parametrize("options", [0x40, 0x80, 0xC0, 0xC1])
def test_reserved_option_bits(world: World, version: int, options: int) -> None:
    peer = world.client("c", version)
    peer.send(wire.subscribe(1, ("a", 0), ("b", options), version=version))
    peer.expect_closed(MALFORMED)


@pytest.mark.statement("3.1.1:MQTT-3.8.3-4")
@pytest.mark.parametrize("options", [4, 8, 0x10, 0x20, 0x2E])
def test_options_of_5_0_are_reserved_in_3_1_1(world: World, options: int) -> None:
    peer = world.client("c", V3)
    peer.send(wire.subscribe(1, ("a", options), version=V3))
    peer.expect_closed()


@pytest.mark.statement("3.1.1:MQTT-3.8.3-4", "5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("options", [3, 0x30])
def test_qos_3_and_retain_handling_3(world: World, version: int, options: int) -> None:
    peer = world.client("c", version)
    peer.send(wire.subscribe(1, ("a", options), version=version))
    peer.expect_closed(VIOLATION)


@pytest.mark.statement("3.1.1:MQTT-3.8.4-3", "5.0:MQTT-3.8.4-3")
def test_the_same_filter_again_replaces(world: World, version: int) -> None:
    subscriber = world.client("s", version)
    publisher = world.client("p", version)
    for qos in (0, 2, 1):
        assert subscriber.subscribe("a/+", qos) == qos
        publisher.publish("a/b", b"x", 2)
        subscriber.acknowledge(subscriber.expect_publish("a/b", b"x", qos=qos))
        subscriber.expect_nothing()
    subscriber.unsubscribe("a/+")
    publisher.publish("a/b", b"x", 2)
    subscriber.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.8.4-3")
def test_replacing_takes_over_all_options(world: World) -> None:
    peer = world.client("s")
    peer.subscribe("t", options=NO_LOCAL | AS_PUBLISHED, properties=props(subscription_id=5))
    peer.publish("t", b"mine", retain=True)
    peer.expect_nothing()
    peer.subscribe("t", options=DO_NOT_SEND)
    peer.publish("t", b"mine", retain=True)
    assert peer.expect_publish("t", b"mine", retain=False).properties == {}
    peer.subscribe("t", options=DO_NOT_SEND, properties=props(subscription_id=6))
    peer.publish("t", b"mine")
    assert peer.expect_publish("t", b"mine").properties == {"subscription_id": [6]}


@pytest.mark.statement("3.1.1:MQTT-3.8.4-3", "5.0:MQTT-3.8.4-4")
def test_replacing_loses_no_message(world: World, version: int) -> None:
    subscriber = world.client("s", version)
    subscriber.subscribe("t", 1)
    publisher = world.client("p", version)
    publisher.publish("t", b"1", 1)
    subscriber.send(wire.subscribe(9, ("t", 1), version=version))
    publisher.publish("t", b"2", 1)
    assert [one.payload for one in subscriber.take() if one.type is Type.PUBLISH] == [b"1", b"2"]


@pytest.mark.statement("5.0:MQTT-3.8.3-3")
def test_no_local(world: World) -> None:
    peer = world.client("c", **persistent(V5))
    peer.subscribe("t", 1, options=NO_LOCAL)
    other = world.client("o")
    other.subscribe("t")
    peer.publish("t", b"mine", 1)
    peer.expect_nothing()
    other.expect_publish("t", b"mine")
    other.publish("t", b"theirs")
    other.expect_publish("t", b"theirs")
    peer.expect_publish("t", b"theirs")
    peer.drop()
    peer = world.client("c", **persistent(V5))  # still its own messages on the next connection
    peer.publish("t", b"mine", 1)
    peer.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.8.3-3")
def test_no_local_beside_a_subscription_without_it(world: World) -> None:
    peer = world.client("c")
    peer.subscribe("t/+", options=NO_LOCAL, properties=props(subscription_id=1))
    peer.subscribe("t/#", properties=props(subscription_id=2))
    peer.publish("t/1", b"x")
    assert peer.expect_publish("t/1", b"x").properties["subscription_id"] == [2]
    peer.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-3.8.4-6")
def test_a_client_gets_its_own_messages(world: World, version: int) -> None:
    peer = world.client("c", version)
    peer.subscribe("t")
    peer.publish("t", b"x")
    peer.expect_publish("t", b"x")


@pytest.mark.statement("5.0:MQTT-3.3.1-12", "5.0:MQTT-3.3.1-13", "3.1.1:MQTT-3.3.1-9")
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retain_flag_of_live_forwards(world: World, version: int, retain: bool, qos: int) -> None:
    plain = world.client("plain", version)
    plain.subscribe("t", qos)
    exact = world.client("exact")
    exact.subscribe("t", qos, options=AS_PUBLISHED)
    world.client("p", version).publish("t", b"x", qos, retain=retain)
    plain.expect_publish("t", b"x", retain=False)
    exact.expect_publish("t", b"x", retain=retain)


@pytest.mark.statement("5.0:MQTT-3.3.4-3", "5.0:MQTT-3.3.4-4", "5.0:MQTT-3.3.4-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_one_copy_with_all_identifiers(world: World, qos: int) -> None:
    peer = world.client("s")
    peer.subscribe("a/b", qos, properties=props(subscription_id=1))
    peer.subscribe("a/+", 0, properties=props(subscription_id=268_435_455))
    peer.subscribe("#", 0)
    peer.subscribe("a/#", 0, properties=props(subscription_id=1))
    peer.subscribe("b", 0, properties=props(subscription_id=3))
    world.client("p").publish("a/b", b"x", qos)
    received = peer.expect_publish("a/b", b"x", qos=qos)
    assert sorted(received.properties["subscription_id"]) == [1, 1, 268_435_455]  # §3.3.4: the same one twice
    peer.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.3.4-3")
def test_identifiers_survive_the_connection(world: World) -> None:
    peer = world.client("s", **persistent(V5))
    peer.subscribe("t", 1, properties=props(subscription_id=200))
    peer.drop()
    publisher = world.client("p")
    publisher.publish("t", b"1", 1)
    peer = world.client("s", **persistent(V5))
    publisher.publish("t", b"2", 1)
    for payload in (b"1", b"2"):
        assert peer.expect_publish("t", payload).properties["subscription_id"] == [200]


@pytest.mark.statement("5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("properties", [props(subscription_id=0), props(subscription_id=[1, 2])], ids=["0", "two"])
def test_identifiers_that_are_not_allowed(world: World, properties: bytes) -> None:
    peer = world.client("s")
    peer.send(wire.subscribe(1, ("t", 0), properties=properties))
    peer.expect_closed(VIOLATION)


@pytest.mark.parametrize(
    ("limits", "topic_filter", "properties", "reason"),
    [
        (Limits(wildcards=False), "a/+", b"", 0xA2),
        (Limits(wildcards=False), "#", b"", 0xA2),
        (Limits(shared_subscriptions=False), "$share/g/a", b"", 0x9E),
        (Limits(subscription_ids=False), "a", props(subscription_id=1), 0xA1),
    ],
)
@pytest.mark.statement("5.0:MQTT-3.9.3-2")
def test_what_the_server_does_not_offer(limits: Limits, topic_filter: str, properties: bytes, reason: int) -> None:
    world = World(limits=limits)
    peer = world.client("s")
    peer.send(wire.subscribe(1, (topic_filter, 0), properties=properties))
    if peer.link.closed:
        peer.expect_closed(reason)
    else:
        peer.expect(Type.SUBACK, reasons=[reason])
    world.client("t").subscribe("a")


@pytest.mark.statement("3.1.1:MQTT-3.8.3-2")
@pytest.mark.parametrize("topic_filter", ["#", "+", "a/+/b", "a/#"])
def test_a_server_without_wildcards_refuses_them(topic_filter: str) -> None:
    peer = World(limits=Limits(wildcards=False)).client("s", V3)
    assert peer.subscribe(topic_filter) == 0x80
    assert peer.subscribe("a") == 0


@pytest.mark.statement("5.0:MQTT-3.9.3-2", "3.1.1:MQTT-3.9.3-2")
def test_more_subscriptions_than_the_bound(version: int) -> None:
    peer = World(limits=Limits(subscriptions_max=2)).client("s", version)
    assert [peer.subscribe(name) for name in "aba"] == [0, 0, 0]
    assert peer.subscribe("c") == (0x80 if version == V3 else 0x97)
    peer.unsubscribe("a")
    assert peer.subscribe("c") == 0


@pytest.mark.statement("5.0:MQTT-3.1.2-24")
def test_a_suback_that_the_client_would_not_take(world: World) -> None:
    peer = world.client("s", properties=props(maximum_packet_size=30))
    peer.send(wire.subscribe(1, *[(f"t/{number}", 0) for number in range(50)]))
    assert [one.type for one in peer.take()] in ([], [Type.DISCONNECT])  # the peer refuses what is too large
    peer = world.client("u", properties=props(maximum_packet_size=30))
    peer.send(wire.unsubscribe(1, *[f"t/{number}" for number in range(50)]))
    assert [one.type for one in peer.take()] in ([], [Type.DISCONNECT])


# UNSUBSCRIBE


@pytest.mark.statement(
    "3.1.1:MQTT-2.3.1-7",
    "3.1.1:MQTT-3.10.4-1",
    "3.1.1:MQTT-3.10.4-2",
    "3.1.1:MQTT-3.10.4-4",
    "3.1.1:MQTT-3.10.4-5",
    "5.0:MQTT-2.2.1-6",
    "5.0:MQTT-3.10.4-1",
    "5.0:MQTT-3.10.4-2",
    "5.0:MQTT-3.10.4-4",
    "5.0:MQTT-3.10.4-5",
    "5.0:MQTT-3.11.3-2",
)
def test_unsubscribe_deletes_the_very_filter(world: World, version: int) -> None:
    peer = world.client("s", version)
    publisher = world.client("p", version)
    for topic_filter in ("a/b", "a/+", "A/b"):
        peer.subscribe(topic_filter)
    for stranger in ("a/#", "#", "+/b", "a/b/", "a", "A/B"):
        assert peer.unsubscribe(stranger).reasons == ([] if version == V3 else [0x11])
    publisher.publish("a/b", b"1")
    peer.expect_publish("a/b", b"1")
    assert peer.unsubscribe("a/b").reasons == ([] if version == V3 else [0])
    publisher.publish("a/b", b"2")
    peer.expect_publish("a/b", b"2")  # by a/+
    peer.unsubscribe("a/+")
    publisher.publish("a/b", b"3")
    peer.expect_nothing()
    assert peer.unsubscribe("a/b").reasons == ([] if version == V3 else [0x11])


@pytest.mark.statement("3.1.1:MQTT-3.10.4-6", "5.0:MQTT-3.10.4-6", "5.0:MQTT-3.11.3-1", "5.0:MQTT-3.11.3-2")
def test_unsubscribe_from_many(world: World, version: int) -> None:
    peer = world.client("s", version)
    for topic_filter in ("a", "b", "c"):
        peer.subscribe(topic_filter)
    peer.send(wire.unsubscribe(77, "a", "x", "c", "a", version=version))
    peer.expect(Type.UNSUBACK, packet_id=77, reasons=[] if version == V3 else [0, 0x11, 0, 0x11])
    publisher = world.client("p", version)
    for topic in ("a", "b", "c"):
        publisher.publish(topic, b"x")
    peer.expect_publish("b", b"x")
    peer.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-3.10.4-3", "5.0:MQTT-3.10.4-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_deliveries_under_way_are_completed(world: World, version: int, qos: int) -> None:
    peer = world.client("s", version, **persistent(version))
    peer.subscribe("t", qos)
    world.client("p", version).publish("t", b"x", qos)
    received = peer.expect_publish("t", b"x")
    assert received.packet_id
    peer.unsubscribe("t")
    if qos == 2:
        peer.send(ack(Type.PUBREC, received.packet_id))
        peer.expect(Type.PUBREL, packet_id=received.packet_id)
    peer.drop()
    peer = world.client("s", version, **persistent(version))
    (again,) = peer.take()
    assert (again.type, again.packet_id) == (Type.PUBLISH if qos == 1 else Type.PUBREL, received.packet_id)
    peer.send(ack(Type.PUBACK if qos == 1 else Type.PUBCOMP, received.packet_id))
    peer.expect_open()


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_too_many_topic_filters_in_one_packet_are_not_read_to_their_end(kind: str, version: int) -> None:
    peer = World(limits=Limits(packet_filters_max=3)).client("c", version)
    filters = [f"t{number}" for number in range(4)]
    if kind == "subscribe":
        peer.send(wire.subscribe(1, *((one, 0) for one in filters[:3]), version=version))
        peer.expect(Type.SUBACK, packet_id=1)
        packet = wire.subscribe(2, *((one, 0) for one in filters), version=version)
    else:
        peer.send(wire.unsubscribe(1, *filters[:3], version=version))
        peer.expect(Type.UNSUBACK, packet_id=1)
        packet = wire.unsubscribe(2, *filters, version=version)
    peer.send(packet)
    peer.expect_closed(0x97)
