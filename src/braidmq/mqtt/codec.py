"""Packets to and from bytes, for both versions (MQTT §2 and §3).

`decode` takes one whole packet: the first byte of its fixed header and the body behind the remaining length. It either
returns a packet that keeps every rule one packet can keep by itself, or raises PacketError with the reason to answer.
What needs more than the packet (is this alias known? may this client do that?) is the session's to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Final, TypeVar

from braidmq.mqtt import packets as p
from braidmq.mqtt.errors import PacketError, malformed, violation
from braidmq.mqtt.properties import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    WILL,
    Properties,
    read_properties,
    write_properties,
)
from braidmq.mqtt.reason_tables import REASONS
from braidmq.mqtt.reasons import RETURN_CODES, Reason
from braidmq.mqtt.wire import VARINT_MAX, Reader, binary, string, varint

# Flags of the fixed header: PUBLISH has its own, three types have 0b0010, the others none [MQTT-2.1.3-1].
_FLAGS: Final = {PUBREL: 2, SUBSCRIBE: 2, UNSUBSCRIBE: 2}


def decode(
    header: int, body: bytes, version: int, user_properties_max: int = VARINT_MAX, filters_max: int = VARINT_MAX
) -> p.Packet:
    """The packet with this first byte and this body, on a connection of this version (a CONNECT brings its own).

    A packet with too many user properties or topic filters is refused as soon as the bound is passed (0x97), so that it
    costs no more than others.
    """
    kind = header >> 4
    if kind != PUBLISH and header & 0x0F != _FLAGS.get(kind, 0):
        raise malformed(f"reserved flags 0b{header & 15:04b} in the fixed header of packet type {kind}")
    reader = _READERS.get(kind)
    if reader is None:
        raise malformed("packet type 0 is reserved")
    if kind == AUTH and version < p.V5:
        raise malformed("packet type 15 is reserved")
    return reader(header, Reader(body, repeats_max=user_properties_max, filters_max=filters_max), version)


def encode(packet: p.Packet, version: int) -> bytes:
    """The bytes of a packet on a connection of this version."""
    header, body = _WRITERS[type(packet)](packet, version)
    return bytes((header,)) + varint(len(body)) + body


# CONNECT and CONNACK


def _read_connect(_header: int, r: Reader, _version: int) -> p.Connect:
    name = r.binary()
    version = r.u8()
    if name != b"MQTT":
        if name == b"MQIsdp":
            raise PacketError(Reason.UNSUPPORTED_PROTOCOL_VERSION, "MQTT 3.1 is not supported; use 3.1.1 or 5.0")
        raise malformed("the protocol name is not MQTT")
    if version not in (p.V3, p.V5):
        text = f"protocol level {version} is not supported; use 4 (MQTT 3.1.1) or 5 (MQTT 5.0)"
        raise PacketError(Reason.UNSUPPORTED_PROTOCOL_VERSION, text)
    flags = r.u8()
    if flags & 0x01:
        raise malformed("the reserved connect flag is set")  # [MQTT-3.1.2-3]
    keep_alive = r.u16()
    properties = read_properties(r, CONNECT) if version == p.V5 else Properties()
    client_id = r.string()
    will = None
    if flags & 0x04:
        will = _read_will(r, flags, version)
    elif flags & 0x38:
        raise malformed("will QoS or will retain without a will")  # [MQTT-3.1.2-11], [MQTT-3.1.2-13]
    username = r.string() if flags & 0x80 else None
    if flags & 0x40 and username is None and version == p.V3:
        raise malformed("a password without a user name")  # 3.1.1 [MQTT-3.1.2-22]
    password = r.binary() if flags & 0x40 else None
    r.finish()
    return p.Connect(client_id, version, bool(flags & 0x02), keep_alive, will, username, password, properties)


def _read_will(r: Reader, flags: int, version: int) -> p.Will:
    qos = flags >> 3 & 3
    if qos == 3:
        raise malformed("will QoS 3")  # [MQTT-3.1.2-12]
    properties = read_properties(r, WILL) if version == p.V5 else Properties()
    _check_response_topic(properties)
    topic = r.string()
    return p.Will(topic, r.binary(), qos, bool(flags & 0x20), properties)


def _write_connect(c: p.Connect, _version: int) -> tuple[int, bytes]:
    flags = c.clean_start << 1 | (c.username is not None) << 7 | (c.password is not None) << 6
    if c.will:
        flags |= 0x04 | c.will.qos << 3 | c.will.retain << 5
    out = [string("MQTT"), bytes((c.version, flags)), c.keep_alive.to_bytes(2)]
    if c.version == p.V5:
        out.append(write_properties(c.properties, CONNECT))
    out.append(string(c.client_id))
    if c.will:
        if c.version == p.V5:
            out.append(write_properties(c.will.properties, WILL))
        out += (string(c.will.topic), binary(c.will.payload))
    if c.username is not None:
        out.append(string(c.username))
    if c.password is not None:
        out.append(binary(c.password))
    return CONNECT << 4, b"".join(out)


_FROM_RETURN_CODE: Final = tuple({code: reason for reason, code in reversed(RETURN_CODES.items())}[n] for n in range(6))


def _read_connack(_header: int, r: Reader, version: int) -> p.Connack:
    flags, code = r.u8(), r.u8()
    if flags > 1:
        raise malformed("reserved acknowledge flags")  # [MQTT-3.2.2-1]
    if version == p.V5:
        packet = p.Connack(bool(flags), _reason(code, CONNACK), read_properties(r, CONNACK))
    elif code < len(_FROM_RETURN_CODE):
        packet = p.Connack(bool(flags), _FROM_RETURN_CODE[code])
    else:
        raise malformed(f"return code {code}")
    r.finish()
    return packet


def _write_connack(c: p.Connack, version: int) -> tuple[int, bytes]:
    if version == p.V5:
        head = bytes((c.session_present,)) + _codes(CONNACK, c.reason)
        return CONNACK << 4, head + write_properties(c.properties, CONNACK)
    return CONNACK << 4, bytes((c.session_present, RETURN_CODES[c.reason]))


# PUBLISH and its acknowledgements


def _read_publish(header: int, r: Reader, version: int) -> p.Publish:
    qos = header >> 1 & 3
    if qos == 3:
        raise malformed("QoS 3")  # [MQTT-3.3.1-4]
    if header & 0x08 and qos == 0:
        raise malformed("DUP on a QoS 0 publication")  # [MQTT-3.3.1-2]
    topic = r.string()
    packet_id = _read_packet_id(r) if qos else None
    properties = read_properties(r, PUBLISH) if version == p.V5 else Properties()
    _check_response_topic(properties)
    return p.Publish(topic, r.rest(), qos, bool(header & 1), bool(header & 8), packet_id, properties)


def _check_response_topic(properties: Properties) -> None:
    response = properties.response_topic
    if response is not None and (not response or "+" in response or "#" in response):
        raise violation(f"{response!r} is no response topic")  # [MQTT-3.3.2-14]


def _write_publish(m: p.Publish, version: int) -> tuple[int, bytes]:
    out = [string(m.topic)]
    if m.packet_id is not None:
        out.append(m.packet_id.to_bytes(2))
    if version == p.V5:
        out.append(write_properties(m.properties, PUBLISH))
    out.append(m.payload)
    return PUBLISH << 4 | m.dup << 3 | m.qos << 1 | m.retain, b"".join(out)


def _read_packet_id(r: Reader) -> int:
    packet_id = r.u16()
    if not packet_id:
        raise malformed("packet identifier 0")  # [MQTT-2.2.1-3]
    return packet_id


_A = TypeVar("_A", p.Puback, p.Pubrec, p.Pubrel, p.Pubcomp)


def _ack_reader(kind: int, make: type[_A]) -> Callable[[int, Reader, int], _A]:
    def read(_header: int, r: Reader, version: int) -> _A:
        packet_id = _read_packet_id(r)
        reason, properties = Reason.SUCCESS, Properties()
        if version == p.V5 and r.left:
            reason = _reason(r.u8(), kind)
            if r.left:
                properties = read_properties(r, kind)
        r.finish()
        return make(packet_id, reason, properties)

    return read


def _ack_writer(kind: int) -> Callable[[p.Puback | p.Pubrec | p.Pubrel | p.Pubcomp, int], tuple[int, bytes]]:
    header = kind << 4 | _FLAGS.get(kind, 0)

    def write(ack: p.Puback | p.Pubrec | p.Pubrel | p.Pubcomp, version: int) -> tuple[int, bytes]:
        body = ack.packet_id.to_bytes(2)
        if version == p.V5:
            body += _reason_and_properties(ack.reason, ack.properties, kind)
        return header, body

    return write


# SUBSCRIBE, UNSUBSCRIBE and their acknowledgements


def _read_subscribe(_header: int, r: Reader, version: int) -> p.Subscribe:
    packet_id = _read_packet_id(r)
    properties = read_properties(r, SUBSCRIBE) if version == p.V5 else Properties()
    subscriptions: list[p.Subscription] = []
    while r.left:
        _check_count(subscriptions, r)
        topic_filter = r.string()
        subscriptions.append(_subscription(topic_filter, r.u8(), version))
    if not subscriptions:
        raise violation("a SUBSCRIBE without a topic filter")  # [MQTT-3.8.3-2]
    return p.Subscribe(packet_id, subscriptions, properties)


def _check_count(filters: Sized, r: Reader) -> None:
    if len(filters) >= r.filters_max:
        raise PacketError(Reason.QUOTA_EXCEEDED, f"more than {r.filters_max} topic filters in one packet")


def _subscription(topic_filter: str, options: int, version: int) -> p.Subscription:
    qos = options & 3
    if qos == 3:
        raise violation("a subscription with QoS 3")  # §3.8.3.1
    if options & (0xC0 if version == p.V5 else 0xFC):
        raise malformed("reserved subscription options")  # [MQTT-3.8.3-5], 3.1.1 [MQTT-3.8.3-4]
    handling = options >> 4 & 3
    if handling == 3:
        raise violation("retain handling 3")
    return p.Subscription(topic_filter, qos, bool(options & 4), bool(options & 8), p.RetainHandling(handling))


def options_byte(s: p.Subscription) -> int:
    """The byte of subscription options in a SUBSCRIBE (MQTT 5 §3.8.3.1)."""
    return s.qos | s.no_local << 2 | s.retain_as_published << 3 | s.retain_handling << 4


def _write_subscribe(s: p.Subscribe, version: int) -> tuple[int, bytes]:
    out = [s.packet_id.to_bytes(2)]
    if version == p.V5:
        out.append(write_properties(s.properties, SUBSCRIBE))
    for one in s.subscriptions:
        out += (string(one.topic_filter), bytes((options_byte(one) if version == p.V5 else one.qos,)))
    return SUBSCRIBE << 4 | 2, b"".join(out)


def _read_suback(_header: int, r: Reader, version: int) -> p.Suback:
    packet_id = _read_packet_id(r)
    properties = read_properties(r, SUBACK) if version == p.V5 else Properties()
    reasons = [_reason(code, SUBACK) for code in r.rest()]
    if version == p.V3 and any(reason.failed and reason != 0x80 for reason in reasons):
        raise malformed("a return code that 3.1.1 does not know")
    return p.Suback(packet_id, reasons, properties)


def _write_suback(s: p.Suback, version: int) -> tuple[int, bytes]:
    if version == p.V5:
        head = s.packet_id.to_bytes(2) + write_properties(s.properties, SUBACK)
        return SUBACK << 4, head + _codes(SUBACK, *s.reasons)
    return SUBACK << 4, s.packet_id.to_bytes(2) + bytes(min(reason, 0x80) for reason in s.reasons)


def _read_unsubscribe(_header: int, r: Reader, version: int) -> p.Unsubscribe:
    packet_id = _read_packet_id(r)
    properties = read_properties(r, UNSUBSCRIBE) if version == p.V5 else Properties()
    filters: list[str] = []
    while r.left:
        _check_count(filters, r)
        filters.append(r.string())
    if not filters:
        raise violation("an UNSUBSCRIBE without a topic filter")  # [MQTT-3.10.3-2]
    return p.Unsubscribe(packet_id, filters, properties)


def _write_unsubscribe(u: p.Unsubscribe, version: int) -> tuple[int, bytes]:
    head = u.packet_id.to_bytes(2) + (write_properties(u.properties, UNSUBSCRIBE) if version == p.V5 else b"")
    return UNSUBSCRIBE << 4 | 2, head + b"".join(map(string, u.topic_filters))


def _read_unsuback(_header: int, r: Reader, version: int) -> p.Unsuback:
    packet_id = _read_packet_id(r)
    if version == p.V3:
        r.finish()
        return p.Unsuback(packet_id)
    properties = read_properties(r, UNSUBACK)
    return p.Unsuback(packet_id, [_reason(code, UNSUBACK) for code in r.rest()], properties)


def _write_unsuback(u: p.Unsuback, version: int) -> tuple[int, bytes]:
    if version == p.V3:
        return UNSUBACK << 4, u.packet_id.to_bytes(2)
    head = u.packet_id.to_bytes(2) + write_properties(u.properties, UNSUBACK)
    return UNSUBACK << 4, head + _codes(UNSUBACK, *u.reasons)


# PINGREQ, PINGRESP, DISCONNECT, AUTH


def _read_pingreq(_header: int, r: Reader, _version: int) -> p.Pingreq:
    r.finish()
    return p.Pingreq()


def _read_pingresp(_header: int, r: Reader, _version: int) -> p.Pingresp:
    r.finish()
    return p.Pingresp()


def _read_disconnect(_header: int, r: Reader, version: int) -> p.Disconnect:
    packet = p.Disconnect()
    if version == p.V5 and r.left:
        packet.reason = _reason(r.u8(), DISCONNECT)
        if r.left:
            packet.properties = read_properties(r, DISCONNECT)
    r.finish()
    return packet


def _write_disconnect(d: p.Disconnect, version: int) -> tuple[int, bytes]:
    if version == p.V3:
        return DISCONNECT << 4, b""
    return DISCONNECT << 4, _reason_and_properties(d.reason, d.properties, DISCONNECT)


def _read_auth(_header: int, r: Reader, _version: int) -> p.Auth:
    packet = p.Auth()
    if r.left:
        packet.reason = _reason(r.u8(), AUTH)
        packet.properties = read_properties(r, AUTH)
    r.finish()
    return packet


def _write_auth(a: p.Auth, _version: int) -> tuple[int, bytes]:
    return AUTH << 4, _reason_and_properties(a.reason, a.properties, AUTH)


def _reason(code: int, packet: int) -> Reason:
    try:
        reason = Reason(code)
    except ValueError:
        raise malformed(f"unknown reason code 0x{code:02X}") from None
    if reason not in REASONS[packet]:
        raise malformed(f"reason code 0x{code:02X} does not belong into packet type {packet}")
    return reason


def _reason_and_properties(reason: Reason, properties: Properties, packet: int) -> bytes:
    """The tail of most MQTT 5 packets: left out where it says nothing (§3.4.2.1)."""
    block = write_properties(properties, packet)
    code = _codes(packet, reason)
    if block != b"\0":
        return code + block
    return code if reason else b""


def _codes(packet: int, *reasons: Reason) -> bytes:
    """Reason codes that such a packet may carry; any other is a mistake of the sender's code [MQTT-3.14.2-1]."""
    for reason in reasons:
        if reason not in REASONS[packet]:
            raise ValueError(f"reason code 0x{reason:02X} does not belong into packet type {packet}")
    return bytes(reasons)


