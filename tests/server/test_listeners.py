"""Listeners: every kind opens and closes cleanly, says clearly why it cannot, and keeps its bounds."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from braidmq.broker.broker import Broker as Core
from braidmq.broker.limits import Limits
from braidmq.config.settings import Config, Listener
from braidmq.server.listening import ListenError, Listeners
from braidmq.server.listening import listeners as module
from braidmq.server.listening.connect_rate import ConnectRate
from braidmq.server.listening.sockets import bind_tcp, bind_unix, unix_identity
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

CONNACK = b"\x20\x02\x00\x00"
DISCONNECT = b"\xe0\x00"
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


def connect_packet(client_id: str) -> bytes:
    body = b"\x00\x04MQTT\x04\x02\x00\x00" + len(client_id).to_bytes(2) + client_id.encode()
    return bytes([0x10, len(body)]) + body


def dial(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S)


def is_let_in(client: socket.socket, client_id: str) -> bool:
    """True if a CONNACK comes, False if the broker closes the connection."""
    try:
        client.sendall(connect_packet(client_id))
        return client.recv(4) == CONNACK
    except ConnectionError:
        return False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


# Through a broker of its own process.


def test_all_kinds_at_once_each_with_its_own_rules(start_broker: StartBroker, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    broker = start_broker(
        f"""
        [[listeners]]
        name = "open"
        port = 0
        [[listeners]]
        name = "small"
        port = 0
        connections_max = 1
        [[listeners]]
        kind = "ws"
        port = 0
        path = "/"
        [[listeners]]
        kind = "unix"
        path = "{path}"
        """
    )
    schemes = [address.split(":")[0] for address in broker.addresses]
    assert schemes[:4] == ["mqtt", "mqtt", "ws", "unix"]
    assert broker.address("unix") == f"unix://{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660

    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(path))
        assert is_let_in(client, "over-unix")

    open_port, small_port = (int(address.rsplit(":", 1)[1]) for address in broker.addresses[:2])
    with socket.create_connection(("127.0.0.1", small_port), timeout=PATIENCE_S) as first:
        assert is_let_in(first, "first")
        with socket.create_connection(("127.0.0.1", small_port), timeout=PATIENCE_S) as second:
            assert not is_let_in(second, "second")
        with socket.create_connection(("127.0.0.1", open_port), timeout=PATIENCE_S) as third:
            assert is_let_in(third, "third")
        first.sendall(DISCONNECT)
        assert first.recv(1) == b""
    with socket.create_connection(("127.0.0.1", small_port), timeout=PATIENCE_S) as fourth:
        assert is_let_in(fourth, "fourth")

    assert broker.terminate() == 0
    assert not path.exists()


def test_the_bound_on_connections_is_kept(start_broker: StartBroker) -> None:
    broker = start_broker("[limits]\nconnections_max = 3\n")
    clients = [dial(broker) for _ in range(3)]
    assert all(is_let_in(client, f"client-{number}") for number, client in enumerate(clients))
    with dial(broker) as one_more:
        assert not is_let_in(one_more, "one-more")
    broker.wait_for_log("is full")
    for client in clients:
        client.close()

    def has_room() -> bool:
        with dial(broker) as client:
            return is_let_in(client, "has-room")

    wait_until(has_room, "no client is let in though the rest have left")


def test_clients_above_the_connect_rate_wait_and_come_in(start_broker: StartBroker) -> None:
    broker = start_broker("[limits]\nconnect_rate_max = 10\n")
    began_at = time.monotonic()
    clients = [dial(broker) for _ in range(12)]
    assert all(is_let_in(client, f"rate-{number}") for number, client in enumerate(clients))
    assert time.monotonic() - began_at > 0.9  # the bucket's one and ten more take a second
    for client in clients:
        client.close()


def test_a_silent_connection_is_closed(start_broker: StartBroker) -> None:
    broker = start_broker("[limits]\nconnect_timeout_s = 0.3\n")
    with dial(broker) as client:
        client.sendall(connect_packet("slow")[:-1])
        assert client.recv(4) == b""


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit, which is Linux")
def test_without_file_descriptors_clients_wait(start_broker: StartBroker) -> None:
    broker = start_broker()
    with dial(broker) as staying:
        assert is_let_in(staying, "staying")
        limits = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        in_use = len(os.listdir(f"/proc/{broker.pid}/fd"))
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (in_use + 1, limits[1]))
        clients = [dial(broker) for _ in range(10)]
        for number, client in enumerate(clients):
            client.sendall(connect_packet(f"waiting-{number}"))
        broker.wait_for_log("Too many open files")
        staying.sendall(PINGREQ)
        assert staying.recv(2) == PINGRESP
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limits)
        assert [client.recv(4) for client in clients] == [CONNACK] * 10
        for client in clients:
            client.close()


def test_sockets_are_kept_alive_and_do_not_delay() -> None:
    listening = bind_tcp("options", "127.0.0.1", 0, "another")[0]
    with listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_told_and_nothing_stays_open(start_broker: StartBroker, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError) as failed:
            start_broker(
                f'[[listeners]]\nkind = "unix"\npath = "{path}"\n[[listeners]]\nname = "front"\nport = {port}\n'
            )
    text = str(failed.value)
    assert f"listener 'front' cannot listen on 127.0.0.1:{port}" in " ".join(text.split())
    assert "in use" in text
    assert "Traceback" not in text
    assert not path.exists()


# The module itself, with the core in the same process.


def joined(config: Config) -> Listeners:
    """Listeners of a broker that runs in this test's loop."""
    loop = asyncio.get_running_loop()

    def flush_soon() -> None:
        loop.call_soon(core.flush)

    core = Core(clock=time.monotonic, wall=time.time, limits=config.limits, wants_flush=flush_soon)
    return Listeners(config, core)


