"""A publisher that roams, and sends again what was not acknowledged, as its session tells it to."""

from __future__ import annotations

from tests.braid.journeys.client import RoamingClient
from tests.braid.journeys.faulty_sites import FaultySites
from tests.braid.journeys.link import ClientLink
from tests.conformance import wire
from tests.conformance.wire import Received, Type

PAUSE_S = (0.1, 0.8)
"""Between two publications."""

WINDOW = 6
"""Publications that are under way at a time."""


class Published:
    """One publication, and what became of it."""

    def __init__(self, publisher: str, number: int, topic: str, qos: int) -> None:
        self.number = number
        self.topic = topic
        self.qos = qos
        self.payload = f"{publisher}:{number}".encode()
        self.tried: list[tuple[float, int]] = []
        """When and where it was sent."""
        self.first_s: float | None = None
        """When it was first sent."""
        self.taken_s: float | None = None
        """When it was acknowledged: by PUBACK, or PUBREC."""
        self.taken_by = ""
        """The broker that acknowledged it."""
        self.is_released = False
        """Whether it has come to its PUBREL."""
        self.was_repeated_anew = False
        """Whether it was sent again under another packet id, since there was no session any more."""


class Publisher(RoamingClient):
    def __init__(self, sites: FaultySites, client_id: str, version: int, seed: int, topics: list[str]) -> None:
        super().__init__(sites, client_id, version, seed)
        self._topics = topics
        self._under_way: dict[int, Published] = {}
        self._packet_id = 0
        self.all: list[Published] = []
        self.publishes = True

    @property
    def is_through(self) -> bool:
        return not self.publishes and not self._under_way

    def begin(self) -> None:
        self._publish_now_and_then()

    def _publish_now_and_then(self) -> None:
        if not self.publishes:
            return
        if self.is_in and len(self._under_way) < WINDOW:
            topic, qos = self.chance.choice(self._topics), self.chance.choice([1, 2])
            one = Published(self.client_id, len(self.all), topic, qos)
            self.all.append(one)
            self._send(one, self._new_id(one))
        self.sim.at(self.sim.now + self.chance.uniform(*PAUSE_S), self._publish_now_and_then)

    def _new_id(self, one: Published) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        self._under_way[self._packet_id] = one
        return self._packet_id

    def _send(self, one: Published, packet_id: int, dup: bool = False) -> None:
        if one.first_s is None:
            one.first_s = self.sim.now
        if self.link is not None:
            one.tried.append((self.sim.now, self.link.site.number))
        self.note(f"publishes {one.number} as {packet_id}{' again' if dup else ''}, QoS {one.qos}")
        packet = wire.publish(one.topic, one.payload, version=self.version, qos=one.qos, packet_id=packet_id, dup=dup)
        self.send(packet)

    def on_session_lost(self, is_allowed: bool) -> None:
        """What was under way is begun anew, unless it has come to its PUBREL."""
        under_way, self._under_way = self._under_way, {}
        for one in under_way.values():
            if not one.is_released:
                one.was_repeated_anew = True
                self._new_id(one)

    def on_connected(self, is_present: bool) -> None:
        for packet_id, one in self._under_way.items():
            if one.is_released:
                self.send(wire.ack(Type.PUBREL, packet_id))
            else:
                self._send(one, packet_id, dup=is_present)

    def on_packet(self, link: ClientLink, packet: Received) -> None:
        packet_id = packet.packet_id or 0
        one = self._under_way.get(packet_id)
        if one is None:
            return
        if packet.type in (Type.PUBACK, Type.PUBREC):
            if packet.reason >= 0x80:
                self.sites.complaints.append(f"{one.payload!r} was refused with {packet.reason:#x}")
                del self._under_way[packet_id]
                return
            if one.taken_s is None:
                self.note(f"has {one.number} taken by {link.site.number}")
                one.taken_s, one.taken_by = self.sim.now, f"{link.site.braid.identity}"
        if packet.type is Type.PUBREC:
            one.is_released = True
            self.send(wire.ack(Type.PUBREL, packet_id))
        elif packet.type in (Type.PUBACK, Type.PUBCOMP):
            del self._under_way[packet_id]
