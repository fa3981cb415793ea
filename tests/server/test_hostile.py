"""Clients that mean harm or know no better: what they do costs them, not the broker and not its other clients.

Every attack runs beside an innocent client, which must be served all the time, and the broker's memory is measured.
"""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from braidmq.security.passwords import set_password
from tests import raw
from tests.bystander import MB, attacked
from tests.conformance import wire
from tests.conformance.wire import V3, V5, Type, props
from tests.patience import PATIENCE_S
from tests.raw import Client, dial, opened, persistent, wait_until

if TYPE_CHECKING:
    from tests.conftest import StartBroker

ADMIN = "[admin]\nport = 0\n"

both_versions = pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5.0"])


def wait_for_ends(clients: list[socket.socket], timeout_s: float) -> None:
    """Reads from all of them until the broker has closed the last."""
    began_at = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ)
        while selector.get_map():
            left_s = began_at + timeout_s - time.monotonic()
            assert left_s > 0, f"{len(selector.get_map())} of {len(clients)} connections are still open"
            for key, _ in selector.select(left_s):
                assert isinstance(key.fileobj, socket.socket)
                try:
                    data = key.fileobj.recv(65_536)
                except ConnectionError:
                    data = b""
                if not data:
                    selector.unregister(key.fileobj)


# Before the CONNECT


def test_bytes_one_by_one_run_out_of_time(start_broker: StartBroker) -> None:
    broker = start_broker("[limits]\nconnect_timeout_s = 4.0\n")
    with attacked(broker):
        began_at = time.monotonic()
        slow = [dial(broker) for _ in range(100)]
        connect = wire.connect("slow loris " + "x" * 200)
        finished = threading.Event()

        def trickle() -> None:
            alive = list(slow)
            for byte in connect:
                for client in list(alive):
                    try:
                        client.send(bytes((byte,)))
                    except OSError:
                        alive.remove(client)
                if finished.wait(0.05):
                    return

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        wait_for_ends(slow, PATIENCE_S)
        took_s = time.monotonic() - began_at
        finished.set()
        thread.join(5)
        assert took_s > 3.9, f"closed after {took_s:.1f} s"
        with dial(broker) as patient:  # slow, but in time
            for byte in wire.connect("in time", version=V3):
                patient.send(bytes((byte,)))
            assert patient.recv(4) == b"\x20\x02\x00\x00"


def test_garbage_ends_the_connection(start_broker: StartBroker) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    broker = start_broker("[limits]\nconnect_timeout_s = 2.0\n")
    openings = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),  # the beginning of TLS
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x10" + b"\xff" * 10,
        b"\x00" * 100,
        b"\xff" * 100,
        b"\x10\x00",
        wire.PINGREQ,
        wire.publish("t", b"x" * 1000),
    ]
    openings += [chance.randbytes(chance.randint(1, 3000)) for _ in range(150)]
    valid = wire.connect("valid", will=wire.Will(), username="u", password=b"p", properties=props(user=("a", "b")))
    for _ in range(150):
        broken = bytearray(valid)
        broken[chance.randrange(len(broken))] = chance.randrange(256)
        openings.append(bytes(broken) + chance.randbytes(20))
    with attacked(broker):
        clients = []
        for opening in openings:
            client = dial(broker)
            client.sendall(opening)
            clients.append(client)
        for client in clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_WR)  # those that were let in by chance leave now
        wait_for_ends(clients, PATIENCE_S)


def test_a_huge_length_is_refused_by_its_first_bytes(start_broker: StartBroker) -> None:
    """Nothing is kept for a packet that is announced, and too large: the connection ends at once, not in time."""
    broker = start_broker("[limits]\nconnect_timeout_s = 600.0\n")
    with attacked(broker):
        for announced in (
            b"\x10\xff\xff\xff\x7f",
            b"\x10\x81\x80\x04",
            b"\x30\xff\xff\xff\x7f",
            b"\x82\x80\x80\x80\x01",
        ):
            strangers = [dial(broker) for _ in range(20)]
            for stranger in strangers:
                stranger.sendall(announced)
            wait_for_ends(strangers, PATIENCE_S)


@both_versions
def test_packets_over_the_bound(start_broker: StartBroker, version: int) -> None:
    broker = start_broker("[limits]\npacket_bytes_max = 20000\n")
    with attacked(broker):
        client = Client(broker, "c", version)
        client.subscribe("t", 0)
        head = len(client.packet("t", b"x" * 19_000)) - 19_000
        client.send(client.packet("t", b"x" * (20_000 - head)))
        assert len(client.next_message().payload) == 20_000 - head  # just fits
        client.send(client.packet("t", b"x" * 20_000)[:10])  # its length is enough
        farewell = client.expect_end()
        if version == V5:
            assert farewell is not None
            assert farewell.reason == 0x95


