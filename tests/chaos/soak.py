"""One run: brokers, clients, faults, quiet, verdict."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braidmq.mqtt.packets import V3, V5
from braidmq.pubsub.registry import METHOD_DEFAULT
from tests.chaos.brokers import Brokers
from tests.chaos.faults import KINDS, Fault, plan
from tests.chaos.judge import Verdict, judge, missing
from tests.chaos.load import Client, Publisher, Subscriber
from tests.chaos.proxy import pair_of

SUBSCRIBED_S = 30.0
"""How long all subscriptions may take."""

CALM_S = 3.0
"""After the last arrival: time for what would come twice."""


@dataclass(frozen=True)
class Options:
    brokers: int = 4
    clients: int = 36
    seconds: float = 40.0
    every_s: float = 2.0
    quiet_s: float = 60.0
    settle_s: float = 5.0
    rate: float = 2.0
    """Publications a second, of each publisher."""
    groups: int = 4
    seed: int = 1
    method: str = METHOD_DEFAULT
    security: str = "key"
    kinds: tuple[str, ...] = KINDS

    def describe(self) -> str:
        """What is run, for people."""
        return (
            f"{self.brokers} brokers (method {self.method}, security {self.security}), {self.clients} clients, "
            f"{self.seconds:.0f} s with {', '.join(self.kinds)} every {self.every_s:g} s, seed {self.seed}"
        )


class Soak:
    def __init__(self, options: Options, folder: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self.options = options
        self.say = say
        self._chance = random.Random(options.seed)
        self.brokers = Brokers(options.brokers, folder, random.Random(), options.method, options.security)
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._failed: list[BaseException] = []
        self._isolating: Counter[tuple[int, int]] = Counter()
        """By pair: how many faults break it now."""
        self._down: Counter[int] = Counter()
        self.began_at = time.time()

    async def run(self) -> Verdict:
        try:
            return await self._run()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.brokers.stop()

    async def _run(self) -> Verdict:
        options = self.options
        began = time.monotonic()
        self.say(options.describe())
        await self.brokers.start()
        self.say(f"{options.brokers} brokers are in the braid after {time.monotonic() - began:.1f} s")
        self._make_clients()
        for one in self.subscribers:
            self._spawn(one.run())
        async with asyncio.timeout(SUBSCRIBED_S):
            while any(one.subscribed_at is None for one in self.subscribers):  # noqa: ASYNC110 - many at once
                await asyncio.sleep(0.05)
        await asyncio.sleep(options.settle_s)
        self.began_at = time.time()
        publishing = []
        for publisher in self.publishers:
            self._spawn(publisher.run())
            publishing.append(self._spawn(publisher.publish_regularly(options.rate)))
        await self._break_things()
        for task in publishing:
            task.cancel()
        self.say(f"{self._time()} all is whole again, nothing more is published")
        await self._be_quiet()
        for error in self._failed:
            raise error
        return judge(self.publishers, self.subscribers, self.began_at)

    def _make_clients(self) -> None:
        """Half of them publish, half subscribe, over all brokers, versions, QoS and kinds of filters."""
        options, chance = self.options, self._chance
        for number in range(options.clients // 2):
            name, group, broker = f"p{number}", number % options.groups, chance.randrange(options.brokers)
            topics = [f"soak/{group}", f"soak/{group}/{name}"]
            port = self.brokers.all[broker].port
            version, qos = chance.choice((V3, V5)), chance.choice((1, 2))
            self.publishers.append(Publisher(name, broker, port, version, self._client_chance(), topics, qos))
        for number in range(options.clients - options.clients // 2):
            group, broker = number % options.groups, chance.randrange(options.brokers)
            publisher = chance.choice(self.publishers)
            filters = chance.choice(
                (
                    [f"soak/{group}"],
                    list(publisher.topics),
                    [f"soak/{group}/+"],
                    [f"soak/{group}/#"],
                    [f"soak/+/{publisher.name}"],
                    [f"soak/{group}/#", f"soak/{group}/+", f"soak/{group}"],
                    ["soak/#"],
                )
            )
            port = self.brokers.all[broker].port
            version, qos = chance.choice((V3, V5)), chance.choice((1, 2))
            one = Subscriber(f"s{number}", broker, port, version, self._client_chance(), filters, qos)
            self.subscribers.append(one)

    def _client_chance(self) -> random.Random:
        return random.Random(self._chance.getrandbits(64))

    # Faults

    async def _break_things(self) -> None:
        options = self.options
        faults = plan(
            self._chance, options.seconds, options.every_s, options.brokers, len(self.subscribers), options.kinds
        )
        began_at = time.monotonic()
        under_way = []
        for fault in faults:
            await asyncio.sleep(max(0.0, began_at + fault.at_s - time.monotonic()))
            self.say(f"{self._time()} {fault}")
            under_way.append(self._spawn(self._break(fault)))
        await asyncio.sleep(max(0.0, began_at + options.seconds - time.monotonic()))
        await asyncio.gather(*under_way)

    async def _break(self, fault: Fault) -> None:
        if fault.kind == "kill":
            await self._kill(self.brokers.all[fault.targets[0]].number, fault.lasts_s)
        elif fault.kind == "nap":
            client: Client = self.subscribers[fault.targets[0]]
            client.nap()
            await asyncio.sleep(fault.lasts_s)
            client.wake()
        elif fault.kind == "isolate":
            one = fault.targets[0]
            pairs = [pair_of(one, other) for other in range(self.options.brokers) if other != one]
            await self._part(pairs, fault.lasts_s)
        else:
            await self._part([pair_of(*fault.targets)], fault.lasts_s, is_stall=fault.kind == "stall")

    async def _kill(self, number: int, lasts_s: float) -> None:
        """A broker that is killed while it is down already stays down for longer."""
        broker = self.brokers.all[number]
        self._down[number] += 1
        await broker.kill()
        await asyncio.sleep(lasts_s)
        self._down[number] -= 1
        if not self._down[number] and not broker.is_up:
            await broker.start()
            self.say(f"{self._time()} b{number} {'is up again' if broker.is_up else 'was killed while it started'}")

    async def _part(self, pairs: list[tuple[int, int]], lasts_s: float, is_stall: bool = False) -> None:
        for pair in pairs:
            self._isolating[pair] += 1
            if is_stall:
                self.brokers.proxy.stall(pair)
            else:
                self.brokers.proxy.cut(pair)
        await asyncio.sleep(lasts_s)
        for pair in pairs:
            self._isolating[pair] -= 1
            if not self._isolating[pair]:
                self.brokers.proxy.heal(pair)

    # Quiet

    async def _be_quiet(self) -> None:
        """Until everything has arrived, or for as long as it may take."""
        assert all(broker.is_up for broker in self.brokers.all)
        assert not self.brokers.proxy.broken
        began_at = time.monotonic()
        while time.monotonic() - began_at < self.options.quiet_s:
            await asyncio.sleep(0.5)
            left = missing(self.publishers, self.subscribers)
            if not left and all(publisher.is_idle for publisher in self.publishers):
                self.say(f"{self._time()} all has arrived after {time.monotonic() - began_at:.1f} s of quiet")
                break
        await asyncio.sleep(CALM_S)

    def _spawn(self, procedure: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(procedure)
        task.add_done_callback(self._on_done)
        self._tasks.append(task)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed.append(error)
            self.say(f"{type(error).__name__}: {error}")

    def _time(self) -> str:
        return f"[{time.time() - self.began_at:6.1f}]"
