"""Three broker processes, of which two cannot reach each other: what the third does for them, on real connections.

The pair breaks in both ways that networks have: connections are reset and new ones turned away, or everything stops
and nobody is told. `tests/braid/test_round_a_cut.py` has the same in virtual time, in more detail.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from braidmq.mqtt import packets as p
from braidmq.mqtt.codec import decode, encode
from braidmq.pubsub.registry import METHOD_DEFAULT
from tests.chaos.brokers import Brokers
from tests.patience import PATIENCE_S

NOTICED_S = 5.0
"""Time enough to notice that a path is cut, and to find a broker that both reach."""

NO_SUBSCRIBERS = 0x10
PAIR = (0, 1)


class Client:
    """One connection in the loop of the test: it keeps what comes in order, and acknowledges it."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self._answers: dict[int, asyncio.Future[p.Packet]] = {}
        self._last_id = 0

    async def connect(self, port: int, client_id: str) -> Client:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._task = asyncio.create_task(self._read())
        await self._exchange(0, p.Connect(client_id, p.V5, clean_start=True))
        return self

    async def subscribe(self, topic_filter: str, qos: int = 2) -> None:
        packet_id = self._next_id()
        await self._exchange(packet_id, p.Subscribe(packet_id, [p.Subscription(topic_filter, qos)]))

    async def publish(self, topic: str, payload: bytes, qos: int) -> int:
        """Returns the reason code."""
        if not qos:
            self._send(p.Publish(topic, payload))
            return 0
        packet_id = self._next_id()
        answer = await self._exchange(packet_id, p.Publish(topic, payload, qos, packet_id=packet_id))
        assert isinstance(answer, p.Puback | p.Pubrec)
        if qos == 2:
            await self._exchange(packet_id, p.Pubrel(packet_id))
        return int(answer.reason)

    def close(self) -> None:
        self._writer.transport.abort()
        self._task.cancel()

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _send(self, packet: p.Packet) -> None:
        self._writer.write(encode(packet, p.V5))

    async def _exchange(self, packet_id: int, packet: p.Packet) -> p.Packet:
        answer = self._answers[packet_id] = asyncio.get_running_loop().create_future()
        self._send(packet)
        return await asyncio.wait_for(answer, PATIENCE_S)

    async def _read(self) -> None:
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
        if isinstance(packet, p.Publish):
            self.got.append(packet.payload)
            if packet.qos:
                kind = p.Puback if packet.qos == 1 else p.Pubrec
                self._send(kind(packet.packet_id or 0))
        elif isinstance(packet, p.Pubrel):
            self._send(p.Pubcomp(packet.packet_id))
        else:
            self._answers[getattr(packet, "packet_id", 0)].set_result(packet)


@contextlib.asynccontextmanager
async def three_brokers(folder: Path, method: str) -> AsyncIterator[Brokers]:
    brokers = Brokers(3, folder, method, "key")
    try:
        await brokers.start()
        yield brokers
    finally:
        await brokers.stop()


async def until_got(client: Client, wanted: list[bytes]) -> None:
    """In order and once, and nothing else."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while len(client.got) < len(wanted):  # noqa: ASYNC110 - it comes when it comes
                await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert client.got == wanted
    client.got.clear()


def numbers(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["cut", "stall"])
async def test_publications_go_round_a_pair_that_is_cut(tmp_path: Path, kind: str) -> None:
    async with three_brokers(tmp_path, METHOD_DEFAULT) as brokers:
        here, there = (brokers.all[number].port for number in PAIR)
        subscriber = await Client().connect(here, "sub")
        publisher = await Client().connect(there, "pub")
        await subscriber.subscribe("meter/+")
        await publisher.publish("meter/1", b"before", 0)
        await until_got(subscriber, [b"before"])

        for number in range(250):  # a cut in the middle of traffic
            if number == 50:
                (brokers.network.cut if kind == "cut" else brokers.network.stall)(PAIR)
            assert await publisher.publish("meter/1", str(number).encode(), 1 + number % 2) != NO_SUBSCRIBERS
            await asyncio.sleep(0.02)
        await until_got(subscriber, numbers(250))
        await asyncio.sleep(NOTICED_S)

        for number in range(60):
            assert await publisher.publish("meter/1", str(number).encode(), number % 3) != NO_SUBSCRIBERS
        await until_got(subscriber, numbers(60))

        late = await Client().connect(here, "late")  # a subscription during the cut, to topics of which nobody knows
        await late.subscribe("other/#")
        for number in range(9):
            assert await publisher.publish("other/1", str(number).encode(), number % 3) != NO_SUBSCRIBERS
        await until_got(late, numbers(9))

        for number in range(150):  # and it heals in the middle of traffic
            if number == 30:
                brokers.network.heal_pair(PAIR)
            await publisher.publish("meter/1", str(number).encode(), 0)
            await asyncio.sleep(0.02)
        await until_got(subscriber, numbers(150))
        for client in (subscriber, publisher, late):
            client.close()
    for broker in brokers.all:
        assert "Traceback" not in broker.log, broker.log
