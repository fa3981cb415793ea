"""Flow control (§4.9), the bounds that one side sets the other (§3.1.2.11), and message expiry (§3.3.2.3.3)."""

from __future__ import annotations

import pytest

from braidmq.broker.limits import Limits

from . import wire
from .pair import V3, V5, Peer, Type, World, persistent
from .wire import ack, props


def _subscriber(world: World, qos: int = 2, **properties: int) -> Peer:
    peer = world.client("s", clean=False, properties=props(session_expiry=1000, **properties))
    peer.subscribe("t", qos)
    return peer


# Receive Maximum


@pytest.mark.statement("5.0:MQTT-3.3.4-9", "5.0:MQTT-4.9.0-1", "5.0:MQTT-4.9.0-2")
@pytest.mark.parametrize("quota", [1, 2, 5])
def test_the_servers_send_quota_with_qos_1(world: World, quota: int) -> None:
    peer = _subscriber(world, receive_maximum=quota)
    publisher = world.client("p")
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1)
    got = peer.take()
    assert len(got) == quota
    for number in range(quota, 10):  # each acknowledgement lets one more through, in order
        peer.acknowledge(got.pop(0))
        (one,) = peer.take()
        assert one.payload == b"%d" % number
        got.append(one)
    for one in got:
        peer.acknowledge(one)
    peer.expect_open()


@pytest.mark.statement("5.0:MQTT-3.3.4-9", "5.0:MQTT-4.9.0-2")
def test_the_servers_send_quota_with_qos_2(world: World) -> None:
    peer = _subscriber(world, receive_maximum=1)
    publisher = world.client("p")
    for number in range(3):
        publisher.publish("t", b"%d" % number, 2)
    first = peer.expect_publish("t", b"0")
    assert first.packet_id
    peer.send(ack(Type.PUBREC, first.packet_id))
    peer.expect(Type.PUBREL)
    peer.expect_nothing()  # only PUBCOMP frees it
    peer.send(ack(Type.PUBCOMP, first.packet_id))
    second = peer.expect_publish("t", b"1")
    peer.acknowledge(second, 0x97)  # and so does a PUBREC that refuses
    peer.expect_publish("t", b"2")


@pytest.mark.statement("5.0:MQTT-3.3.4-10", "5.0:MQTT-4.9.0-3")
def test_everything_else_flows_with_no_quota_left(world: World) -> None:
    peer = _subscriber(world, receive_maximum=1)
    publisher = world.client("p")
    for number in range(3):
        publisher.publish("t", b"%d" % number, 1)
    peer.expect_publish("t", b"0")
    peer.send(wire.PINGREQ)
    peer.expect(Type.PINGRESP)
    assert peer.subscribe("u") == 0
    publisher.publish("u", b"QoS 0 needs no quota")
    peer.expect_publish("u", b"QoS 0 needs no quota")
    assert peer.publish("v", b"x", 1) == 0x10
    assert peer.publish("v", b"x", 2) == 0x10
    peer.unsubscribe("u")
    peer.expect_open()


@pytest.mark.statement("5.0:MQTT-4.9.0-1", "5.0:MQTT-3.3.4-9")
def test_a_resumed_session_has_the_new_connections_quota(world: World) -> None:
    peer = _subscriber(world)
    publisher = world.client("p")
    for number in range(6):
        publisher.publish("t", b"%d" % number, 1)
    assert len(peer.take()) == 6
    peer.drop()
    peer = world.client("s", clean=False, properties=props(session_expiry=1000, receive_maximum=2))
    for number in range(6):
        one = peer.expect_publish("t", b"%d" % number, dup=True)
        peer.acknowledge(one)
    peer.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.3.4-7", "5.0:MQTT-4.13.1-1")
def test_more_than_the_servers_receive_maximum() -> None:
    world = World(limits=Limits(receive_max=3))
    peer = world.client("c")
    assert peer.connack is not None
    assert peer.connack.properties["receive_maximum"] == 3
    for packet_id in (1, 2, 3):
        peer.send(wire.publish("t", qos=2, packet_id=packet_id))
        peer.expect(Type.PUBREC, packet_id=packet_id)
    peer.send(wire.publish("t", qos=2, packet_id=2, dup=True))  # again, not one more
    peer.expect(Type.PUBREC, packet_id=2)
    peer.send(wire.publish("t", qos=0))
    peer.expect_open()
    peer.send(ack(Type.PUBREL, 1))
    peer.expect(Type.PUBCOMP, packet_id=1)
    peer.send(wire.publish("t", qos=2, packet_id=4))
    peer.expect(Type.PUBREC, packet_id=4)
    peer.send(wire.publish("t", qos=2, packet_id=5))
    peer.expect_closed(0x93)


