"""Any bytes at all: the broker answers or closes, never fails, and does not care how the bytes are cut into pieces."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from . import wire
from .pair import V3, V5, Peer, Type, Will, World
from .wire import ack, props

VERSIONS = st.sampled_from((V3, V5))


def _conversation(version: int) -> list[bytes]:
    """One packet of each type with all that it may carry, in an order that is right."""
    new = version == V5
    user = props(user=[("k", "v"), ("k", "w")]) if new else b""
    connect_properties = props(session_expiry=60, receive_maximum=9, topic_alias_maximum=3, maximum_packet_size=5000)
    will = Will("w/1", b"gone", 1, True, props(will_delay=5, content_type="c", user=("a", "b")) if new else b"")
    message = props(payload_format=1, message_expiry=60, response_topic="r", correlation_data=b"\0") if new else b""
    return [
        wire.connect(
            "fuzz",
            version=version,
            clean=False,
            keep_alive=30,
            will=will,
            username="u",
            password=b"p",
            properties=connect_properties + user if new else b"",
        ),
        wire.subscribe(1, ("t/#", 2), ("+/x", 1), version=version, properties=props(subscription_id=5) if new else b""),
        wire.publish("t/1", b"zero", version=version, properties=message + user),
        wire.publish("t/1", b"zero", version=version, properties=message + user),
        wire.publish("t/1", b"one", version=version, qos=1, packet_id=2, retain=True, properties=message),
        wire.publish("t/2", b"two", version=version, qos=2, packet_id=3),
        ack(Type.PUBREL, 3),
        ack(Type.PUBACK, 1),
        ack(Type.PUBREC, 2),
        ack(Type.PUBCOMP, 2),
        wire.unsubscribe(4, "t/#", version=version, properties=user),
        wire.PINGREQ,
        wire.disconnect(0, props(session_expiry=30, reason_string="bye")) if new else wire.disconnect(),
    ]


def _outcome(peer: Peer) -> tuple[bool, bytes]:
    return peer.link.closed, peer.link.stream


def _check(world: World, peer: Peer) -> None:
    """What came can be read, later timers do no harm, and others are served as before."""
    peer.take()
    world.advance(200)
    peer.take()
    other = world.client("other")
    other.subscribe("o", 1)
    other.publish("o", b"x")
    other.expect_publish("o", b"x")


@given(VERSIONS, st.binary(max_size=200), st.booleans())
@settings(max_examples=300, deadline=None)
def test_random_bytes(version: int, raw: bytes, connected: bool) -> None:
    world = World()
    peer = world.client("c", version) if connected else world.peer(version)
    if not connected:
        peer.send(raw)
        assert peer.link.stream[:1] in (b"", b"\x20")
        peer.link.stream = b""  # of a version that only these bytes know
        world.advance(20)
        if raw[:1] != b"\x10":
            assert peer.link.closed
        return
    peer.send(raw)
    _check(world, peer)


@given(VERSIONS, st.data())
@settings(max_examples=400, deadline=None)
def test_mutated_packets(version: int, data: st.DataObject) -> None:
    packets = _conversation(version)
    victim = data.draw(st.integers(1, len(packets) - 1))
    raw = bytearray(packets[victim])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw)))
        match data.draw(st.sampled_from(("flip", "insert", "delete", "repeat"))):
            case "flip" if place < len(raw):
                raw[place] ^= data.draw(st.integers(1, 255))
            case "insert":
                raw[place:place] = data.draw(st.binary(min_size=1, max_size=3))
            case "delete":
                del raw[place : place + data.draw(st.integers(1, 4))]
            case _:
                raw[place:place] = raw[: place + 1]
    if not raw:
        return
    world = World()
    peer = world.peer(version)
    peer.note_limits(props(maximum_packet_size=5000) if version == V5 else b"")
    peer.send(*packets[:victim], bytes(raw), *packets[victim + 1 :])
    _check(world, peer)


@given(VERSIONS, st.data())
@settings(max_examples=200, deadline=None)
def test_mutated_connects(version: int, data: st.DataObject) -> None:
    raw = bytearray(_conversation(version)[0])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] ^= data.draw(st.integers(1, 255))
    world = World()
    peer = world.peer(version)
    peer.send(bytes(raw), wire.PINGREQ)
    assert peer.link.stream[:1] in (b"", b"\x20")
    peer.link.stream = b""
    world.advance(100)
    world.client("other").expect_open()


@given(VERSIONS, st.data(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_cutting_of_the_stream_does_not_matter(version: int, data: st.DataObject, broken: bool) -> None:
    """A CONNECT and what follows, whole and in pieces: the same answers, the same end."""
    packets = _conversation(version)
    if broken:
        packets[data.draw(st.integers(2, len(packets) - 1))] = data.draw(
            st.sampled_from((b"\x00\x00", b"\xff\xff\xff\xff\xff", b"\x30\x03\x00\x05a", b"\xc0\x01\x00"))
        )
    stream = b"".join(packets)
    whole_world, piece_world = World(), World()
    whole, piece = whole_world.peer(version), piece_world.peer(version)
    whole.send(stream)
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    for start, end in zip([0, *places], [*places, len(stream)], strict=True):
        piece.send(stream[start:end])
    assert _outcome(piece)[0] == _outcome(whole)[0]
    assert _kinds(piece) == _kinds(whole)


def _kinds(peer: Peer) -> list[tuple[object, ...]]:
    """What came, in an order that does not depend on when the broker wrote it out."""
    return sorted((one.type, one.packet_id or 0, one.topic, one.payload, one.reason) for one in peer.take())


@given(VERSIONS, VERSIONS, st.data())
@settings(max_examples=100, deadline=None)
def test_byte_by_byte_publications_reach_subscribers_whole(version: int, other: int, data: st.DataObject) -> None:
    world = World()
    subscriber = world.client("s", other)
    subscriber.subscribe("#", 1)
    publisher = world.client("p", version)
    payloads = data.draw(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
    stream = b"".join(
        wire.publish(f"t/{n % 3}", payload, version=version, qos=n % 2, packet_id=n + 1 if n % 2 else None)
        for n, payload in enumerate(payloads)
    )
    size = data.draw(st.integers(1, 50))
    for start in range(0, len(stream), size):
        publisher.send(stream[start : start + size])
    assert [(one.topic, one.payload) for one in subscriber.take()] == [
        (f"t/{n % 3}", payload) for n, payload in enumerate(payloads)
    ]
