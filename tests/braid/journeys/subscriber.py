"""A subscriber that roams. Its acknowledgements come late, and some never: the connection is gone before."""

from __future__ import annotations

from typing import NamedTuple

from tests.braid.journeys.client import RoamingClient
from tests.braid.journeys.faulty_sites import FaultySites
from tests.braid.journeys.link import ClientLink
from tests.conformance import wire
from tests.conformance.wire import Received, Type

ACKNOWLEDGE_S = (0.0, 0.4)
"""How long an acknowledgement takes."""


class Got(NamedTuple):
    """A publication that has come, and was not known to have come before."""

    payload: bytes
    at: float
    site: int
    qos: int


class Subscription:
    def __init__(self, topic_filter: str, qos: int) -> None:
        self.topic_filter = topic_filter
        self.qos = qos
        self.from_s: float | None = None
        """When it was acknowledged."""
        self.ending_s: float | None = None
        """When its end was asked for …"""
        self.until_s: float | None = None
        """… and acknowledged."""


class Subscriber(RoamingClient):
    def __init__(
        self, sites: FaultySites, client_id: str, version: int, seed: int, filters: dict[str, int], ends_s: float
    ) -> None:
        """`filters` with their QoS. At `ends_s` it gives the last of them up, if it has several."""
        super().__init__(sites, client_id, version, seed)
        self.subscriptions = [Subscription(one, qos) for one, qos in filters.items()]
        self._ends_s = ends_s
        self._packet_id = 0
        self._asked: dict[int, Subscription] = {}
        self._unreleased: dict[int, tuple[bytes, float]] = {}
        """QoS 2 publications that it has, and since when, by the packet id under which they may be sent again."""
        self.mistaken: set[bytes] = set()
        """Those that it took for others, since they had the packet id of one that it has from another state of its
        session: it was at a broker that had fewer copies than are configured."""
        self.got: list[Got] = []
        self.fresh_starts: list[float] = []
        """When it was told that it has no session, and that may be."""

    # Connecting

    def on_connected(self, is_present: bool) -> None:
        self._asked.clear()
        for one in self.subscriptions:
            if one.from_s is None:
                self._ask(one, wire.subscribe(self._next_id(), (one.topic_filter, one.qos), version=self.version))
            elif one.ending_s is not None and one.until_s is None:
                self._ask(one, wire.unsubscribe(self._next_id(), one.topic_filter, version=self.version))
        last = self.subscriptions[-1]
        if len(self.subscriptions) > 1 and self.sim.now > self._ends_s and last.ending_s is None and last.from_s:
            last.ending_s = self.sim.now
            self._ask(last, wire.unsubscribe(self._next_id(), last.topic_filter, version=self.version))

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        return self._packet_id

    def _ask(self, one: Subscription, packet: bytes) -> None:
        self._asked[self._packet_id] = one
        self.send(packet)

    def on_session_lost(self, is_allowed: bool) -> None:
        self._unreleased.clear()
        if self.home is not None:
            self.fresh_starts.append(self.sim.now)
        for one in self.subscriptions:
            if one.until_s is None:
                one.from_s = None

    # Packets

    def on_packet(self, link: ClientLink, packet: Received) -> None:
        packet_id = packet.packet_id or 0
        if packet.type is Type.PUBLISH:
            self._on_publish(link, packet)
        elif packet.type is Type.PUBREL:
            self._unreleased.pop(packet_id, None)
            self._answer(link, Type.PUBCOMP, packet_id)
        elif packet.type is Type.SUBACK and packet_id in self._asked:
            self._asked.pop(packet_id).from_s = self.sim.now
        elif packet.type is Type.UNSUBACK and packet_id in self._asked:
            one = self._asked.pop(packet_id)
            one.until_s = self.sim.now
            self.note(f"has unsubscribed from {one.topic_filter}")

    def _on_publish(self, link: ClientLink, packet: Received) -> None:
        packet_id, number = packet.packet_id or 0, link.site.number
        known = self._unreleased.get(packet_id) if packet.qos == 2 else None
        if known is None:
            self.note(f"gets {packet.payload.decode()} ({packet_id}, QoS {packet.qos})")
            self.got.append(Got(packet.payload, self.sim.now, number, packet.qos))
        elif known[0] != packet.payload and self.may_be_behind(known[1], self.sim.now):
            self.mistaken.add(packet.payload)
        elif known[0] != packet.payload:
            self.sites.complaints.append(
                f"{self.client_id} got {packet.payload!r} under the packet id {packet_id} of {known[0]!r}, "
                f"at {number}, {self.sim.now:.3f}"
            )
        if packet.qos == 2:
            self._unreleased[packet_id] = known or (packet.payload, self.sim.now)
        self._answer(link, Type.PUBREC if packet.qos == 2 else Type.PUBACK, packet_id)

    def _answer(self, link: ClientLink, kind: Type, packet_id: int) -> None:
        delay_s = self.chance.uniform(*ACKNOWLEDGE_S) if self.roams else 0.0
        self.sim.at(self.sim.now + delay_s, lambda: link.send(wire.ack(kind, packet_id)))
