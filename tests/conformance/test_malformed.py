"""Packets that break the grammar (§2, §4.13): the connection ends, with the reason where MQTT 5 has one."""

from __future__ import annotations

import pytest

from braidmq.broker.limits import Limits

from . import wire
from .pair import V3, V5, Type, World
from .wire import packet

MALFORMED, VIOLATION, TOO_LARGE = 0x81, 0x82, 0x95


def _valid(version: int) -> dict[str, bytes]:
    """One packet of each type that a client may send to an open connection."""
    return {
        "PUBLISH": wire.publish("t", b"x", version=version, qos=1, packet_id=7),
        "PUBACK": wire.ack(Type.PUBACK, 7),
        "PUBREC": wire.ack(Type.PUBREC, 7),
        "PUBREL": wire.ack(Type.PUBREL, 7),
        "PUBCOMP": wire.ack(Type.PUBCOMP, 7),
        "SUBSCRIBE": wire.subscribe(7, ("t", 0), version=version),
        "UNSUBSCRIBE": wire.unsubscribe(7, "t", version=version),
        "PINGREQ": wire.PINGREQ,
        "DISCONNECT": wire.disconnect(),
    }


@pytest.mark.statement(
    "3.1.1:MQTT-2.2.2-1",
    "3.1.1:MQTT-2.2.2-2",
    "3.1.1:MQTT-3.6.1-1",
    "3.1.1:MQTT-3.8.1-1",
    "3.1.1:MQTT-3.10.1-1",
    "3.1.1:MQTT-3.14.1-1",
    "5.0:MQTT-2.1.3-1",
    "5.0:MQTT-3.6.1-1",
    "5.0:MQTT-3.8.1-1",
    "5.0:MQTT-3.10.1-1",
    "5.0:MQTT-3.14.1-1",
    "5.0:MQTT-4.13.1-1",
)
@pytest.mark.parametrize("flags", range(16))
@pytest.mark.parametrize("kind", [name for name in _valid(V5) if name != "PUBLISH"])
def test_reserved_header_flags(world: World, version: int, kind: str, flags: int) -> None:
    raw = _valid(version)[kind]
    if raw[0] & 15 == flags:
        pytest.skip("these are the right flags")
    peer = world.client("c", version)
    peer.send(bytes((raw[0] & 0xF0 | flags,)) + raw[1:])
    peer.expect_closed(MALFORMED)


