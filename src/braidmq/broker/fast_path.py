"""The fast path: plain QoS 0 publications, handled where they stand in the buffer.

No packet object is made. A run of QoS 0 publications to one topic is recognised by comparing their first bytes, and is
appended as one piece to what each receiver is sent at the end of the loop tick. Whatever is not plain (a property, a
retain flag, an unknown topic, a client with restrictions) is declined here and handled by `publishing`; runs of QoS 1
and 2 are in `acknowledged_path`.
"""

from __future__ import annotations

from braidmq.broker.acknowledged_path import forward_alone
from braidmq.broker.connection import Connection
from braidmq.broker.message import Message
from braidmq.broker.runs import Repeat, append_run, payloads_of, translated
from braidmq.mqtt.packets import V5


def send_repeat(connection: Connection, repeat: Repeat, data: bytes) -> bool:
    """Passes a read on that is one publication with the same topic and size as the last one; False if it is not.

    A device that sends one reading at a time always takes this way. Nothing has come in this tick (the caller has
    looked), so if nothing waits for copies either, the bytes go straight to the sockets.
    """
    first_bytes, size, version, receivers, outbound, acknowledged = repeat
    broker = connection.broker
    if len(data) != size or version != broker.router.version or not data.startswith(first_bytes):
        return False
    if acknowledged is not None:
        return forward_alone(connection, *acknowledged, data, len(first_bytes))
    if connection.tick.is_delaying:
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
            connection.repeat = (data[:payload_at], after, broker.router.version, same, route.outbound, None)
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
