"""A small blocking MQTT client over a real socket: it does what a test tells it, and nothing by itself.

It reads with the strict decoder of `tests/conformance/wire.py`, so that every packet of the broker that any of these
tests meets is checked. What comes while another packet is awaited is kept in order for whoever asks for it next.

Beside it: what several of these tests measure (`rss_bytes`, `readiness`, `metrics`) and how they wait (`wait_until`).
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.conformance import wire
from tests.conformance.wire import V3, V5, Received, Type, props
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.conftest import Broker

TIMEOUT_S = PATIENCE_S
"""How long a packet may take before the test fails; it is far more than a working broker needs."""

READ_BYTES = 65_536

WINDOW = 256
"""Publications under way at once; below the broker's own Receive Maximum."""


def dial(broker: Broker, receive_buffer_bytes: int = 0) -> socket.socket:
    """A TCP connection with nothing sent on it. A small receive buffer makes a slow reader slow sooner."""
    connection = socket.socket()
    connection.settimeout(TIMEOUT_S)
    if receive_buffer_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    connection.connect((broker.host, broker.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def persistent(version: int, expiry_s: int = 3600) -> dict[str, Any]:
    """The options of a client whose session stays: with an expiry in MQTT 5, without end in 3.1.1."""
    if version == V3:
        return {"clean": False}
    return {"clean": False, "properties": props(session_expiry=expiry_s)}


class Client:
    """One connection, from CONNECT on. A broker that refuses it has said so in `connack`."""

    def __init__(
        self,
        broker: Broker,
        client_id: str = "",
        version: int = V5,
        *,
        over: socket.socket | None = None,
        receive_buffer_bytes: int = 0,
        **options: Any,
    ) -> None:
        self.version = version
        self.client_id = client_id
        self.socket = over or dial(broker, receive_buffer_bytes)
        self._rest = b""
        self._waiting: deque[Received] = deque()
        self._last_id = 0
        self.send(wire.connect(client_id, version=version, **options))
        self.connack = self.expect(Type.CONNACK)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def accepted(self) -> bool:
        return self.connack.reason == 0

    @property
    def present(self) -> bool:
        """Whether the broker had the session."""
        assert self.accepted, f"refused: {self.connack}"
        return self.connack.session_present

    # One packet at a time

    def send(self, *packets: bytes) -> None:
        self.socket.sendall(b"".join(packets))

    def receive(self, timeout_s: float = TIMEOUT_S) -> Received | None:
        """The next packet, or None if the broker has closed the connection. A time-out is an error of the test."""
        deadline = time.monotonic() + timeout_s
        while not self._waiting:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{self.client_id!r}: nothing came in {timeout_s} s")
            self.socket.settimeout(left_s)
            try:
                data = self.socket.recv(READ_BYTES)
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
                data = b""
            finally:
                self.socket.settimeout(TIMEOUT_S)
            if not data:
                return None
            packets, self._rest = wire.split(self._rest + data)
            self._waiting.extend(wire.decode(raw, self.version) for raw in packets)
        return self._waiting.popleft()

    def _receive_open(self, timeout_s: float, awaited: str) -> Received:
        packet = self.receive(timeout_s)
        if packet is None:
            raise ConnectionResetError(f"{self.client_id!r}: closed by the broker while a {awaited} was awaited")
        return packet

    def expect(self, kind: Type, timeout_s: float = TIMEOUT_S) -> Received:
        """The next packet, which is of this type."""
        packet = self._receive_open(timeout_s, kind.name)
        assert packet.type is kind, f"{self.client_id!r}: {packet} instead of a {kind.name}"
        return packet

    def find(self, kind: Type, packet_id: int | None = None, timeout_s: float = TIMEOUT_S) -> Received:
        """The next packet of this type (and with this id); those before it stay for later."""
        passed: list[Received] = []
        while True:
            packet = self._receive_open(timeout_s, kind.name)
            if packet.type is kind and packet_id in (None, packet.packet_id):
                self._waiting.extendleft(reversed(passed))
                return packet
            passed.append(packet)

    def so_far(self) -> list[Received]:
        """All that the broker had sent before it answered a PINGREQ of now."""
        self.send(wire.PINGREQ)
        packets: list[Received] = []
        while (packet := self._receive_open(TIMEOUT_S, "PINGRESP")).type is not Type.PINGRESP:
            packets.append(packet)
        return packets

    def expect_end(self, timeout_s: float = TIMEOUT_S) -> Received | None:
        """Reads until the broker closes; returns the DISCONNECT that came before, if one did."""
        last = None
        while (packet := self.receive(timeout_s)) is not None:
            last = packet if packet.type is Type.DISCONNECT else last
        return last

    # Whole exchanges

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def subscribe(self, topic_filter: str, options: int = 2, identifier: int = 0) -> int:
        """Returns the reason code: the granted QoS, or why not."""
        packet_id = self.next_id()
        properties = props(subscription_id=identifier) if identifier else b""
        self.send(wire.subscribe(packet_id, (topic_filter, options), version=self.version, properties=properties))
        return self.find(Type.SUBACK, packet_id).reasons[0]

    def unsubscribe(self, topic_filter: str) -> None:
        packet_id = self.next_id()
        self.send(wire.unsubscribe(packet_id, topic_filter, version=self.version))
        self.find(Type.UNSUBACK, packet_id)

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, *, retain: bool = False, properties: bytes = b""
    ) -> int:
        """The whole exchange of its QoS; returns the reason code of PUBACK or PUBREC."""
        packet_id = self.next_id() if qos else None
        self.send(self.packet(topic, payload, qos, packet_id, retain=retain, properties=properties))
        if packet_id is None:
            return 0
        answer = self.find(Type.PUBACK if qos == 1 else Type.PUBREC, packet_id)
        if qos == 2 and answer.reason < 0x80:
            self.send(wire.ack(Type.PUBREL, packet_id))
            self.find(Type.PUBCOMP, packet_id)
        return answer.reason

    def publish_many(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        """Publishes in one go, up to the window at a time, and returns when the broker has acknowledged all."""
        for start in range(0, len(payloads), WINDOW):
            ids = [self.next_id() for _ in payloads[start : start + WINDOW]]
            batch = zip(payloads[start:], ids, strict=False)
            self.send(*(self.packet(topic, payload, qos, packet_id) for payload, packet_id in batch))
            for packet_id in ids:
                assert self.find(Type.PUBACK if qos == 1 else Type.PUBREC, packet_id).reason < 0x80
            if qos == 2:
                self.send(*(wire.ack(Type.PUBREL, packet_id) for packet_id in ids))
                for packet_id in ids:
                    self.find(Type.PUBCOMP, packet_id)

    def packet(self, topic: str, payload: bytes, qos: int = 0, packet_id: int | None = None, **more: Any) -> bytes:
        """A PUBLISH in this client's version, not sent yet."""
        return wire.publish(topic, payload, version=self.version, qos=qos, packet_id=packet_id, **more)

    def next_message(self, *, acknowledge: bool = True, timeout_s: float = TIMEOUT_S) -> Received:
        """The next publication; what it needs in acknowledgement is sent unless told otherwise."""
        message = self.expect(Type.PUBLISH, timeout_s)
        if acknowledge:
            self.acknowledge(message)
        return message

    def messages(self, count: int, *, acknowledge: bool = True) -> list[Received]:
        return [self.next_message(acknowledge=acknowledge) for _ in range(count)]

    def acknowledge(self, message: Received) -> None:
        if message.qos == 0:
            return
        assert message.packet_id is not None
        if message.qos == 1:
            self.send(wire.ack(Type.PUBACK, message.packet_id))
            return
        self.send(wire.ack(Type.PUBREC, message.packet_id))
        self.find(Type.PUBREL, message.packet_id)
        self.send(wire.ack(Type.PUBCOMP, message.packet_id))

    # The end

    def disconnect(self) -> None:
        """Goes as the protocol wants it; returns when the broker has taken notice."""
        self.send(wire.disconnect())
        self.expect_end()
        self.socket.close()

    def drop(self) -> None:
        """Goes without a word; returns at once, when the broker may not know yet."""
        self.socket.close()


@contextmanager
def opened(broker: Broker, client_id: str = "", version: int = V5, **options: Any) -> Iterator[Client]:
    """A client that disconnects at the end."""
    with Client(broker, client_id, version, **options) as client:
        assert client.accepted, f"refused: {client.connack}"
        yield client
        client.send(wire.disconnect())


# What several tests do


def crash(broker: Broker) -> None:
    broker.kill9()
    broker.start()


def subscriber(broker: Broker, client_id: str, *filters: str, version: int = V5, expiry_s: int = 3600) -> Client:
    """A client whose session stays, with its subscriptions."""
    client = Client(broker, client_id, version, **persistent(version, expiry_s))
    for topic_filter in filters:
        assert client.subscribe(topic_filter) == 2
    return client


def payloads(messages: list[Received]) -> list[bytes]:
    return [message.payload for message in messages]


# Waiting and measuring


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def rss_bytes(broker: Broker) -> int:
    """The memory that the broker's process holds."""
    with open(f"/proc/{broker.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def readiness(broker: Broker) -> tuple[int, Any]:
    """Status and body of /ready."""
    try:
        with urlopen(broker.address("http") + "/ready", timeout=TIMEOUT_S) as response:
            return response.status, json.load(response)
    except HTTPError as refused:
        return refused.code, json.load(refused)


def metrics(broker: Broker) -> dict[str, float]:
    """The broker's numbers, without `braidmq_` before their names."""
    with urlopen(broker.address("http") + "/metrics", timeout=TIMEOUT_S) as response:
        families = text_string_to_metric_families(response.read().decode())
    return {sample.name.removeprefix("braidmq_"): sample.value for family in families for sample in family.samples}