@pytest.mark.statement("5.0:MQTT-3.15.1-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
def test_reserved_header_flags_of_auth(world: World, flags: int) -> None:
    peer = world.client("c")
    peer.send(packet(Type.AUTH, b"", flags))
    peer.expect_closed(MALFORMED)


@pytest.mark.statement("3.1.1:MQTT-3.3.1-4", "5.0:MQTT-3.3.1-4")
@pytest.mark.parametrize("flags", [6, 7, 14, 15])
def test_publish_with_qos_3(world: World, version: int, flags: int) -> None:
    peer = world.client("c", version)
    peer.send(packet(Type.PUBLISH, wire.text("t") + b"\x00\x01" + wire.block(version, b""), flags))
    peer.expect_closed(MALFORMED)


@pytest.mark.statement("3.1.1:MQTT-4.8.0-1", "5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("kind", [Type.CONNACK, Type.SUBACK, Type.UNSUBACK, Type.PINGRESP])
def test_packets_that_only_a_server_sends(world: World, version: int, kind: Type) -> None:
    bodies = {
        Type.CONNACK: b"\x00\x00" + wire.block(version, b""),
        Type.SUBACK: b"\x00\x01" + wire.block(version, b"") + b"\x00",
        Type.UNSUBACK: b"\x00\x01" + wire.block(version, b"") + (b"\x00" if version == V5 else b""),
        Type.PINGRESP: b"",
    }
    peer = world.client("c", version)
    peer.send(packet(kind, bodies[kind]))
    peer.expect_closed(VIOLATION)


@pytest.mark.statement("3.1.1:MQTT-4.8.0-1", "5.0:MQTT-4.13.1-1")
def test_packet_type_0(world: World, version: int) -> None:
    peer = world.client("c", version)
    peer.send(b"\x00\x00")
    peer.expect_closed(MALFORMED, VIOLATION)


@pytest.mark.statement("3.1.1:MQTT-4.8.0-1")
def test_packet_type_15_is_reserved_in_3_1_1(world: World) -> None:
    peer = world.client("c", V3)
    peer.send(b"\xf0\x00")
    peer.expect_closed()


@pytest.mark.statement("3.1.1:MQTT-4.8.0-1", "5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("kind", [Type.PUBLISH, Type.SUBSCRIBE, Type.PINGREQ, Type.DISCONNECT])
@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x00", b"\x81\x80\x80\x80\x01"])
def test_remaining_length_of_five_bytes(world: World, version: int, kind: Type, length: bytes) -> None:
    peer = world.client("c", version)
    peer.send(bytes((kind << 4 | wire.FLAGS.get(kind, 0),)) + length)
    peer.expect_closed(MALFORMED)


@pytest.mark.statement("5.0:MQTT-1.5.5-1")
@pytest.mark.parametrize(
    "raw",
    [
        b"\xc0\x80\x00",
        b"\xc0\x80\x80\x00",
        b"\x82\x87\x00\x00\x01\x00\x00\x01a\x00",
        packet(Type.SUBSCRIBE, b"\x00\x01" + b"\x80\x00" + wire.text("a") + b"\x00"),
        packet(Type.SUBSCRIBE, b"\x00\x01" + b"\x03\x0b\x85\x00" + wire.text("a") + b"\x00"),
        packet(Type.PUBLISH, wire.text("a") + b"\x82\x00\x01\x00", 0),
        packet(Type.PUBLISH, wire.text("a") + b"\x03\x81\x00\x00", 0),
    ],
    ids=["length 0", "length 0, long", "length 7", "property length", "subscription id", "properties", "property id"],
)
def test_variable_byte_integers_must_be_minimal(world: World, raw: bytes) -> None:
    peer = world.client("c")
    peer.send(raw)
    peer.expect_closed(MALFORMED)


@pytest.mark.statement("5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("kind", [Type.SUBSCRIBE, Type.PUBLISH, Type.PUBACK, Type.DISCONNECT])
@pytest.mark.parametrize(
    "properties",
    [b"\x05", b"\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x01", b"\x01\x26", b"\x03\x26\x00\x01", b"\x04\x26\x00\x01a"],
)
def test_property_block_that_does_not_add_up(world: World, kind: Type, properties: bytes) -> None:
    body = {
        Type.SUBSCRIBE: b"\x00\x01",
        Type.PUBLISH: wire.text("a"),
        Type.PUBACK: b"\x00\x01\x00",
        Type.DISCONNECT: b"\x00",
    }
    peer = world.client("c")
    peer.send(packet(kind, body[kind] + properties))
    peer.expect_closed(MALFORMED)


@pytest.mark.statement("5.0:MQTT-2.2.2-1")
def test_no_properties_are_a_length_of_zero(world: World) -> None:
    """A SUBSCRIBE of 3.1.1's form has no property length: what stands in its place is taken for one."""
    peer = world.client("c")
    peer.send(wire.subscribe(1, ("ab", 0), version=V3))
    peer.expect_closed(MALFORMED, VIOLATION)


@pytest.mark.statement("3.1.1:MQTT-4.8.0-1", "5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("kind", _valid(V5))
def test_packets_cut_short(version: int, kind: str) -> None:
    """Each packet cut after each byte of its body, with a header that says so."""
    whole = _valid(version)[kind]
    shortest_good = {"PUBLISH": len(whole) - 2 - 1}.get(kind, len(whole) - 2)
    for size in range(shortest_good):
        world = World()
        peer = world.client("c", version)
        peer.send(whole[:1] + bytes((size,)) + whole[2 : 2 + size])
        peer.expect_closed(MALFORMED, VIOLATION)


@pytest.mark.statement("3.1.1:MQTT-4.8.0-1", "5.0:MQTT-4.13.1-1")
@pytest.mark.parametrize("kind", [name for name in _valid(V5) if name != "PUBLISH"])
def test_packets_with_bytes_left_over(world: World, version: int, kind: str) -> None:
    whole = _valid(version)[kind]
    body = whole[2:]
    if version == V5 and kind in ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP"):
        body += b"\x00\x00"  # reason and property length, so that the next byte is one too many
    if version == V5 and kind == "DISCONNECT":
        body += b"\x00\x00"
    peer = world.client("c", version)
    peer.send(packet(whole[0] >> 4, body + b"\x00", whole[0] & 15))
    peer.expect_closed(MALFORMED, VIOLATION)


@pytest.mark.statement("3.1.1:MQTT-2.3.1-1", "5.0:MQTT-2.2.1-3")
@pytest.mark.parametrize("kind", ["PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"])
def test_packet_id_0(world: World, version: int, kind: str) -> None:
    raw = _valid(version)[kind].replace(b"\x00\x07", b"\x00\x00")
    peer = world.client("c", version)
    peer.send(raw)
    peer.expect_closed(MALFORMED, VIOLATION)


@pytest.mark.statement("5.0:MQTT-3.4.2-1", "5.0:MQTT-3.5.2-1", "5.0:MQTT-3.6.2-1", "5.0:MQTT-3.7.2-1")
@pytest.mark.parametrize("reason", [0x01, 0x04, 0x11, 0x7F, 0x8E, 0xFF])
@pytest.mark.parametrize("kind", wire.ACKS)
def test_reason_codes_outside_the_table(world: World, kind: Type, reason: int) -> None:
    peer = world.client("c")
    peer.send(wire.ack(kind, 7, reason))
    peer.expect_closed(MALFORMED, VIOLATION)


@pytest.mark.statement("5.0:MQTT-3.14.2-1", "5.0:MQTT-3.15.2-1")
@pytest.mark.parametrize("reason", [0x01, 0x03, 0x05, 0x7F, 0x84, 0xFF])
def test_disconnect_reason_codes_outside_the_table(world: World, reason: int) -> None:
    peer = world.client("c")
    peer.send(wire.disconnect(reason))
    peer.expect_closed(MALFORMED, VIOLATION)


@pytest.mark.statement("3.1.1:MQTT-4.8.0-1")
def test_disconnect_of_3_1_1_has_no_body(world: World) -> None:
    peer = world.client("c", V3)
    peer.send(wire.disconnect(0))
    peer.expect_closed()


@pytest.mark.statement("5.0:MQTT-3.2.2-15", "5.0:MQTT-4.13.1-1")
def test_a_packet_above_the_servers_maximum(version: int) -> None:
    world = World(limits=Limits(packet_bytes_max=1024))
    peer = world.client("c", version)
    whole = wire.publish("t", bytes(1024), version=version)
    exact = wire.publish("t", bytes(1024 - (len(whole) - 1024)), version=version)
    assert len(exact) == 1024
    peer.send(exact)
    peer.expect_open()
    peer.send(whole[:20])  # its header tells: the rest need not come
    peer.expect_closed(TOO_LARGE)


@pytest.mark.statement("3.1.1:MQTT-4.8.0-1", "5.0:MQTT-4.13.1-1", "5.0:MQTT-4.13.2-1")
def test_what_follows_a_malformed_packet_is_not_processed(world: World, version: int) -> None:
    watcher = world.client("watcher", version)
    watcher.subscribe("#")
    peer = world.client("c", version)
    peer.send(wire.publish("t", b"before", version=version), b"\x00\x00", wire.publish("t", b"after", version=version))
    peer.expect_closed(MALFORMED, VIOLATION)
    watcher.expect_payloads(b"before")
    watcher.expect_open()


@pytest.mark.statement("5.0:MQTT-3.14.2-3", "5.0:MQTT-3.14.2-2", "5.0:MQTT-3.14.4-1", "5.0:MQTT-3.14.4-2")
@pytest.mark.parametrize("size_max", [25, 30, 40])
def test_the_servers_disconnect_fits_the_client(world: World, size_max: int) -> None:
    peer = world.client("c", properties=wire.props(maximum_packet_size=size_max, request_response=0))
    peer.send(b"\x00\x00", wire.PINGREQ)
    peer.expect_closed(MALFORMED, VIOLATION)
