"""A second, independent codec: what the suite sends and how it reads the answers.

The tests do not trust the codec under test. The encoder writes whatever it is told, right or wrong; the decoder takes
nothing that the specification does not allow a server to send: reserved flags, properties that do not belong, reason
codes outside the packet's table, lengths that are not minimal and bytes left over all fail the test that met them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

V3, V5 = 4, 5


class Type(IntEnum):
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


ACKS = (Type.PUBACK, Type.PUBREC, Type.PUBREL, Type.PUBCOMP)
FLAGS = {Type.PUBREL: 2, Type.SUBSCRIBE: 2, Type.UNSUBSCRIBE: 2}
"""The reserved flags of the fixed header; 0 where not listed. PUBLISH has flags of its own."""

PROPERTIES = {
    "payload_format": (1, "u8"),
    "message_expiry": (2, "u32"),
    "content_type": (3, "text"),
    "response_topic": (8, "text"),
    "correlation_data": (9, "data"),
    "subscription_id": (11, "varint"),
    "session_expiry": (17, "u32"),
    "assigned_client_id": (18, "text"),
    "server_keep_alive": (19, "u16"),
    "auth_method": (21, "text"),
    "auth_data": (22, "data"),
    "request_problem": (23, "u8"),
    "will_delay": (24, "u32"),
    "request_response": (25, "u8"),
    "response_information": (26, "text"),
    "server_reference": (28, "text"),
    "reason_string": (31, "text"),
    "receive_maximum": (33, "u16"),
    "topic_alias_maximum": (34, "u16"),
    "topic_alias": (35, "u16"),
    "maximum_qos": (36, "u8"),
    "retain_available": (37, "u8"),
    "user": (38, "pair"),
    "maximum_packet_size": (39, "u32"),
    "wildcard_available": (40, "u8"),
    "subscription_ids_available": (41, "u8"),
    "shared_available": (42, "u8"),
}
REPEATED = ("user", "subscription_id")
BY_NUMBER = {number: (name, kind) for name, (number, kind) in PROPERTIES.items()}

_ALWAYS = {"reason_string", "user"}
FROM_SERVER = {
    Type.CONNACK: _ALWAYS
    | {"session_expiry", "assigned_client_id", "server_keep_alive", "auth_method", "auth_data", "response_information"}
    | {"server_reference", "receive_maximum", "topic_alias_maximum", "maximum_qos", "retain_available"}
    | {"maximum_packet_size", "wildcard_available", "subscription_ids_available", "shared_available"},
    Type.PUBLISH: {"payload_format", "message_expiry", "content_type", "response_topic", "correlation_data"}
    | {"subscription_id", "topic_alias", "user"},
    Type.PUBACK: _ALWAYS,
    Type.PUBREC: _ALWAYS,
    Type.PUBREL: _ALWAYS,
    Type.PUBCOMP: _ALWAYS,
    Type.SUBACK: _ALWAYS,
    Type.UNSUBACK: _ALWAYS,
    Type.DISCONNECT: _ALWAYS | {"server_reference"},
    Type.AUTH: _ALWAYS | {"auth_method", "auth_data"},
}
"""The properties a server may send; [MQTT-3.14.2-2] is the missing session expiry of DISCONNECT."""

_PUBLISHED = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
REASONS_FROM_SERVER = {
    Type.CONNACK: {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F},
    Type.PUBACK: _PUBLISHED,
    Type.PUBREC: _PUBLISHED,
    Type.PUBREL: {0x00, 0x92},
    Type.PUBCOMP: {0x00, 0x92},
    Type.SUBACK: {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    Type.UNSUBACK: {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    Type.DISCONNECT: {0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)},
    Type.AUTH: {0x00, 0x18},
}
"""The tables of reason codes, without those that only a client may use."""


# Writing


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, digit = divmod(value, 128)
        out.append(digit | 0x80 if value else digit)
        if not value:
            return bytes(out)


def data(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw


def text(value: str | bytes) -> bytes:
    """A string with its length; bytes are taken as they are, so that they can be ill-formed."""
    return data(value if isinstance(value, bytes) else value.encode())


def prop(name: str, value: Any) -> bytes:
    """One property, or several where the value is a list."""
    number, kind = PROPERTIES[name]
    if isinstance(value, list):
        return b"".join(prop(name, one) for one in value)
    match kind:
        case "u8":
            raw = bytes((value,))
        case "u16":
            raw = value.to_bytes(2, "big")
        case "u32":
            raw = value.to_bytes(4, "big")
        case "varint":
            raw = varint(value)
        case "text":
            raw = text(value)
        case "data":
            raw = data(value)
        case _:
            raw = text(value[0]) + text(value[1])
    return bytes((number,)) + raw


def props(**values: Any) -> bytes:
    """A property block without its length."""
    return b"".join(prop(name, value) for name, value in values.items())


def block(version: int, properties: bytes) -> bytes:
    return varint(len(properties)) + properties if version == V5 else b""


def packet(kind: int, body: bytes, flags: int | None = None) -> bytes:
    """A whole packet; the flags are the right ones unless told."""
    if flags is None:
        flags = FLAGS.get(Type(kind), 0)
    return bytes((kind << 4 | flags,)) + varint(len(body)) + body


@dataclass(frozen=True)
class Will:
    topic: str | bytes = "will"
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False
    properties: bytes = b""


def connect(
    client_id: str | bytes = "c",
    *,
    version: int = V5,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    properties: bytes = b"",
    name: str | bytes = "MQTT",
    level: int | None = None,
    flags: int | None = None,
) -> bytes:
    """A CONNECT; `level` and `flags` overwrite what would follow from the rest."""
    payload = text(client_id)
    bits = 2 if clean else 0
    if will is not None:
        bits |= 4 | will.qos << 3 | will.retain << 5
        payload += block(version, will.properties) + text(will.topic) + data(will.payload)
    if username is not None:
        bits |= 0x80
        payload += text(username)
    if password is not None:
        bits |= 0x40
        payload += data(password)
    head = text(name) + bytes((version if level is None else level, bits if flags is None else flags))
    return packet(Type.CONNECT, head + keep_alive.to_bytes(2, "big") + block(version, properties) + payload)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    version: int = V5,
    qos: int = 0,
    packet_id: int | None = None,
    retain: bool = False,
    dup: bool = False,
    properties: bytes = b"",
) -> bytes:
    number = b"" if packet_id is None else packet_id.to_bytes(2, "big")
    body = text(topic) + number + block(version, properties) + payload
    return packet(Type.PUBLISH, body, dup << 3 | qos << 1 | retain)


def ack(kind: Type, packet_id: int, reason: int | None = None, properties: bytes | None = None) -> bytes:
    """PUBACK and its like; reason and properties are left out where not given."""
    body = packet_id.to_bytes(2, "big")
    if reason is not None:
        body += bytes((reason,))
    if properties is not None:
        body += block(V5, properties)
    return packet(kind, body)


def subscribe(
    packet_id: int, *filters: tuple[str | bytes, int], version: int = V5, properties: bytes = b"", flags: int = 2
) -> bytes:
    """A SUBSCRIBE of (filter, options byte) pairs."""
    body = packet_id.to_bytes(2, "big") + block(version, properties)
    return packet(Type.SUBSCRIBE, body + b"".join(text(f) + bytes((options,)) for f, options in filters), flags)


def unsubscribe(
    packet_id: int, *filters: str | bytes, version: int = V5, properties: bytes = b"", flags: int = 2
) -> bytes:
    body = packet_id.to_bytes(2, "big") + block(version, properties)
    return packet(Type.UNSUBSCRIBE, body + b"".join(text(f) for f in filters), flags)


def disconnect(reason: int | None = None, properties: bytes | None = None) -> bytes:
    body = b"" if reason is None else bytes((reason,))
    return packet(Type.DISCONNECT, body if properties is None else body + block(V5, properties))


def auth(reason: int, properties: bytes = b"") -> bytes:
    return packet(Type.AUTH, bytes((reason,)) + block(V5, properties))


PINGREQ = packet(Type.PINGREQ, b"")


# Reading


@dataclass
class Received:
    """One packet from the broker. What its type does not have stays at the default."""

    type: Type
    size: int
    session_present: bool = False
    reason: int = 0
    reasons: list[int] = field(default_factory=list)
    packet_id: int | None = None
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    properties: dict[str, Any] = field(default_factory=dict)


class Cursor:
    def __init__(self, body: bytes) -> None:
        self.body = body
        self.pos = 0

    @property
    def left(self) -> int:
        return len(self.body) - self.pos

    def take(self, count: int) -> bytes:
        assert self.left >= count, f"truncated: {self.body.hex(' ')}"
        self.pos += count
        return self.body[self.pos - count : self.pos]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def varint(self) -> int:
        value = count = 0
        while True:
            byte = self.number(1)
            value |= (byte & 0x7F) << 7 * count
            count += 1
            if byte < 0x80:
                break
        assert varint(value) == self.body[self.pos - count : self.pos], "[MQTT-1.5.5-1] not minimal"
        return value

    def text(self) -> str:
        value = self.take(self.number(2)).decode("utf-8", "strict")
        assert "\0" not in value
        return value

    def properties(self, kind: Type) -> dict[str, Any]:
        length = self.varint()
        inner = Cursor(self.take(length))
        found: dict[str, Any] = {}
        while inner.left:
            name, value_kind = BY_NUMBER[inner.varint()]
            assert name in FROM_SERVER[kind], f"{name} in a {kind.name}"
            value = inner.value(value_kind)
            if name in REPEATED:
                found.setdefault(name, []).append(value)
            else:
                assert name not in found, f"{name} stands twice in a {kind.name}"
                found[name] = value
        return found

    def value(self, kind: str) -> Any:
        match kind:
            case "u8" | "u16" | "u32":
                return self.number(int(kind[1:]) // 8)
            case "varint":
                return self.varint()
            case "text":
                return self.text()
            case "data":
                return self.take(self.number(2))
            case _:
                return (self.text(), self.text())


def split(stream: bytes) -> tuple[list[bytes], bytes]:
    """The whole packets in a stream of bytes, and what is left of it."""
    packets: list[bytes] = []
    while True:
        digits = next((count for count in range(1, 5) if stream[count : count + 1] and stream[count] < 0x80), 0)
        if not digits:
            assert len(stream) < 5, "a remaining length of more than four bytes"
            return packets, stream
        length = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(stream[1 : 1 + digits]))
        assert stream[1 : 1 + digits] == varint(length), "a remaining length that is not minimal"
        end = 1 + digits + length
        if len(stream) < end:
            return packets, stream
        packets.append(stream[:end])
        stream = stream[end:]


def decode(raw: bytes, version: int) -> Received:
    """One whole packet of a server, checked in all that one packet can show."""
    kind = Type(raw[0] >> 4)
    assert kind in FROM_SERVER or kind is Type.PINGRESP, f"a server sends no {kind.name}"
    assert version == V5 or kind not in (Type.DISCONNECT, Type.AUTH), f"a 3.1.1 server sends no {kind.name}"
    head = 1
    while raw[head] >= 0x80:
        head += 1
    cursor = Cursor(raw[head + 1 :])
    received = Received(kind, len(raw))
    if kind is Type.PUBLISH:
        _publish(received, raw[0], cursor, version)
        return received
    assert raw[0] & 15 == FLAGS.get(kind, 0), f"reserved flags {raw[0] & 15} in a {kind.name}"
    if kind is Type.CONNACK:
        _connack(received, cursor, version)
    elif kind in ACKS:
        received.packet_id = _packet_id(cursor)
        if version == V5 and cursor.left:
            _reason(received, cursor, version)
    elif kind in (Type.SUBACK, Type.UNSUBACK):
        _granted(received, cursor, version)
    elif kind in (Type.DISCONNECT, Type.AUTH) and cursor.left:
        _reason(received, cursor, version)
    assert not cursor.left, f"{cursor.left} bytes too many in a {kind.name}"
    return received


def _packet_id(cursor: Cursor) -> int:
    packet_id = cursor.number(2)
    assert packet_id, "packet id 0"
    return packet_id


def _reason(received: Received, cursor: Cursor, version: int) -> None:
    received.reason = cursor.number(1)
    assert received.reason in REASONS_FROM_SERVER[received.type], f"{received.reason:#x} in a {received.type.name}"
    if cursor.left:
        received.properties = cursor.properties(received.type)
    assert version == V5


def _connack(received: Received, cursor: Cursor, version: int) -> None:
    flags = cursor.number(1)
    assert flags in (0, 1), f"reserved CONNACK flags: {flags:#x}"
    received.session_present = bool(flags)
    received.reason = cursor.number(1)
    if version == V5:
        assert received.reason in REASONS_FROM_SERVER[Type.CONNACK], f"{received.reason:#x} in a CONNACK"
        received.properties = cursor.properties(Type.CONNACK)
    else:
        assert received.reason <= 5, f"return code {received.reason}"
    assert not (received.reason and flags), "session present in a refusal"


def _granted(received: Received, cursor: Cursor, version: int) -> None:
    received.packet_id = _packet_id(cursor)
    if version == V5:
        received.properties = cursor.properties(received.type)
    elif received.type is Type.UNSUBACK:
        return
    received.reasons = list(cursor.take(cursor.left))
    allowed: Sequence[int] | set[int] = (0, 1, 2, 0x80) if version == V3 else REASONS_FROM_SERVER[received.type]
    assert all(reason in allowed for reason in received.reasons), f"{received.reasons} in a {received.type.name}"


def _publish(received: Received, header: int, cursor: Cursor, version: int) -> None:
    received.dup, received.qos, received.retain = bool(header & 8), header >> 1 & 3, bool(header & 1)
    assert received.qos < 3, "QoS 3"
    assert received.qos or not received.dup, "DUP at QoS 0"
    received.topic = cursor.text()
    assert not {"+", "#"} & set(received.topic), "a wildcard in a topic name"
    if received.qos:
        received.packet_id = _packet_id(cursor)
    if version == V5:
        received.properties = cursor.properties(Type.PUBLISH)
    assert received.topic or "topic_alias" in received.properties, "a PUBLISH without a topic"
    assert received.properties.get("topic_alias") != 0, "topic alias 0"
    received.payload = cursor.take(cursor.left)
