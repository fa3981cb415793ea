"""A broker and its clients joined in memory: no sockets, no sleeps, a clock that moves when told to.

`World` owns the broker and the clock, `Peer` is one client connection that speaks raw bytes. Everything a peer sends is
processed and flushed before `send` returns, so that a test reads top to bottom like a conversation. A peer also watches
over the rules that hold for every connection: CONNACK first and once, nothing after DISCONNECT, nothing above its
Maximum Packet Size, no more QoS 1 and 2 publications under way than its Receive Maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from braidmq.broker.broker import Broker
from braidmq.broker.receiving import accept
from braidmq.security.identity import Identity, Origin

from . import wire
from .wire import V3, V5, Received, Type, Will

TIMER_SLACK_S = 1.0
"""How late a timer may fire: tests that wait for one add this."""


class Link:
    """The transport under one connection. What is written here has reached the client."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stream = b""
        self.closed = False
        self.paused = False
        self.stuck = 0
        """Bytes that a slow reader leaves in the write buffer."""
        self.on_lost: Callable[[], None] = lambda: None
        self.on_resume: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.stream += bytes(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.world.after.append(self.on_lost)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self.world.after.append(self.on_resume)

    def get_write_buffer_size(self) -> int:
        return self.stuck


class World:
    def __init__(self, **options: Any) -> None:
        self.now = 1_000.0
        self.after: list[Callable[[], None]] = []
        """What the event loop would call next."""
        self.options = options
        self.broker = self._start()

    def _start(self) -> Broker:
        return Broker(clock=lambda: self.now, wall=lambda: 1_800_000_000.0 + self.now, **self.options)

    def peer(self, version: int = V5) -> Peer:
        """A client that has opened a connection and not sent anything yet."""
        return Peer(self, version)

    def client(self, client_id: str = "c", version: int = V5, **options: Any) -> Peer:
        """A client that is connected; its CONNACK is in `connack`."""
        peer = self.peer(version)
        peer.connect(client_id, **options)
        return peer

    def settle(self) -> None:
        """Runs the loop until nothing is left to do at this moment."""
        self.broker.flush()
        while self.after:
            calls, self.after = self.after, []
            for call in calls:
                call()
            self.broker.flush()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(3):
            self.broker.run_timers()
            self.settle()


class Peer:
    def __init__(self, world: World, version: int) -> None:
        self.world = world
        self.version = version
        self.link = Link(world)
        self.connection = accept(world.broker, self.link, Origin())
        self.link.on_lost = lambda: self.connection.lost(None)
        self.connack: Received | None = None
        self.packet_size_max: int | None = None
        self.receive_max = 65_535
        self._seen: list[Received] = []
        self._ended = False
        self._under_way: dict[int, int] = {}
        """Packet id to QoS of what the broker has published here and not been acknowledged for."""
        self._next_id = 100
        self._inbox = b""
        self.link.on_resume = self._pump

    # Sending

    def send(self, *packets: bytes) -> None:
        """Bytes to the broker, in one piece, and the answers fetched."""
        self._read()
        for packet in packets:
            self._note_acknowledgement(packet)
        self._inbox += b"".join(packets)
        self._pump()
        self.world.settle()

    def _pump(self) -> None:
        """What was sent arrives, unless the broker reads no more for now."""
        if self._inbox and not self.link.paused and not self.link.closed:
            raw, self._inbox = self._inbox, b""
            self.connection.receive(raw)

    def drop(self) -> None:
        """The network is gone, without a DISCONNECT."""
        self.link.closed = True
        self.connection.lost(None)
        self.world.settle()

    def connect(self, client_id: str = "c", *, reason: int = 0, **options: Any) -> Received:
        """CONNECT, and the CONNACK that is wanted."""
        options.setdefault("version", self.version)
        self.note_limits(options.get("properties", b""))
        self.send(wire.connect(client_id, **options))
        return self.expect(Type.CONNACK, reason=reason)

    def note_limits(self, properties: bytes) -> None:
        """Remembers the Maximum Packet Size and Receive Maximum of this CONNECT, so as to hold the broker to them."""
        cursor = wire.Cursor(properties)
        while cursor.left:
            name, kind = wire.BY_NUMBER[cursor.varint()]
            value = cursor.value(kind)
            if name == "maximum_packet_size":
                self.packet_size_max = value
            elif name == "receive_maximum":
                self.receive_max = value

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **options: Any) -> int | None:
        """PUBLISH, and the hand-shake to its end; returns the reason code of its acknowledgement."""
        packet_id = self.new_id() if qos else None
        self.send(wire.publish(topic, payload, version=self.version, qos=qos, packet_id=packet_id, **options))
        if packet_id is None:
            return None
        if qos == 1:
            return self.expect(Type.PUBACK, packet_id=packet_id).reason
        received = self.expect(Type.PUBREC, packet_id=packet_id)
        if received.reason < 0x80:
            self.send(wire.ack(Type.PUBREL, packet_id))
            self.expect(Type.PUBCOMP, packet_id=packet_id, reason=0)
        return received.reason

    def subscribe(self, topic_filter: str, qos: int = 0, *, options: int = 0, properties: bytes = b"") -> int:
        """SUBSCRIBE to one filter; returns the reason code. Retained messages stay to be read."""
        packet_id = self.new_id()
        self.send(wire.subscribe(packet_id, (topic_filter, qos | options), version=self.version, properties=properties))
        suback = self.expect(Type.SUBACK, packet_id=packet_id)
        assert len(suback.reasons) == 1
        return suback.reasons[0]

    def unsubscribe(self, topic_filter: str) -> Received:
        packet_id = self.new_id()
        self.send(wire.unsubscribe(packet_id, topic_filter, version=self.version))
        return self.expect(Type.UNSUBACK, packet_id=packet_id)

    def acknowledge(self, publication: Received, reason: int | None = None) -> None:
        """The subscriber's side of QoS 1 and 2, to its end."""
        packet_id = publication.packet_id
        if publication.qos == 1:
            assert packet_id
            self.send(wire.ack(Type.PUBACK, packet_id, reason))
        elif publication.qos == 2:
            assert packet_id
            self.send(wire.ack(Type.PUBREC, packet_id, reason))
            if (reason or 0) < 0x80:
                self.expect(Type.PUBREL, packet_id=packet_id, reason=0)
                self.send(wire.ack(Type.PUBCOMP, packet_id))

    def disconnect(self, reason: int | None = None, properties: bytes | None = None) -> None:
        self.send(wire.disconnect(reason, properties))
        assert self.link.closed, "still open after DISCONNECT"
        self.expect_nothing()

    # Receiving

    def _read(self) -> None:
        packets, self.link.stream = wire.split(self.link.stream)
        for raw in packets:
            received = wire.decode(raw, self.version)
            self._watch(received)
            self._seen.append(received)

    def _watch(self, received: Received) -> None:
        """The rules of every connection."""
        assert not self._ended, f"{received.type.name} after DISCONNECT or a refusal"
        assert self.packet_size_max is None or received.size <= self.packet_size_max, "[MQTT-3.1.2-24] too large"
        if received.type is Type.CONNACK:
            assert self.connack is None, "[MQTT-3.2.0-2] a second CONNACK"
            self.connack = received
            self._ended = received.reason >= 0x80 if self.version == V5 else received.reason > 0
        else:
            assert self.connack is not None or received.type is Type.AUTH, "[MQTT-3.2.0-1] before CONNACK"
        if received.type is Type.DISCONNECT:
            self._ended = True
        if received.type is Type.PUBLISH and received.packet_id is not None:
            assert received.packet_id not in self._under_way, f"packet id {received.packet_id} is in use"
            self._under_way[received.packet_id] = received.qos
            assert len(self._under_way) <= self.receive_max, "[MQTT-3.3.4-9] above Receive Maximum"

    def _note_acknowledgement(self, packet: bytes) -> None:
        kind = packet[0] >> 4 if len(packet) > 3 else 0
        refused = kind == Type.PUBREC and len(packet) > 4 and packet[4] >= 0x80
        if kind in (Type.PUBACK, Type.PUBCOMP) or refused:
            self._under_way.pop(int.from_bytes(packet[2:4], "big"), None)

    def take(self) -> list[Received]:
        """All that has come and not been read yet."""
        self._read()
        seen, self._seen = self._seen, []
        return seen

    def expect(self, kind: Type, **wanted: Any) -> Received:
        """The next packet: of this type, with these fields."""
        self._read()
        assert self._seen, f"no {kind.name} came" + (", but the end of the connection" if self.link.closed else "")
        received = self._seen.pop(0)
        assert received.type is kind, f"{received} instead of {kind.name}"
        for name, value in wanted.items():
            found = getattr(received, name)
            assert found == value, f"{name} is {found!r}, not {value!r}, in {received}"
        return received

    def pick(self, kind: Type, packet_id: int) -> Received:
        """This acknowledgement, wherever it stands among what has come; the rest stays to be read."""
        self._read()
        for place, received in enumerate(self._seen):
            if received.type is kind and received.packet_id == packet_id:
                return self._seen.pop(place)
        raise AssertionError(f"no {kind.name} for {packet_id} in {self._seen}")

    def expect_publish(self, topic: str, payload: bytes = b"", **wanted: Any) -> Received:
        return self.expect(Type.PUBLISH, topic=topic, payload=payload, **wanted)

    def expect_payloads(self, *payloads: bytes) -> list[Received]:
        """Publications with these payloads, in this order, and nothing else."""
        got = self.take()
        assert [one.type for one in got] == [Type.PUBLISH] * len(payloads), got
        assert [one.payload for one in got] == list(payloads)
        return got

    def expect_nothing(self) -> None:
        assert self.take() == []
        assert self.link.stream == b"", "half a packet"

    def expect_open(self) -> None:
        """Nothing came, and the connection answers."""
        self.expect_nothing()
        assert not self.link.closed, "the connection is closed"
        self.send(wire.PINGREQ)
        self.expect(Type.PINGRESP)

    def expect_closed(self, *reasons: int) -> None:
        """The broker has ended the connection; in MQTT 5 with a DISCONNECT of one of these reasons."""
        self._read()
        assert self.link.closed, f"still open; got {self._seen}"
        if self.version == V3 or not reasons:
            self.expect_nothing()
            return
        received = self.expect(Type.DISCONNECT)
        assert received.reason in reasons, f"reason {received.reason:#04x}, wanted {[hex(one) for one in reasons]}"
        self.expect_nothing()

    def expect_refused(self, *reasons: int) -> None:
        """A CONNACK with one of these reasons (of MQTT 5; in 3.1.1 none comes) and the end of the connection."""
        if self.version == V5:
            received = self.expect(Type.CONNACK, session_present=False)
            assert received.reason in reasons, f"reason {received.reason:#04x}, wanted {[hex(one) for one in reasons]}"
        self.expect_nothing()
        assert self.link.closed, "still open after a refusal"


def persistent(version: int) -> dict[str, Any]:
    """Options of a CONNECT whose session stays."""
    return {"clean": False, "properties": wire.props(session_expiry=1000) if version == V5 else b""}


class Rules:
    """May not publish to nor subscribe to what begins with "secret"."""

    def may_publish(self, identity: Identity, client_id: str, topic: str) -> bool:
        return not topic.startswith("secret")

    def may_subscribe(self, identity: Identity, client_id: str, topic_filter: str) -> bool:
        return not topic_filter.startswith("secret")

    def may_will(self, identity: Identity, client_id: str, topic: str) -> bool:
        return not topic.startswith("secret")

    def unrestricted(self, identity: Identity, client_id: str) -> bool:
        return False


__all__ = ["TIMER_SLACK_S", "V3", "V5", "Peer", "Received", "Rules", "Type", "Will", "World", "persistent"]
