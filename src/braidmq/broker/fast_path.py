"""The fast path: plain publications, handled where they stand in the buffer.

No packet object is made. A run of QoS 0 publications to one topic is recognised by comparing their first bytes, and is
appended as one piece to what each receiver is sent at the end of the loop tick. Whatever is not plain (a property, a
retain flag, an unknown topic, a client with restrictions) is declined here and handled by `publishing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.broker.message import Message
from braidmq.mqtt.packets import V5
from braidmq.mqtt.wire import varint

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.connection import Connection


_ACKNOWLEDGED = (b"", b"\x40\x02", b"\x50\x02")
_NOBODY = (b"", b"\x40\x03", b"\x50\x03")
"""PUBACK and PUBREC, plain and with a reason code (0x10: no matching subscribers)."""


Repeat = tuple[bytes, int, int, "list[Connection]"]
"""What a connection published last, alone in its read: first bytes, size, the router's version, the receivers."""


def send_repeat(repeat: Repeat, broker: Broker, data: bytes) -> bool:
    """Passes a read on that is one publication with the same topic and size as the last one; False if it is not.

    A device that sends one reading at a time always takes this way. Nothing waits in this tick (the caller has looked),
    so the bytes go straight to the sockets.
    """
    first_bytes, size, version, receivers = repeat
    if len(data) != size or version != broker.router.version or not data.startswith(first_bytes):
        return False
    metrics = broker.metrics
    sent = 0
    for receiver in receivers:
        if receiver.writable:
            receiver.link.write(data)
            sent += 1
    metrics.messages_received += 1
    metrics.bytes_received += size
    metrics.messages_sent += sent
    metrics.bytes_sent += size * sent
    if sent < len(receivers):
        metrics.messages_dropped += len(receivers) - sent
    return True


def forward_run(connection: Connection, data: bytes, at: int, body: int, after: int) -> int:
    """Forwards the QoS 0 publication at `at` and those like it behind it; returns where they end, 0 if not plain.

    Their first bytes (fixed header, topic, and in MQTT 5 an empty property block) are equal, so one comparison
    recognises each, and the run goes to the receivers of the same version as it came.
    """
    session = connection.session
    if session is None or after - body < 2:
        return 0
    payload_at = name_end = body + 2 + (data[body] << 8 | data[body + 1])
    is_v5 = connection.version == V5
    if is_v5:
        payload_at += 1
    if payload_at > after or (is_v5 and data[name_end]):
        return 0
    name = data[body:name_end]
    broker = connection.broker
    route = broker.router.routes.get(name)
    if route is None or broker.expires_all or (body - at > 2 and not data[body - 1]):
        return 0  # also: a remaining length in more bytes than it needs is not passed on
    if connection.allowed_topics is not None and name not in connection.allowed_topics:
        return 0

    size = after - at
    stop = after
    count = 1
    last = len(data) - size
    if stop <= last:
        first_bytes = data[at:payload_at]
        while stop <= last and data.startswith(first_bytes, stop):
            stop += size
        count = (stop - at) // size
    metrics = broker.metrics
    metrics.messages_received += count

    same, other = (route.plain5, route.plain3) if is_v5 else (route.plain3, route.plain5)
    if same:
        _append(connection, same, data[at:stop], count)
    if other:
        _append(connection, other, _translated(data, at, stop, size, name, payload_at - at, not is_v5), count)
    if route.special or route.groups:
        for place in range(at, stop, size):
            payload = data[place + payload_at - at : place + size]
            message = Message(route.topic, name, payload, 0, False, session.client_id)
            broker.deliver(message, route.special, route.groups)
    elif not other and size == len(data):
        connection.repeat = (data[:payload_at], size, broker.router.version, same)
    return stop


def _append(connection: Connection, receivers: list[Connection], run: bytes, count: int) -> None:
    broker = connection.broker
    touched = broker.touched_connections
    sent = 0
    for receiver in receivers:
        if receiver.writable:
            out = receiver.out
            if not out:
                touched.append(receiver)
            out.append(run)
            sent += 1
    broker.metrics.messages_sent += count * sent
    broker.metrics.messages_dropped += count * (len(receivers) - sent)


def _translated(data: bytes, at: int, stop: int, size: int, name: bytes, head: int, to_v5: bool) -> bytes:
    """A run for receivers of the other version: the empty property block comes in, or goes."""
    length = len(name) + size - head + to_v5
    new_head = b"\x30" + varint(length) + name + (b"\0" if to_v5 else b"")
    pieces: list[bytes] = []
    for place in range(at, stop, size):
        pieces += (new_head, data[place + head : place + size])
    return b"".join(pieces)


def forward_and_acknowledge(connection: Connection, data: bytes, body: int, after: int, qos: int) -> bool:
    """Forwards and acknowledges a QoS 1 or 2 publication without DUP, RETAIN or properties; False if not so plain."""
    session = connection.session
    broker = connection.broker
    if session is None or after - body < 2 or broker.degraded:
        return False
    name_end = body + 2 + (data[body] << 8 | data[body + 1])
    payload_at = name_end + 2
    is_v5 = connection.version == V5
    if is_v5:
        payload_at += 1
        if connection.unacknowledged_tick != broker.tick:
            connection.unacknowledged_tick = broker.tick
            connection.unacknowledged = len(session.received)
        if connection.unacknowledged >= broker.limits.receive_max:
            return False
    if payload_at > after or qos > broker.limits.qos_max or (is_v5 and data[payload_at - 1]):
        return False
    name = data[body:name_end]
    route = broker.router.routes.get(name)
    packet_id = data[name_end : name_end + 2]
    if route is None or packet_id == b"\0\0" or broker.expires_all:
        return False
    if connection.allowed_topics is not None and name not in connection.allowed_topics:
        return False
    if qos == 2:
        number = int.from_bytes(packet_id)
        if number in session.received:
            return False
        session.received.add(number)
        if session.expiry_s:
            broker.store.save_received(session.row, number)
    broker.metrics.messages_received += 1
    message = Message(route.topic, name, data[payload_at:after], qos, False, session.client_id)
    reached = broker.deliver(message, route.targets, route.groups)
    acknowledgement = _ACKNOWLEDGED[qos] + packet_id
    if is_v5:
        connection.unacknowledged += 1
        if not reached:
            acknowledgement = _NOBODY[qos] + packet_id + b"\x10"
    connection.send(acknowledgement)
    if broker.store.dirty:
        connection.awaits_commit = True
    return True
