"""Properties of MQTT 5 (§2.2.2): where each may stand, how often, and which are passed on as they came."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.broker.limits import Limits

from . import wire
from .pair import Type, Will, World
from .wire import PROPERTIES, prop, props

MALFORMED, VIOLATION, QUOTA_EXCEEDED = 0x81, 0x82, 0x97

SAMPLES: dict[str, Any] = {
    "u8": 1,
    "u16": 10,
    "u32": 5000,
    "varint": 5,
    "text": "some",
    "data": b"\x00",
    "pair": ("k", "v"),
}

_MESSAGE = {"payload_format", "message_expiry", "content_type", "response_topic", "correlation_data", "user"}
ALLOWED = {
    "CONNECT": {"session_expiry", "receive_maximum", "maximum_packet_size", "topic_alias_maximum", "request_response"}
    | {"request_problem", "user", "auth_method", "auth_data"},
    "WILL": _MESSAGE | {"will_delay"},
    "PUBLISH": _MESSAGE | {"topic_alias"},
    "PUBACK": {"reason_string", "user"},
    "PUBREC": {"reason_string", "user"},
    "PUBREL": {"reason_string", "user"},
    "PUBCOMP": {"reason_string", "user"},
    "SUBSCRIBE": {"subscription_id", "user"},
    "UNSUBSCRIBE": {"user"},
    "DISCONNECT": {"session_expiry", "reason_string", "user"},
}
"""What a client may say in each packet; the will stands inside CONNECT."""

STRANGERS = [
    (packet, name)
    for packet, allowed in ALLOWED.items()
    for name in PROPERTIES
    if name not in allowed
    and (packet, name) not in (("PUBLISH", "subscription_id"), ("DISCONNECT", "server_reference"))
]
SINGLES = [(packet, name) for packet, allowed in ALLOWED.items() for name in sorted(allowed - {"user", "auth_data"})]


def _send(world: World, packet: str, properties: bytes, *reasons: int) -> None:
    """Sends these properties in such a packet and wants these reasons."""
    if packet in ("CONNECT", "WILL"):
        peer = world.peer()
        if packet == "CONNECT":
            peer.send(wire.connect("c", properties=properties))
        else:
            peer.send(wire.connect("c", will=Will(properties=properties)))
        peer.expect_refused(*reasons)
        return
    peer = world.client("c", properties=props(session_expiry=100))
    match packet:
        case "PUBLISH":
            peer.send(wire.publish("t", b"x", properties=properties))
        case "SUBSCRIBE":
            peer.send(wire.subscribe(1, ("t", 0), properties=properties))
        case "UNSUBSCRIBE":
            peer.send(wire.unsubscribe(1, "t", properties=properties))
        case "DISCONNECT":
            peer.send(wire.disconnect(0, properties))
        case _:
            peer.send(wire.ack(Type[packet], 7, 0, properties))
    peer.expect_closed(*reasons)


def _sample(name: str) -> bytes:
    return prop(name, SAMPLES[PROPERTIES[name][1]])


@pytest.mark.statement("5.0:MQTT-4.13.1-1", "5.0:MQTT-3.1.4-1")
@pytest.mark.parametrize(("packet", "name"), STRANGERS)
def test_property_where_it_does_not_belong(world: World, packet: str, name: str) -> None:
    _send(world, packet, _sample(name), MALFORMED)


@pytest.mark.statement("5.0:MQTT-4.13.1-1", "5.0:MQTT-3.1.4-1")
@pytest.mark.parametrize(("packet", "name"), SINGLES)
def test_property_twice(world: World, packet: str, name: str) -> None:
    _send(world, packet, _sample(name) * 2, VIOLATION)


@pytest.mark.statement("5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("packet", ALLOWED)
@pytest.mark.parametrize("number", [0, 4, 10, 0x14, 0x1D, 0x2B, 0x7F])
def test_unknown_property(world: World, packet: str, number: int) -> None:
    _send(world, packet, bytes((number, 0)), MALFORMED)


@pytest.mark.statement("5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize(
    "properties",
    [
        props(receive_maximum=0),
        props(maximum_packet_size=0),
        props(request_problem=2),
        props(request_response=2),
        props(auth_data=b"x"),
        props(auth_method="m", auth_data=[b"x", b"y"]),
    ],
    ids=["receive maximum 0", "packet size 0", "problem 2", "response 2", "data without method", "data twice"],
)
def test_values_that_connect_may_not_have(world: World, properties: bytes) -> None:
    _send(world, "CONNECT", properties, VIOLATION)


@pytest.mark.statement("5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("packet", ["PUBLISH", "WILL"])
def test_payload_format_is_0_or_1(world: World, packet: str) -> None:
    _send(world, packet, props(payload_format=2), MALFORMED, VIOLATION)


@pytest.mark.statement("5.0:MQTT-3.3.4-6")
@pytest.mark.parametrize("number", [0, 1, 268_435_455])
def test_subscription_identifier_from_a_client(world: World, number: int) -> None:
    _send(world, "PUBLISH", props(subscription_id=number), VIOLATION)


@pytest.mark.statement("5.0:MQTT-3.3.2-14")
@pytest.mark.parametrize("topic", ["a/+", "#", "a/#/b", ""])
@pytest.mark.parametrize("packet", ["PUBLISH", "WILL"])
def test_response_topic_is_a_topic_name(world: World, packet: str, topic: str) -> None:
    _send(world, packet, props(response_topic=topic), MALFORMED, VIOLATION, 0x90)


@pytest.mark.statement(
    "5.0:MQTT-3.3.2-4",
    "5.0:MQTT-3.3.2-15",
    "5.0:MQTT-3.3.2-16",
    "5.0:MQTT-3.3.2-17",
    "5.0:MQTT-3.3.2-18",
    "5.0:MQTT-3.3.2-20",
)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_message_properties_are_forwarded_as_they_came(world: World, qos: int, retain: bool) -> None:
    sent: dict[str, Any] = {
        "payload_format": 1,
        "content_type": "text/plain; ü",
        "response_topic": "answers/1",
        "correlation_data": bytes(range(256)),
        "user": [("b", "2"), ("a", "1"), ("b", "2"), ("", ""), ("a", "3")],
    }
    subscriber = world.client("s")
    if not retain:
        subscriber.subscribe("t", qos)
    world.client("p").publish("t", b"x", qos, retain=retain, properties=props(**sent))
    if retain:
        subscriber.subscribe("t", qos)
    received = subscriber.expect_publish("t", b"x", qos=qos)
    assert received.properties == sent


@pytest.mark.statement("5.0:MQTT-3.3.2-4")
@pytest.mark.parametrize("sent", [{}, {"payload_format": 0}, {"correlation_data": b""}, {"content_type": ""}])
def test_nothing_is_added_or_left_out(world: World, sent: dict[str, Any]) -> None:
    subscriber = world.client("s")
    subscriber.subscribe("t")
    world.client("p").publish("t", b"x", properties=props(**sent))
    assert subscriber.expect_publish("t", b"x").properties == sent


def test_properties_reach_no_client_of_3_1_1(world: World) -> None:
    old = world.client("old", wire.V3)
    old.subscribe("t", 1)
    world.client("p").publish("t", b"x", 1, properties=props(content_type="c", user=[("k", "v")], topic_alias=1))
    old.expect_publish("t", b"x")


@pytest.mark.statement("5.0:MQTT-3.3.4-1")
def test_an_empty_message_of_3_1_1_reaches_5_0(world: World) -> None:
    new = world.client("new")
    new.subscribe("t")
    world.client("old", wire.V3).publish("t")
    assert new.expect_publish("t", b"").properties == {}


def test_user_properties_are_taken_in_every_packet(world: World) -> None:
    user = props(user=[("k", "v"), ("k", "v")])
    peer = world.client("c", properties=user)
    peer.send(wire.subscribe(1, ("t", 1), properties=user))
    peer.expect(Type.SUBACK, reasons=[1])
    peer.send(wire.publish("t", b"x", qos=1, packet_id=9, properties=user))
    publication, puback = sorted(peer.take(), key=lambda one: one.type)
    assert (publication.type, puback.type) == (Type.PUBLISH, Type.PUBACK)
    assert publication.packet_id
    peer.send(wire.ack(Type.PUBACK, publication.packet_id, 0, user + props(reason_string="thanks")))
    peer.send(wire.unsubscribe(2, "t", properties=user))
    peer.expect(Type.UNSUBACK, reasons=[0])
    peer.send(wire.disconnect(0, user + props(reason_string="bye")))
    peer.expect_closed()


@pytest.mark.statement("5.0:MQTT-3.14.2-1", "5.0:MQTT-3.2.2-8")
@pytest.mark.parametrize("packet", ALLOWED)
def test_too_many_user_properties_are_not_read_to_their_end(packet: str) -> None:
    """Behind the one that is too many stands what is malformed: nobody gets to see it."""
    world = World(limits=Limits(user_properties_max=3))
    _send(world, packet, props(user=[("k", "v")] * 4) + b"\xff\xff\xff\xff", QUOTA_EXCEEDED)
    _send(world, packet, props(user=[("k", "v")] * 3) + b"\xff\xff\xff\xff", MALFORMED)


def test_too_many_user_properties_in_auth() -> None:
    peer = World(limits=Limits(user_properties_max=3)).client("c")
    peer.send(wire.auth(0x19, props(auth_method="m", user=[("k", "v")] * 4)))
    peer.expect_closed(QUOTA_EXCEEDED)


def test_the_bound_on_user_properties_is_told() -> None:
    world = World(limits=Limits(user_properties_max=3))
    fits = props(user=[("k", "v")] * 3)
    peer = world.client("c", properties=fits, will=Will(properties=fits))  # each set of properties counts by itself
    peer.subscribe("t")
    peer.publish("t", b"x", properties=fits)
    assert peer.expect_publish("t", b"x").properties["user"] == [("k", "v")] * 3
    peer.send(wire.publish("t", b"x", properties=props(user=[("k", "v")] * 4)))
    assert "more than 3 user properties" in peer.expect(Type.DISCONNECT, reason=0x97).properties["reason_string"]


@pytest.mark.statement("5.0:MQTT-3.3.4-6")
def test_many_subscription_identifiers_from_a_client() -> None:
    """They are wrong from the first one on, and are not read to their end either."""
    world = World(limits=Limits(user_properties_max=3))
    _send(world, "PUBLISH", props(subscription_id=[1] * 4) + b"\xff\xff\xff\xff", VIOLATION)
