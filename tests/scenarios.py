"""Scenarios that know only `Host`, and the two worlds that they run in: the same result, the same hops.

A scenario is a procedure that runs at the first of its hosts and returns what came of it, without addresses.
`simulate` runs it in virtual time, `run_on_network` over loopback. Both return an `Outcome`: equal, if protocol and
worlds are right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from braidmq.host import Address, CallRefused, CallTimeout, Event, Forward, Host, Message, Service, ask, handles
from braidmq.net import NetHost
from braidmq.sim.engine import Simulator
from tests.patience import PATIENCE_S

TIME_MAX_S = PATIENCE_S

Scenario = Callable[[Sequence[Host]], Coroutine[Any, Any, object]]


@dataclass(frozen=True)
class Outcome:
    result: object
    heard: list[tuple[int, int, str, int]]
    """(sender, receiver, kind of message, hops) of all that arrived, sorted; a reply has 0 hops."""


class _Trace:
    """Hears of every message; hosts by their number, as their addresses differ between the worlds."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._numbers = {address: number for number, address in enumerate(addresses)}
        self.heard: list[tuple[int, int, str, int]] = []

    def note(self, sender: Address, to: Address, message: Message, hops: int) -> None:
        self.heard.append((self._numbers[sender], self._numbers[to], type(message).__name__, hops))

    def outcome(self, result: object) -> Outcome:
        return Outcome(result, sorted(self.heard))


def simulate(scenario: Scenario, host_count: int, seed: int = 1) -> Outcome:
    simulator = Simulator(seed)
    hosts = [simulator.host(number) for number in range(host_count)]
    trace = _Trace([host.address for host in hosts])
    simulator.on_message = trace.note
    results: list[object] = []

    async def run() -> None:
        results.append(await scenario(hosts))

    hosts[0].spawn(run())
    simulator.run(until=TIME_MAX_S)
    assert results, f"the scenario did not end within {TIME_MAX_S} s of virtual time"
    return trace.outcome(results[0])


async def run_on_network(scenario: Scenario, host_count: int, messages: Sequence[type[Message]]) -> Outcome:
    hosts = [NetHost("127.0.0.1:0", messages, name=f"host {number}") for number in range(host_count)]
    try:
        for host in hosts:
            await host.start()
        trace = _Trace([host.address for host in hosts])
        for host in hosts:
            host.on_message = trace.note
        async with asyncio.timeout(TIME_MAX_S):
            return trace.outcome(await scenario(hosts))
    finally:
        for host in hosts:
            await host.stop()


# Counting to and fro


class Count(Message):
    n: int


class Hail(Message):
    n: int


