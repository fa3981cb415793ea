"""The clients of a benchmark: connections that speak as much MQTT 3.1.1 as it takes to publish, receive and count.

To be faster than what it measures, little is done for a single message that can be done for many: publications are
written in batches, and as all packets that a subscriber gets have one length, a read is counted by division and checked
by strided slices. Anything else in it is parsed packet by packet.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from braidmq.cli.errors import CliError, ExitCode

BATCH_MAX: Final = 1_000
"""Publications that one publisher writes at once."""
UNACKNOWLEDGED_MAX: Final = 16
"""QoS 1 and 2 publications that one publisher has under way."""
SAMPLES_A_READ_MAX: Final = 8
"""Latencies that are taken from one read of a subscriber's socket."""
CONNECTING_MAX: Final = 128
"""Connections that are being opened at once."""
CONNECT_TIMEOUT_S: Final = 10.0
WRITE_BUFFER_BYTES_MAX: Final = 1024 * 1024
TIMESTAMP_BYTES: Final = 8

_REFUSALS: Final = {
    1: "it does not speak MQTT 3.1.1",
    2: "it does not like the client id",
    3: "it is not available",
    4: "bad user name or password",
    5: "not authorized",
}


@dataclass(frozen=True, slots=True)
class LoadTarget:
    host: str
    port: int
    user: str | None = None
    password: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class LoadCounter(Protocol):
    """Counts what the clients do."""

    def on_delivered(self, count: int, times_ns: list[int]) -> None:
        """So many messages arrived; the times at which some of them were sent."""

    def on_lost(self) -> None:
        """A connection is gone that was not closed here."""

    def wake(self) -> None:
        """A publisher has room again."""


# Packets of MQTT 3.1.1


