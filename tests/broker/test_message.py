"""Messages and the bytes of the PUBLISH that carries them, read back by the suite's own decoder."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.broker.message import Message, forwarded, message_of, publish_bytes
from braidmq.mqtt.packets import Publish, Will
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.wire import string
from tests.conformance import wire
from tests.conformance.wire import V3, V5

EXAMPLES = settings(max_examples=200, deadline=None, print_blob=True)

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=40)
seconds = st.floats(1_600_000_000, 4_000_000_000)
"""Unix times: from a few years ago to the year 2096."""
sent_properties = st.builds(
    Properties,
    payload_format_indicator=st.none() | st.integers(0, 1),
    content_type=st.none() | texts,
    response_topic=st.none() | names,
    correlation_data=st.none() | st.binary(max_size=20),
    user_properties=st.lists(st.tuples(texts, texts), max_size=3),
)


def wanted_properties(properties: Properties) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in (
        ("payload_format", properties.payload_format_indicator),
        ("content_type", properties.content_type),
        ("response_topic", properties.response_topic),
        ("correlation_data", properties.correlation_data),
        ("user", properties.user_properties or None),
    ):
        if value is not None:
            found[name] = value
    return found


@given(
    topic=names,
    payload=st.one_of(st.binary(max_size=300), st.integers(0, 70_000).map(bytes)),
    properties=sent_properties,
    qos=st.integers(0, 2),
    retain=st.booleans(),
    ids=st.lists(st.integers(1, 268_435_455), max_size=3, unique=True),
    version=st.sampled_from([V3, V5]),
)
@EXAMPLES
def test_all_of_a_message_reaches_its_receiver(
    topic: str, payload: bytes, properties: Properties, qos: int, retain: bool, ids: list[int], version: int
) -> None:
    message = message_of(Publish(topic, payload, qos, retain, properties=properties), "sender", 0.0, 0)
    packet_id = 77 if qos else 0
    raw = publish_bytes(message, version, 0x30 | qos << 1 | retain, packet_id, tuple(ids), 0.0)
    assert wire.split(raw) == ([raw], b"")
    received = wire.decode(raw, version)
    assert (received.topic, received.payload, received.qos, received.retain) == (topic, payload, qos, retain)
    assert received.packet_id == (packet_id or None)
    if version == V5:
        wanted = wanted_properties(properties)
        if ids:
            wanted["subscription_id"] = ids
        assert received.properties == wanted


@pytest.mark.parametrize("length", [125, 126, 127, 128, 129, 16_383, 16_384, 2_097_151, 2_097_152])
@pytest.mark.parametrize("version", [V3, V5])
def test_the_remaining_length_at_its_borders(length: int, version: int) -> None:
    payload = bytes(length - 3 - (version == V5))
    raw = publish_bytes(Message("t", string("t"), payload, 0), version, 0x30, 0, (), 0.0)
    assert raw[1 : len(raw) - length] == wire.varint(length)
    assert wire.decode(raw, version).payload == payload


def test_what_a_server_does_not_pass_on() -> None:
    """Alias, expiry and identifiers are its own to say (§3.3.2.3)."""
    own = Properties(topic_alias=3, message_expiry_interval=9, subscription_identifiers=[4])
    assert forwarded(own) == b""


def test_an_alias_takes_the_place_of_the_name() -> None:
    message = Message("a/b", string("a/b"), b"x", 0)
    alias = wire.props(topic_alias=5)
    told = wire.decode(publish_bytes(message, V5, 0x30, 0, (), 0.0, alias), V5)
    assert (told.topic, told.properties) == ("a/b", {"topic_alias": 5})
    short = wire.decode(publish_bytes(message, V5, 0x30, 0, (), 0.0, alias, b"\0\0"), V5)
    assert (short.topic, short.properties, short.payload) == ("", {"topic_alias": 5}, b"x")


# Expiry


@given(now=seconds, expiry=st.integers(0, 0xFFFFFFFF), waited=st.floats(0, 1e6))
@EXAMPLES
def test_the_expiry_counts_down_by_the_time_that_it_waited(now: float, expiry: int, waited: float) -> None:
    """[MQTT-3.3.2-6], to the second; it never grows, and never does not fit its four bytes."""
    message = message_of(Publish("t", properties=Properties(message_expiry_interval=expiry)), "", now, 0)
    raw = publish_bytes(message, V5, 0x30, 0, (), now + waited)
    left = wire.decode(raw, V5).properties["message_expiry"]
    assert 0 <= left <= expiry
    assert abs(left - max(0, expiry - waited)) <= 1.001
    if waited == 0:
        assert left == expiry


@pytest.mark.parametrize("now", [1_800_001_000.1, 1_800_001_000.3, 1_700_000_000.7, 2_147_483_000.123456])
def test_the_longest_expiry_fits(now: float) -> None:
    message = message_of(Publish("t", properties=Properties(message_expiry_interval=0xFFFFFFFF)), "", now, 0)
    raw = publish_bytes(message, V5, 0x30, 0, (), now)
    assert wire.decode(raw, V5).properties == {"message_expiry": 0xFFFFFFFF}


def test_an_old_client_is_told_no_expiry() -> None:
    message = message_of(Publish("t", b"x", properties=Properties(message_expiry_interval=5)), "", 10.0, 0)
    assert publish_bytes(message, V3, 0x30, 0, (), 10.0) == b"\x30\x04\0\x01tx"


def test_when_a_message_has_expired() -> None:
    message = message_of(Publish("t", properties=Properties(message_expiry_interval=5)), "", 10.0, 0)
    assert not message.expired(14.999)
    assert message.expired(15.0)
    assert not message_of(Publish("t"), "", 10.0, 0).expired(1e12)


@pytest.mark.parametrize(
    ("said", "bound", "expires_at"),
    [(None, 0, None), (None, 60, 160.0), (30, 60, 130.0), (90, 60, 160.0), (90, 0, 190.0), (0, 60, 100.0)],
)
def test_the_bound_of_the_expiry(said: int | None, bound: int, expires_at: float | None) -> None:
    packet = Publish("t", properties=Properties(message_expiry_interval=said))
    assert message_of(packet, "", 100.0, bound).expires_at == expires_at


def test_a_will_is_a_message_like_any_other() -> None:
    properties = Properties(
        will_delay_interval=5, message_expiry_interval=7, content_type="text", user_properties=[("a", "b"), ("a", "c")]
    )
    message = message_of(Will("t/w", b"gone", 1, True, properties), "client", 100.0, 0)
    assert (message.topic, message.name, message.payload, message.qos, message.retain, message.sender) == (
        "t/w",
        b"\0\x03t/w",
        b"gone",
        1,
        True,
        "client",
    )
    received = wire.decode(publish_bytes(message, V5, 0x33, 1, (), 102.0), V5)
    assert received.properties == {"content_type": "text", "user": [("a", "b"), ("a", "c")], "message_expiry": 5}


def test_the_size_is_what_it_costs_to_keep() -> None:
    message = message_of(Publish("ab", b"12345", properties=Properties(content_type="x")), "", 0.0, 0)
    assert message.size == len(b"\0\x02ab") + len(b"\x03\0\x01x") + len(b"12345")
