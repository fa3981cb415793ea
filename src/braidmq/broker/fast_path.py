"""The fast path: plain publications, handled where they stand in the buffer.

No packet object is made. A run of QoS 0 publications to one topic is recognised by comparing their first bytes, and is
appended as one piece to what each receiver is sent at the end of the loop tick. Whatever is not plain (a property, a
retain flag, an unknown topic, a client with restrictions) is declined here and handled by `publishing`.
"""

from __future__ import annotations

from braidmq.broker.connection import Connection
from braidmq.broker.message import Message
from braidmq.broker.router import Receivers
from braidmq.broker.runs import Repeat, append_run, payloads_of, translated
from braidmq.broker.session import SENT, Session
from braidmq.mqtt.packets import V5
from braidmq.mqtt.wire import varint

_ACKNOWLEDGED = (b"", b"\x40\x02", b"\x50\x02")
_NOBODY = (b"", b"\x40\x03", b"\x50\x03")
"""PUBACK and PUBREC, plain and with a reason code (0x10: no matching subscribers)."""


def send_repeat(connection: Connection, repeat: Repeat, data: bytes) -> bool:
    """Passes a read on that is one publication with the same topic and size as the last one; False if it is not.

    A device that sends one reading at a time always takes this way. Nothing waits in this tick (the caller has looked),
    so the bytes go straight to the sockets.
    """
    first_bytes, size, version, receivers, outbound = repeat
    broker = connection.broker
    if len(data) != size or version != broker.router.version or not data.startswith(first_bytes):
        return False
    if outbound is not None and outbound.is_open:
        cut_through = outbound.cut_through
        if cut_through is None or not cut_through.send(connection.version, data, connection.seen_at):
            return False
    metrics = broker.metrics
    sent = 0
    for receiver in receivers:
        if receiver.writable or receiver.flow.stalls(connection.flow):
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
    if broker.expires_all or (body - at > 2 and not data[body - 1]):
        return 0  # also: a remaining length in more bytes than it needs is not passed on
    if connection.allowed_topics is not None and name not in connection.allowed_topics:
        return 0
    route = broker.router.routes.get(name) or broker.router.new_route(name, broker.limits.topic_levels_max)
    if route is None:
        return 0

    to = route.receivers
    same, other = (to.plain5, to.plain3) if is_v5 else (to.plain3, to.plain5)
    starts = [at] if other or to.special or to.groups or route.feed is not None else None
    stop, count = after, 1
    if not to.mixed:
        stop, count = _end_of_run(connection, data, at, body, after, payload_at, starts)
    broker.metrics.messages_received += count
    run = data[at:stop]
    if same:
        append_run(connection.tick, same, run, count, connection.flow)
    if route.outbound is not None:
        route.outbound.send_run(connection.version, run, count)
    if route.logged:
        broker.recorder.record_run(name[2:], session.client_id, broker.now(), run, count, payload_at - at, after - at)
    if starts is None:
        if count == 1 and after - at == len(data) and not route.logged:
            connection.repeat = (data[:payload_at], after, broker.router.version, same, route.outbound)
        return stop

    payloads = payloads_of(data, starts, stop, len(name) + is_v5)
    if other:
        append_run(connection.tick, other, translated(name, payloads, not is_v5), count, connection.flow)
    if to.special or to.groups:
        topic = name[2:].decode()
        for payload in payloads:
            message = Message(topic, name, payload, 0, False, session.client_id)
            broker.deliver(message, to.special, to.groups, connection.flow)
    if route.feed is not None:
        route.feed.on_run(payloads, session.client_id, route.logged)
    return stop


def _end_of_run(
    connection: Connection, data: bytes, at: int, body: int, after: int, payload_at: int, starts: list[int] | None
) -> tuple[int, int]:
    """(where the run of plain publications to one topic ends, how many they are); notes their starts if asked to.

    Most publishers send equal sizes: then the first bytes, length included, are equal. If not, the topic is compared,
    packet by packet, until one has the size of the first again.
    """
    end = len(data)
    stop = after
    count = 1
    if stop + 2 > end or data[stop] != 0x30:
        return stop, count
    size = after - at
    last = end - size
    size_max = connection.packet_max
    first_bytes = data[at:payload_at]
    topic = data[body:payload_at]
    least = len(topic)
    while True:
        begin = stop
        while stop <= last and data.startswith(first_bytes, stop):
            stop += size
        if stop != begin:
            count += (stop - begin) // size
            if starts is not None:
                starts.extend(range(begin, stop, size))
        while True:
            if stop + 3 > end or data[stop] != 0x30:
                return stop, count
            length = data[stop + 1]
            its_body = stop + 2
            if length > 127:
                if not 0 < data[its_body] < 128:
                    return stop, count
                length += (data[its_body] << 7) - 128
                its_body += 1
            following = its_body + length
            its_size = following - stop
            if following > end or its_size > size_max or length < least or not data.startswith(topic, its_body):
                return stop, count
            if starts is not None:
                starts.append(stop)
            stop = following
            count += 1
            if its_size == size:
                break