# Too many


def test_a_thousand_connections_are_the_bound(start_broker: StartBroker) -> None:
    broker = start_broker(f"[limits]\nconnections_max = 1001\n{ADMIN}")
    with attacked(broker, growth_max=64 * MB):
        crowd = [dial(broker) for _ in range(1200)]
        for number, client in enumerate(crowd):
            try:
                client.sendall(wire.connect(f"crowd-{number}", version=V3))
            except ConnectionError:
                continue
        let_in = 0
        for client in crowd:
            try:
                let_in += client.recv(4) == b"\x20\x02\x00\x00"
            except ConnectionError:
                continue
        assert let_in == 1000
        assert raw.metrics(broker)["connections"] == 1001
        assert raw.metrics(broker)["connects_refused_total"] == 200
        for client in crowd:
            client.close()
        wait_until(lambda: raw.metrics(broker)["connections"] == 1, "the crowd has gone")
        with opened(broker, "late"):
            pass


def test_a_storm_of_connects_is_served_in_time(start_broker: StartBroker) -> None:
    broker = start_broker("[limits]\nconnect_rate_max = 150\n")
    with attacked(broker):
        began_at = time.monotonic()
        storm = [dial(broker) for _ in range(300)]
        for number, client in enumerate(storm):
            client.sendall(wire.connect(f"storm-{number}", version=V3))
        for client in storm:
            assert client.recv(4) == b"\x20\x02\x00\x00"
        took_s = time.monotonic() - began_at
        assert took_s > 1.5, f"300 connects in {took_s:.1f} s are more than 150 a second"
        for client in storm:
            client.close()


def test_one_name_for_many(start_broker: StartBroker) -> None:
    """Connections that take over each other's session as fast as they can leave one session and one connection."""
    broker = start_broker(ADMIN)
    with attacked(broker):
        fighters = [dial(broker) for _ in range(300)]
        for client in fighters:
            client.sendall(wire.connect("same", clean=False, properties=props(session_expiry=100)))
        wait_until(lambda: raw.metrics(broker)["connections"] == 2, "one of them is left")
        assert raw.metrics(broker)["sessions"] == 2
        for client in fighters:
            client.close()


@both_versions
def test_sessions_have_a_bound(start_broker: StartBroker, version: int) -> None:
    broker = start_broker("[limits]\nsessions_max = 51\n")
    with attacked(broker):
        reasons = []
        for number in range(70):
            with Client(broker, f"hoarder-{number}", version, **persistent(version)) as client:
                reasons.append(client.connack.reason)
        assert reasons == [0] * 50 + [0x97 if version == V5 else 3] * 20
        with Client(broker, "hoarder-0", version, **persistent(version)) as client:
            assert client.present


@both_versions
def test_subscriptions_have_a_bound(start_broker: StartBroker, version: int) -> None:
    broker = start_broker("[limits]\nsubscriptions_max = 100\n")
    with attacked(broker):
        client = Client(broker, "greedy", version)
        for start in range(0, 20_000, 1000):
            filters = [(f"flood/{number}/" + "x" * 100, 0) for number in range(start, start + 1000)]
            client.send(wire.subscribe(1, *filters, version=version))
            reasons = client.expect(Type.SUBACK).reasons
            refused = 0x97 if version == V5 else 0x80
            assert reasons == ([0] * 100 + [refused] * 900 if start == 0 else [refused] * 1000)
        assert client.subscribe("flood/0/" + "x" * 100, 1) == 1  # one that is there can be changed
        client.unsubscribe("flood/1/" + "x" * 100)
        assert client.subscribe("another", 0) == 0


@pytest.mark.parametrize("kind", ["long", "deep"])
def test_subscriptions_have_a_bound_in_bytes(start_broker: StartBroker, kind: str) -> None:
    """With the limits that everybody has by default, one client cannot make the broker remember half a gigabyte."""
    broker = start_broker()

    def topic_filter(number: int) -> str:
        if kind == "long":
            return f"{number}/" + "x" * 60_000
        return f"{number}/" + "/".join(f"{number * 128 + level:x}" for level in range(127))

    with Client(broker, "greedy") as client, attacked(broker, growth_max=64 * MB):
        for start in range(0, 4000, 50):
            client.send(wire.subscribe(1, *((topic_filter(number), 0) for number in range(start, start + 50))))
            assert set(client.expect(Type.SUBACK).reasons) <= {0, 0x97}
        client.unsubscribe(topic_filter(0))
        assert client.subscribe("modest") == 2  # there is room again