_READERS: Final[dict[int, Callable[[int, Reader, int], p.Packet]]] = {
    CONNECT: _read_connect,
    CONNACK: _read_connack,
    PUBLISH: _read_publish,
    PUBACK: _ack_reader(PUBACK, p.Puback),
    PUBREC: _ack_reader(PUBREC, p.Pubrec),
    PUBREL: _ack_reader(PUBREL, p.Pubrel),
    PUBCOMP: _ack_reader(PUBCOMP, p.Pubcomp),
    SUBSCRIBE: _read_subscribe,
    SUBACK: _read_suback,
    UNSUBSCRIBE: _read_unsubscribe,
    UNSUBACK: _read_unsuback,
    PINGREQ: _read_pingreq,
    PINGRESP: _read_pingresp,
    DISCONNECT: _read_disconnect,
    AUTH: _read_auth,
}

_WRITERS: Final[dict[type, Callable[..., tuple[int, bytes]]]] = {
    p.Connect: _write_connect,
    p.Connack: _write_connack,
    p.Publish: _write_publish,
    p.Puback: _ack_writer(PUBACK),
    p.Pubrec: _ack_writer(PUBREC),
    p.Pubrel: _ack_writer(PUBREL),
    p.Pubcomp: _ack_writer(PUBCOMP),
    p.Subscribe: _write_subscribe,
    p.Suback: _write_suback,
    p.Unsubscribe: _write_unsubscribe,
    p.Unsuback: _write_unsuback,
    p.Pingreq: lambda _packet, _version: (PINGREQ << 4, b""),
    p.Pingresp: lambda _packet, _version: (PINGRESP << 4, b""),
    p.Disconnect: _write_disconnect,
    p.Auth: _write_auth,
}
