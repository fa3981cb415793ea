"""Hosts on loopback, all in the test's own loop, once with asyncio's loop and once with uvloop's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import pytest
import uvloop

from braidmq.host import Address, Forward, Message, Service, handles
from braidmq.net import NetHost, Security
from tests.patience import PATIENCE_S


class Ping(Message):
    n: int


class Pong(Message):
    n: int


class Note(Message):
    text: str


class Walk(Message):
    """Passed on along the route; the last host answers."""

    route: tuple[str, ...]


class Arrived(Message):
    at: str
    origin: str


class Fail(Message):
    pass


class Silence(Message):
    pass


class Unserved(Message):
    pass


class Large(Message):
    data: bytes


MESSAGES = (Ping, Pong, Note, Walk, Arrived, Fail, Silence, Unserved, Large)


class Answerer(Service):
    """What the hosts of these tests do with what they hear; `heard` has what they were told."""

    def __init__(self, host: NetHost) -> None:
        self.host = host
        self.heard: list[tuple[Address, Message]] = []

    @handles(Ping)
    def on_ping(self, origin: Address, ping: Ping) -> Pong:
        return Pong(ping.n + 1)

    @handles(Note, Large)
    def on_told(self, origin: Address, message: Message) -> None:
        self.heard.append((origin, message))

    @handles(Walk)
    def on_walk(self, origin: Address, walk: Walk) -> Forward | Arrived:
        if not walk.route:
            return Arrived(self.host.address, str(origin))
        return Forward(walk.route[0], Walk(walk.route[1:]))

    @handles(Fail)
    def on_fail(self, origin: Address, fail: Fail) -> None:
        raise RuntimeError("on purpose")

    @handles(Silence)
    def on_silence(self, origin: Address, silence: Silence) -> None:
        return None


class StartHost(Protocol):
    async def __call__(self, listen: str = "127.0.0.1:0", **options: Any) -> tuple[NetHost, Answerer]: ...


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def security() -> Security | None:
    """Of hosts that are started without saying so. A module may have its own."""
    return None


@pytest.fixture
async def start_host(security: Security | None) -> AsyncIterator[StartHost]:
    started: list[NetHost] = []

    async def start(listen: str = "127.0.0.1:0", **options: Any) -> tuple[NetHost, Answerer]:
        options.setdefault("security", security)
        host = NetHost(listen, options.pop("messages", MESSAGES), **options)
        service = Answerer(host)
        if Unserved in host._codec.known:
            host.serve(service)
        await host.start()
        started.append(host)
        return host, service

    yield start
    for host in started:
        await host.stop()


class Wire:
    """A proxy on loopback: what passes to its target is recorded, and may be changed, on its way."""

    def __init__(self) -> None:
        self.target = ""
        self.address = ""
        self.there: list[bytes] = []
        """What the one who dialled said, a connection each …"""
        self.back: list[bytes] = []
        """… and what it was answered."""
        self.alter: Callable[[bool, bytes], bytes] = lambda is_back, data: data
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.target.split(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._writers += [writer, far_writer]
        number = len(self.there)
        self.there.append(b"")
        self.back.append(b"")
        await asyncio.gather(
            self._pass(reader, far_writer, self.there, number, False),
            self._pass(far_reader, writer, self.back, number, True),
        )

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: list[bytes], number: int, is_back: bool
    ) -> None:
        try:
            while data := await reader.read(1 << 20):
                log[number] += data
                writer.write(self.alter(is_back, data))
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    wire = Wire()
    await wire.open()
    yield wire
    wire.close()


async def say_to(address: str, data: bytes) -> bytes:
    """Connects, says that, and returns all that came back before the host closed the connection."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Returns once it holds; an assertion fails if it does not come to."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - conditions of many kinds
            await asyncio.sleep(0.005)
