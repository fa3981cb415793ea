"""A client in virtual time that goes from site to site: it connects wherever it is told to, and notes what it gets."""

from __future__ import annotations

from tests.braid.sites import Sites
from tests.conformance import wire
from tests.conformance.pair import Peer, persistent
from tests.conformance.wire import Received, Type


class Roamer:
    """A subscriber with a session that stays. It acknowledges what it gets, and remembers the packet ids of QoS 2."""

    def __init__(self, sites: Sites, client_id: str, version: int) -> None:
        self._sites = sites
        self._client_id = client_id
        self._version = version
        self._unreleased: dict[int, None] = {}
        self._peer: Peer | None = None
        self.site = 0
        self.got: list[bytes] = []
        """Payloads in their order; a QoS 2 publication that is sent again before its end counts once."""
        self.sessions_lost = 0
        self.connects = 0
        self.reference: str | None = None
        """Where it was sent when its connection ended."""

    @property
    def is_away(self) -> bool:
        return self._peer is None

    def connect(self, number: int) -> None:
        self.site, self.reference = number, None
        self._peer = self._sites[number].peer(self._version)
        self._peer.send(wire.connect(self._client_id, version=self._version, **persistent(self._version)))

    def subscribe(self, topic_filter: str, qos: int) -> None:
        assert self._peer is not None
        self._peer.send(wire.subscribe(1, (topic_filter, qos), version=self._version))

    def read(self) -> None:
        """Handles what has come; if that was the end of the connection, it is away."""
        peer = self._peer
        while peer is not None and (packets := peer.take()):
            for packet in packets:
                self._handle(peer, packet)
        if peer is not None and peer.link.closed:
            self._peer = None

    def _handle(self, peer: Peer, packet: Received) -> None:
        if packet.type is Type.CONNACK:
            if packet.reason:
                self.reference = packet.properties.get("server_reference")
            else:
                self.sessions_lost += bool(self.connects) and not packet.session_present
                self.connects += 1
        elif packet.type is Type.DISCONNECT:
            self.reference = packet.properties.get("server_reference")
        elif packet.type is Type.PUBREL and packet.packet_id is not None:
            self._unreleased.pop(packet.packet_id, None)
            self._answer(peer, Type.PUBCOMP, packet.packet_id)
        elif packet.type is Type.PUBLISH and packet.packet_id is not None:
            if packet.packet_id not in self._unreleased:
                self.got.append(packet.payload)
            if packet.qos == 2:
                self._unreleased[packet.packet_id] = None
            self._answer(peer, Type.PUBREC if packet.qos == 2 else Type.PUBACK, packet.packet_id)

    def _answer(self, peer: Peer, kind: Type, packet_id: int) -> None:
        if not peer.link.closed:
            peer.send(wire.ack(kind, packet_id))
