"""Clients that do not keep up with what they asked for: memory is bounded, others get theirs, and no packet is torn."""

from __future__ import annotations

import base64
import os
import random
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests import raw
from tests.bystander import MB, attacked, bounded, push
from tests.conformance import wire
from tests.conformance.wire import V3, V5, Received, Type
from tests.interop.brokers import AllListeners, running
from tests.raw import Client, opened, persistent

if TYPE_CHECKING:
    from tests.conftest import StartBroker

ADMIN = "[admin]\nport = 0\n"
BATCH = 200
PAYLOAD_BYTES = 2000

both_versions = pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5.0"])


def payload(number: int) -> bytes:
    return b"%d " % number + b"x" * PAYLOAD_BYTES


def number_of(message: Received) -> int:
    assert len(message.payload) > PAYLOAD_BYTES
    return int(message.payload.split(b" ")[0])


def flood(writer: Client, reader: Client, topic: str, count: int) -> None:
    """Publishes at QoS 0, a batch at a time, each as soon as a reader that keeps up has got all of the one before."""
    for start in range(0, count, BATCH):
        numbers = range(start, start + BATCH)
        writer.send(*(writer.packet(topic, payload(number)) for number in numbers))
        assert [number_of(message) for message in reader.messages(BATCH)] == list(numbers)


# QoS 0


@both_versions
def test_a_reader_that_stops_loses_what_does_not_fit(start_broker: StartBroker, version: int) -> None:
    broker = start_broker(ADMIN)
    slow = Client(broker, "slow", version, receive_buffer_bytes=4096)
    slow.subscribe("t", 0)
    fast, writer = Client(broker, "fast", version), Client(broker, "writer", version)
    fast.subscribe("t", 0)
    with bounded(broker, 16 * MB):
        flood(writer, fast, "t", 20_000)  # 40 MB
    dropped = raw.metrics(broker)["messages_dropped_total"]
    assert 10_000 < dropped < 20_000
    # Then it reads on: whole messages, in order, as many as were not dropped, and the newest again.
    got = [number_of(message) for message in slow.messages(20_000 - int(dropped))]
    assert got == sorted(set(got))
    assert got[0] == 0
    assert slow.so_far() == []
    writer.publish("t", payload(20_000))
    assert number_of(slow.next_message()) == 20_000


class WebSocketTalk:
    """Just enough of a WebSocket client to subscribe and then not to read: frames out, nothing in."""

    def __init__(self, served: AllListeners) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(raw.TIMEOUT_S)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", served.port_of("ws")))
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n".encode()
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self.socket.recv(1)
        assert answer.startswith(b"HTTP/1.1 101")

    def send(self, packet: bytes) -> None:
        assert len(packet) < 126
        self.socket.sendall(bytes((0x82, 0x80 | len(packet))) + bytes(4) + packet)  # masked with zeros

    def receive(self) -> bytes:
        head = self.socket.recv(2)
        return self.socket.recv(head[1])


