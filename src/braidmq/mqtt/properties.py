"""The properties of MQTT 5 (§2.2.2): one table has the number, type and packets of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from braidmq.mqtt.errors import PacketError, malformed, violation
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.wire import Reader, binary, string, varint

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = 8, 9, 10, 11, 12, 13, 14, 15
WILL = 0
"""Packet types, and the will's own property set, which is part of a CONNECT."""


class Properties(msgspec.Struct, kw_only=True):
    """The properties of one packet; None where it has none."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: list[int] = []
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: list[tuple[str, str]] = []
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


class _Type(NamedTuple):
    """How a property's value is read and written, and which values it may have (None: all of them)."""

    read: Callable[[Reader], Any]
    write: Callable[[Any], bytes]
    allowed: Callable[[Any], bool] | None = None


class _Row(NamedTuple):
    number: int
    name: str
    type: _Type
    packets: frozenset[int]
    repeats: bool = False


def _read_pair(reader: Reader) -> tuple[str, str]:
    return reader.string(), reader.string()


def _write_pair(pair: tuple[str, str]) -> bytes:
    return string(pair[0]) + string(pair[1])


_BYTE: Final = _Type(Reader.u8, lambda value: bytes((value,)))
_FLAG: Final = _Type(Reader.u8, lambda value: bytes((value,)), lambda value: value in (0, 1))
_U16: Final = _Type(Reader.u16, lambda value: value.to_bytes(2))
_U16_POSITIVE: Final = _Type(Reader.u16, lambda value: value.to_bytes(2), lambda value: value > 0)
_U32: Final = _Type(Reader.u32, lambda value: value.to_bytes(4))
_U32_POSITIVE: Final = _Type(Reader.u32, lambda value: value.to_bytes(4), lambda value: value > 0)
_VARINT_POSITIVE: Final = _Type(Reader.varint, varint, lambda value: value > 0)
_TEXT: Final = _Type(Reader.string, string)
_BYTES: Final = _Type(Reader.binary, binary)
_PAIR: Final = _Type(_read_pair, _write_pair)

_EVERYWHERE: Final = frozenset(range(16)) - {PINGREQ, PINGRESP}
_ACKS: Final = {PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK}

TABLE: Final = (
    _Row(0x01, "payload_format_indicator", _FLAG, frozenset({PUBLISH, WILL})),
    _Row(0x02, "message_expiry_interval", _U32, frozenset({PUBLISH, WILL})),
    _Row(0x03, "content_type", _TEXT, frozenset({PUBLISH, WILL})),
    _Row(0x08, "response_topic", _TEXT, frozenset({PUBLISH, WILL})),
    _Row(0x09, "correlation_data", _BYTES, frozenset({PUBLISH, WILL})),
    _Row(0x0B, "subscription_identifiers", _VARINT_POSITIVE, frozenset({PUBLISH, SUBSCRIBE}), repeats=True),
    _Row(0x11, "session_expiry_interval", _U32, frozenset({CONNECT, CONNACK, DISCONNECT})),
    _Row(0x12, "assigned_client_identifier", _TEXT, frozenset({CONNACK})),
    _Row(0x13, "server_keep_alive", _U16, frozenset({CONNACK})),
    _Row(0x15, "authentication_method", _TEXT, frozenset({CONNECT, CONNACK, AUTH})),
    _Row(0x16, "authentication_data", _BYTES, frozenset({CONNECT, CONNACK, AUTH})),
    _Row(0x17, "request_problem_information", _FLAG, frozenset({CONNECT})),
    _Row(0x18, "will_delay_interval", _U32, frozenset({WILL})),
    _Row(0x19, "request_response_information", _FLAG, frozenset({CONNECT})),
    _Row(0x1A, "response_information", _TEXT, frozenset({CONNACK})),
    _Row(0x1C, "server_reference", _TEXT, frozenset({CONNACK, DISCONNECT})),
    _Row(0x1F, "reason_string", _TEXT, frozenset({CONNACK, DISCONNECT, AUTH} | _ACKS)),
    _Row(0x21, "receive_maximum", _U16_POSITIVE, frozenset({CONNECT, CONNACK})),
    _Row(0x22, "topic_alias_maximum", _U16, frozenset({CONNECT, CONNACK})),
    _Row(0x23, "topic_alias", _U16, frozenset({PUBLISH})),
    _Row(0x24, "maximum_qos", _FLAG, frozenset({CONNACK})),
    _Row(0x25, "retain_available", _FLAG, frozenset({CONNACK})),
    _Row(0x26, "user_properties", _PAIR, _EVERYWHERE, repeats=True),
    _Row(0x27, "maximum_packet_size", _U32_POSITIVE, frozenset({CONNECT, CONNACK})),
    _Row(0x28, "wildcard_subscription_available", _FLAG, frozenset({CONNACK})),
    _Row(0x29, "subscription_identifier_available", _FLAG, frozenset({CONNACK})),
    _Row(0x2A, "shared_subscription_available", _FLAG, frozenset({CONNACK})),
)

_BY_NUMBER: Final = {row.number: row for row in TABLE}


def read_properties(reader: Reader, packet: int) -> Properties:
    """The property block at the reader's position: its length, then numbers and values (MQTT 5 §2.2.2)."""
    length = reader.varint()
    properties = Properties()
    if not length:
        return properties
    block = Reader(reader.data, reader.pos, reader.pos + length)
    if block.end > reader.end:
        raise malformed("the property length reaches past the end of the packet")
    seen = set()
    while block.left:
        number = block.varint()
        row = _BY_NUMBER.get(number)
        if row is None or packet not in row.packets:
            raise malformed(f"property 0x{number:02X} does not belong into this packet")
        value = row.type.read(block)
        if row.type.allowed and not row.type.allowed(value):
            raise violation(f"property {row.name} may not be {value}")
        if row.repeats and not (packet == SUBSCRIBE and number == 0x0B):
            values = getattr(properties, row.name)
            if len(values) >= reader.repeats_max:
                raise _too_many(row, reader.repeats_max)
            values.append(value)
            continue
        if number in seen:
            raise violation(f"property {row.name} stands twice in one packet")
        seen.add(number)
        setattr(properties, row.name, [value] if row.repeats else value)
    if properties.topic_alias == 0:  # [MQTT-3.3.2-8]
        raise PacketError(Reason.TOPIC_ALIAS_INVALID, "topic alias 0")
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise violation("authentication data without an authentication method")  # §3.1.2.11.10
    reader.pos = block.end
    return properties


def _too_many(row: _Row, repeats_max: int) -> PacketError:
    """A property that is repeated too often: the packet is not read to its end.

    Too many user properties break a bound of this side, not a rule of the protocol: that is 0x97. Only a server sends
    more than one subscription identifier [MQTT-3.3.4-6].
    """
    if row.name == "user_properties":
        text = f"more than {repeats_max} user properties in one packet; send fewer of them"
        return PacketError(Reason.QUOTA_EXCEEDED, text)
    return violation(f"more than {repeats_max} times the property {row.name}")


def write_properties(properties: Properties, packet: int) -> bytes:
    """The property block of a packet, with its length."""
    body = property_bytes(properties, packet)
    return varint(len(body)) + body


def property_bytes(properties: Properties, packet: int) -> bytes:
    """The properties that such a packet may have, without the length before them."""
    out = []
    for number, name, kind, packets, repeats in TABLE:
        value = getattr(properties, name)
        if packet in packets and value is not None:
            for item in value if repeats else (value,):
                out.append(bytes((number,)) + kind.write(item))
    return b"".join(out)