async def test_one_that_cannot_open_closes_the_others(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = joined(
            Config(listeners=(Listener(kind="unix", path=str(path)), Listener(name="second", port=port)))
        )
        with pytest.raises(ListenError, match=rf"'second'.*127\.0\.0\.1:{port}.*in use"):
            await listeners.start()
    assert listeners.addresses == []
    assert listeners.trouble() == f"not listening: unix:{path}, second"
    assert unix_identity(str(path)) is None


async def test_stop_gives_time_and_then_cuts_off() -> None:
    listeners = joined(Config(listeners=(Listener(port=0),)))
    await listeners.start()
    assert listeners.trouble() is None
    host, port = listeners.addresses[0].removeprefix("mqtt://").split(":")
    leaving_reader, leaving = await asyncio.open_connection(host, int(port))
    staying_reader, staying = await asyncio.open_connection(host, int(port))
    leaving.write(connect_packet("leaving"))
    staying.write(connect_packet("staying"))
    assert await leaving_reader.readexactly(4) == CONNACK
    assert await staying_reader.readexactly(4) == CONNACK
    assert listeners.connections_count == 2
    stopping = asyncio.create_task(listeners.stop(grace_s=0.3))
    leaving.close()
    staying.write(PINGREQ)
    assert await staying_reader.readexactly(2) == PINGRESP
    with pytest.raises(OSError, match=r"refused|failed"):
        await asyncio.open_connection(host, int(port))
    await stopping
    assert listeners.connections_count == 0
    assert len(listeners.broker.connections) == 0
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await staying_reader.readexactly(1)
    staying.close()


async def test_who_does_not_take_its_last_bytes_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that half-closes while much is on its way to it, and then does not read."""
    monkeypatch.setattr(module, "LINGER_S", 0.1)
    listeners = joined(Config(listeners=(Listener(port=0),), limits=Limits(outbound_bytes_max=64 * 1024 * 1024)))
    await listeners.start()
    port = int(listeners.addresses[0].rsplit(":", 1)[1])
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(connect_packet("greedy") + b"\x82\x06\x00\x01\x00\x01a\x00")
        payload = b"\x30\x83\x80\x40\x00\x01a" + bytes(1024 * 1024)
        await asyncio.to_thread(client.sendall, payload * 16)
        client.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + PATIENCE_S
        while listeners.connections_count:
            assert time.monotonic() < deadline, "the connection stays though nobody reads"
            await asyncio.sleep(0.02)
    assert len(listeners.broker.connections) == 0
    await listeners.stop(grace_s=0)


async def test_a_reset_before_the_accept_is_survived() -> None:
    listeners = joined(Config(listeners=(Listener(port=0),)))
    await listeners.start()
    port = int(listeners.addresses[0].rsplit(":", 1)[1])
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(connect_packet("after"))
    assert await asyncio.wait_for(reader.readexactly(4), PATIENCE_S) == CONNACK
    writer.close()
    await listeners.stop(grace_s=1)
    assert len(listeners.broker.connections) == 0


async def test_new_rules_hold_for_those_who_come_after() -> None:
    config = Config(listeners=(Listener(name="door", port=0),))
    listeners = joined(config)
    await listeners.start()
    port = int(listeners.addresses[0].rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(connect_packet("first"))
    assert await reader.readexactly(4) == CONNACK
    listeners.reload(Config(listeners=(Listener(name="door", port=0, connections_max=1),)))
    refused_reader, refused_writer = await asyncio.open_connection("127.0.0.1", port)
    assert await refused_reader.read() == b""
    refused_writer.close()
    assert listeners.broker.metrics.connect_refused == 1
    writer.write(PINGREQ)
    assert await reader.readexactly(2) == PINGRESP
    writer.close()
    await listeners.stop(grace_s=1)


def test_a_name_with_two_addresses_has_one_port() -> None:
    sockets = bind_tcp("local", "localhost", 0, "another")
    assert len({each.getsockname()[1] for each in sockets}) == 1
    for each in sockets:
        each.close()


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="this machine has no IPv6")
def test_both_families_can_have_the_same_port() -> None:
    (six,) = bind_tcp("six", "::", 0, "another")
    with six:
        assert six.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)


@pytest.mark.parametrize(
    ("host", "cause"),
    [("no-such-host.invalid", "not known"), ("192.0.2.77", "no interface of this machine has that address")],
)
def test_a_bad_address_is_told(host: str, cause: str) -> None:
    with pytest.raises(ListenError, match=f"listener 'far' cannot listen on {host}:1883: .*{cause}"):
        bind_tcp("far", host, 1883, "another")


# Unix sockets.


def test_a_dead_socket_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "broker.sock")
    dead = bind_unix("door", path)
    dead.close()
    assert os.path.exists(path)
    with bind_unix("door", path), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_a_living_socket_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "broker.sock")
    with bind_unix("door", path), socket.socket(socket.AF_UNIX) as client:
        with pytest.raises(ListenError, match="another process listens there"):
            bind_unix("door", path)
        client.connect(path)


def test_a_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(ListenError, match="not a socket"):
        bind_unix("door", str(path))
    assert path.read_text() == "precious"


@pytest.mark.parametrize(("name", "cause"), [("no/such/folder", "create it"), ("x" * 120, "too long")])
def test_a_bad_path_is_told(tmp_path: Path, name: str, cause: str) -> None:
    with pytest.raises(ListenError, match=cause):
        bind_unix("door", str(tmp_path / name))


async def test_a_socket_that_another_broker_took_over_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "broker.sock")
    listeners = joined(Config(listeners=(Listener(kind="unix", path=path),)))
    await listeners.start()
    os.unlink(path)
    with bind_unix("other", path):
        await listeners.stop(grace_s=0)
        assert unix_identity(path) is not None


# The connect rate.


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_is_kept_over_any_second() -> None:
    clock = Clock()
    rate = ConnectRate(50, clock)
    taken = 0
    for _ in range(10_000):
        clock.now += 0.001
        while rate.wait_s() == 0:
            rate.spend()
            taken += 1
    assert 500 <= taken <= 505


def test_the_wait_is_as_long_as_it_takes() -> None:
    clock = Clock()
    rate = ConnectRate(4, clock)
    assert rate.wait_s() == 0
    rate.spend()
    assert rate.wait_s() == pytest.approx(0.25)
    clock.now += 0.2
    assert rate.wait_s() == pytest.approx(0.05)
    clock.now += 1000
    rate.wait_s()
    rate.spend()
    assert rate.wait_s() == pytest.approx(0.25), "what was not used long ago is lost"