def forward_and_acknowledge(connection: Connection, data: bytes, body: int, after: int, qos: int) -> bool:
    """Forwards and acknowledges a QoS 1 or 2 publication without DUP, RETAIN or properties; False if not so plain."""
    session = connection.session
    tick = connection.tick
    if session is None or after - body < 2 or tick.degraded:
        return False
    broker = connection.broker
    name_end = body + 2 + (data[body] << 8 | data[body + 1])
    payload_at = name_end + 2
    is_v5 = connection.version == V5
    if is_v5:
        payload_at += 1
        if connection.unacknowledged_tick != tick.number:
            if connection.held is not None:
                return False  # its acknowledgement must not overtake those that wait
            connection.unacknowledged_tick = tick.number
            connection.unacknowledged = len(session.received)
        if connection.unacknowledged >= broker.limits.receive_max:
            return False
    if payload_at > after or qos > broker.limits.qos_max or (is_v5 and data[payload_at - 1]):
        return False
    name = data[body:name_end]
    packet_id = data[name_end : name_end + 2]
    if packet_id == b"\0\0" or broker.expires_all:
        return False
    if connection.allowed_topics is not None and name not in connection.allowed_topics:
        return False
    route = broker.router.routes.get(name) or broker.router.new_route(name, broker.limits.topic_levels_max)
    if route is None or route.feed is not None or (route.outbound is not None and route.outbound.is_kept):
        return False
    if qos == 2 and int.from_bytes(packet_id) in session.received:
        return False
    if route.logged:
        broker.recorder.record_plain(name[2:], session.client_id, broker.now(), data[payload_at:after], qos)
        connection.awaits_commit = True
    to = route.receivers
    if qos == 1 and to.plain1 is not None and to.plain1_version == connection.version:
        _forward_plain_qos1(connection, to, name, data[name_end + 2 : after], session)
        broker.metrics.messages_received += 1
        connection.unacknowledged += is_v5
        connection.send(b"\x40\x02" + packet_id)
        if broker.store.dirty:
            connection.awaits_commit = True
        return True
    if qos == 2:
        number = int.from_bytes(packet_id)
        session.received.add(number)
        if session.expiry_s:
            broker.store.save_received(session.row, number)
    broker.metrics.messages_received += 1
    message = Message(name[2:].decode(), name, data[payload_at:after], qos, False, session.client_id)
    reached = broker.deliver(message, to.targets, to.groups, connection.flow)
    acknowledgement = _ACKNOWLEDGED[qos] + packet_id
    if is_v5:
        connection.unacknowledged += 1
        if not reached:
            acknowledgement = _NOBODY[qos] + packet_id + b"\x10"
    connection.send(acknowledgement)
    if broker.store.dirty:
        connection.awaits_commit = True
    return True


def _forward_plain_qos1(publisher: Connection, to: Receivers, name: bytes, tail: bytes, own: Session) -> None:
    """QoS 1 to sessions that end with their connection, so that the message is never asked for again.

    Only its packet id is remembered; a session that cannot take it at once gets it the careful way. `tail` is what
    stands behind the packet id, `own` the publisher's session.
    """
    tick = publisher.tick
    touched = tick.touched
    head = b"\x32" + varint(len(name) + 2 + len(tail)) + name
    for session in to.plain1 or ():
        connection = session.connection
        if session.free > 0 and session.backlog is None and connection is not None and connection.writable:
            out = connection.out
            if not out:
                touched.append(connection)
            out.append(b"%b%b%b" % (head, session.put_in_flight(SENT).to_bytes(2), tail))
            tick.metrics.messages_sent += 1
        else:
            payload = tail[1:] if to.plain1_version == V5 else tail
            session.deliver(Message(name[2:].decode(), name, payload, 1, False, own.client_id), 1)
