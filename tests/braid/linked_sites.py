"""Real brokers over loopback, all in a test's own loop, with clients on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Protocol

from braidmq.braid.transfer.cut_through import CutThrough
from braidmq.config.settings import BraidConfig, Config, Listener
from braidmq.pubsub.registry import MethodName
from braidmq.server.server import Server
from tests.patience import PATIENCE_S

WAIT_S = PATIENCE_S
TOPIC = b"solo/1"
MANY = 200
BRAID_KEY = "correct horse battery"


class Client:
    """A connection of MQTT 3.1.1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, server: Server, name: bytes) -> Client:
        port = int(server.addresses[0].rpartition(":")[2])
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client.writer.write(b"\x10" + bytes([12 + len(name)]) + b"\0\4MQTT\4\2\0\0" + bytes([0, len(name)]) + name)
        assert await client.read() == (0x20, b"\0\0")
        return client

    async def read(self) -> tuple[int, bytes]:
        async with asyncio.timeout(WAIT_S):
            header, length = await self.reader.readexactly(2)
            return header, await self.reader.readexactly(length)

    async def subscribe(self, topic: bytes = TOPIC, qos: int = 0) -> None:
        self.writer.write(bytes([0x82, 5 + len(topic), 0, 1, 0, len(topic)]) + topic + bytes([qos]))
        assert await self.read() == (0x90, bytes([0, 1, qos]))

    async def payload(self) -> bytes:
        """Of the next publication."""
        header, body = await self.read()
        assert header >> 4 == 3
        behind = 2 + body[1] + (2 if header & 6 else 0)
        return body[behind:]


class Site:
    """A broker, and what went through it on which way."""

    def __init__(self, server: Server) -> None:
        self.server = server
        assert server._node is not None
        assert server._node.braid is not None
        self.transfer = server._node.braid.transfer

    @property
    def cut_through(self) -> CutThrough:
        assert self.transfer.cut_through is not None
        return self.transfer.cut_through

    @property
    def long_ways(self) -> int:
        """Batches that came in on the long way."""
        return self.transfer.receiver.arrivals


class StartSite(Protocol):
    def __call__(self, cluster: str = "") -> Awaitable[Site]: ...


@contextlib.asynccontextmanager
async def linked_sites(folder: Path, method: MethodName, key: str | None, copies: int = 2) -> AsyncIterator[StartSite]:
    """Starts brokers, each of which joins those that are there; ends all of them."""
    servers: list[Server] = []

    async def start_one(cluster: str = "") -> Site:
        join = tuple([str(server.braid_address) for server in servers])
        number = len(servers)
        config = Config(
            data=str(folder / f"site{number}"),
            listeners=(Listener(name="mqtt", port=0),),
            braid=BraidConfig(
                listen="127.0.0.1:0",
                join=join,
                name=f"site{number}",
                cluster=cluster,
                key=key,
                method=method,
                copies=copies,
            ),
        )
        server = Server(config)
        await server.start()
        servers.append(server)
        assert await server.wait_until_in(WAIT_S)
        return Site(server)

    try:
        yield start_one
    finally:
        for server in reversed(servers):
            await server.stop()


async def is_silent(client: Client) -> bool:
    """Whether nothing more comes."""
    try:
        async with asyncio.timeout(0.3):
            await client.reader.readexactly(1)
    except TimeoutError:
        return True
    return False