@both_versions
def test_deep_topics_are_refused(start_broker: StartBroker, version: int) -> None:
    broker = start_broker("[limits]\ntopic_levels_max = 10\nroute_cache_max = 100\n")
    with attacked(broker):
        deep = "/".join("d" * 30_000)
        for packet in (
            wire.publish("a/" * 10 + "a", version=version),
            wire.publish(deep, version=version),
            wire.subscribe(1, ("a/" * 10 + "a", 0), version=version),
            wire.subscribe(1, ("+/" * 20_000 + "#", 0), version=version),
        ):
            client = Client(broker, "deep", version)
            client.send(packet)
            farewell = client.expect_end()
            if version == V5:
                assert farewell is not None
                assert farewell.reason in (0x8F, 0x90)
        client = Client(broker, "wide", version)
        client.subscribe("a/b/c/d/e/f/g/h/i/j", 0)
        for start in range(0, 30_000, 1000):  # as many topics as it likes: none is remembered for long
            client.send(*(client.packet(f"{number}" + "/x" * 9, b"") for number in range(start, start + 1000)))
            assert client.so_far() == []


def test_retained_messages_have_a_bound(start_broker: StartBroker) -> None:
    broker = start_broker("sys_interval_s = 0\n[limits]\nretained_messages_max = 50\nretained_bytes_max = 100000\n")
    with attacked(broker):
        client = Client(broker, "hoarder")
        answers = [client.publish(f"r/{number}", b"x", 1, retain=True) for number in range(200)]
        assert answers == [0x10] * 50 + [0x97] * 150
        assert client.publish("r/0", b"changed", 1, retain=True) == 0x10
        assert client.publish("r/0", b"x" * 200_000, 1, retain=True) == 0x97  # too large for what is left
        client.publish("r/1", b"", 1, retain=True)
        assert client.publish("r/new", b"x", 1, retain=True) == 0x10
        client.send(*(client.packet(f"silent/{number}", b"x" * 1000, retain=True) for number in range(10_000)))
        client.so_far()
        client.subscribe("r/#")
        client.subscribe("silent/#")
        got = {message.topic: message.payload for message in client.so_far()}
        assert len(got) == 50
        assert got["r/0"] == b"changed"
        assert "r/1" not in got
        old = Client(broker, "old", V3)
        old.publish("r/refused", b"x", 1, retain=True)
        assert client.so_far() == []  # it has no words for a refusal, but refused it is


# What they may not get


def test_a_reason_that_is_too_long(start_broker: StartBroker) -> None:
    """What a broker says of a topic must fit a string of MQTT, however long the topic is when written out."""
    broker = start_broker()
    with attacked(broker), Client(broker, "long") as client:
        for character in ("x", "\x01", "'", "\u0600"):
            topic = "$SYS/" + character * (65_530 // len(character.encode()))
            assert client.publish(topic, b"", 1) == 0x87
            assert client.subscribe(topic) == 2


def test_a_queue_is_bounded_by_its_bytes(start_broker: StartBroker) -> None:
    broker = start_broker("[limits]\nqueue_bytes_max = 2000000\n")
    with Client(broker, "away", **persistent(V5)) as away:
        away.subscribe("t", 1)
    with attacked(broker), Client(broker, "writer") as writer:
        for start in range(60):
            writer.publish_many("t", [b"%d " % start + b"x" * 100_000] * 10, 1)
        with Client(broker, "away", **persistent(V5)) as away:
            kept = away.messages(19)
            assert away.so_far() == []
            assert kept[-1].payload.startswith(b"59 ")


def test_a_session_of_another_user(start_broker: StartBroker, tmp_path: Path) -> None:
    """Who connects under another user's client id is refused, and its owner finds all that waited."""
    users = tmp_path / "users"
    for user in ("ada", "eve"):
        set_password(str(users), user, user.encode())
    broker = start_broker(
        f"[authentication]\npassword_file = '{users}'\n"
        "[[access.rules]]\nallow = ['publish', 'subscribe']\ntopics = ['%u/#']\n"
    )
    ada: dict[str, Any] = {"username": "ada", "password": b"ada"}
    with Client(broker, "device", **ada, **persistent(V5)) as device:
        assert device.subscribe("ada/#", 1) == 1
    with opened(broker, "writer", **ada) as writer:
        writer.publish("ada/diary", b"private", 1)
        with Client(broker, "device", username="eve", password=b"eve", **persistent(V5)) as thief:
            assert thief.connack.reason == 0x87
        writer.publish("ada/diary", b"more", 1)
    with Client(broker, "device", **ada, **persistent(V5)) as device:
        assert [one.payload for one in device.messages(2)] == [b"private", b"more"]
