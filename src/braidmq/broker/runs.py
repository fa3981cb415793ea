"""Runs: plain publications to one topic, as they stood on the wire, given to their receivers as one piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from braidmq.broker.acknowledged_run import AcknowledgedRun
from braidmq.broker.client import ConnectedClient
from braidmq.broker.federation import Outbound
from braidmq.broker.flow import Flow
from braidmq.broker.message import Message
from braidmq.broker.router import Route, Target
from braidmq.broker.runs_in_flight import SENT
from braidmq.broker.session import Session
from braidmq.broker.tick import Tick
from braidmq.mqtt.wire import varint

Repeat = tuple[bytes, int, int, list[ConnectedClient], Outbound | None, tuple[Route, bytes] | None]
"""What a connection published last, alone in its read: first bytes, size, the router's version, the receivers here, and
the way to other brokers; of QoS 1 the route, instead, and the topic's name as it stands on the wire."""


def append_run(tick: Tick, receivers: list[ConnectedClient], run: bytes, count: int, publisher: Flow | None) -> None:
    """Adds a run of so many QoS 0 publications to what receivers of its version are sent."""
    touched = tick.touched
    sent = 0
    for receiver in receivers:
        if receiver.writable or receiver.flow.stalls(publisher):
            out = receiver.out
            if not out:
                touched.append(receiver)
            out.append(run)
            sent += 1
    tick.metrics.messages_sent += count * sent
    tick.metrics.messages_dropped += count * (len(receivers) - sent)


def payloads_of(data: bytes, starts: Sequence[int], stop: int, head: int) -> list[bytes]:
    """What each publication of a run carries behind fixed header and `head` more bytes."""
    payloads = []
    for start, following in zip(starts, [*starts[1:], stop], strict=True):
        begin = start + 2
        while data[begin - 1] > 127:
            begin += 1
        payloads.append(data[begin + head : following])
    return payloads


def translated(name: bytes, payloads: list[bytes], to_v5: bool) -> bytes:
    """A run for receivers of the other version: the empty property block comes in, or goes."""
    name += b"\0" if to_v5 else b""
    pieces: list[bytes] = []
    for payload in payloads:
        pieces += (b"\x30", varint(len(name) + len(payload)), name, payload)
    return b"".join(pieces)


def send_run(tick: Tick, targets: Iterable[Target], run: AcknowledgedRun, sender: str) -> None:
    """Gives a run to sessions that end with their connections, and so are never sent it again; one that cannot take all
    of it at once gets it the careful way."""
    translated: AcknowledgedRun | None = None
    for target in targets:
        session = target.session
        client = session.connection
        qos = min(run.qos, target.qos)
        ids = session.put_run_in_flight(qos, run.count) if session.ready and session.free >= run.count else None
        if ids is None or client is None:
            for message in messages_of(run, sender):
                session.deliver(message, qos)
            continue
        its_run = run
        if client.version != run.version:
            its_run = translated = translated or run.in_version(client.version)
        if not client.out:
            tick.touched.append(client)
        client.out.append(its_run.with_ids(ids, qos))
        tick.metrics.messages_sent += run.count


def put_lone_in_flight(session: Session) -> int:
    """Puts a publication of QoS 1 in flight that came alone and is never sent again; its packet id. Behind runs it is
    one of them, so that their ids go on without a gap."""
    ids = None if session.runs is None else session.put_run_in_flight(1, 1)
    return session.put_in_flight(SENT[1]) if ids is None else ids.first


def messages_of(run: AcknowledgedRun, sender: str) -> list[Message]:
    """Those of a run, to be looked at one by one."""
    topic = run.topic
    return [Message(topic, run.name, payload, run.qos, False, sender) for payload in run.payloads()]
