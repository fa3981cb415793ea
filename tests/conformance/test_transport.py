"""The byte stream below (§4.2): TCP, in order and without loss both ways, however it is cut."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.patience import PATIENCE_S

from . import wire
from .pair import Received, Type

if TYPE_CHECKING:
    from tests.conftest import Broker


class Stream:
    """A client on a real socket, with the suite's own codec."""

    def __init__(self, broker: Broker, version: int) -> None:
        self.version = version
        self.socket = socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S)
        self.stream = b""
        self.seen: list[Received] = []

    def next(self) -> Received:
        while not self.seen:
            piece = self.socket.recv(65_536)
            assert piece, "the broker closed the connection"
            packets, self.stream = wire.split(self.stream + piece)
            self.seen += [wire.decode(raw, self.version) for raw in packets]
        return self.seen.pop(0)


@pytest.mark.statement("3.1.1:MQTT-7.1.1-1", "5.0:MQTT-4.2.0-1", "3.1.1:MQTT-7.0.0-2")
def test_tcp_carries_the_stream_both_ways(broker: Broker, version: int) -> None:
    """Publications of every size come back whole and in order, with nothing used that the standard does not have."""
    client = Stream(broker, version)
    topic = f"conformance/transport/{version}"
    payloads = [bytes((size % 251,)) * size for size in (0, 1, 127, 128, 16_000, 17_000, 300_000, 5)]
    raw = wire.connect(f"transport-{version}", version=version) + wire.subscribe(1, (topic, 0), version=version)
    with client.socket:
        for place in range(len(raw)):
            client.socket.sendall(raw[place : place + 1])
        assert client.next().type is Type.CONNACK
        assert client.next().type is Type.SUBACK
        client.socket.sendall(b"".join(wire.publish(topic, payload, version=version) for payload in payloads))
        assert [client.next().payload for _ in payloads] == payloads
        client.socket.sendall(wire.disconnect())
        assert client.socket.recv(1) == b""