@pytest.mark.statement("5.0:MQTT-3.3.4-7")
def test_a_full_receive_maximum_of_qos_1_in_one_piece() -> None:
    """As many as allowed, all at once, again and again: each was acknowledged before the next piece."""
    peer = World(limits=Limits(receive_max=5)).client("c")
    for _ in range(10):
        peer.send(*[wire.publish("t", qos=1, packet_id=number) for number in range(1, 6)])
        assert [one.type for one in peer.take()] == [Type.PUBACK] * 5
    peer.expect_open()


@pytest.mark.statement("5.0:MQTT-3.3.4-9", "5.0:MQTT-4.9.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledgements_from_before_the_reconnect_give_no_extra_quota(world: World, qos: int) -> None:
    """The client acknowledges, on the new connection, what it got on the old one and was not sent again yet."""
    peer = _subscriber(world)
    publisher = world.client("p")
    for number in range(8):
        publisher.publish("t", b"%d" % number, qos)
    first = peer.take()
    assert len(first) == 8
    peer.drop()
    peer = world.client("s", clean=False, properties=props(session_expiry=1000, receive_maximum=2))
    peer.take()
    for one in first[5:8]:
        assert one.packet_id
        peer.send(ack(Type.PUBACK if qos == 1 else Type.PUBREC, one.packet_id))
        for answer in peer.take():  # the peer itself counts what is under way
            if answer.type is Type.PUBREL and answer.packet_id:
                peer.send(ack(Type.PUBCOMP, answer.packet_id))
    peer.take()


# A reader that is too slow


def test_a_slow_reader_loses_qos_0_and_keeps_the_rest(world: World, version: int) -> None:
    peer = world.client("s", version)
    peer.subscribe("t", 1)
    publisher = world.client("p", version)
    peer.connection.pause_writing()
    world.advance(1.0)
    for number in range(5):
        publisher.publish("t", b"%d" % number, number % 2)
    peer.expect_nothing()
    peer.connection.resume_writing()
    world.settle()
    peer.expect_payloads(b"1", b"3")
    publisher.publish("t", b"live", 0)
    peer.expect_publish("t", b"live")


def test_a_slow_reader_is_disconnected_at_the_bound(version: int) -> None:
    world = World(limits=Limits(queue_messages_max=3))
    peer = world.client("s", version, **persistent(version))
    peer.subscribe("t", 1)
    publisher = world.client("p", version)
    peer.connection.pause_writing()
    for number in range(3):
        publisher.publish("t", b"%d" % number, 1)
    assert not peer.link.closed
    publisher.publish("t", b"3", 1)
    assert peer.link.closed
    publisher.expect_open()
    got = world.client("s", version, **persistent(version)).take()
    assert [one.payload for one in got] == [b"1", b"2", b"3"]  # offline now: the oldest goes first


# Maximum Packet Size


@pytest.mark.statement("5.0:MQTT-3.1.2-24", "5.0:MQTT-3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_too_large_is_dropped_and_its_slot_freed(world: World, qos: int) -> None:
    peer = _subscriber(world, qos, maximum_packet_size=200, receive_maximum=1)
    publisher = world.client("p")
    for number in range(5):
        publisher.publish("t", bytes(200), qos)
        publisher.publish("t", b"%d" % number, qos)
        peer.acknowledge(peer.expect_publish("t", b"%d" % number))
        peer.expect_nothing()
    peer.drop()
    _subscriber(world, qos).expect_nothing()  # nor is it sent later


@pytest.mark.statement("5.0:MQTT-3.1.2-24")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_exact_size_still_fits(world: World, qos: int) -> None:
    size = len(wire.publish("t", bytes(50), qos=qos, packet_id=1 if qos else None))
    peer = _subscriber(world, qos, maximum_packet_size=size)
    publisher = world.client("p")
    publisher.publish("t", bytes(51), qos)
    publisher.publish("t", bytes(50), qos)
    peer.expect_publish("t", bytes(50), qos=qos)
    peer.expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.1.2-24", "5.0:MQTT-3.1.2-25")
def test_properties_count_too(world: World) -> None:
    peer = _subscriber(world, 1, maximum_packet_size=100)
    publisher = world.client("p")
    publisher.publish("t", b"x", 1, properties=props(user=[("k", "v" * 100)]))
    publisher.publish("t", b"y", 1)
    peer.expect_publish("t", b"y")


@pytest.mark.statement("5.0:MQTT-3.1.2-24", "5.0:MQTT-3.1.2-25")
def test_a_smaller_size_on_the_next_connection(world: World) -> None:
    """Held and queued messages that fitted before and do not now are dropped, and do not stop the others."""
    peer = _subscriber(world, 1)
    publisher = world.client("p")
    publisher.publish("t", bytes(300), 1)
    publisher.publish("t", b"small", 1)
    assert len(peer.take()) == 2
    peer.drop()
    publisher.publish("t", bytes(300), 1)
    publisher.publish("t", b"late", 1)
    peer = world.peer()
    peer.connect("s", clean=False, properties=props(session_expiry=1000, maximum_packet_size=100, receive_maximum=1))
    for payload in (b"small", b"late"):
        peer.acknowledge(peer.expect_publish("t", payload))
    peer.expect_open()


@pytest.mark.statement("5.0:MQTT-3.1.2-24")
def test_large_retained_messages_are_left_out(world: World) -> None:
    world.client("p").publish("t", bytes(300), 1, retain=True)
    peer = world.client("s", properties=props(maximum_packet_size=100))
    peer.subscribe("t", 1)
    peer.expect_open()


# Message expiry


@pytest.mark.statement("5.0:MQTT-3.3.2-5", "5.0:MQTT-3.3.2-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_queued_message_counts_down_and_expires(world: World, qos: int) -> None:
    _subscriber(world, qos).drop()
    publisher = world.client("p")
    publisher.publish("t", b"short", qos, properties=props(message_expiry=10))
    publisher.publish("t", b"long", qos, properties=props(message_expiry=100))
    publisher.publish("t", b"none", qos)
    world.advance(30)
    peer = world.client("s", clean=False, properties=props(session_expiry=1000))
    long, none = peer.expect_payloads(b"long", b"none")
    assert 69 <= long.properties["message_expiry"] <= 70
    assert "message_expiry" not in none.properties


@pytest.mark.statement("5.0:MQTT-3.3.2-5")
def test_an_expired_message_reaches_no_client_of_3_1_1(world: World) -> None:
    peer = world.client("old", V3, clean=False)
    peer.subscribe("t", 1)
    peer.drop()
    world.client("p").publish("t", b"x", 1, properties=props(message_expiry=10))
    world.advance(11)
    world.client("old", V3, clean=False).expect_nothing()


@pytest.mark.statement("5.0:MQTT-3.3.2-5")
def test_a_message_expires_while_it_waits_for_quota(world: World) -> None:
    peer = _subscriber(world, 1, receive_maximum=1)
    publisher = world.client("p")
    publisher.publish("t", b"first", 1)
    publisher.publish("t", b"expires", 1, properties=props(message_expiry=5))
    publisher.publish("t", b"last", 1)
    first = peer.expect_publish("t", b"first")
    world.advance(6)
    peer.acknowledge(first)
    peer.expect_publish("t", b"last")


@pytest.mark.statement("5.0:MQTT-3.3.2-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_live_forward_has_the_whole_interval(world: World, qos: int) -> None:
    peer = _subscriber(world, qos)
    world.client("p").publish("t", b"x", qos, properties=props(message_expiry=77))
    assert peer.expect_publish("t", b"x").properties["message_expiry"] == 77


@pytest.mark.statement("5.0:MQTT-4.3.3-7")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_does_not_expire(world: World, qos: int) -> None:
    peer = _subscriber(world, 2)
    world.client("p").publish("t", b"x", qos, properties=props(message_expiry=10))
    first = peer.expect_publish("t", b"x")
    peer.drop()
    world.advance(60)
    peer = world.client("s", clean=False, properties=props(session_expiry=1000))
    if qos == 2:
        peer.expect_publish("t", b"x", dup=True, packet_id=first.packet_id)
    else:
        assert [one.packet_id for one in peer.take()] in ([], [first.packet_id])


@pytest.mark.statement("5.0:MQTT-4.3.3-13")
def test_the_receivers_hand_shake_outlives_the_message(world: World) -> None:
    _subscriber(world, 2).drop()
    publisher = world.client("p")
    publisher.send(wire.publish("t", b"x", qos=2, packet_id=1, properties=props(message_expiry=1)))
    publisher.expect(Type.PUBREC, packet_id=1, reason=0)
    world.advance(10)
    publisher.send(ack(Type.PUBREL, 1))
    publisher.expect(Type.PUBCOMP, packet_id=1, reason=0)
    world.client("s", clean=False).expect_nothing()


def test_the_servers_bound_on_message_expiry() -> None:
    world = World(limits=Limits(message_expiry_max_s=50))
    world.client("s", **persistent(V5)).subscribe("t", 1)
    world.client("s", **persistent(V5)).drop()
    publisher = world.client("p")
    publisher.publish("t", b"none", 1)
    publisher.publish("t", b"long", 1, properties=props(message_expiry=100))
    publisher.publish("t", b"short", 1, properties=props(message_expiry=20))
    world.advance(10)
    peer = world.client("s", **persistent(V5))
    assert [one.properties["message_expiry"] for one in peer.take()] == [40, 40, 10]