class Counter(Service):
    """Answers a count with the next, and hails until it was hailed 20 times."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.hailed: list[int] = []
        host.serve(self)

    @handles(Count)
    def on_count(self, origin: Address, count: Count) -> Count:
        return Count(count.n + 1)

    @handles(Hail)
    def on_hail(self, origin: Address, hail: Hail) -> None:
        self.hailed.append(hail.n)
        if hail.n < 20:
            self.host.send(origin, Hail(hail.n + 1))


async def ping_pong(hosts: Sequence[Host]) -> object:
    counters = [Counter(host) for host in hosts]
    here, there = hosts
    count = Count(0)
    for _ in range(50):
        count = await here.call(there.address, count, 5.0)
    here.send(there.address, Hail(1))
    while len(counters[1].hailed) + len(counters[0].hailed) < 20:
        await here.sleep(0.01)
    return count, counters[0].hailed, counters[1].hailed


# A ring that forwards


class Find(Message):
    key: int


class Found(Message):
    key: int
    owner: int


class Ask(Message):
    """To a host that is then to look for all keys itself."""

    keys: tuple[int, ...]


class Told(Message):
    owners: tuple[int, ...]


class RingNode(Service):
    """Owns one key, and passes on what is asked for others to the right."""

    def __init__(self, host: Host, key: int, right: Address) -> None:
        self.host = host
        self.key = key
        self.right = right
        host.serve(self)

    @handles(Find)
    def on_find(self, origin: Address, find: Find) -> Found | Forward:
        return Found(find.key, self.key) if find.key == self.key else Forward(self.right)

    @handles(Ask)
    def on_ask(self, origin: Address, ask: Ask) -> None:
        self.host.spawn(self.find_all(origin, ask.keys))

    async def find_all(self, origin: Address, keys: tuple[int, ...]) -> None:
        owners = []
        for key in keys:
            found = await self.host.call(self.host.address, Find(key), 5.0)
            owners.append(found.owner)
        self.host.send(origin, Told(tuple(owners)))


class Asker(Service):
    def __init__(self, host: Host) -> None:
        self.told: list[tuple[int, ...]] = []
        host.serve(self)

    @handles(Told)
    def on_told(self, origin: Address, told: Told) -> None:
        self.told.append(told.owners)


async def forwarding_ring(hosts: Sequence[Host]) -> object:
    """Every host finds every key, all at the same time."""
    for number, host in enumerate(hosts):
        RingNode(host, number, hosts[(number + 1) % len(hosts)].address)
    asker = Asker(hosts[0])
    for host in hosts:
        hosts[0].send(host.address, Ask(tuple(range(len(hosts)))))
    while len(asker.told) < len(hosts):
        await hosts[0].sleep(0.01)
    return asker.told


# What does not succeed


class Unheard(Message):
    pass


class Hush(Message):
    pass


class Round(Message):
    """Passed on as another message, back to the first caller."""

    home: Address


class Silent(Service):
    def __init__(self, host: Host) -> None:
        host.serve(self)

    @handles(Hush)
    def on_hush(self, origin: Address, hush: Hush) -> None:
        return None

    @handles(Round)
    def on_round(self, origin: Address, around: Round) -> Forward:
        return Forward(around.home, Unheard())


async def failures(hosts: Sequence[Host]) -> object:
    """A refusal, one from further on, and a time-out that another call does not wait for."""
    here, there = hosts
    Silent(there)
    ends: list[str] = []

    async def attempt(request: Message, timeout_s: float) -> None:
        try:
            await here.call(there.address, request, timeout_s)
        except (CallRefused, CallTimeout) as error:
            ends.append(f"{type(request).__name__}: {type(error).__name__}")

    here.spawn(attempt(Hush(), 2.0))
    await attempt(Unheard(), 5.0)
    await attempt(Round(here.address), 5.0)
    while len(ends) < 3:
        await here.sleep(0.01)
    return ends


# What is waited for


async def events(hosts: Sequence[Host]) -> object:
    """Waits that begin before and after an event is set, one that times out, and one that is cancelled."""
    here = hosts[0]
    event, ended = here.event(), here.event()
    went_on: list[object] = []

    async def wait_for(name: str, awaited: Event, timeout_s: float | None = None) -> None:
        went_on.append((name, await awaited.wait(timeout_s)))
        if name == "third":
            ended.set()

    never = here.event()
    cancelled = here.spawn(wait_for("cancelled", event))
    for name in ("first", "second", "third"):
        here.spawn(wait_for(name, event, None if name == "second" else 5.0))
    await wait_for("in vain", never, 0.02)
    await wait_for("not for a moment", never, 0.0)
    cancelled.cancel()
    event.set()
    event.set()
    went_on.append("set")
    await ended.wait()
    await wait_for("later", event)
    await wait_for("later still", event, 0.0)
    return went_on, event.is_set, never.is_set


# What is asked


class Knock(Message):
    """Answered from the so-manieth time on."""

    times: int


class Open(Message):
    times: int


class Locked(Message):
    pass


class Porter(Service):
    def __init__(self, host: Host) -> None:
        self.knocks = 0
        host.serve(self)

    @handles(Knock)
    def on_knock(self, origin: Address, knock: Knock) -> Open | Locked | None:
        self.knocks += 1
        if not knock.times:
            return Locked()
        return Open(self.knocks) if self.knocks >= knock.times else None


async def questions(hosts: Sequence[Host]) -> object:
    """What becomes of a question, and how often it was heard."""
    here, there = hosts
    porter = Porter(there)
    told: list[object] = []

    async def knock(times: int, *, tries: int) -> None:
        porter.knocks = 0
        told.append((await ask(here, there.address, Knock(times), Open, timeout_s=0.2, tries=tries), porter.knocks))

    await knock(1, tries=1)
    await knock(3, tries=3)
    await knock(3, tries=2)
    await knock(0, tries=3)  # another answer than was asked for
    either = await ask(here, there.address, Knock(0), (Open, Locked), timeout_s=5.0)
    any_at_all = await ask(here, there.address, Knock(0), Message, timeout_s=5.0)
    refused = await ask(here, there.address, Unheard(), Open, timeout_s=5.0, tries=3)
    began_at, porter.knocks = here.now(), 0
    paused = await ask(here, there.address, Knock(2), Open, timeout_s=0.1, tries=2, pause_s=0.3)
    return told, either, any_at_all, refused, paused, here.now() - began_at >= 0.4
