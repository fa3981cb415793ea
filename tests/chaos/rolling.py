"""A rolling restart: brokers are drained and started again, one after the other, under clients that roam.

MQTT 5 clients follow the Server Reference that they are given; others, and those that are given none, go to the next
broker. Publishers and subscribers do the same. `python -m tests.chaos.rolling [SEED]` runs it alone, and tells more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.brokers import BrokerProcess, free_ports
from tests.chaos.judge import Verdict, judge, missing
from tests.chaos.load import Client, Publisher, Subscriber
from tests.cli.commands import environment

RETRY_S = 0.1
"""How long a client waits before it connects again."""

QUIET_S = 20.0
"""How long what is missing at the end may take."""

DRAIN_S = 30.0
TOPICS = 6


class Roamer(Client):
    """A client that goes where it is sent, or to the next broker."""

    ports: list[int]

    async def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._connect()
            self.is_connected = False
            if self.reference is not None and self.version == 5:
                self.broker = self.ports.index(int(self.reference.rpartition(":")[2]))
            else:
                self.broker = (self.broker + 1) % len(self.ports)
            self.port = self.ports[self.broker]
            await asyncio.sleep(RETRY_S * self.chance.uniform(0.5, 1.5))


class RoamingPublisher(Roamer, Publisher):
    pass


class RoamingSubscriber(Roamer, Subscriber):
    pass


class RollingRestart:
    def __init__(self, count: int, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self.chance = random.Random(seed)
        self._say = say
        ports = free_ports(3 * count, self.chance)
        self.clients, braid, self._admin = ports[:count], ports[count : 2 * count], ports[2 * count :]
        addresses = [f"127.0.0.1:{port}" for port in braid]
        self.brokers = []
        for number in range(count):
            arguments = ["--braid", addresses[number], "--admin-port", str(self._admin[number])]
            for setting in (f"braid.name=b{number}", f"listeners[0].advertise=127.0.0.1:{self.clients[number]}"):
                arguments += ["--set", setting]
            seeds = [one for one in addresses if one != addresses[number]]
            self.brokers.append(BrokerProcess(number, folder / f"b{number}", self.clients[number], arguments, seeds))
        self.publishers: list[RoamingPublisher] = []
        self.subscribers: list[RoamingSubscriber] = []

    async def run(self, rate: float, publishers: int, subscribers: int) -> Verdict:
        """`rate` is of each publisher, in a second."""
        first, *rest = self.brokers
        await first.start(is_founder=True)
        await first.wait_until_in()
        await asyncio.gather(*(one.start() for one in rest))
        await asyncio.gather(*(one.wait_until_in() for one in rest))
        tasks = [asyncio.create_task(one.run()) for one in self._make_clients(publishers, subscribers)]
        try:
            await _until(lambda: all(one.subscribed_at is not None for one in self.subscribers), QUIET_S)
            began_at = time.time()
            publishing = [asyncio.create_task(one.publish_regularly(rate)) for one in self.publishers]
            tasks += publishing
            await asyncio.sleep(1)
            for broker in self.brokers:
                await self._restart(broker, began_at)
            await asyncio.sleep(1)
            for task in publishing:
                task.cancel()
            with contextlib.suppress(TimeoutError):
                await _until(self._is_all_there, QUIET_S)
            return judge([*self.publishers], [*self.subscribers], began_at)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, *(one.kill() for one in self.brokers), return_exceptions=True)

    def _make_clients(self, publishers: int, subscribers: int) -> list[Client]:
        topics = [f"tide/{number}" for number in range(TOPICS)]
        for number in range(publishers):
            at = number % len(self.brokers)
            some = self.chance.sample(topics, 2)
            name, version, qos = f"p{number}", 4 + number % 2, 1 + number // 2 % 2
            self.publishers.append(
                RoamingPublisher(name, at, self.clients[at], version, self._chance_of(number), some, qos)
            )
        for number in range(subscribers):
            at = number % len(self.brokers)
            some = ["tide/#"] if number % 3 == 0 else [f"tide/{number % TOPICS}", f"tide/{(number + 1) % TOPICS}"]
            name, version, qos = f"s{number}", 4 + number % 2, 1 + number // 2 % 2
            self.subscribers.append(
                RoamingSubscriber(name, at, self.clients[at], version, self._chance_of(100 + number), some, qos)
            )
        clients: list[Any] = [*self.publishers, *self.subscribers]
        for one in clients:
            one.ports = self.clients
        return clients

    def _chance_of(self, number: int) -> random.Random:
        return random.Random(self.chance.random() + number)

    async def _restart(self, broker: BrokerProcess, began_at: float) -> None:
        admin = f"http://127.0.0.1:{self._admin[broker.number]}"
        command = [sys.executable, "-m", "braidmq", "drain", "--admin", admin, "--json", "--timeout", str(DRAIN_S)]
        drain = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment()
        )
        out, err = await drain.communicate()
        assert drain.returncode == 0, f"b{broker.number} is not drained: {err.decode()}\n{broker.log[-2000:]}"
        told = json.loads(out.splitlines()[-1])
        assert told["outcome"] == "empty", told
        self._say(f"{time.time() - began_at:5.1f} s: b{broker.number} is drained: {told}")
        assert await broker.wait_until_ended() == 0
        times = broker.log.count("is in the braid")
        await broker.start()
        await broker.wait_until_in(times + 1)

    def _is_all_there(self) -> bool:
        is_idle = all(one.is_idle for one in self.publishers)
        return is_idle and not missing(self.publishers, self.subscribers)


async def _until(condition: Callable[[], bool], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - clients come and go
            await asyncio.sleep(0.1)


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    folder = Path(tempfile.mkdtemp(prefix="rolling-"))
    rolling = RollingRestart(5, folder, seed, print)
    began_at = time.monotonic()
    verdict = asyncio.run(rolling.run(rate=10, publishers=10, subscribers=12))
    print(*verdict.lines(), sep="\n")
    waits = sorted(wait for one in (*rolling.publishers, *rolling.subscribers) for wait in one.connect_s)
    print(f"{len(waits)} connects: median {waits[len(waits) // 2]:.3f} s, longest {waits[-1]:.3f} s")
    print(f"{time.monotonic() - began_at:.1f} s; logs and data are in {folder}")


if __name__ == "__main__":
    main()
