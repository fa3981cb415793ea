"""`python -m bench.drain`: a broker with many durable sessions is drained, while a stream flows between two others.

Three brokers on loopback. At the second there are sessions that stay (MQTT 3.1.1), each with one subscription of QoS 1
and one message that waits, some with their clients connected; and retained messages. A publisher at the first broker
and a subscriber at the third measure how long QoS 1 takes, one message every few milliseconds, before the drain and
during it. Then some clients come to the other brokers, and must find their sessions and what waits.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import struct
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench import client
from bench.fleet.brokers import Site, fleet

AT_ONCE = 100
"""Clients that connect at a time."""
PERIOD_S = 0.005
"""Between two messages of the stream."""
QUIET_S = 5.0
"""How long the stream is measured before the drain."""
DRAIN_S = 300.0
SAMPLE = 200
"""Clients that come back."""

console = Console(width=max(120, Console().width))


def _packet(first: int, body: bytes) -> bytes:
    size, length = len(body), b""
    while True:
        size, low = divmod(size, 128)
        length += bytes((low | (0x80 if size else 0),))
        if not size:
            return bytes((first,)) + length + body


def _text(value: str) -> bytes:
    return struct.pack("!H", len(value)) + value.encode()


class Connection:
    """One client; QoS 1, MQTT 3.1.1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_present: bool) -> None:
        self._reader, self._writer = reader, writer
        self.is_present = is_present

    @classmethod
    async def open(cls, port: int, client_id: str, *, stays: bool) -> Connection:
        reader, writer = await asyncio.open_connection(client.HOST, port)
        flags = 0 if stays else client.CLEAN_SESSION
        writer.write(_packet(0x10, b"\x00\x04MQTT\x04" + struct.pack("!BH", flags, 600) + _text(client_id)))
        answer = await reader.readexactly(4)
        if answer[3]:
            raise client.RefusedError(f"the broker answered CONNECT with {answer.hex(' ')}")
        return cls(reader, writer, bool(answer[2] & 1))

    async def subscribe(self, topic_filter: str) -> None:
        self._writer.write(_packet(0x82, b"\0\1" + _text(topic_filter) + b"\1"))
        while (await self.read())[0] & 0xF0 != 0x90:
            pass

    def publish(self, topic: str, payload: bytes, number: int, *, retain: bool = False) -> None:
        packet_id = struct.pack("!H", 1 + number % 65_000)
        self._writer.write(_packet(0x33 if retain else 0x32, _text(topic) + packet_id + payload))

    async def read(self) -> tuple[int, bytes]:
        """The next packet; publications are acknowledged. Of these, what is behind the packet id."""
        (first,) = await self._reader.readexactly(1)
        size = shift = 0
        while True:
            (byte,) = await self._reader.readexactly(1)
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        body = await self._reader.readexactly(size)
        if first & 0xF0 != 0x30:
            return first, body
        end = 2 + struct.unpack_from("!H", body)[0]
        self._writer.write(b"\x40\x02" + body[end : end + 2])
        return first, body[end + 2 :]

    def close(self) -> None:
        self._writer.write(b"\xe0\x00")
        self._writer.close()


async def _each(numbers: Iterable[int], do: Any) -> None:
    """Does something for each number, some at a time."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with free:
            await do(number)

    await asyncio.gather(*(one(number) for number in numbers))


async def settle(site: Site, sessions: int, connected: int, retained: int) -> list[Connection]:
    """Sessions that stay, what waits for them, and retained messages."""
    here: list[Connection] = []

    async def come(number: int) -> None:
        connection = await Connection.open(site.port, f"drain{number}", stays=True)
        await connection.subscribe(f"drain/{number}")
        if number < connected:
            here.append(connection)
        else:
            connection.close()

    await _each(range(sessions), come)
    publisher = await Connection.open(site.port, "fill", stays=False)
    for number in range(sessions + retained):
        if number < sessions:
            publisher.publish(f"drain/{number}", b"waits", number)
        else:
            publisher.publish(f"kept/{number}", b"x" * 100, number, retain=True)
        if number % 100 == 99:
            for _ in range(100):
                await publisher.read()
    publisher.close()
    return here


class Stream:
    """A message every few milliseconds from one broker to another, and how long each takes."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, float]] = []
        """When each was sent, and how many milliseconds it took."""
        self.sent = 0

    async def run(self, first: Site, third: Site, stop: asyncio.Event) -> None:
        subscriber = await Connection.open(third.port, "stream-in", stays=False)
        await subscriber.subscribe("stream")
        publisher = await Connection.open(first.port, "stream-out", stays=False)
        reading = [asyncio.create_task(self._read(subscriber)), asyncio.create_task(self._acknowledged(publisher))]
        next_at = time.perf_counter()
        while not stop.is_set():
            publisher.publish("stream", struct.pack("!d", time.perf_counter()), self.sent)
            self.sent += 1
            next_at += PERIOD_S
            await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
        await asyncio.sleep(2.0)
        for task in reading:
            task.cancel()

    async def _read(self, subscriber: Connection) -> None:
        while True:
            first, payload = await subscriber.read()
            if first & 0xF0 == 0x30:
                (at,) = struct.unpack("!d", payload)
                self.taken.append((at, (time.perf_counter() - at) * 1e3))

    @staticmethod
    async def _acknowledged(publisher: Connection) -> None:
        while True:
            await publisher.read()

    def between(self, begin: float, end: float) -> list[float]:
        return sorted(ms for at, ms in self.taken if begin <= at < end)


