"""The codec: every packet type to bytes and back in both versions, and nothing but PacketError for bad bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.mqtt import packets as p
from braidmq.mqtt.codec import decode, encode
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.packets import V3, V5
from braidmq.mqtt.properties import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    TABLE,
    UNSUBACK,
    UNSUBSCRIBE,
    WILL,
    Properties,
)
from braidmq.mqtt.reason_tables import REASONS
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.wire import VARINT_MAX, Reader, varint
from tests.conformance import wire

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
TOPIC = TEXT.map(lambda text: text.replace("+", "").replace("#", "") or "t")
BYTES = st.binary(max_size=40)
U16, U32 = st.integers(0, 65_535), st.integers(0, 0xFFFFFFFF)
PACKET_ID = st.integers(1, 65_535)
QOS = st.integers(0, 2)
VERSIONS = st.sampled_from((V3, V5))
FLAG = st.integers(0, 1)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "payload_format_indicator": FLAG,
    "message_expiry_interval": U32,
    "content_type": TEXT,
    "response_topic": TOPIC,
    "correlation_data": BYTES,
    "subscription_identifiers": st.integers(1, VARINT_MAX),
    "session_expiry_interval": U32,
    "assigned_client_identifier": TEXT,
    "server_keep_alive": U16,
    "authentication_method": TEXT,
    "authentication_data": BYTES,
    "request_problem_information": FLAG,
    "will_delay_interval": U32,
    "request_response_information": FLAG,
    "response_information": TEXT,
    "server_reference": TEXT,
    "reason_string": TEXT,
    "receive_maximum": st.integers(1, 65_535),
    "topic_alias_maximum": U16,
    "topic_alias": st.integers(1, 65_535),
    "maximum_qos": FLAG,
    "retain_available": FLAG,
    "user_properties": st.tuples(TEXT, TEXT),
    "maximum_packet_size": st.integers(1, 0xFFFFFFFF),
    "wildcard_subscription_available": FLAG,
    "subscription_identifier_available": FLAG,
    "shared_subscription_available": FLAG,
}


@st.composite
def _properties(draw: st.DrawFn, packet: int, version: int) -> Properties:
    """Any properties that may stand in such a packet."""
    found = Properties()
    if version == V3:
        return found
    for row in TABLE:
        if packet not in row.packets or not draw(st.booleans()):
            continue
        if row.repeats:
            most = 1 if packet == SUBSCRIBE and row.name == "subscription_identifiers" else 4
            setattr(found, row.name, draw(st.lists(VALUES[row.name], max_size=most)))
        else:
            setattr(found, row.name, draw(VALUES[row.name]))
    if found.authentication_method is None:
        found.authentication_data = None
    return found


def _reason(packet: int, version: int) -> st.SearchStrategy[Reason]:
    return st.sampled_from(sorted(REASONS[packet])) if version == V5 else st.just(Reason.SUCCESS)


@st.composite
def _connect(draw: st.DrawFn, version: int) -> p.Connect:
    will = None
    if draw(st.booleans()):
        will = p.Will(draw(TOPIC), draw(BYTES), draw(QOS), draw(st.booleans()), draw(_properties(WILL, version)))
    username = draw(st.none() | TEXT)
    password = draw(st.none() | BYTES) if version == V5 or username is not None else None
    properties = draw(_properties(CONNECT, version))
    return p.Connect(draw(TEXT), version, draw(st.booleans()), draw(U16), will, username, password, properties)


@st.composite
def _publish(draw: st.DrawFn, version: int) -> p.Publish:
    qos = draw(QOS)
    packet_id = draw(PACKET_ID) if qos else None
    dup = bool(qos) and draw(st.booleans())
    properties = draw(_properties(PUBLISH, version))
    return p.Publish(draw(TOPIC), draw(BYTES), qos, draw(st.booleans()), dup, packet_id, properties)


@st.composite
def _subscribe(draw: st.DrawFn, version: int) -> p.Subscribe:
    option = st.booleans() if version == V5 else st.just(False)
    handling = st.sampled_from(p.RetainHandling) if version == V5 else st.just(p.RetainHandling.SEND)
    one = st.builds(p.Subscription, TEXT, QOS, option, option, handling)
    return p.Subscribe(
        draw(PACKET_ID), draw(st.lists(one, min_size=1, max_size=5)), draw(_properties(SUBSCRIBE, version))
    )


@st.composite
def _connack(draw: st.DrawFn, version: int) -> p.Connack:
    old = (Reason.SUCCESS, Reason.UNSUPPORTED_PROTOCOL_VERSION, Reason.SERVER_UNAVAILABLE, Reason.NOT_AUTHORIZED)
    reason = draw(_reason(CONNACK, version) if version == V5 else st.sampled_from(old))
    return p.Connack(draw(st.booleans()), reason, draw(_properties(CONNACK, version)))


@st.composite
def _acknowledged(draw: st.DrawFn, version: int) -> p.Suback | p.Unsuback:
    if draw(st.booleans()):
        old = (Reason.SUCCESS, Reason.GRANTED_QOS_1, Reason.GRANTED_QOS_2, Reason.UNSPECIFIED_ERROR)
        one = _reason(SUBACK, version) if version == V5 else st.sampled_from(old)
        reasons = draw(st.lists(one, min_size=1, max_size=5))
        return p.Suback(draw(PACKET_ID), reasons, draw(_properties(SUBACK, version)))
    reasons = draw(st.lists(_reason(UNSUBACK, version), min_size=1, max_size=5)) if version == V5 else []
    return p.Unsuback(draw(PACKET_ID), reasons, draw(_properties(UNSUBACK, version)))


@st.composite
def _small(draw: st.DrawFn, version: int) -> p.Packet:
    """PUBACK to PUBCOMP, UNSUBSCRIBE, the pings, DISCONNECT and AUTH."""
    kinds: list[Any] = [p.Puback, p.Pubrec, p.Pubrel, p.Pubcomp, p.Unsubscribe, p.Pingreq, p.Pingresp, p.Disconnect]
    kind = draw(st.sampled_from([*kinds, p.Auth] if version == V5 else kinds))
    numbers = {p.Puback: PUBACK, p.Pubrec: PUBREC, p.Pubrel: PUBREL, p.Pubcomp: PUBCOMP}
    packet: p.Packet
    if kind in numbers:
        number = numbers[kind]
        packet = kind(draw(PACKET_ID), draw(_reason(number, version)), draw(_properties(number, version)))
    elif kind is p.Unsubscribe:
        filters = draw(st.lists(TEXT, min_size=1, max_size=5))
        packet = p.Unsubscribe(draw(PACKET_ID), filters, draw(_properties(UNSUBSCRIBE, version)))
    elif kind is p.Disconnect:
        packet = p.Disconnect(draw(_reason(DISCONNECT, version)), draw(_properties(DISCONNECT, version)))
    elif kind is p.Auth:
        properties = draw(_properties(AUTH, version))
        properties.authentication_method = draw(TEXT)
        packet = p.Auth(draw(_reason(AUTH, version)), properties)
    else:
        packet = kind()
    return packet


@st.composite
def _any(draw: st.DrawFn) -> tuple[int, p.Packet]:
    version = draw(VERSIONS)
    kinds: list[Any] = [_connect, _connack, _publish, _subscribe, _acknowledged, _small, _small]
    packet: p.Packet = draw(draw(st.sampled_from(kinds))(version))
    return version, packet


def _split(raw: bytes) -> tuple[int, bytes]:
    """Header and body of exactly one packet."""
    (whole,), rest = wire.split(raw)
    assert rest == b""
    reader = Reader(whole, 1)
    assert reader.varint() == reader.left
    return whole[0], reader.rest()


@given(_any())
@settings(max_examples=300, deadline=None)
def test_every_packet_comes_back_as_it_was(case: tuple[int, p.Packet]) -> None:
    version, packet = case
    header, body = _split(encode(packet, version))
    assert decode(header, body, version) == packet


@given(_any(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_packet_cut_or_changed_is_another_packet_or_an_error(case: tuple[int, p.Packet], data: st.DataObject) -> None:
    version, packet = case
    header, body = _split(encode(packet, version))
    changed = bytearray(body[: data.draw(st.integers(0, len(body)))])
    if changed and data.draw(st.booleans()):
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    again = _decoded(header, bytes(changed), version)
    if again is not None:
        assert decode(*_split(encode(again, version)), version) == again


def _decoded(header: int, body: bytes, version: int) -> p.Packet | None:
    """The packet, or None where the codec says, in its own way, that it is none."""
    try:
        return decode(header, body, version)
    except PacketError as error:
        return None if error.reason.failed and error.text else pytest.fail(f"an error without a reason: {error!r}")


@given(st.integers(0, 255), st.binary(max_size=60), VERSIONS)
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_a_packet_or_an_error(header: int, body: bytes, version: int) -> None:
    _decoded(header, body, version)


@given(st.integers(0, VARINT_MAX))
def test_variable_byte_integers(value: int) -> None:
    raw = varint(value)
    assert raw == wire.varint(value)
    assert Reader(raw).varint() == value


@pytest.mark.parametrize("value", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, VARINT_MAX])
def test_variable_byte_integers_at_their_edges(value: int) -> None:
    raw = varint(value)
    assert raw == wire.varint(value)
    assert Reader(raw).varint() == value
    with pytest.raises(PacketError):
        Reader(raw[:-1]).varint()


def test_what_does_not_fit_is_refused_when_writing() -> None:
    with pytest.raises(ValueError, match="268435456"):
        varint(VARINT_MAX + 1)
    with pytest.raises(ValueError, match="65536"):
        encode(p.Publish("t" * 65_536), V5)
    with pytest.raises(ValueError, match="70000"):
        encode(p.Connect("c", password=bytes(70_000)), V5)


SAMPLE = Properties(user_properties=[("b", "1"), ("a", "2")], content_type="ü", message_expiry_interval=7)
SAME = wire.props(message_expiry=7, content_type="ü", user=[("b", "1"), ("a", "2")])
WILL_SAMPLE = p.Will("w", b"x", 1, True)


@pytest.mark.parametrize(
    ("packet", "version", "raw"),
    [
        (p.Connect("c"), V5, wire.connect("c")),
        (p.Connect("c", V3, False, 60), V3, wire.connect("c", version=V3, clean=False, keep_alive=60)),
        (
            p.Connect("c", V3, True, 0, WILL_SAMPLE, "u", b"p"),
            V3,
            wire.connect("c", version=V3, will=wire.Will("w", b"x", 1, True), username="u", password=b"p"),
        ),
        (
            p.Connect("c", V5, True, 0, p.Will("w", b"x", 2, False, SAMPLE)),
            V5,
            wire.connect("c", will=wire.Will("w", b"x", 2, False, SAME)),
        ),
        (p.Publish("t", b"x"), V3, wire.publish("t", b"x", version=V3)),
        (
            p.Publish("t", b"x", 2, True, True, 258, SAMPLE),
            V5,
            wire.publish("t", b"x", qos=2, retain=True, dup=True, packet_id=258, properties=SAME),
        ),
        (p.Pubrel(7), V3, wire.ack(wire.Type.PUBREL, 7)),
        (p.Puback(7, Reason.QUOTA_EXCEEDED), V5, wire.ack(wire.Type.PUBACK, 7, 0x97)),
        (
            p.Subscribe(9, [p.Subscription("a/+", 1, True, True, p.RetainHandling.DO_NOT_SEND), p.Subscription("b")]),
            V5,
            wire.subscribe(9, ("a/+", 0x2D), ("b", 0)),
        ),
        (p.Unsubscribe(9, ["a", "b"]), V3, wire.unsubscribe(9, "a", "b", version=V3)),
        (p.Pingreq(), V5, wire.PINGREQ),
        (p.Disconnect(), V5, wire.disconnect()),
        (p.Disconnect(Reason.DISCONNECT_WITH_WILL), V5, wire.disconnect(4)),
        (
            p.Auth(Reason.REAUTHENTICATE, Properties(authentication_method="m", authentication_data=b"d")),
            V5,
            wire.auth(0x19, wire.props(auth_method="m", auth_data=b"d")),
        ),
    ],
)
def test_two_independent_codecs_agree(packet: p.Packet, version: int, raw: bytes) -> None:
    assert encode(packet, version) == raw
    assert decode(*_split(raw), version) == packet
