"""Acknowledgements without reason and properties, as both versions of MQTT send them when all is well; in runs.

A client that is sent much acknowledges much at a time. A run of one kind is recognised by comparing columns of bytes:
the first bytes, and the lengths, of all are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from braidmq.broker.connection import Connection
from braidmq.broker.dispatch import on_pubrec
from braidmq.broker.packet_ids import ids_of
from braidmq.broker.publishing import on_pubrel
from braidmq.broker.runs_in_flight import SENT
from braidmq.broker.session import Session
from braidmq.mqtt.errors import malformed
from braidmq.mqtt.reasons import Reason

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
PLAIN_ACKS = frozenset((PUBACK, PUBREC, PUBREL, PUBCOMP))
"""First bytes."""

ACK_BYTES = 4


def on_lone_puback(connection: Connection, data: bytes) -> bool:
    """Acts on a PUBACK that came alone, if there is nothing else to do for it: it is for a publication that is not sent
    again in any case, and nothing waits for its place."""
    session = connection.session
    if session is None or session.backlog is not None or session.shares or data[1] != 2:
        return False
    packet_id = data[2] << 8 | data[3]
    if session.inflight.get(packet_id) is SENT[1]:
        del session.inflight[packet_id]
    elif session.runs is None or not session.runs.answer(PUBACK, data[2:3], data[3:]):
        return False
    session.free += 1
    connection.tick.metrics.bytes_received += ACK_BYTES
    return True


def on_plain_acks(connection: Connection, session: Session, data: bytes, at: int) -> int:
    """Acts on the acknowledgement at `at`, and on those of its kind behind it; where they end."""
    header = data[at]
    end = at + ACK_BYTES
    if header == PUBACK and session.runs is None:
        session.on_puback(data[at + 2] << 8 | data[at + 3])
        return end
    if data[end : end + 1] == data[at : at + 1]:
        end = _end_of_run(data, at)
    high, low = data[at + 2 : end : ACK_BYTES], data[at + 3 : end : ACK_BYTES]
    if header == PUBREL:
        is_done = _on_pubrels(connection, session, high, low)
    else:
        is_done = session.on_answers(header, high, low)
        if is_done and header == PUBREC:
            connection.send(_as(b"\x62", data[at:end]))
    if not is_done:
        _look_at_each(connection, session, header, ids_of(high, low))
    return end


def _end_of_run(data: bytes, at: int) -> int:
    """Where the acknowledgements that are complete and of one kind end."""
    end = at + (len(data) - at) // ACK_BYTES * ACK_BYTES
    headers, lengths = data[at:end:ACK_BYTES], data[at + 1 : end : ACK_BYTES]
    others = max(len(headers.lstrip(headers[:1])), len(lengths.lstrip(b"\2")))
    return end - ACK_BYTES * others


def _as(first_byte: bytes, acks: bytes) -> bytes:
    """The answers to a run of acknowledgements."""
    answers = bytearray(acks)
    answers[::ACK_BYTES] = first_byte * (len(acks) // ACK_BYTES)
    return bytes(answers)


def _on_pubrels(connection: Connection, session: Session, high: bytes, low: bytes) -> bool:
    """The packet ids are free again (MQTT §4.3.3); False if not all are known, once each, or must be noted one by
    one."""
    ids = ids_of(high, low)
    if session.durable or not session.received.issuperset(ids) or len(set(ids)) < len(ids):
        return False
    session.received.difference_update(ids)
    connection.unacknowledged = max(0, connection.unacknowledged - len(ids))
    answers = bytearray(b"\x70\x02\0\0" * len(ids))
    answers[2::ACK_BYTES] = high
    answers[3::ACK_BYTES] = low
    connection.send(bytes(answers))
    return True


def _look_at_each(connection: Connection, session: Session, header: int, ids: tuple[int, ...]) -> None:
    act: Callable[[int], None]
    if header == PUBACK:
        act = session.on_puback
    elif header == PUBREC:
        act = partial(_on_plain_pubrec, connection, session)
    elif header == PUBREL:
        act = partial(on_pubrel, connection)
    else:
        act = partial(_on_plain_pubcomp, session)
    for packet_id in ids:
        if not packet_id:
            raise malformed("packet identifier 0")  # [MQTT-2.2.1-3]
        act(packet_id)


def _on_plain_pubrec(connection: Connection, session: Session, packet_id: int) -> None:
    on_pubrec(connection, session, packet_id, Reason.SUCCESS)


def _on_plain_pubcomp(session: Session, packet_id: int) -> None:
    session.on_pubcomp(packet_id, Reason.SUCCESS)
