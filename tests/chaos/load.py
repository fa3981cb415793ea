"""Clients that never give up: publishers and subscribers with sessions that stay, each at its own broker.

They keep the whole of MQTT's promise on their side. A publisher sends again what was not acknowledged, with DUP and in
its order; a subscriber remembers the packet ids of QoS 2 that were not released. So whatever is lost or comes twice is
the brokers' doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field

from braidmq.mqtt import packets as p
from braidmq.mqtt.codec import decode, encode
from braidmq.mqtt.properties import Properties

CONNECT_TIMEOUT_S = 10.0
SESSION_EXPIRY_S = 3600
RETRY_S = 0.3
WINDOW = 8
"""Publications that a publisher has under way."""

SUBSCRIBE_ID = 1


class Client:
    """One client and its connections, one after the other."""

    def __init__(self, name: str, broker: int, port: int, version: int, chance: random.Random) -> None:
        self.name = name
        self.broker = broker
        self.port = port
        self.version = version
        self.chance = chance
        self.connects = 0
        self.sessions_lost = 0
        """How often the broker did not know a session that it had confirmed."""
        self.is_napping = False
        self.is_connected = False
        self.reference: str | None = None
        """Where the broker has sent it, if it has."""
        self.connect_s: list[float] = []
        """How long each CONNACK took."""
        self._had_session = False
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        while True:
            if not self.is_napping:
                with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    await self._connect()
            self.is_connected = False
            await asyncio.sleep(RETRY_S * self.chance.uniform(0.5, 1.5))

    def nap(self) -> None:
        """Goes offline without a word, until it is woken."""
        self.is_napping = True
        if self._writer is not None:
            self._writer.transport.abort()

    def wake(self) -> None:
        self.is_napping = False

    async def _connect(self) -> None:
        """One connection, from CONNECT to its loss."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writer = writer
        self.reference = None
        began_at = time.monotonic()
        try:
            properties = Properties(session_expiry_interval=SESSION_EXPIRY_S) if self.version == p.V5 else Properties()
            self.send(p.Connect(self.name, self.version, clean_start=False, properties=properties))
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connack = await self._read(reader)
            if not isinstance(connack, p.Connack) or connack.reason.failed:
                self.reference = connack.properties.server_reference if isinstance(connack, p.Connack) else None
                return
            self.connects += 1
            self.connect_s.append(time.monotonic() - began_at)
            if self._had_session and not connack.session_present:
                self.sessions_lost += 1
            self._had_session = True
            self.is_connected = True
            self.on_connected(connack.session_present)
            while not isinstance(packet := await self._read(reader), p.Disconnect):
                self.on_packet(packet)
            self.reference = packet.properties.server_reference
        finally:
            self._writer = None
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> p.Packet:
        header = (await reader.readexactly(1))[0]
        length = shift = 0
        while True:
            byte = (await reader.readexactly(1))[0]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        return decode(header, await reader.readexactly(length), self.version)

    def send(self, packet: p.Packet) -> None:
        if self._writer is not None:
            self._writer.write(encode(packet, self.version))

    def on_connected(self, present: bool) -> None:
        raise NotImplementedError

    def on_packet(self, packet: p.Packet) -> None:
        raise NotImplementedError


@dataclass
class Sent:
    """A publication: of which publisher, its number on its topic, and what became of it."""

    publisher: str
    broker: int
    topic: str
    number: int
    qos: int
    begun_at: float
    packet_id: int
    is_released: bool = False
    """The broker has it (PUBREC); it is released now."""
    acknowledged_at: float | None = None
    times_sent: int = 0

    @property
    def payload(self) -> bytes:
        return f"{self.publisher} {self.number}".encode()

    @property
    def name(self) -> tuple[str, str, int]:
        return self.publisher, self.topic, self.number


