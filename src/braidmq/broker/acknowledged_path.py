"""The fast path of QoS 1 and 2: plain publications, forwarded and acknowledged as runs, where they stand in the buffer.

A client that publishes much to one topic sends packets that are alike but for their packet ids and payloads: an
`AcknowledgedRun`. One that comes alone has a still shorter way. Whatever is not plain is declined here and handled by
`publishing`.
"""

from __future__ import annotations

from braidmq.broker.acknowledged_run import RUN_MAX, AcknowledgedRun
from braidmq.broker.connection import Connection
from braidmq.broker.message import Message
from braidmq.broker.plain_acks import ACK_BYTES
from braidmq.broker.router import Route
from braidmq.broker.runs import messages_of, put_lone_in_flight, send_run
from braidmq.broker.session import Session
from braidmq.mqtt.packets import V5


def forward_and_acknowledge(connection: Connection, data: bytes, at: int, body: int, after: int) -> int:
    """Forwards and acknowledges the QoS 1 or 2 publication at `at`, without DUP, RETAIN or properties, and those like
    it behind it; returns where they end, 0 if it is not so plain."""
    session = connection.session
    tick = connection.tick
    if session is None or after - body < 2 or tick.refusal:
        return 0
    broker = connection.broker
    name_end = body + 2 + (data[body] << 8 | data[body + 1])
    is_v5 = connection.version == V5
    room = RUN_MAX
    if is_v5:
        if connection.unacknowledged_tick != tick.number:
            if connection.held is not None:
                return 0  # its acknowledgement must not overtake those that wait
            connection.unacknowledged_tick = tick.number
            connection.unacknowledged = len(session.received)
        room = min(room, broker.limits.receive_max - connection.unacknowledged)
    if name_end + 2 + is_v5 > after or room < 1 or broker.expires_all:
        return 0
    if body - at > 2 and not data[body - 1]:
        return 0  # a remaining length in more bytes than it needs is not passed on
    name = data[body:name_end]
    if connection.allowed_topics is not None and name not in connection.allowed_topics:
        return 0
    route = broker.router.routes.get(name) or broker.router.new_route(name, broker.limits.topic_levels_max)
    if route is None or route.feed is not None:
        return 0
    is_kept = route.outbound is not None and route.outbound.is_kept
    if is_kept and not _may_leave(route):
        return 0
    if (data[at] >> 1 & 3) > broker.limits.qos_max:
        return 0
    stop = after
    if len(data) - stop >= after - at:
        stop = _end_of_run(data, at, name_end, after, min(room, route.receivers.room_for_run(session)))
    count = 1
    if stop == after and data[at] == 0x32 and _is_plain(connection, route) and not (route.logged or is_kept):
        if not _forward_one(connection, session, route, data[at:name_end], data[name_end:after], name):
            return 0
    else:
        run = AcknowledgedRun(data[at:stop], after - at, connection.version, name, name_end - at)
        count = _forward_run(connection, session, route, run, is_kept)
        stop = at + count * run.size
    broker.metrics.messages_received += count
    if is_v5:
        connection.unacknowledged += count
    if broker.store.dirty:
        connection.awaits_commit = True
    if after == len(data) and not at and data[0] == 0x32 and not route.logged:
        connection.repeat = (data[:name_end], after, broker.router.version, [], None, (route, name))
    return stop if count else 0


def forward_alone(connection: Connection, route: Route, name: bytes, data: bytes, ids_at: int) -> bool:
    """Forwards and acknowledges a publication of QoS 1 that is a read for itself, as the one before it was, with the
    same topic and size; False if it is not plain, or has to be looked at with more care.

    Nothing else has come in this tick. What only clients here want goes straight to the sockets; what is kept for other
    brokers waits for the commit, as everything does.
    """
    session = connection.session
    tick = connection.tick
    if session is None or tick.refusal or connection.held is not None or not connection.writable:
        return False
    packet_id, behind = data[ids_at : ids_at + 2], data[ids_at + 2 :]
    if packet_id == b"\0\0":
        return False
    if connection.version == V5 and (behind[0] or len(session.received) >= connection.broker.limits.receive_max):
        return False
    outbound = route.outbound
    if outbound is not None and outbound.is_kept:
        if not _may_leave(route):
            return False
        _keep_alone(connection, session, route, AcknowledgedRun(data, len(data), connection.version, name, ids_at))
        return True
    if not _is_plain(connection, route) or tick.store.dirty or tick.is_delaying:
        return False
    targets = route.receivers.targets
    for target in targets:
        if not target.session.ready:
            return False
    head = data[:ids_at]
    for target in targets:
        client = target.session.connection
        assert client is not None  # the session is ready
        client.link.write(b"%b%b%b" % (head, put_lone_in_flight(target.session).to_bytes(2), behind))
    connection.link.write(b"\x40\x02" + packet_id)
    metrics = tick.metrics
    metrics.messages_received += 1
    metrics.bytes_received += len(data)
    metrics.messages_sent += len(targets)
    metrics.bytes_sent += len(targets) * len(data) + ACK_BYTES
    return True