def _length(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        encoded.append(low | 0x80 if value else low)
        if not value:
            return bytes(encoded)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def connect_packet(client_id: str, user: str | None, password: str | None) -> bytes:
    """A clean session without keep-alive."""
    flags = 0x02 | (0x80 if user is not None else 0) | (0x40 if password is not None else 0)
    body = _text("MQTT") + bytes([4, flags, 0, 0]) + _text(client_id)
    body += b"".join(_text(value) for value in (user, password) if value is not None)
    return b"\x10" + _length(len(body)) + body


def subscribe_packet(topic_filter: str, qos: int) -> bytes:
    body = b"\0\1" + _text(topic_filter) + bytes([qos])
    return b"\x82" + _length(len(body)) + body


def publish_head(topic: str, qos: int, size: int) -> bytes:
    """A PUBLISH up to its topic: what follows is the packet id (QoS 1 and 2), the time and the padding."""
    name = _text(topic)
    return bytes([0x30 | qos << 1]) + _length(len(name) + (2 if qos else 0) + size) + name


def split(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """All whole packets, as (first byte, body), and the rest."""
    packets = []
    start, end = 0, len(data)
    while start + 2 <= end:
        at, length, shift = start + 1, 0, 0
        while at < end:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        else:
            break
        if end - at < length:
            break
        packets.append((data[start], data[at : at + length]))
        start = at + length
    return packets, data[start:]


# Connections


class LoadConnection(asyncio.Protocol):
    """One client: CONNECT when the socket is open; `opened` when the broker has said yes."""

    def __init__(self, broker: LoadTarget, client_id: str, on_lost: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self._hello = connect_packet(client_id, broker.user, broker.password)
        self._on_lost = on_lost
        self._rest = b""
        self._transport: Any = None
        self._closing = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        transport.write(self._hello)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(CliError("the broker closed the connection before it answered CONNECT"))
        elif not self._closing:
            self._on_lost()

    def data_received(self, data: bytes) -> None:
        packets, self._rest = split(self._rest + data)
        for first, body in packets:
            self.on_packet(first, body)

    def on_packet(self, first: int, body: bytes) -> None:
        if first != 0x20 or self.opened.done():
            return
        if body[1]:
            words = _REFUSALS.get(body[1], f"return code {body[1]}")
            self.opened.set_exception(CliError(f"the broker refused the connection: {words}"))
        else:
            self.opened.set_result(None)

    def close(self) -> None:
        self._closing = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"\xe0\0")
            self._transport.close()


class LoadSubscriber(LoadConnection):
    def __init__(
        self, broker: LoadTarget, client_id: str, counter: LoadCounter, topic: str, qos: int, size: int
    ) -> None:
        super().__init__(broker, client_id, counter.on_lost)
        self.subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counter = counter
        self._topic = topic
        self._qos = qos
        head = publish_head(topic, self._qos, size)
        self._first, self._second = head[0], head[1]
        self._id_at = len(head)
        self._time_at = len(head) + (2 if self._qos else 0)
        self._stride = self._time_at + size

    def subscribe(self) -> None:
        self._transport.write(subscribe_packet(self._topic, self._qos))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        stride = self._stride
        count, tail = divmod(len(data), stride)
        whole = len(data) - tail
        if (
            self._qos == 2
            or not count
            or data[:whole:stride].count(self._first) != count
            or data[1:whole:stride].count(self._second) != count
        ):
            packets, self._rest = split(data)
            for first, body in packets:
                self.on_packet(first, body)
            return
        self._rest = data[whole:]
        if self._qos:
            ids = range(self._id_at, whole, stride)
            self._transport.write(b"".join([b"\x40\x02" + data[at : at + 2] for at in ids]))
        step = stride * -(-count // SAMPLES_A_READ_MAX)
        sampled = range(self._time_at, whole, step)
        times = [int.from_bytes(data[at : at + TIMESTAMP_BYTES], "big") for at in sampled]
        self._counter.on_delivered(count, times)

    def on_packet(self, first: int, body: bytes) -> None:
        kind = first & 0xF0
        if kind == 0x30:
            at = 2 + int.from_bytes(body[:2], "big")
            qos = first >> 1 & 3
            if qos:
                self._transport.write((b"\x40\x02" if qos == 1 else b"\x50\x02") + body[at : at + 2])
                at += 2
            self._counter.on_delivered(1, [int.from_bytes(body[at : at + TIMESTAMP_BYTES], "big")])
        elif kind == 0x60:
            self._transport.write(b"\x70\x02" + body[:2])
        elif kind == 0x90 and not self.subscribed.done():
            if body[2] & 0x80:
                self.subscribed.set_exception(CliError(f"the broker refused the subscription to {self._topic}"))
            else:
                self.subscribed.set_result(None)
        else:
            super().on_packet(first, body)


class LoadPublisher(LoadConnection):
    def __init__(
        self, broker: LoadTarget, client_id: str, counter: LoadCounter, topic: str, qos: int, size: int, fan_out: int
    ) -> None:
        super().__init__(broker, client_id, counter.on_lost)
        self.fan_out = fan_out
        self.unacknowledged = 0
        self._counter = counter
        self._qos = qos
        self._head = publish_head(topic, self._qos, size)
        self._padding = b"x" * (size - TIMESTAMP_BYTES)
        self._packet_id = 0
        self._paused = False

    def room(self) -> int:
        """How many publications it would take now."""
        if self._paused:
            return 0
        return UNACKNOWLEDGED_MAX - self.unacknowledged if self._qos else BATCH_MAX

    def publish(self, count: int) -> None:
        """No two messages are the same bytes, even in the same nanosecond: no broker gains from repetition."""
        head, padding = self._head, self._padding
        now = time.monotonic_ns()
        times = [moment.to_bytes(TIMESTAMP_BYTES, "big") for moment in range(now, now + count)]
        if self._qos:
            ids = [number % 65535 + 1 for number in range(self._packet_id, self._packet_id + count)]
            self._packet_id = ids[-1]
            self.unacknowledged += count
            packets = [
                head + number.to_bytes(2, "big") + moment + padding for number, moment in zip(ids, times, strict=True)
            ]
        else:
            packets = [head + moment + padding for moment in times]
        self._transport.write(b"".join(packets))

    def on_packet(self, first: int, body: bytes) -> None:
        if first in (0x40, 0x70):
            self.unacknowledged -= 1
            self._counter.wake()
        elif first == 0x50:
            self._transport.write(b"\x62\x02" + body[:2])
        else:
            super().on_packet(first, body)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._counter.wake()


async def open_connection(connection: LoadConnection, broker: LoadTarget) -> None:
    """Connects, and waits until the broker has let it in; a CliError says why it did not."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await loop.create_connection(lambda: connection, broker.host, broker.port)
            await connection.opened
    except TimeoutError:
        raise CliError(f"{broker} did not answer in {CONNECT_TIMEOUT_S:g} s", ExitCode.UNAVAILABLE) from None
    except ConnectionRefusedError:
        hint = "Start a broker with `braidmq up`, or say where it is with --host and --port."
        raise CliError(f"nothing listens at {broker}", ExitCode.UNAVAILABLE, hint) from None
    except OSError as error:
        hint = ""
        if error.errno == errno.EADDRNOTAVAIL:
            hint = "This machine has no free port for one more connection; wait a minute, or use several machines."
        raise CliError(f"no connection to {broker}: {error}", ExitCode.UNAVAILABLE, hint) from None


async def open_all(connections: list[Any], broker: LoadTarget, opened: Callable[[], None] = lambda: None) -> None:
    """Opens them, CONNECTING_MAX at a time; the first that fails ends it."""
    waiting = iter(connections)

    async def open_some() -> None:
        for connection in waiting:
            await open_connection(connection, broker)
            opened()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(CONNECTING_MAX, len(connections))):
                group.create_task(open_some())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