async def follow(site: Site) -> dict[str, Any]:
    """Drains a broker to the end; what it says last."""
    body = json.dumps({"timeout_s": DRAIN_S}).encode()
    request = urllib.request.Request(site.url + "/drain", body, {"Content-Type": "application/json"})
    await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=30).close())
    while True:
        await asyncio.sleep(0.25)
        status: dict[str, Any] = await asyncio.to_thread(site.ask, "/drain")
        if status["state"] != "draining":
            return status


async def come_back(sites: list[Site], sessions: int) -> tuple[int, int]:
    """Clients come to the other brokers: how many find their session, and how many what waits."""
    present = waiting = 0

    async def come(number: int) -> None:
        nonlocal present, waiting
        connection = await Connection.open(sites[number % len(sites)].port, f"drain{number}", stays=True)
        present += connection.is_present
        async with asyncio.timeout(10):
            waiting += (await connection.read())[1] == b"waits"
        connection.close()

    await _each(range(0, sessions, max(1, sessions // SAMPLE)), come)
    return present, waiting


async def measure(sites: list[Site], sessions: int, connected: int, retained: int) -> list[tuple[str, str]]:
    here = await settle(sites[1], sessions, connected, retained)
    stream, stop = Stream(), asyncio.Event()
    flowing = asyncio.create_task(stream.run(sites[0], sites[2], stop))
    await asyncio.sleep(1.0)
    began_at = time.perf_counter()
    await asyncio.sleep(QUIET_S)
    drain_at = time.perf_counter()
    status = await follow(sites[1])
    ended_at = time.perf_counter()
    stop.set()
    await flowing
    present, waiting = await come_back([sites[0], sites[2]], sessions)
    asked = len(range(0, sessions, max(1, sessions // SAMPLE)))
    for connection in here:
        connection.close()
    rows = [
        ("how it ended", f"{status['outcome']}, {status['sessions']} sessions left"),
        ("time", f"{status['elapsed_s']:.1f} s"),
        ("sessions, clients, retained messages moved", _moved(status)),
        ("sessions a second", f"{status['sessions_moved'] / max(0.001, status['elapsed_s']):,.0f}"),
        ("sessions found again, of a sample", f"{present} of {asked}, with what waits {waiting}"),
        ("stream, lost", f"{stream.sent - len(stream.taken)} of {stream.sent}"),
    ]
    for name, begin, end in (("before", began_at, drain_at), ("during", drain_at, ended_at)):
        some = stream.between(begin, end)
        p99 = statistics.quantiles(some, n=100)[98]
        rows.append(
            (f"stream, {name}: median, p99, longest", f"{statistics.median(some):.2f}, {p99:.2f}, {some[-1]:.1f} ms")
        )
    return rows


def _moved(status: dict[str, Any]) -> str:
    return f"{status['sessions_moved']}, {status['clients_moved']}, {status['retained_moved']}"


def main(
    sessions: Annotated[int, typer.Option(help="Durable sessions at the broker that is drained.")] = 10_000,
    connected: Annotated[int, typer.Option(help="Of these, how many have their client connected.")] = 1_000,
    retained: Annotated[int, typer.Option(help="Retained messages there.")] = 10_000,
) -> None:
    """How long a drain takes, and what clients elsewhere notice of it."""
    folder = Path(tempfile.mkdtemp(prefix="braidmq-bench-"))
    try:
        with fleet(folder, 3, "covers") as sites:
            rows = asyncio.run(measure(sites, sessions, connected, retained))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = Table("figure", "value", title=f"A broker with {sessions:,} durable sessions is drained")
    for row in rows:
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
