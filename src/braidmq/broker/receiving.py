"""The walk through the packets that a client sends, in whatever pieces they come.

Plain publications and their acknowledgements are handled where they stand in the buffer (`fast_path`); everything else
goes to `dispatch`.
"""

from __future__ import annotations

from braidmq.broker.acknowledged_path import forward_and_acknowledge
from braidmq.broker.broker import Broker
from braidmq.broker.connection import Connection
from braidmq.broker.connection_state import ConnectionState
from braidmq.broker.dispatch import dispatch
from braidmq.broker.fast_path import forward_run, send_repeat
from braidmq.broker.plain_acks import ACK_BYTES, PLAIN_ACKS, PUBACK, on_lone_puback, on_plain_acks
from braidmq.broker.transport import Transport
from braidmq.mqtt import packets as p
from braidmq.mqtt.errors import PacketError, malformed, violation
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Origin

TICK_BYTES_SMALL = 2048
"""A read up to this size that comes alone is answered at once: there is nothing to gain by waiting for more."""

TICK_BYTES_MAX = 4 * 1024 * 1024
"""Bytes read in one tick after which what they led to is written without waiting for the tick's end."""

PACKETS_MAX = 500
"""Packets of one client that are handled one by one before other clients have their turn."""

RUNS_A_PACKET = 4
"""So many runs of plain publications, each to another topic, count as one packet that is handled with care."""

PACKET_SHARE_BYTES = 32
"""A larger packet counts as one more for every so many bytes: a SUBSCRIBE can hold a thousand filters."""


def accept(broker: Broker, link: Transport, origin: Origin) -> Connection:
    """A socket was accepted."""
    connection = Connection(broker, link, origin)
    connection.receive = PacketReader(connection).receive
    broker.on_accepted(connection)
    return connection


class PacketReader:
    """What a connection has received of the packet that is not complete yet."""

    __slots__ = ("_connection", "_tail", "_tail_size", "_wanted")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tail = connection.tail
        self._tail_size = 0
        self._wanted = 0
        """Its size, as far as it is known: it is not looked at before so many bytes are there."""

    def receive(self, data: bytes) -> None:
        """Acts on every packet that is complete in what came from the socket, in any pieces."""
        connection = self._connection
        tick = connection.tick
        connection.seen_at = tick.clock()
        repeat = connection.repeat
        if repeat is not None and not tick.flush_wanted and send_repeat(connection, repeat, data):
            return
        if connection.seen_at > tick.sure_until and self._must_wait(data):
            return
        if len(data) == ACK_BYTES and data[0] == PUBACK and not (tick.flush_wanted or self._tail):
            if on_lone_puback(connection, data):
                return
        tick.read_bytes += len(data)
        first = not tick.flush_wanted
        tick.flush_wanted = True
        if self._tail:
            data = self._with_tail(data)
        end = len(data)
        at = work = 0
        work_max = PACKETS_MAX * RUNS_A_PACKET
        try:
            while end - at >= 2:
                if work >= work_max:
                    connection.flow.hold_reading()
                    tick.go_on_later(connection)
                    break
                header = data[at]
                length = data[at + 1]
                body = at + 2
                if length > 127:
                    length, body = _remaining_length(data, at + 1, connection.version)
                    if body == 0:
                        break
                after = body + length
                if after > end or after - at > connection.packet_max:
                    self._check_incomplete(header, after - at)
                    self._wanted = after - at
                    break
                if header == 0x30:
                    stop = forward_run(connection, data, at, body, after)
                    if stop:
                        at = stop
                        work += 1
                        continue
                elif header == 0x32 or header == 0x34:
                    stop = forward_and_acknowledge(connection, data, at, body, after)
                    if stop:
                        at = stop
                        work += 1
                        continue
                elif length == 2 and header in PLAIN_ACKS and connection.session is not None:
                    at = on_plain_acks(connection, connection.session, data, at)
                    continue
                if connection.state is ConnectionState.AUTHENTICATING:
                    break
                going_on = dispatch(connection, header, data[body:after])
                at = after
                if not going_on:
                    break
                work += RUNS_A_PACKET * (1 + length // PACKET_SHARE_BYTES)
            if at < end and connection.state is not ConnectionState.CLOSED:
                self._tail.append(data[at:])
                self._tail_size = end - at
                connection.repeat = None
        except PacketError as error:
            connection.fail(error)
        finally:
            if first:
                if tick.read_bytes < TICK_BYTES_SMALL and not tick.store.dirty and not tick.recorder.dirty:
                    tick.flush()  # a little traffic is answered at once
                else:
                    tick.end_first_read()
            elif tick.read_bytes > TICK_BYTES_MAX:
                tick.flush()

    def _with_tail(self, data: bytes) -> bytes:
        """What is there from the beginning of a packet on; nothing if its end is still to come."""
        self._tail.append(data)
        self._tail_size += len(data)
        data = b"".join(self._tail) if self._tail_size >= self._wanted else b""
        if data:
            self._tail.clear()
            self._wanted = 0
        return data

    def _must_wait(self, data: bytes) -> bool:
        """The broker stood still: what a client has sent waits, if its session may be at another broker by now."""
        connection = self._connection
        if connection.session is None or not connection.session.expiry_s or not connection.tick.copies.make_sure():
            return False
        if not self._tail:
            self._tail_size = 0
        self._tail.append(data)
        self._tail_size += len(data)
        if connection.tick.wait_until_sure(connection):
            connection.flow.hold_reading()
        return True

    def _check_incomplete(self, header: int, size: int) -> None:
        """Refuses by its first bytes what could not be right whatever followed."""
        connection = self._connection
        if connection.state is ConnectionState.CONNECTING and header != 0x10:
            raise violation("the first packet is not a CONNECT")  # [MQTT-3.1.0-1]
        if size > connection.packet_max:
            raise PacketError(Reason.PACKET_TOO_LARGE, f"a packet of {size} bytes (at most {connection.packet_max})")


def _remaining_length(data: bytes, at: int, version: int) -> tuple[int, int]:
    """(length, where the body begins); (0, 0) if the bytes that say so are not all there."""
    value = shift = 0
    for position in range(at, min(at + 4, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte and version == p.V5:
                raise malformed("a remaining length in more bytes than it needs")  # [MQTT-1.5.5-1]
            return value, position + 1
        shift += 7
    if len(data) - at >= 4:
        raise malformed("a remaining length of more than four bytes")
    return 0, 0
