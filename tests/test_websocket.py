"""MQTT over WebSocket, with clients that others wrote: the `websockets` package and paho-mqtt."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

MQTT = [Subprotocol("mqtt")]
CONNACK = b"\x20\x02\x00\x00"
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n"
)


def connect_packet(client_id: str) -> bytes:
    body = b"\x00\x04MQTT\x04\x02\x00\x3c" + len(client_id).to_bytes(2) + client_id.encode()
    return bytes([0x10, len(body)]) + body


def publish_packet(topic: str, payload: bytes) -> bytes:
    body = len(topic).to_bytes(2) + topic.encode() + payload
    length, size = b"", len(body)
    while True:
        size, digit = divmod(size, 128)
        length += bytes([digit | (0x80 if size else 0)])
        if not size:
            return b"\x30" + length + body


def subscribe_packet(topic: str) -> bytes:
    body = b"\x00\x01" + len(topic).to_bytes(2) + topic.encode() + b"\x00"
    return bytes([0x82, len(body)]) + body


class Stream:
    """The bytes that come in, whatever frames they came in."""

    def __init__(self, client: ClientConnection) -> None:
        self._client = client
        self._bytes = b""

    def take(self, size: int) -> bytes:
        while len(self._bytes) < size:
            frame = self._client.recv(timeout=10)
            assert isinstance(frame, bytes), "the broker sends binary frames only"
            self._bytes += frame
        taken, self._bytes = self._bytes[:size], self._bytes[size:]
        return taken


def opened(broker: Broker, client_id: str) -> tuple[ClientConnection, Stream]:
    client = connect(broker.address("ws"), subprotocols=MQTT)
    stream = Stream(client)
    client.send(connect_packet(client_id))
    assert stream.take(4) == CONNACK
    return client, stream


def close_code(client: ClientConnection) -> int | None:
    """The broker's; None if it left without a close frame."""
    try:
        while True:
            client.recv(timeout=10)
    except ConnectionClosed as ended:
        return ended.rcvd.code if ended.rcvd else None


def ended_by_broker(client: socket.socket) -> bytes:
    """All that the broker sent until it closed."""
    client.settimeout(10)
    received = b""
    while True:
        try:
            data = client.recv(65536)
        except ConnectionResetError:
            return received
        if not data:
            return received
        received += data


@pytest.fixture
def ws_broker(start_broker: StartBroker) -> Broker:
    return start_broker(
        """
        [[listeners]]
        kind = "ws"
        port = 0
        origins = ["https://panel.example"]
        [limits]
        packet_bytes_max = 200_000
        connect_timeout_s = 1.0
        """
    )


@pytest.mark.statement("5.0:MQTT-6.0.0-4", "3.1.1:MQTT-6.0.0-4")
def test_the_answer_names_the_subprotocol_and_no_extension(ws_broker: Broker) -> None:
    with connect(ws_broker.address("ws"), subprotocols=[Subprotocol("other"), *MQTT]) as client:
        assert client.subprotocol == "mqtt"
        assert client.protocol.extensions == []


@pytest.mark.statement("5.0:MQTT-6.0.0-3", "3.1.1:MQTT-6.0.0-3")
@pytest.mark.parametrize("offered", [None, [Subprotocol("chat")]])
def test_without_the_subprotocol_there_is_no_upgrade(ws_broker: Broker, offered: list[Subprotocol] | None) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(ws_broker.address("ws"), subprotocols=offered)
    assert refused.value.response.status_code == 400
    assert b"subprotocol" in refused.value.response.body


@pytest.mark.statement("5.0:MQTT-6.0.0-2", "3.1.1:MQTT-6.0.0-2")
def test_packets_span_frames_and_frames_hold_packets(ws_broker: Broker) -> None:
    client, stream = opened(ws_broker, "spanning")
    client.send(PINGREQ * 3)
    assert stream.take(6) == PINGRESP * 3
    for byte in subscribe_packet("a/b"):
        client.send(bytes([byte]))
    assert stream.take(5) == b"\x90\x03\x00\x01\x00"
    publication = publish_packet("a/b", b"x" * 1000)
    # One message of several fragments, with a packet and a half in the first.
    client.send([PINGREQ + publication[:500], publication[500:], PINGREQ])
    expected = len(PINGRESP) * 2 + len(publication)
    received = stream.take(expected)
    assert publication in received
    assert received.count(PINGRESP) == 2
    client.close()


@pytest.mark.statement("5.0:MQTT-6.0.0-1", "3.1.1:MQTT-6.0.0-1")
def test_a_text_frame_ends_the_connection(ws_broker: Broker) -> None:
    client, _ = opened(ws_broker, "talker")
    client.send("good morning")
    assert close_code(client) == 1003


def test_control_frames_are_answered_between_packets(ws_broker: Broker) -> None:
    client, stream = opened(ws_broker, "pinging")
    packet = subscribe_packet("c/d")
    client.send(packet[:3])
    assert client.ping(b"here?").wait(10)
    client.send(packet[3:])
    assert stream.take(5) == b"\x90\x03\x00\x01\x00"
    client.close(code=1001)
    assert client.close_code == 1001


def test_the_broker_says_goodbye_when_the_client_has(ws_broker: Broker) -> None:
    client, _ = opened(ws_broker, "leaving")
    client.send(b"\xe0\x00")
    assert close_code(client) == 1000


def test_a_broken_packet_ends_with_a_closing_handshake(ws_broker: Broker) -> None:
    client, _ = opened(ws_broker, "broken")
    client.send(b"\xf0\x00")
    assert close_code(client) == 1000


