"""Whatever brokers were told to join by, each client gets one copy: ten real brokers on real sockets, in one loop.

Who is configured to know whom is only where a broker begins to look; what travels goes by the overlay. So a line, a
ring and a full mesh of introductions must give the same: 1 delivery for 1 publication, at every client, for filters
that overlap in every way, before and after a broker has left and come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from braidmq.braid.membership import entering, gossip
from braidmq.config.settings import BraidConfig, Config, Listener
from braidmq.mqtt import packets as p
from braidmq.mqtt.codec import decode, encode
from braidmq.server.server import Server
from tests.chaos.ports import free_ports
from tests.patience import PATIENCE_S

COUNT = 10
WAIT_S = PATIENCE_S
"""For what must come; it is far more than that needs."""

MEET_S, MEETINGS_MAX = 2.0, 30
"""How long a round of QoS 0 may take to come to all, and how many rounds there are until one does."""

CALM_S = 0.2
"""After the last that must come: time for what must not."""

FILTERS = (("a/#",), ("a/+",), ("a/b", "+/b"), ("a/#", "a/+", "a/b", "+/b"))
"""Of the clients of each broker: filters that cover each other, that overlap, and all of them at once."""

NARROW = (("a/b",), ("a/+", "+/b"))
"""At every third broker: so that not all stand for the same filters."""

PUBLISHERS = (0, 4, 9)
WHO_LEAVES = 5

TOPOLOGIES: dict[str, Callable[[int], list[int]]] = {
    "line": lambda number: [number - 1] if number else [],
    "ring": lambda number: [(number - 1) % COUNT, (number + 1) % COUNT],
    "mesh": lambda number: [other for other in range(COUNT) if other != number],
}
"""By name: whom each broker is given to join."""


async def until(is_so: Callable[[], bool], what: Callable[[], object]) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not is_so():  # noqa: ASYNC110 - conditions of many kinds
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"it has not come to that: {what()}") from None


class Client:
    """A client of one broker, in the loop of all of them. It acknowledges what comes."""

    def __init__(self, name: str, filters: tuple[str, ...] = ()) -> None:
        self.name = name
        self.filters = filters
        self.got: Counter[bytes] = Counter()
        self._answers: Counter[type[p.Packet]] = Counter()
        self._unreleased: set[int] = set()
        self._last_id = 0

    async def connect(self, port: int) -> None:
        self._answers.clear()
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._task = asyncio.create_task(self._read())
        await self._exchange(p.Connect(self.name, p.V5, clean_start=True), p.Connack)
        if self.filters:
            subscriptions = [p.Subscription(one, 2) for one in self.filters]
            await self._exchange(p.Subscribe(self._next_id(), subscriptions), p.Suback)

    async def publish(self, topic: str, payload: bytes, qos: int) -> None:
        if not qos:
            self._send(p.Publish(topic, payload))
            return
        packet = p.Publish(topic, payload, qos, packet_id=self._next_id())
        await self._exchange(packet, p.Puback if qos == 1 else p.Pubcomp)

    async def close(self) -> None:
        self._writer.transport.abort()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _send(self, packet: p.Packet) -> None:
        self._writer.write(encode(packet, p.V5))

    async def _exchange(self, packet: p.Packet, answer: type[p.Packet]) -> None:
        before = self._answers[answer]
        self._send(packet)
        await until(lambda: self._answers[answer] > before, lambda: f"{self.name} waits for {answer.__name__}")

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # its broker has ended
            await self._read_all()

    async def _read_all(self) -> None:
        while True:
            header = (await self._reader.readexactly(1))[0]
            length = shift = 0
            while True:
                byte = (await self._reader.readexactly(1))[0]
                length |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            self._take(decode(header, await self._reader.readexactly(length), p.V5))

    def _take(self, packet: p.Packet) -> None:
        self._answers[type(packet)] += 1
        if isinstance(packet, p.Publish):
            if packet.qos == 1:
                self._send(p.Puback(packet.packet_id or 0))
            elif packet.qos == 2:
                self._send(p.Pubrec(packet.packet_id or 0))
                if packet.packet_id in self._unreleased:
                    return
                self._unreleased.add(packet.packet_id or 0)
            self.got[packet.payload] += 1
        elif isinstance(packet, p.Pubrec):
            assert not packet.reason.failed
            self._send(p.Pubrel(packet.packet_id))
        elif isinstance(packet, p.Pubrel):
            self._unreleased.discard(packet.packet_id)
            self._send(p.Pubcomp(packet.packet_id))


class BrokersOnSockets:
    """The brokers, each with its clients."""

    def __init__(self, topology: str, method: str, folder: Path) -> None:
        ports = free_ports(COUNT, random.Random())
        self.servers: dict[int, Server] = {}
        self.clients: dict[int, list[Client]] = {number: [] for number in range(COUNT)}
        self._configs = [
            Config(
                data=str(folder / f"b{number}"),
                listeners=(Listener(port=0),),
                braid=BraidConfig(
                    listen=f"127.0.0.1:{ports[number]}",
                    name=f"b{number}",
                    cluster=f"cloud{number % 3}",
                    method=method,  # type: ignore[arg-type]
                    join=tuple(f"127.0.0.1:{ports[other]}" for other in TOPOLOGIES[topology](number)),
                ),
            )
            for number in range(COUNT)
        ]

    async def start(self, number: int) -> None:
        server = self.servers[number] = Server(self._configs[number])
        await server.start()
        assert await server.wait_until_in(WAIT_S), f"b{number} did not join"

    async def stop(self, number: int) -> None:
        for client in self.clients[number]:
            await client.close()
        await self.servers.pop(number).stop()

    async def settle(self, number: int) -> None:
        """Clients of a broker connect and subscribe."""
        filters = FILTERS if number % 3 else NARROW
        self.clients[number] = [Client(f"c{number}-{index}", each) for index, each in enumerate(filters)]
        await asyncio.gather(*(client.connect(self.port(number)) for client in self.clients[number]))

    def port(self, number: int) -> int:
        return int(self.servers[number].addresses[0].rpartition(":")[2])

    @property
    def subscribers(self) -> list[Client]:
        return [client for clients in self.clients.values() for client in clients]


@contextlib.asynccontextmanager
async def running(topology: str, method: str, folder: Path) -> AsyncIterator[BrokersOnSockets]:
    """The first broker is there before the others come, all at the same time."""
    brokers = BrokersOnSockets(topology, method, folder)
    try:
        with pytest.MonkeyPatch.context() as patch:  # it need not look for long: nobody else is there
            patch.setattr(entering, "FOUND_AFTER_S", 0.0)
            patch.setattr(gossip, "CALL_TIMEOUT_S", 0.1)
            await brokers.start(0)
        if topology == "line":
            for number in range(1, COUNT):
                await brokers.start(number)
        else:
            await asyncio.gather(*(brokers.start(number) for number in range(1, COUNT)))
        await asyncio.gather(*(brokers.settle(number) for number in range(COUNT)))
        yield brokers
    finally:
        for number in sorted(brokers.servers, reverse=True):
            await brokers.stop(number)


async def publish_everywhere(brokers: BrokersOnSockets, publishers: dict[int, Client], name: str) -> None:
    """From several brokers, with every QoS; every client has each of them once, and nothing twice.

    Who has just joined may also have an earlier one: of QoS 1 and 2 a publisher tries again for a while to reach those
    that it has no answer from.
    """
    sent: list[bytes] = []
    for number, publisher in publishers.items():
        for qos in (1, 2):
            sent.append(f"{name} {qos} from {number}".encode())
            await publisher.publish("a/b", sent[-1], qos)

    def missing() -> list[tuple[str, bytes]]:
        return [(client.name, one) for client in brokers.subscribers for one in sent if not client.got[one]]

    await until(lambda: not missing(), missing)
    await publish_until_met(brokers, publishers, name)
    await asyncio.sleep(CALM_S)
    for client in brokers.subscribers:
        assert set(client.got.values()) == {1}, f"{client.name} got something twice: {client.got}"


async def publish_until_met(brokers: BrokersOnSockets, publishers: dict[int, Client], name: str) -> None:
    """Until a round of QoS 0 has come to all. Where much else runs, a broker may be thought to be gone for a moment;
    what is published then with QoS 0 may not come to it."""
    for number in range(MEETINGS_MAX):
        sent = [f"{name} 0, round {number}, from {publisher.name}".encode() for publisher in publishers.values()]
        for publisher, one in zip(publishers.values(), sent, strict=True):
            await publisher.publish("a/b", one, 0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MEET_S):
                while not all(client.got[one] for client in brokers.subscribers for one in sent):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                return
    raise AssertionError(f"in {MEETINGS_MAX} rounds, no one came to all")


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("method", ["covers", "adaptive", "relayfree", "locality"])
async def test_one_publication_is_one_delivery(topology: str, method: str, tmp_path: Path) -> None:
    async with running(topology, method, tmp_path) as brokers:
        publishers = {number: Client(f"p{number}") for number in PUBLISHERS}
        for number, publisher in publishers.items():
            await publisher.connect(brokers.port(number))
        await publish_everywhere(brokers, publishers, "at first")
        await brokers.stop(WHO_LEAVES)
        brokers.clients[WHO_LEAVES] = []
        await publish_everywhere(brokers, publishers, "without one")
        await brokers.start(WHO_LEAVES)
        await brokers.settle(WHO_LEAVES)
        await publish_everywhere(brokers, publishers, "again")
        for publisher in publishers.values():
            await publisher.close()