def test_the_bound_holds_on_every_transport(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One that does not read over each of TLS, WebSocket and a Unix socket."""
    with running(tmp_path_factory.mktemp("slow")) as served:
        broker = served.broker
        local = socket.socket(socket.AF_UNIX)
        local.connect(str(served.unix_path))
        Client(broker, "slow-unix", over=local).subscribe("t", 0)
        plain = socket.create_connection(("127.0.0.1", served.port_of("tls")))
        encrypted = served.tls_context.wrap_socket(plain, server_hostname="localhost")
        Client(broker, "slow-tls", over=encrypted).subscribe("t", 0)
        talk = WebSocketTalk(served)
        talk.send(wire.connect("slow-ws"))
        assert talk.receive()[0] == 0x20
        talk.send(wire.subscribe(1, ("t", 0)))
        assert talk.receive()[0] == 0x90
        fast, writer = Client(broker, "fast"), Client(broker, "writer")
        fast.subscribe("t", 0)
        with bounded(broker, 32 * MB):
            flood(writer, fast, "t", 20_000)
        for client in (local, encrypted, talk.socket, fast.socket, writer.socket):
            client.close()


def test_many_slow_readers_hold_nobody_up(start_broker: StartBroker) -> None:
    """Thirty subscribers that do not read at all, and then a little now and then, beside one that publishes and reads.

    That nobody waits for them again and again is shown in virtual time: tests/test_fast_path.py.
    """
    broker = start_broker()
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    slow = [Client(broker, f"slow-{number}", receive_buffer_bytes=4096) for number in range(30)]
    for client in slow:
        client.subscribe("#", 0)
        client.socket.setblocking(False)
    finished = threading.Event()

    def sip() -> None:
        while not finished.is_set():
            client = chance.choice(slow)
            wanted = chance.choice((1_000, 100_000, 1_000_000, 1_000_000))  # the last lets the broker write again
            gives_up_at = time.monotonic() + 0.05
            while wanted > 0 and time.monotonic() < gives_up_at:
                try:
                    wanted -= len(client.socket.recv(65_536))
                except BlockingIOError:
                    time.sleep(0.0005)

    fast, writer = Client(broker, "fast"), Client(broker, "writer")
    fast.subscribe("t", 0)

    with bounded(broker, 80 * MB):
        flood(writer, fast, "t", 2_000)  # by now the broker knows how slow they are
        sipping = threading.Thread(target=sip, daemon=True)
        sipping.start()
        flood(writer, fast, "t", 20_000)
        finished.set()
        sipping.join(raw.TIMEOUT_S)
    assert not sipping.is_alive()


# QoS 1 and 2


@both_versions
def test_a_reader_that_stops_is_disconnected_at_the_bound(start_broker: StartBroker, version: int) -> None:
    broker = start_broker(f"[limits]\nqueue_messages_max = 300\ninflight_max = 100\n{ADMIN}")
    slow = Client(broker, "slow", version, receive_buffer_bytes=4096)
    slow.subscribe("t", 1)
    with bounded(broker, 16 * MB), opened(broker, "writer", version) as writer:
        writer.publish_many("t", [payload(number) for number in range(400)], 1)
        assert raw.metrics(broker)["slow_readers_total"] == 0  # all of them are held
        writer.publish("t", payload(400), 1)
        assert raw.metrics(broker)["slow_readers_total"] == 1
        writer.publish_many("t", [payload(number) for number in range(401, 5000)], 1)
    got = slow.messages(100, acknowledge=False)
    assert [number_of(message) for message in got] == list(range(100))
    farewell = slow.receive()
    if version == V5:
        assert farewell is not None
        assert (farewell.type, farewell.reason) == (Type.DISCONNECT, 0x97)
        farewell = slow.receive()
    assert farewell is None


@pytest.mark.parametrize("qos", [1, 2])
def test_a_kept_session_goes_on_after_the_disconnect(start_broker: StartBroker, qos: int) -> None:
    broker = start_broker("[limits]\nqueue_messages_max = 300\ninflight_max = 100\n")
    slow = Client(broker, "slow", receive_buffer_bytes=4096, **persistent(V5))
    slow.subscribe("t", qos)
    with opened(broker, "writer") as writer:
        writer.publish_many("t", [payload(number) for number in range(1000)], qos)
    slow.expect_end()
    again = Client(broker, "slow", **persistent(V5))
    assert again.present
    got: list[Received] = []
    while not got or number_of(got[-1]) < 999:
        got.append(again.next_message())
    numbers = [number_of(message) for message in got]
    assert numbers[:100] == list(range(100)), "what was in flight"
    assert numbers[100:] == list(range(700, 1000)), "and the newest of what waited"
    assert [message.dup for message in got] == [True] * 100 + [False] * 300
    assert again.so_far() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_a_pause_within_the_bounds_loses_nothing(start_broker: StartBroker, qos: int) -> None:
    broker = start_broker(ADMIN)
    slow = Client(broker, "slow", receive_buffer_bytes=4096)
    slow.subscribe("t", qos)
    slow.subscribe("live", 0)
    with bounded(broker, 40 * MB), opened(broker, "writer") as writer:
        for start in range(0, 3000, 500):
            writer.publish_many("t", [payload(number) for number in range(start, start + 500)], qos)
        got = slow.messages(3000)
    assert [number_of(message) for message in got] == list(range(3000))
    assert {message.qos for message in got} == {qos}
    assert not any(message.dup for message in got)
    assert slow.so_far() == []
    assert raw.metrics(broker)["slow_readers_total"] == 0
    with opened(broker, "writer") as writer:
        writer.publish("live", payload(1))
        assert number_of(slow.next_message()) == 1


# Replies that nobody reads


@pytest.mark.parametrize(
    ("asked", "bytes_sent"),
    [
        (wire.publish("$SYS/" + "x" * 60_000, b"", qos=1, packet_id=1), 120 * MB),  # each refused, with a reason
        (wire.subscribe(1, *((f"filter/{number}", 0) for number in range(1000))), 4 * MB),
        (wire.PINGREQ * 1000, 2 * MB),
    ],
    ids=["refused", "granted", "pinged"],
)
def test_answers_that_nobody_reads(start_broker: StartBroker, asked: bytes, bytes_sent: int) -> None:
    """A client that asks and asks and does not take the answers is made to wait, or cut off; they do not pile up."""
    broker = start_broker()
    with attacked(broker):
        greedy = Client(broker, "greedy", receive_buffer_bytes=4096)
        push(greedy.socket, asked, bytes_sent)
        with opened(broker, "another") as another:  # the broker has worked off what it took
            another.so_far()


@pytest.mark.parametrize("kind", ["websocket", "mqtt"])
def test_pings_of_websocket_that_nobody_reads(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    """Pings of WebSocket itself, as large as they may be, or many small frames with a PINGREQ each."""
    with running(tmp_path_factory.mktemp("pings")) as served:
        talk = WebSocketTalk(served)
        talk.send(wire.connect("pinging"))
        assert talk.receive()[0] == 0x20
        if kind == "websocket":
            frame, bytes_sent = bytes((0x89, 0x80 | 125)) + bytes(4) + b"x" * 125, 60 * MB
        else:
            frame, bytes_sent = bytes((0x82, 0x80 | 2)) + bytes(4) + wire.PINGREQ, 4 * MB
        with attacked(served.broker):
            push(talk.socket, frame * 1000, bytes_sent)
        talk.socket.close()


def test_answers_are_not_lost_by_who_is_late(start_broker: StartBroker) -> None:
    """The same client that did not read, and then does: every answer is there, in order."""
    broker = start_broker()
    with attacked(broker):
        late = Client(broker, "late", V3, receive_buffer_bytes=4096)
        asked = b"".join(late.packet("nobody", b"x" * 50, 1, number) for number in range(1, 60_001))
        sender = threading.Thread(target=late.socket.sendall, args=(asked,), daemon=True)
        sender.start()
        sender.join(0.5)  # by then all is sent, or the broker takes no more
        for number in range(1, 60_001):
            assert late.expect(Type.PUBACK).packet_id == number
        sender.join(raw.TIMEOUT_S)


def test_retained_messages_that_nobody_reads(start_broker: StartBroker) -> None:
    """A few bytes ask for all retained messages, over and over, and the answer is never read."""
    broker = start_broker()
    with opened(broker, "writer") as writer:
        for number in range(100):
            writer.publish(f"r/{number}", b"x" * 40_000, 1, retain=True)
    with attacked(broker, growth_max=48 * MB):
        for qos in (0, 1):
            greedy = [Client(broker, f"greedy-{qos}-{number}", receive_buffer_bytes=4096) for number in range(5)]
            for client in greedy:
                push(client.socket, b"".join(wire.subscribe(n + 1, ("r/#", qos)) for n in range(100)), at_least=1)
            for client in greedy:
                client.socket.close()
    with opened(broker, "reader") as reader:  # who reads gets all of them
        reader.subscribe("r/#", 0)
        assert {message.topic for message in reader.messages(100)} == {f"r/{number}" for number in range(100)}


# The end of the broker


def test_a_reader_that_stops_does_not_keep_the_broker(start_broker: StartBroker) -> None:
    broker = start_broker()
    slow = Client(broker, "slow", receive_buffer_bytes=4096)
    slow.subscribe("t", 0)
    fast, writer = Client(broker, "fast"), Client(broker, "writer")
    fast.subscribe("t", 0)
    flood(writer, fast, "t", 4000)
    assert broker.terminate() == 0
    assert "Traceback" not in broker.log
