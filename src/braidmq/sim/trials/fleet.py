"""A trial of a fleet: what it takes to keep up, who knows what, and how soon first messages and subscriptions work.

The network grows by messages, nothing of it is laid out: every broker enters, its applications and devices subscribe,
its devices publish for the first time. Then it is left alone for a while, for what upkeep takes, and then come first
messages of devices, commands, topics that nobody has thought of before, and new subscriptions (`fleet_plan`).

A method that is not given filters with wildcards is played as brokers have used it: a key for each topic and filter.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from math import ceil
from statistics import fmean
from typing import Any, cast

import msgspec

from braidmq.host import Address, Message
from braidmq.keys import Role, key_of
from braidmq.overlay import Overlay
from braidmq.pubsub.covers.covers import Covers
from braidmq.pubsub.method import HOME, Method, Publication, WildcardMethod
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.engine import Simulator
from braidmq.sim.host import SimHost
from braidmq.sim.trials.figures import FleetFigures
from braidmq.sim.trials.fleet_plan import FleetPlan
from braidmq.sim.trials.meter import Meter, Tally, number_of
from braidmq.sim.trials.methods import Options, TrialMethod, build, name_of

START_EVERY_S = 0.1
"""The time between two brokers that start."""

AT_A_TIME = 64
"""Subscriptions and topics of one broker that are under way at a time: so many clients of it come at once."""

GROWN_MAX_S = 7_200.0
"""How long it may take until all that was asked for has taken effect."""

REST_S = 30.0
"""How long the network is left alone before anything is measured."""

UPKEEP_S = 60.0
"""How long what upkeep takes is measured."""

EVERY_S = 0.01
"""The time between two first messages, and between two subscriptions."""

OVER_S = 10.0
"""When nothing was heard of any publication for so long, they are over."""

FIRST_MESSAGES = 2_000
COMMANDS = 1_000
ALARMS = 200
SUBSCRIPTIONS = 200
"""How many are measured where nothing else is said; of other numbers of first messages, the same shares."""

KEYS_MAX = 300_000
"""Keys that can join in reasonable time, where each topic and filter is one."""

OnProgress = Callable[[str, float], None]


class FleetTrial:
    """One trial under way."""

    def __init__(
        self,
        sim: Simulator,
        kind: TrialMethod,
        options: Options,
        plan: FleetPlan,
        complaints: Complaints,
        on_progress: OnProgress,
    ) -> None:
        self.sim = sim
        self.kind = kind
        self.options = options
        self.plan = plan
        self.complaints = complaints
        self.on_progress = on_progress
        self.tally = Tally()
        self.methods: dict[int, Method] = {}
        self.overlays: dict[int, Overlay] = {}
        self.takes_filters = kind.entry.takes_filters
        self.is_in: dict[int, None] = {}
        self.is_ready: dict[int, None] = {}
        """The brokers for which all that was asked for has taken effect."""
        self.keys_wanted: dict[int, dict[str, None]] = {}
        """The keys of which a broker was told that they are wanted, where it is told."""
        self.upkeep_messages = 0
        self.upkeep_bytes = 0
        self.first_s: list[float] = []
        self.command_s: list[float] = []
        self.new_topic_s: list[float] = []
        self.effect_s: list[float] = []
        self._meter: Meter | None = None
        self._asked_at: dict[int, tuple[int, float, list[float]]] = {}
        """Of publications: their broker, when the first step for them was made, and where their delays are noted."""

    def measure(self, first_messages: int | None) -> FleetFigures:
        """Once it is grown."""
        built_s = self.sim.now
        self.sim.run(self.sim.now + REST_S)
        self._keep_up()
        keys = [len(overlay.view.own) for overlay in self.overlays.values()]
        tables = [len(overlay.view.entries) for overlay in self.overlays.values()]
        wants = [self._wants_known(broker) for broker in self.methods]
        met = [self._brokers_met(broker) for broker in self.methods]
        seconds = UPKEEP_S * len(self.methods)
        self._publish_first(FIRST_MESSAGES if first_messages is None else first_messages)
        return FleetFigures(
            keys_mean=fmean(keys),
            keys_max=max(keys),
            table_mean=fmean(tables),
            table_max=max(tables),
            wants_known_mean=fmean(wants),
            wants_known_max=max(wants),
            met_mean=fmean(met),
            met_max=max(met),
            upkeep_messages_per_s=self.upkeep_messages / seconds,
            upkeep_bytes_per_s=self.upkeep_bytes / seconds,
            first_p50_s=quantile_of(self.first_s, 0.5),
            first_p99_s=quantile_of(self.first_s, 0.99),
            command_p50_s=quantile_of(self.command_s, 0.5),
            command_p99_s=quantile_of(self.command_s, 0.99),
            new_topic_p50_s=quantile_of(self.new_topic_s, 0.5),
            new_topic_p99_s=quantile_of(self.new_topic_s, 0.99),
            effect_p50_s=quantile_of(self.effect_s, 0.5),
            effect_p99_s=quantile_of(self.effect_s, 0.99),
            grown_s=built_s,
        )

    # The network grows

    def grow(self) -> None:
        """Until all that brokers, applications and devices ask for has taken effect."""
        brokers = self.plan.brokers
        for broker in range(brokers):
            self.sim.at(broker * START_EVERY_S, partial(self._start, broker))
        until = self.sim.now + GROWN_MAX_S
        while len(self.is_ready) < brokers and self.sim.now < until:
            self.sim.run(self.sim.now + 1.0)
            self.on_progress("the network grows", len(self.is_ready) / brokers)
        late = [broker for broker in self.methods if broker not in self.is_ready]
        self.complaints.add(f"broker {broker} has not got all that it asked for" for broker in late)

    def _start(self, broker: int) -> None:
        host = self.sim.host(broker)
        method = build(self.kind.entry, host, broker, self._introduce, self.options)
        self.methods[broker] = method
        self.overlays[broker] = cast(Any, method).overlay
        self.keys_wanted[broker] = {}
        method.on_message = partial(self._on_message, broker)
        method.on_demand = partial(self._on_demand, broker)
        host.spawn(self._enter(broker, host, method))

    def _introduce(self) -> Address | None:
        return self.sim.chance.choice(list(self.is_in)) if self.is_in else None

    async def _enter(self, broker: int, host: SimHost, method: Method) -> None:
        overlay, home = self.overlays[broker], key_of(HOME, Role.PUBLISHER, "", name_of(broker))
        if self.is_in:
            await overlay.join(home)
        else:
            overlay.found(home)
        self.is_in[broker] = None
        if self.takes_filters:
            await method.subscribe(HOME)
            await method.advertise(HOME)
        await self._each(host, map(method.subscribe, self.plan.wanted_by_applications(broker)))
        await self._each(host, map(method.subscribe, self.plan.wanted_by_devices(broker)))
        await self._each(host, self._first_topics(broker, method))
        self.is_ready[broker] = None

    def _first_topics(self, broker: int, method: Method) -> Iterator[Coroutine[Any, Any, None]]:
        """What is to be done for the topics of a broker before anything is published on them."""
        if self.takes_filters:
            knows = cast(WildcardMethod, method).knows
            yield from (method.advertise(topic) for topic in self.plan.published(broker) if not knows(topic))
        else:
            keys = (name for topic in self.plan.published(broker) for name in self.plan.keys_published(topic))
            yield from (method.advertise(name) for name in keys)

    async def _each(self, host: SimHost, procedures: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Runs them all, some at a time."""
        left = iter(procedures)
        working = AT_A_TIME
        done = host.event()

        async def work() -> None:
            nonlocal working
            for procedure in left:
                await procedure
            working -= 1
            if not working:
                done.set()

        for _ in range(AT_A_TIME):
            host.spawn(work())
        await done.wait()

    # Left alone

    def _keep_up(self) -> None:
        """Counts all that brokers send each other while nothing changes."""
        encode = msgspec.msgpack.Encoder().encode

        def count(sender: Address, to: Address, message: Message, hops: int, _delays: tuple[float, ...]) -> None:
            if sender != to:
                self.upkeep_messages += 1
                self.upkeep_bytes += len(encode((0, hops, message)))  # as a Tell travels between brokers

        self.on_progress("the network is left alone", 0.0)
        self.sim.on_send = count
        self.sim.run(self.sim.now + UPKEEP_S)
        self.sim.on_send = None

    # What is measured

    def _publish_first(self, count: int) -> None:
        plan, chance = self.plan, self.sim.chance
        self._meter = Meter(self.sim, self.options.clusters)
        for number in range(count):
            site, device = chance.randrange(plan.brokers), plan.topics + number  # a device that is new
            topic, receivers = plan.telemetry(site, device), plan.wanting_telemetry(site, device)
            self._later(site, self._publish(site, topic, receivers, self.first_s))
        self._until_over("first messages")
        for _ in range(count * COMMANDS // FIRST_MESSAGES):
            broker = chance.randrange(plan.brokers)
            site, device = plan.commanded[broker][0][0], chance.randrange(plan.filters)
            self._later(broker, self._publish(broker, plan.command(site, device), (site,), self.command_s))
        self._until_over("commands")
        for number in range(count * ALARMS // FIRST_MESSAGES):
            site = chance.randrange(plan.brokers)
            receivers = plan.wanting_alarm(site)
            self._later(site, self._publish(site, plan.alarm(site, number), receivers, self.new_topic_s))
        self._until_over("new topics")
        for _ in range(count * SUBSCRIPTIONS // FIRST_MESSAGES):
            broker, site, device = (chance.randrange(most) for most in (plan.brokers, plan.brokers, plan.topics))
            if broker != site and broker not in plan.wanting_telemetry(site, device):
                self._later(broker, self._subscribe(broker, site, device))
        self._until_over("new subscriptions")

    def _later(self, broker: int, procedure: Coroutine[Any, Any, None]) -> None:
        """Lets a broker do something, a moment after the last one."""
        self.sim.run(self.sim.now + EVERY_S)
        self.sim.hosts[broker].spawn(procedure)

    async def _publish(self, broker: int, topic: str, receivers: tuple[int, ...], delays_s: list[float]) -> None:
        """A first message: what its topic still takes counts as well."""
        method, asked_at = self.methods[broker], self.sim.now
        names: tuple[str, ...] = (topic,)
        if not self.takes_filters:
            names = self.plan.keys_published(topic)
            for name in names:
                await method.advertise(name)
        elif not cast(WildcardMethod, method).knows(topic):
            await method.advertise(topic)
        assert self._meter is not None
        body = self._meter.begin(topic, broker, receivers, (broker, *receivers))
        self._asked_at[number_of(body) or 0] = (broker, asked_at, delays_s)
        is_sent = [method.publish(name, body) for name in names]
        self.tally.suspended += not any(is_sent)

    async def _subscribe(self, broker: int, site: int, device: int) -> None:
        """An application begins to want a device's telemetry; from the moment that it is told so, it must get it."""
        asked_at, topic = self.sim.now, self.plan.telemetry(site, device)
        await self.methods[broker].subscribe(topic)
        self.effect_s.append(self.sim.now - asked_at)
        self.plan.watch(broker, site, device)
        receivers = self.plan.wanting_telemetry(site, device)
        self.sim.hosts[site].spawn(self._publish(site, topic, receivers, []))

    def _until_over(self, what: str) -> None:
        assert self._meter is not None
        self.on_progress(what, 0.0)
        self.sim.run(self.sim.now + OVER_S)
        while self.sim.now < self._meter.heard_at + OVER_S:
            self.sim.run(self._meter.heard_at + OVER_S)
        self._meter.close(self.tally, self.complaints, self.takes_filters)

    def _on_message(self, broker: int, publication: Publication) -> None:
        assert self._meter is not None
        publisher, asked_at, delays_s = self._asked_at[number_of(publication.body) or 0]
        if broker != publisher:  # some methods bring a broker what it publishes itself
            delays_s.append(self.sim.now - asked_at)
            self._meter.received(broker, publication)

    def _on_demand(self, broker: int, topic: str, wanted: bool) -> None:
        if wanted:
            self.keys_wanted[broker][topic] = None
        else:
            self.keys_wanted[broker].pop(topic, None)

    # Who knows what

    def _wants_known(self, broker: int) -> int:
        """Filters of other brokers that a broker knows of; of a key a topic, those of its keys that are wanted."""
        method = self.methods[broker]
        return method.wants_known if isinstance(method, Covers) else len(self.keys_wanted[broker])

    def _brokers_met(self, broker: int) -> int:
        method = self.methods[broker]
        return method.subscribers if isinstance(method, Covers) else 0


def quantile_of(values: list[float], share: float) -> float:
    """The least value that so large a share does not exceed; 0 if there are none."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)] if values else 0.0
