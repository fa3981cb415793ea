"""The fast path of QoS 1 and 2: plain publications, forwarded and acknowledged as runs, where they stand in the buffer.

A client that publishes much to one topic sends packets that are alike but for their packet ids and payloads: an
`AcknowledgedRun`. Whatever is not plain is declined here and handled by `publishing`.
"""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.broker.acknowledged_run import RUN_MAX, AcknowledgedRun
from braidmq.broker.connection import Connection
from braidmq.broker.message import Message
from braidmq.broker.router import Route, Target
from braidmq.broker.session import Session
from braidmq.broker.tick import Tick
from braidmq.mqtt.packets import V5


def forward_and_acknowledge(connection: Connection, data: bytes, at: int, body: int, after: int) -> int:
    """Forwards and acknowledges the QoS 1 or 2 publication at `at`, without DUP, RETAIN or properties, and those like
    it behind it; returns where they end, 0 if it is not so plain."""
    session = connection.session
    tick = connection.tick
    if session is None or after - body < 2 or tick.degraded:
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
    if route is None or route.feed is not None or (route.outbound is not None and route.outbound.is_kept):
        return 0
    stop = _end_of_run(data, at, name_end, after, room, session, route)
    run = AcknowledgedRun(data[at:stop], after - at, connection.version, name, name_end - at)
    if run.qos > broker.limits.qos_max:
        return 0
    plain = run.plain_count() if run.qos == 1 else _count_of_new(run, session)
    if plain < run.count:
        if not plain:
            return 0
        run = run.first(plain)
    broker.metrics.messages_received += run.count
    if run.qos == 2:
        _note_received(connection, session, run)
    if route.logged:
        now = broker.now()
        for payload in run.payloads():
            broker.recorder.record_plain(name[2:], session.client_id, now, payload, run.qos)
        connection.awaits_commit = True
    reached = _forward(connection, session, route, run)
    if is_v5:
        connection.unacknowledged += run.count
    connection.send(run.acknowledgements(reached))
    if broker.store.dirty:
        connection.awaits_commit = True
    return at + len(run.packets)


def _end_of_run(data: bytes, at: int, name_end: int, after: int, room: int, session: Session, route: Route) -> int:
    """Where the publications end that have the size and the topic of the one at `at`, if there is room for them."""
    size = after - at
    last = min(len(data) - size, at + (room - 1) * size)
    if after > last or route.receivers.has(session):
        return after  # also: to a publisher that is a receiver itself copies and acknowledgements take turns
    first_bytes = data[at:name_end]
    stop = after
    while stop <= last and data.startswith(first_bytes, stop):
        stop += size
    return stop


def _count_of_new(run: AcknowledgedRun, session: Session) -> int:
    """How many of QoS 2, from the first on, are plain and not under way already."""
    count = run.plain_count()
    ids = run.ids[:count]
    if session.received.isdisjoint(ids) and len(set(ids)) == count:
        return count
    return int(count > 0 and ids[0] not in session.received)


def _note_received(connection: Connection, session: Session, run: AcknowledgedRun) -> None:
    session.received.update(run.ids)
    if session.expiry_s:
        for packet_id in run.ids:
            connection.broker.store.save_received(session.row, packet_id)


def _forward(connection: Connection, session: Session, route: Route, run: AcknowledgedRun) -> bool:
    """Gives a run to all that want it here; whether there is anybody."""
    to = route.receivers
    if to.sure is not None:
        send_run(connection.tick, to.sure, run, session.client_id)
        return bool(to.sure)
    reached = False
    for message in _messages(run, 0, session.client_id):
        reached = connection.broker.deliver(message, to.targets, to.groups, connection.flow)
    return reached


def send_run(tick: Tick, targets: Iterable[Target], run: AcknowledgedRun, sender: str) -> None:
    """Gives a run to sessions that end with their connections, and so are never sent it again.

    What one of them cannot take at once it gets the careful way.
    """
    by_version = {run.version: run}
    for target in targets:
        session = target.session
        connection = session.connection
        qos = min(run.qos, target.qos)
        ids = None
        if connection is not None and session.backlog is None and session.free > 0 and connection.writable:
            ids = session.put_run_in_flight(qos, min(run.count, session.free))
        if ids is not None and connection is not None:
            version = connection.version
            if version not in by_version:
                by_version[version] = run.in_version(version)
            if not connection.out:
                tick.touched.append(connection)
            connection.out.append(by_version[version].with_ids(ids, qos))
            tick.metrics.messages_sent += ids.count
            if ids.count == run.count:
                continue
        for message in _messages(run, 0 if ids is None else ids.count, sender):
            session.deliver(message, qos)


def _messages(run: AcknowledgedRun, begin: int, sender: str) -> list[Message]:
    """Those of a run from one on, to be looked at one by one."""
    topic = run.topic
    return [Message(topic, run.name, payload, run.qos, False, sender) for payload in run.payloads()[begin:]]
