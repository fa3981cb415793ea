"""MQTT over WebSocket, with clients that others wrote: the `websockets` package and paho-mqtt."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import paho.mqtt.client as paho
import pytest
import uvloop
from paho.mqtt.enums import CallbackAPIVersion
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from braidmq.broker.limits import Limits
from braidmq.config.settings import Config, Listener, StoreConfig
from braidmq.server.server import Server
from tests.patience import PATIENCE_S

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
            frame = self._client.recv(timeout=PATIENCE_S)
            assert isinstance(frame, bytes), "the broker sends binary frames only"
            self._bytes += frame
        taken, self._bytes = self._bytes[:size], self._bytes[size:]
        return taken


@contextmanager
def opened(broker_at: Place, client_id: str) -> Iterator[tuple[ClientConnection, Stream]]:
    with connect(broker_at.url, subprotocols=MQTT) as client:
        stream = Stream(client)
        client.send(connect_packet(client_id))
        assert stream.take(4) == CONNACK
        yield client, stream


def close_code(client: ClientConnection) -> int | None:
    """The broker's; None if it left without a close frame."""
    try:
        while True:
            client.recv(timeout=PATIENCE_S)
    except ConnectionClosed as ended:
        return ended.rcvd.code if ended.rcvd else None


def ended_by_broker(client: socket.socket) -> bytes:
    """All that the broker sent until it closed."""
    client.settimeout(PATIENCE_S)
    received = b""
    while True:
        try:
            data = client.recv(65536)
        except ConnectionResetError:
            return received
        if not data:
            return received
        received += data


@dataclass(frozen=True)
class Place:
    """Where the tests' broker is."""

    url: str

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port