class Publisher(Client):
    def __init__(
        self, name: str, broker: int, port: int, version: int, chance: random.Random, topics: list[str], qos: int
    ) -> None:
        super().__init__(name, broker, port, version, chance)
        self.topics = topics
        self.qos = qos
        self.sent: list[Sent] = []
        self.refused: list[Sent] = []
        self._numbers = dict.fromkeys(topics, 0)
        self._under_way: dict[int, Sent] = {}
        self._last_id = 0

    async def publish_regularly(self, rate: float) -> None:
        """So many publications a second, while the window allows."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.5, 1.5) / rate)
            if self.is_connected and len(self._under_way) < WINDOW:
                self._publish(self.chance.choice(self.topics))

    @property
    def is_idle(self) -> bool:
        return not self._under_way

    def _publish(self, topic: str) -> None:
        while True:
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self._under_way:
                break
        self._numbers[topic] += 1
        one = Sent(self.name, self.broker, topic, self._numbers[topic], self.qos, time.time(), self._last_id)
        self._under_way[self._last_id] = one
        self.sent.append(one)
        self._say(one)

    def _say(self, one: Sent) -> None:
        dup = one.times_sent > 0
        one.times_sent += 1
        self.send(p.Publish(one.topic, one.payload, one.qos, dup=dup, packet_id=one.packet_id))

    def on_connected(self, present: bool) -> None:
        for one in self._under_way.values():  # [MQTT-4.4.0-1]
            if one.is_released:
                self.send(p.Pubrel(one.packet_id))
            else:
                self._say(one)

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, p.Puback | p.Pubcomp):
            one = self._under_way.pop(packet.packet_id, None)
            if one is None:
                return
            if packet.reason.failed and isinstance(packet, p.Puback):
                self.refused.append(one)
            else:
                one.acknowledged_at = time.time()
        elif isinstance(packet, p.Pubrec):
            one = self._under_way.get(packet.packet_id)
            if one is not None and packet.reason.failed:
                self.refused.append(self._under_way.pop(packet.packet_id))
                return
            if one is not None:
                one.is_released = True
            self.send(p.Pubrel(packet.packet_id))


Name = tuple[str, str, int]
"""Of a publication: its publisher, topic and number."""


@dataclass
class Received:
    """What a subscriber has got."""

    first_at: dict[Name, float] = field(default_factory=dict)
    twice: list[Name] = field(default_factory=list)
    """What came again at QoS 2."""
    again: int = 0
    """What came again at QoS 1, as it may."""
    late: list[tuple[Name, int]] = field(default_factory=list)
    """What came for the first time behind a later one of the same publisher and topic: and which."""
    last: dict[tuple[str, str], int] = field(default_factory=dict)


class Subscriber(Client):
    def __init__(
        self, name: str, broker: int, port: int, version: int, chance: random.Random, filters: list[str], qos: int
    ) -> None:
        super().__init__(name, broker, port, version, chance)
        self.filters = filters
        self.qos = qos
        self.subscribed_at: float | None = None
        self.got = Received()
        self._unreleased: dict[int, None] = {}

    def on_connected(self, present: bool) -> None:
        if not present:
            self._unreleased.clear()
            self.send(p.Subscribe(SUBSCRIBE_ID, [p.Subscription(one, self.qos) for one in self.filters]))
        elif self.subscribed_at is None:
            self.send(p.Subscribe(SUBSCRIBE_ID, [p.Subscription(one, self.qos) for one in self.filters]))

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, p.Publish):
            self._on_publish(packet)
        elif isinstance(packet, p.Pubrel):
            self._unreleased.pop(packet.packet_id, None)
            self.send(p.Pubcomp(packet.packet_id))
        elif isinstance(packet, p.Suback):
            assert not any(reason.failed for reason in packet.reasons), f"{self.name}: {packet}"
            self.subscribed_at = self.subscribed_at or time.time()

    def _on_publish(self, packet: p.Publish) -> None:
        if packet.qos == 1:
            assert packet.packet_id is not None
            self.send(p.Puback(packet.packet_id))
        elif packet.qos == 2:
            assert packet.packet_id is not None
            self.send(p.Pubrec(packet.packet_id))
            if packet.packet_id in self._unreleased:
                return  # the same delivery, sent again
            self._unreleased[packet.packet_id] = None
        publisher, _, number = packet.payload.decode().rpartition(" ")
        self._note((publisher, packet.topic, int(number)), packet.qos)

    def _note(self, name: Name, qos: int) -> None:
        got = self.got
        if name in got.first_at:
            if qos == 2:
                got.twice.append(name)
            else:
                got.again += 1
            return
        got.first_at[name] = time.time()
        last = got.last.get(name[:2], 0)
        if name[2] < last:
            got.late.append((name, last))
        else:
            got.last[name[:2]] = name[2]
