"""One run: brokers, clients, faults, quiet, verdict."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braidmq.mqtt.packets import V3, V5
from braidmq.pubsub.registry import METHOD_DEFAULT
from tests.chaos.breaking import Breaker
from tests.chaos.brokers import Brokers, network_of
from tests.chaos.chronicle import Chronicle
from tests.chaos.client import Client
from tests.chaos.faults import KINDS, plan
from tests.chaos.judge import Verdict, judge, missing
from tests.chaos.load import Publisher, Subscriber
from tests.chaos.network import Site
from tests.chaos.proxy import Proxy

SUBSCRIBED_S = 60.0
"""How long all subscriptions may take."""

CALM_S = 3.0
"""After the last arrival: time for what would come twice."""

PROGRESS_S = 10.0


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
    copies: int = 2
    roaming: float = 0.5
    """How many of the clients roam."""
    roam_s: float = 10.0
    """How long one of them stays at a broker."""
    network: str = Proxy.kind

    def describe(self) -> str:
        """What is run, for people."""
        return (
            f"{self.brokers} brokers (method {self.method}, security {self.security}, {self.copies} copies, "
            f"{self.network}), {self.clients} clients of which {self.roaming:.0%} roam every {self.roam_s:g} s, "
            f"{self.seconds:.0f} s with {', '.join(self.kinds) or 'no faults'} every {self.every_s:g} s, "
            f"seed {self.seed}"
        )


class Soak:
    def __init__(self, options: Options, folder: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self.options = options
        self.chronicle = Chronicle()
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []
        self.began_at = time.time()
        self.breaker: Breaker
        network = network_of(options.network)
        self.brokers = Brokers(options.brokers, folder, options.method, options.security, options.copies, network)
        self._folder = folder
        self._say_on = say
        self._chance = random.Random(options.seed)
        self._tasks: list[asyncio.Task[Any]] = []
        self._failed: list[BaseException] = []

    def say(self, text: str) -> None:
        self._say_on(f"[{time.time() - self.began_at:6.1f}] {text}")

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
        self.say(options.describe())
        await self.brokers.start()
        self.say(f"{options.brokers} brokers are in the braid")
        self._make_clients([broker.site for broker in self.brokers.all])
        self.breaker = Breaker(self.brokers, self.subscribers, self.clients, self.chronicle, self.say)
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
        roaming = [self._spawn(one.roam_regularly(options.roam_s)) for one in self.clients if one.roams]
        progress = self._spawn(self._tell_progress())
        await self.break_things()
        for task in (*publishing, *roaming, progress):
            task.cancel()
        self.say("all is whole again, nothing more is published")
        await self._be_quiet()
        for error in self._failed:
            raise error
        for broker in self.brokers.all:
            self.chronicle.learn_copies(broker.number, broker.log)
        return judge(self.publishers, self.subscribers, self.chronicle, self.began_at)

    async def break_things(self) -> None:
        options = self.options
        faults = plan(
            self._chance, options.seconds, options.every_s, options.brokers, len(self.subscribers), options.kinds
        )
        await self.breaker.run(faults, options.seconds)
        skipped = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.breaker.skipped.items()))
        told = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.breaker.carried_out.items()))
        self.say(f"faults: {told or 'none'}; left out, since another was under way: {skipped or 'none'}")

    # Clients

    @property
    def clients(self) -> list[Client]:
        return [*self.publishers, *self.subscribers]

    def _make_clients(self, sites: list[Site]) -> None:
        """Half of them publish, half subscribe, over all brokers, versions, QoS and kinds of filters."""
        options, chance = self.options, self._chance
        for number in range(options.clients // 2):
            name, group, broker = f"p{number}", number % options.groups, chance.randrange(options.brokers)
            topics = [f"soak/{group}", f"soak/{group}/{name}"]
            version, qos, roams = chance.choice((V3, V5)), chance.choice((1, 2)), chance.random() < options.roaming
            self.publishers.append(Publisher(name, sites, broker, version, self._client_chance(), topics, qos, roams))
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
            version, qos, roams = chance.choice((V3, V5)), chance.choice((1, 2)), chance.random() < options.roaming
            self.subscribers.append(
                Subscriber(f"s{number}", sites, broker, version, self._client_chance(), filters, qos, roams)
            )

    def _client_chance(self) -> random.Random:
        return random.Random(self._chance.getrandbits(64))

    # While it runs

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            published = sum(len(one.sent) for one in self.publishers)
            under_way = sum(len(one.under_way) for one in self.publishers)
            anew = sum(visit.is_anew for one in self.clients for visit in one.visits)
            twice = sum(len(one.got.twice) for one in self.subscribers)
            late = sum(len(one.got.late) for one in self.subscribers)
            self.say(
                f"… {published} published, {under_way} under way, {sum(len(one.got.first) for one in self.subscribers)}"
                f" deliveries, {twice} twice, {late} late, {anew} sessions anew; "
                f"{sum(one.is_connected for one in self.clients)} clients connected; load {os.getloadavg()[0]:.1f}"
            )

    async def _be_quiet(self) -> None:
        """Until everything has arrived, or for as long as it may take."""
        assert all(broker.is_up for broker in self.brokers.all)
        assert not self.brokers.network.broken
        began_at = time.monotonic()
        while time.monotonic() - began_at < self.options.quiet_s:
            await asyncio.sleep(0.5)
            left = missing(self.publishers, self.subscribers)
            if not left and not any(publisher.under_way for publisher in self.publishers):
                self.say(f"all has arrived after {time.monotonic() - began_at:.1f} s of quiet")
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