def _keep_alone(connection: Connection, session: Session, route: Route, run: AcknowledgedRun) -> None:
    """The first that happens in a tick is a publication that other brokers may want."""
    tick = connection.tick
    tick.request_flush()
    tick.read_bytes += run.size
    tick.metrics.messages_received += 1
    if connection.version == V5:
        connection.unacknowledged_tick = tick.number
        connection.unacknowledged = len(session.received) + 1
    _forward_plain(connection, session, route, run, is_kept=True)
    connection.awaits_commit = True


def _is_plain(connection: Connection, route: Route) -> bool:
    """Whether all receivers here take publications of QoS 1 as they come, and there are any."""
    return route.receivers.sure_version == connection.version


def _may_leave(route: Route) -> bool:
    """Whether what may have to leave for other brokers, or to be kept for them, can go as a run: it is known who wants
    it, and nobody here could get it a second time on another way."""
    return route.outbound is not None and route.outbound.is_known and route.receivers.sure is not None


def _end_of_run(data: bytes, at: int, name_end: int, after: int, room: int) -> int:
    """Where the publications end that have the size and the topic of the one at `at`, if there is room for them."""
    size = after - at
    last = min(len(data) - size, at + (room - 1) * size)
    first_bytes = data[at:name_end]
    stop = after
    while stop <= last and data.startswith(first_bytes, stop):
        stop += size
    return stop


def _forward_one(
    connection: Connection, publisher: Session, route: Route, head: bytes, tail: bytes, name: bytes
) -> bool:
    """A publication of QoS 1 that comes alone, to sessions that end with their connections and speak its version.

    `head` is what stands before its packet id, `tail` the rest; False if it is not plain.
    """
    packet_id, behind = tail[:2], tail[2:]
    if packet_id == b"\0\0" or (connection.version == V5 and behind[0]):
        return False
    tick = connection.tick
    for target in route.receivers.targets:
        session = target.session
        client = session.connection
        if session.free > 0 and session.backlog is None and client is not None and client.writable:
            if not client.out:
                tick.touched.append(client)
            client.out.append(b"%b%b%b" % (head, put_lone_in_flight(session).to_bytes(2), behind))
            tick.metrics.messages_sent += 1
        else:
            payload = behind[1:] if connection.version == V5 else behind
            session.deliver(Message(name[2:].decode(), name, payload, 1, False, publisher.client_id), 1)
    connection.send(b"\x40\x02" + packet_id)
    return True


def _forward_run(connection: Connection, session: Session, route: Route, run: AcknowledgedRun, is_kept: bool) -> int:
    """Forwards and acknowledges those of a run, from the first on, that are plain and new; how many they are."""
    count = run.plain_count()
    if run.qos == 2:
        count = _count_of_new(run, count, session)
    if count < run.count:
        if not count:
            return 0
        run = run.first(count)
    broker = connection.broker
    if run.qos == 2:
        session.received.update(run.ids)
        if session.expiry_s:
            for packet_id in run.ids:
                broker.store.save_received(session.row, packet_id)
            connection.tick.took_once = True
    if route.logged:
        now = broker.now()
        for payload in run.payloads():
            broker.recorder.record_plain(run.name[2:], session.client_id, now, payload, run.qos)
        connection.awaits_commit = True
    _forward_plain(connection, session, route, run, is_kept)
    return count


def _forward_plain(connection: Connection, session: Session, route: Route, run: AcknowledgedRun, is_kept: bool) -> None:
    """Gives a run to all that want it, here and elsewhere, and acknowledges it."""
    broker = connection.broker
    to = route.receivers
    reached = bool(to.sure)
    if to.sure:
        send_run(connection.tick, to.sure, run, session.client_id)
    elif to.targets or to.groups:
        for message in messages_of(run, session.client_id):
            reached = broker.deliver(message, to.targets, to.groups, connection.flow)
    if is_kept and route.outbound is not None:
        reached = route.outbound.send_acknowledged_run(run, session.client_id, connection.tick.now()) or reached
    connection.send(run.acknowledgements(reached))


def _count_of_new(run: AcknowledgedRun, count: int, session: Session) -> int:
    """How many of the first ones, of QoS 2, are not under way already."""
    ids = run.ids[:count]
    if session.received.isdisjoint(ids) and len(set(ids)) == count:
        return count
    return int(count > 0 and ids[0] not in session.received)