def test_another_path_is_not_found(ws_broker: Broker) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(ws_broker.address("ws").replace("/mqtt", "/elsewhere"), subprotocols=MQTT)
    assert refused.value.response.status_code == 404
    assert b"/mqtt" in refused.value.response.body


def test_a_query_does_not_change_the_path(ws_broker: Broker) -> None:
    with connect(ws_broker.address("ws") + "?site=7", subprotocols=MQTT) as client:
        assert client.subprotocol == "mqtt"


def test_only_the_listed_origins_come_in(ws_broker: Broker) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(ws_broker.address("ws"), subprotocols=MQTT, origin=Origin("https://evil.example"))
    assert refused.value.response.status_code == 403
    connect(ws_broker.address("ws"), subprotocols=MQTT, origin=Origin("https://panel.example")).close()
    connect(ws_broker.address("ws"), subprotocols=MQTT).close()  # a program that is no browser names none


def test_large_packets_pass_and_larger_ones_do_not(ws_broker: Broker) -> None:
    client, stream = opened(ws_broker, "large")
    client.send(subscribe_packet("big"))
    assert stream.take(5) == b"\x90\x03\x00\x01\x00"
    publication = publish_packet("big", os.urandom(199_000))
    client.send(publication)
    assert stream.take(len(publication)) == publication
    client.send(bytes(300_000))
    assert close_code(client) == 1009


def test_a_stranger_cannot_send_large_frames(ws_broker: Broker) -> None:
    client = connect(ws_broker.address("ws"), subprotocols=MQTT)
    client.send(bytes(100_000))
    assert close_code(client) == 1009


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        pytest.param(UPGRADE, b"", id="unfinished request"),
        pytest.param(b"", b"", id="silence"),
        pytest.param(UPGRADE + b"Sec-WebSocket-Protocol: mqtt\r\n\r\n", b"HTTP/1.1 101 ", id="no CONNECT"),
        pytest.param(connect_packet("lost") + b"\n\n", b"", id="MQTT without WebSocket"),
        pytest.param(UPGRADE + b"X: " + b"x" * 9000 + b"\r\n\r\n", b"HTTP/1.1 431 ", id="long header"),
        pytest.param(UPGRADE + b"X: " + b"x\r\nX: " * 8000, b"HTTP/1.1 431 ", id="many headers"),
        pytest.param(b"GET /mqtt HTTP/1.1\r\nHost: broker\r\n\r\n", b"HTTP/1.1 426 ", id="plain HTTP"),
        pytest.param(b"POST /mqtt HTTP/1.1\r\nHost: broker\r\n\r\n", b"HTTP/1.1 405 ", id="POST"),
    ],
)
def test_a_bad_handshake_costs_the_sender(ws_broker: Broker, request_bytes: bytes, answer: bytes) -> None:
    with socket.create_connection(("127.0.0.1", ws_broker.port_of("ws"))) as client:
        client.sendall(request_bytes)
        received = ended_by_broker(client)
        assert received.startswith(answer)
        assert bool(received) == bool(answer)
    opened(ws_broker, "after")[0].close()


def test_an_unmasked_frame_is_refused(ws_broker: Broker) -> None:
    with socket.create_connection(("127.0.0.1", ws_broker.port_of("ws"))) as client:
        client.sendall(UPGRADE + b"Sec-WebSocket-Protocol: mqtt\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 101 ")
        client.sendall(b"\x82\x02\xc0\x00")
        frame = ended_by_broker(client)
        assert frame[0] == 0x88
        assert int.from_bytes(frame[2:4]) == 1002


def test_a_client_that_vanishes_has_its_will_published(ws_broker: Broker) -> None:
    watcher, stream = opened(ws_broker, "watcher")
    watcher.send(subscribe_packet("will"))
    assert stream.take(5) == b"\x90\x03\x00\x01\x00"
    body = b"\x00\x04MQTT\x04\x06\x00\x3c\x00\x05dying\x00\x04will\x00\x04gone"
    client = connect(ws_broker.address("ws"), subprotocols=MQTT)
    client.send(bytes([0x10, len(body)]) + body)
    assert Stream(client).take(4) == CONNACK
    client.socket.shutdown(socket.SHUT_RDWR)
    assert stream.take(12) == publish_packet("will", b"gone")


def test_paho_publishes_and_subscribes(ws_broker: Broker) -> None:
    received: list[bytes] = []
    done = threading.Event()
    sizes = [0, 1, 125, 126, 127, 65_535, 65_536, 150_000]

    def on_message(_client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        received.append(bytes(message.payload))
        if len(received) == len(sizes):
            done.set()

    with paho_client(ws_broker, on_message) as client:
        client.subscribe("paho/#", qos=1)
        for size in sizes:
            client.publish("paho/sizes", bytes([size % 251]) * size, qos=1)
        assert done.wait(20), f"{len(received)} of {len(sizes)} came"
    assert [len(payload) for payload in received] == sizes


class paho_client:  # noqa: N801 - reads as what it opens
    """A connected paho client with its loop in a thread."""

    def __init__(self, broker: Broker, on_message: Callable[[paho.Client, object, paho.MQTTMessage], None]) -> None:
        self._connected = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="paho-ws", transport="websockets")
        self._client.on_message = on_message
        self._client.on_connect = lambda *_: self._connected.set()
        self._client.ws_set_options(path="/mqtt")
        self._port = broker.port_of("ws")

    def __enter__(self) -> paho.Client:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._connected.wait(10), "paho did not connect"
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()
