"""Publishers and subscribers that keep the whole of MQTT's promise on their side.

A publisher sends again what was not acknowledged, with DUP and in its order; a subscriber remembers the packet ids of
QoS 2 that were not released. Only where a broker says that it has no session of theirs do they begin anew. So whatever
is lost or comes twice is the brokers' doing.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from braidmq.mqtt import packets as p
from tests.chaos.client import Client
from tests.chaos.network import Site

WINDOW = 8
"""Publications that a publisher has under way."""

SUBSCRIBE_ID = 1

Name = tuple[str, str, int]
"""Of a publication: its publisher, topic and number."""


class At(NamedTuple):
    """When, and at which broker."""

    time: float
    broker: int


@dataclass
class Sent:
    """A publication: of which publisher, its number on its topic, and what became of it."""

    publisher: str
    topic: str
    number: int
    qos: int
    packet_id: int
    sends: list[At] = field(default_factory=list)
    is_released: bool = False
    """The broker has it (PUBREC); it is released now."""
    acknowledged: At | None = None
    as_new: list[At] = field(default_factory=list)
    """When it was sent again as a new one, since the session was lost."""

    @property
    def payload(self) -> bytes:
        return f"{self.publisher} {self.number}".encode()

    @property
    def name(self) -> Name:
        return self.publisher, self.topic, self.number

    @property
    def begun_at(self) -> float:
        return self.sends[0].time


class Publisher(Client):
    def __init__(
        self,
        name: str,
        sites: Sequence[Site],
        broker: int,
        version: int,
        chance: random.Random,
        topics: list[str],
        qos: int,
        roams: bool = False,
    ) -> None:
        super().__init__(name, sites, broker, version, chance, roams)
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
    def under_way(self) -> list[Sent]:
        return list(self._under_way.values())

    def _publish(self, topic: str) -> None:
        while True:
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self._under_way:
                break
        self._numbers[topic] += 1
        one = Sent(self.name, topic, self._numbers[topic], self.qos, self._last_id)
        self._under_way[self._last_id] = one
        self.sent.append(one)
        self._say(one, dup=False)

    def _say(self, one: Sent, dup: bool) -> None:
        one.sends.append(self._now())
        self.send(p.Publish(one.topic, one.payload, one.qos, dup=dup, packet_id=one.packet_id))

    def _now(self) -> At:
        return At(time.time(), self.broker)

    def on_connected(self, present: bool) -> None:
        for one in list(self._under_way.values()):  # [MQTT-4.4.0-1]
            if present and one.is_released:
                self.send(p.Pubrel(one.packet_id))
            elif present:
                self._say(one, dup=True)
            elif one.is_released:  # a broker has it, and this one knows nothing of it
                one.acknowledged = self._now()
                del self._under_way[one.packet_id]
            else:
                one.as_new.append(self._now())
                self._say(one, dup=False)

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, p.Puback | p.Pubcomp):
            one = self._under_way.pop(packet.packet_id, None)
            if one is None:
                return
            if packet.reason.failed and isinstance(packet, p.Puback):
                self.refused.append(one)
            else:
                one.acknowledged = self._now()
        elif isinstance(packet, p.Pubrec):
            one = self._under_way.get(packet.packet_id)
            if one is not None and packet.reason.failed:
                self.refused.append(self._under_way.pop(packet.packet_id))
                return
            if one is not None:
                one.is_released = True
            self.send(p.Pubrel(packet.packet_id))


class Again(NamedTuple):
    """What came at QoS 2 though it had come before."""

    name: Name
    first: At
    then: At


class Late(NamedTuple):
    """What came for the first time behind a later one of the same publisher and topic."""

    name: Name
    behind: int
    at: At


@dataclass
class Received:
    """What a subscriber has got."""

    first: dict[Name, At] = field(default_factory=dict)
    twice: list[Again] = field(default_factory=list)
    again: int = 0
    """What came again at QoS 1, as it may."""
    late: list[Late] = field(default_factory=list)
    last: dict[tuple[str, str], int] = field(default_factory=dict)
    hidden: dict[Name, At] = field(default_factory=dict)
    """What came under the packet id of another one that was not released: for its receiver it is that one again."""


class Subscriber(Client):
    def __init__(
        self,
        name: str,
        sites: Sequence[Site],
        broker: int,
        version: int,
        chance: random.Random,
        filters: list[str],
        qos: int,
        roams: bool = False,
    ) -> None:
        super().__init__(name, sites, broker, version, chance, roams)
        self.filters = filters
        self.qos = qos
        self.subscribed_at: float | None = None
        self.got = Received()
        self._unreleased: dict[int, Name] = {}

    def on_connected(self, present: bool) -> None:
        if not present:
            self._unreleased.clear()
        if not present or self.subscribed_at is None:
            self.send(p.Subscribe(SUBSCRIBE_ID, [p.Subscription(one, self.qos) for one in self.filters]))

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, p.Publish):
            self._on_publish(packet)
        elif isinstance(packet, p.Pubrel):
            self._unreleased.pop(packet.packet_id, None)
            self.send(p.Pubcomp(packet.packet_id))
        elif isinstance(packet, p.Suback):
            assert not any(reason.failed for reason in packet.reasons), f"{self.name}: {packet}"
            self.visits[-1].subscribed_at = time.time()
            self.subscribed_at = self.subscribed_at or time.time()

    def _on_publish(self, packet: p.Publish) -> None:
        publisher, _, number = packet.payload.decode().rpartition(" ")
        name = (publisher, packet.topic, int(number))
        if packet.qos == 1:
            assert packet.packet_id is not None
            self.send(p.Puback(packet.packet_id))
        elif packet.qos == 2:
            assert packet.packet_id is not None
            self.send(p.Pubrec(packet.packet_id))
            before = self._unreleased.setdefault(packet.packet_id, name)
            if before is not name:
                if before != name:
                    self.got.hidden[name] = At(time.time(), self.broker)
                return  # the same delivery, sent again
        self.note(name, packet.qos, At(time.time(), self.broker))

    def note(self, name: Name, qos: int, now: At) -> None:
        got = self.got
        if name in got.first:
            if qos == 2:
                got.twice.append(Again(name, got.first[name], now))
            else:
                got.again += 1
            return
        got.first[name] = now
        last = got.last.get(name[:2], 0)
        if name[2] < last:
            got.late.append(Late(name, last, now))
        else:
            got.last[name[:2]] = name[2]