@pytest.fixture(scope="module")
def broker_at() -> Iterator[Place]:
    """A broker for all tests here, in a thread with a loop of its own."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(target=lambda: uvloop.run(run_broker(started)))
    thread.start()
    url, loop, stop = started.result(30)
    yield Place(url)
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    assert not thread.is_alive()


async def run_broker(started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    stop = asyncio.Event()
    try:
        server = Server(
            Config(
                listeners=(Listener(kind="ws", port=0, origins=("https://panel.example",)),),
                limits=Limits(packet_bytes_max=200_000, connect_timeout_s=4.0),
                store=StoreConfig(enabled=False),
            )
        )
        await server.start()
    except BaseException as error:
        started.set_exception(error)
        raise
    started.set_result((server.addresses[0], asyncio.get_running_loop(), stop))
    await stop.wait()
    await server.stop()


@pytest.mark.statement("5.0:MQTT-6.0.0-4", "3.1.1:MQTT-6.0.0-4")
def test_the_answer_names_the_subprotocol_and_no_extension(broker_at: Place) -> None:
    with connect(broker_at.url, subprotocols=[Subprotocol("other"), *MQTT]) as client:
        assert client.subprotocol == "mqtt"
        assert client.protocol.extensions == []


@pytest.mark.statement("5.0:MQTT-6.0.0-3", "3.1.1:MQTT-6.0.0-3")
@pytest.mark.parametrize("offered", [None, [Subprotocol("chat")]])
def test_without_the_subprotocol_there_is_no_upgrade(broker_at: Place, offered: list[Subprotocol] | None) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(broker_at.url, subprotocols=offered)
    assert refused.value.response.status_code == 400
    assert b"subprotocol" in refused.value.response.body


@pytest.mark.statement("5.0:MQTT-6.0.0-2", "3.1.1:MQTT-6.0.0-2")
def test_packets_span_frames_and_frames_hold_packets(broker_at: Place) -> None:
    with opened(broker_at, "spanning") as (client, stream):
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
def test_a_text_frame_ends_the_connection(broker_at: Place) -> None:
    with opened(broker_at, "talker") as (client, _):
        client.send("good morning")
        assert close_code(client) == 1003


def test_control_frames_are_answered_between_packets(broker_at: Place) -> None:
    with opened(broker_at, "pinging") as (client, stream):
        packet = subscribe_packet("c/d")
        client.send(packet[:3])
        assert client.ping(b"here?").wait(10)
        client.send(packet[3:])
        assert stream.take(5) == b"\x90\x03\x00\x01\x00"
        client.close(code=1001)
        assert client.close_code == 1001


def test_the_broker_says_goodbye_when_the_client_has(broker_at: Place) -> None:
    with opened(broker_at, "leaving") as (client, _):
        client.send(b"\xe0\x00")
        assert close_code(client) == 1000


def test_a_broken_packet_ends_with_a_closing_handshake(broker_at: Place) -> None:
    with opened(broker_at, "broken") as (client, _):
        client.send(b"\xf0\x00")
        assert close_code(client) == 1000


def test_another_path_is_not_found(broker_at: Place) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(broker_at.url.replace("/mqtt", "/elsewhere"), subprotocols=MQTT)
    assert refused.value.response.status_code == 404
    assert b"/mqtt" in refused.value.response.body


def test_a_query_does_not_change_the_path(broker_at: Place) -> None:
    with connect(broker_at.url + "?site=7", subprotocols=MQTT) as client:
        assert client.subprotocol == "mqtt"


def test_only_the_listed_origins_come_in(broker_at: Place) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(broker_at.url, subprotocols=MQTT, origin=Origin("https://evil.example"))
    assert refused.value.response.status_code == 403
    for origin in (Origin("https://panel.example"), None):  # a program that is no browser need not have one
        with connect(broker_at.url, subprotocols=MQTT, origin=origin) as client:
            assert client.subprotocol == "mqtt"


async def test_without_a_list_only_pages_of_the_same_host_come_in() -> None:
    listener = Listener(kind="ws", port=0)
    server = Server(Config(listeners=(listener,), store=StoreConfig(enabled=False)))
    await server.start()
    url = server.addresses[0]

    def subprotocol_for(origin: str) -> str | None:
        with connect(url, subprotocols=MQTT, origin=Origin(origin)) as client:
            return client.subprotocol

    try:
        with pytest.raises(InvalidStatus) as refused:
            await asyncio.to_thread(subprotocol_for, "https://evil.example")
        assert refused.value.response.status_code == 403
        assert b"origins" in refused.value.response.body
        assert await asyncio.to_thread(subprotocol_for, "http://127.0.0.1:8080") == "mqtt"
    finally:
        await server.stop()


def test_large_packets_pass_and_larger_ones_do_not(broker_at: Place) -> None:
    with opened(broker_at, "large") as (client, stream):
        client.send(subscribe_packet("big"))
        assert stream.take(5) == b"\x90\x03\x00\x01\x00"
        publication = publish_packet("big", os.urandom(199_000))
        client.send(publication)
        assert stream.take(len(publication)) == publication
        client.send(bytes(300_000))
        assert close_code(client) == 1009


def test_a_stranger_cannot_send_large_frames(broker_at: Place) -> None:
    with connect(broker_at.url, subprotocols=MQTT) as client:
        client.send(bytes(100_000))
        assert close_code(client) == 1009


def test_an_upgrade_without_a_connect_runs_out_of_time(broker_at: Place) -> None:
    with connect(broker_at.url, subprotocols=MQTT) as client:
        assert close_code(client) == 1000


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        pytest.param(UPGRADE, b"", id="unfinished request"),
        pytest.param(b"", b"", id="silence"),
        pytest.param(connect_packet("lost") + b"\n\n", b"", id="MQTT without WebSocket"),
        pytest.param(UPGRADE + b"X: " + b"x" * 9000 + b"\r\n\r\n", b"HTTP/1.1 431 ", id="long header"),
        pytest.param(UPGRADE + b"X: " + b"x\r\nX: " * 8000, b"HTTP/1.1 431 ", id="many headers"),
        pytest.param(b"GET /mqtt HTTP/1.1\r\nHost: broker\r\n\r\n", b"HTTP/1.1 426 ", id="plain HTTP"),
        pytest.param(b"POST /mqtt HTTP/1.1\r\nHost: broker\r\n\r\n", b"HTTP/1.1 405 ", id="POST"),
    ],
)
def test_a_bad_handshake_costs_the_sender(broker_at: Place, request_bytes: bytes, answer: bytes) -> None:
    with socket.create_connection(("127.0.0.1", broker_at.port)) as client:
        client.sendall(request_bytes)
        received = ended_by_broker(client)
        assert received.startswith(answer)
        assert bool(received) == bool(answer)
    with opened(broker_at, "after"):
        pass


def test_an_unmasked_frame_is_refused(broker_at: Place) -> None:
    with socket.create_connection(("127.0.0.1", broker_at.port)) as client:
        client.sendall(UPGRADE + b"Sec-WebSocket-Protocol: mqtt\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 101 ")
        client.sendall(b"\x82\x02\xc0\x00")
        frame = ended_by_broker(client)
        assert frame[0] == 0x88
        assert int.from_bytes(frame[2:4]) == 1002


def test_a_client_that_vanishes_has_its_will_published(broker_at: Place) -> None:
    with opened(broker_at, "watcher") as (watcher, stream):
        watcher.send(subscribe_packet("will"))
        assert stream.take(5) == b"\x90\x03\x00\x01\x00"
        body = b"\x00\x04MQTT\x04\x06\x00\x3c\x00\x05dying\x00\x04will\x00\x04gone"
        with connect(broker_at.url, subprotocols=MQTT) as client:
            client.send(bytes([0x10, len(body)]) + body)
            assert Stream(client).take(4) == CONNACK
            client.socket.shutdown(socket.SHUT_RDWR)
        assert stream.take(12) == publish_packet("will", b"gone")


def test_paho_publishes_and_subscribes(broker_at: Place) -> None:
    received: list[bytes] = []
    done = threading.Event()
    sizes = [0, 1, 125, 126, 127, 65_535, 65_536, 150_000]

    def on_message(_client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        received.append(bytes(message.payload))
        if len(received) == len(sizes):
            done.set()

    with paho_client(broker_at, on_message) as client:
        client.subscribe("paho/#", qos=1)
        for size in sizes:
            client.publish("paho/sizes", bytes([size % 251]) * size, qos=1)
        assert done.wait(20), f"{len(received)} of {len(sizes)} came"
    assert [len(payload) for payload in received] == sizes


class paho_client:  # noqa: N801 - reads as what it opens
    """A connected paho client with its loop in a thread."""

    def __init__(self, broker_at: Place, on_message: Callable[[paho.Client, object, paho.MQTTMessage], None]) -> None:
        self._connected = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="paho-ws", transport="websockets")
        self._client.on_message = on_message
        self._client.on_connect = lambda *_: self._connected.set()
        self._client.ws_set_options(path="/mqtt", headers={"Origin": "https://panel.example"})
        self._port = broker_at.port

    def __enter__(self) -> paho.Client:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._connected.wait(10), "paho did not connect"
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()
