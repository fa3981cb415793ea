"""A client that never gives up, with a session that stays: it comes back to its broker, or roams from one to another.

One that roams goes elsewhere when it loses its connection: where it is sent (MQTT 5's Server Reference), or to any
other broker. And now and then it just goes: with a DISCONNECT, without a word, or while its old connection is still
open.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from braidmq.mqtt import packets as p
from braidmq.mqtt.codec import decode, encode
from braidmq.mqtt.properties import Properties
from tests.chaos.network import Site

CONNECT_TIMEOUT_S = 10.0
SESSION_EXPIRY_S = 3600
RETRY_S = 0.3
PING_S = 1.0
SILENCE_S = 4.0
"""A broker from which nothing has come for longer, though it was asked, is given up."""

_LOST = (OSError, TimeoutError, asyncio.IncompleteReadError)


@dataclass
class Visit:
    """One CONNECT to a broker, and what came of it."""

    broker: int
    asked_at: float
    before: int | None
    """The broker that the client was at before."""
    before_at: float
    """When it came there."""
    tried: tuple[int, ...]
    """Brokers that it has asked since, and that have not answered."""
    answered_at: float | None = None
    refusal: str = ""
    """Why the broker did not want it."""
    ended_at: float | None = None
    dismissal: str = ""
    """What the broker said when it ended the connection."""
    is_anew: bool = False
    """The client had a session, and the broker did not know it."""
    subscribed_at: float | None = None
    """The SUBACK after a session that began anew."""

    @property
    def took_s(self) -> float | None:
        return None if self.answered_at is None else self.answered_at - self.asked_at


class Client:
    """One client and its connections, one after the other."""

    def __init__(
        self, name: str, sites: Sequence[Site], broker: int, version: int, chance: random.Random, roams: bool = False
    ) -> None:
        self.name = name
        self.broker = broker
        self.version = version
        self.chance = chance
        self.roams = roams
        self.visits: list[Visit] = []
        self.is_napping = False
        self.is_connected = False
        self._sites = sites
        self._reference: str | None = None
        """Where the broker has sent it, if it has."""
        self._before: int | None = None
        self._before_at = 0.0
        self._tried: list[int] = []
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        self._leaves_open = False
        self._left_open: list[asyncio.StreamWriter] = []

    @property
    def connects(self) -> int:
        return sum(one.answered_at is not None for one in self.visits)

    def was_connected(self, since: float) -> bool:
        """Whether it is connected, or was at any time since."""
        last = next((one for one in reversed(self.visits) if one.answered_at is not None), None)
        return self.is_connected or (last is not None and (last.answered_at or 0.0) >= since)

    async def run(self) -> None:
        try:
            while True:
                if not self.is_napping:
                    await self._visit()
                await asyncio.sleep(RETRY_S * self.chance.uniform(0.5, 1.5))
        finally:
            if self._task is not None:
                self._task.cancel()
            self._close_left_open()

    async def _visit(self) -> None:
        """One connection; then the next broker is chosen."""
        self._task = asyncio.get_running_loop().create_task(self._connect())
        await asyncio.wait([self._task])
        self.is_connected = False
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None and not isinstance(error, _LOST):
            raise error
        self.broker = self.next_broker(None if self._reference is None else self._at(self._reference))

    def next_broker(self, sent_to: int | None) -> int:
        """Where it connects next; `sent_to` is where its broker has sent it."""
        if not self.roams:
            return self.broker
        if sent_to is not None and self.version == p.V5:
            return sent_to
        return self.chance.choice([one for one in range(len(self._sites)) if one != self.broker])

    def _at(self, reference: str) -> int:
        return next(number for number, site in enumerate(self._sites) if f"{site.host}:{site.port}" == reference)

    # From outside

    async def roam_regularly(self, every_s: float) -> None:
        """Goes to another broker at random moments."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.5, 1.5) * every_s)
            way = self.chance.choice(("disconnect", "abort", "open"))
            if not self.is_connected or self._writer is None or self._task is None:
                continue
            if way == "disconnect":
                self.send(p.Disconnect())
                self._writer.close()
            elif way == "abort":
                self._writer.transport.abort()
            else:
                self._leaves_open = True
            self._task.cancel()

    def nap(self) -> None:
        """Goes offline without a word, until it is woken."""
        self.is_napping = True
        if self._writer is not None:
            self._writer.transport.abort()

    def wake(self) -> None:
        self.is_napping = False

    # One connection

    async def dial(self, site: Site) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(site.host, site.port)

    async def _connect(self) -> None:
        """From CONNECT to its loss."""
        self._reference = None
        site = self._sites[self.broker]
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await self.dial(site)
        self._writer = writer
        visit = Visit(self.broker, time.time(), self._before, self._before_at, tuple(self._tried))
        self.visits.append(visit)
        self._tried.append(self.broker)
        pinging = None
        try:
            properties = Properties(session_expiry_interval=SESSION_EXPIRY_S) if self.version == p.V5 else Properties()
            self.send(p.Connect(self.name, self.version, clean_start=False, properties=properties))
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connack = await self._read(reader)
            self._close_left_open()
            if not isinstance(connack, p.Connack) or connack.reason.failed:
                self._reference = connack.properties.server_reference if isinstance(connack, p.Connack) else None
                self._tried.remove(self.broker)
                visit.refusal = str(connack)
                return
            self._on_connack(visit, connack)
            pinging = asyncio.create_task(self._ping())
            while not isinstance(packet := await self._read(reader), p.Disconnect):
                self.on_packet(packet)
            self._reference = packet.properties.server_reference
            visit.dismissal = f"{packet.reason.name.lower()} {packet.properties.reason_string or ''}".strip()
        finally:
            visit.ended_at = time.time()
            self._writer = None
            if pinging is not None:
                pinging.cancel()
            if self._leaves_open:
                self._leaves_open = False
                self._left_open.append(writer)
            elif not writer.is_closing():
                writer.transport.abort()

    def _on_connack(self, visit: Visit, connack: p.Connack) -> None:
        visit.answered_at = time.time()
        visit.is_anew = self._before is not None and not connack.session_present
        self._before, self._before_at, self._tried = self.broker, visit.answered_at, []
        self.is_connected = True
        self.on_connected(connack.session_present)

    async def _ping(self) -> None:
        """Notices that a broker is silent."""
        while self._writer is not None:
            await asyncio.sleep(PING_S)
            if time.monotonic() - self._heard_at > SILENCE_S:
                self._writer.transport.abort()
            self.send(p.Pingreq())

    def _close_left_open(self) -> None:
        for writer in self._left_open:
            writer.transport.abort()
        self._left_open.clear()

    async def _read(self, reader: asyncio.StreamReader) -> p.Packet:
        header = (await reader.readexactly(1))[0]
        length = shift = 0
        while True:
            byte = (await reader.readexactly(1))[0]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        body = await reader.readexactly(length)
        self._heard_at = time.monotonic()
        return decode(header, body, self.version)

    def send(self, packet: p.Packet) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.write(encode(packet, self.version))

    def on_connected(self, present: bool) -> None:
        raise NotImplementedError

    def on_packet(self, packet: p.Packet) -> None:
        raise NotImplementedError
