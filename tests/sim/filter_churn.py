"""Brokers whose clients want and publish by all kinds of filters and topics, which come and go: by seeds.

A run has 4 to 12 brokers with a `WildcardMethod` and no MQTT core. For a minute or two of virtual time clients
subscribe, unsubscribe and publish, proven and not, one by one and devices by the hundred, while brokers come and leave.
Seeds that are no multiple of three have faults as well: messages are lost, doubled and late, the network is cut in two,
and brokers crash and return with what their clients still want. All the time an `ArrivalChecker` watches that nothing
arrives where nobody wants it; without faults, also that everything arrives that was promised. Once it is calm, every
broker must know exactly who wants what.

    python -m tests.soak --overlay filters:covers --first SEED --seeds 1     # a seed once more
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

import msgspec

from braidmq.host import Address, Message
from braidmq.keys import Role, is_within, key_of
from braidmq.mqtt.topics import matches
from braidmq.overlay import Introduce, Overlay
from braidmq.overlay.ranges import Outcome
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.pubsub.method import Publication, WildcardMethod
from braidmq.pubsub.registry import METHODS, MethodSettings, OverlaySettings
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.checkers.wants import ARRIVED_S, CALM_WINDOW_S, ArrivalChecker, Want, WantLedger
from braidmq.sim.checkers.watch import RuleWatch, joined_keys_are_unique, left_links_never_go_back
from braidmq.sim.engine import SimHost, Simulator
from braidmq.sim.trials.meter import body_of, number_of, publication_of
from braidmq.sim.trials.methods import CALM_S, name_of
from tests.simulated import FaultyNetwork

HOME = ""
"""What every broker subscribes to and publishes: where it stands itself."""

BROKERS = (4, 12)
LIVING_MIN = 3
"""So few are spared by crashes, so that there is a network to return to."""

CHURN_S = (60.0, 120.0)
START_EVERY_S = 0.2
STEP_MAX_S = 0.4
"""The time between two things that clients do, at most."""

DEVICES = (20, 150)
"""How many devices come at a time."""

SETTLED_S = 60.0
"""What it may take at the end until the last that was asked for has taken effect."""

FAULTY_WINDOW_S = 180.0
"""As long as a broker that was cut off or has crashed may be sent what it wanted before: until it is known."""

PROOF_S = 10.0
TOPICS_CHECKED = 40
"""Topics of a broker that are looked at in the end, besides some that it never published."""

WORDS = ("a", "b", "c", "", "dev", "$x")
CLUSTERS = ("", "north", "south", "south/one")
FAULTS = 0.02


class Site(msgspec.Struct, eq=False):
    """What the clients of a broker want and publish; it outlives a crash."""

    number: int
    cluster: str
    method: WildcardMethod | None = None
    incarnation: int = 0
    wants: dict[str, Want] = msgspec.field(default_factory=dict)
    topics: dict[str, None] = msgspec.field(default_factory=dict)
    demand: dict[str, bool] = msgspec.field(default_factory=dict)
    """Of some topics: whether they are wanted, as it was when `on_wants` last said that it may have changed."""
    is_in: bool = False
    """Whether it has entered; before that clients wait."""


Build = Callable[[SimHost, Introduce, str, str], WildcardMethod]
"""Builds a broker's method, with the name and the cluster of the broker."""


def built(method: str) -> Build:
    """As the registry says."""
    entry = next(entry for name, entry in METHODS.items() if name == method)

    def build(host: SimHost, introduce: Introduce, name: str, cluster: str) -> WildcardMethod:
        vector = partial(host.chance.getrandbits, DIGITS_MAX)
        settings = OverlaySettings(host=host, introduce=introduce, vector=vector, incarnation=host.incarnation)
        stay = MethodSettings(name=name, cluster=cluster, incarnation=host.incarnation)
        made = entry.build_method(entry.build_overlay(settings), stay)
        assert isinstance(made, WildcardMethod)
        return made

    return build


class FilterChurn:
    """One run."""

    def __init__(self, seed: int, build: Build, *, has_faults: bool | None = None) -> None:
        self.chance = Random(seed)
        self.build = build
        self.has_faults = seed % 3 != 0 if has_faults is None else has_faults
        self.brokers = self.chance.randint(*BROKERS)
        self.churn_from = 5.0 + self.brokers * START_EVERY_S
        self.churn_until = self.churn_from + self.chance.uniform(*CHURN_S)
        cut_at = self.chance.uniform(self.churn_from, self.churn_until - 30)
        cut = (cut_at, cut_at + self.chance.uniform(5, 30)) if self.chance.random() < 0.5 else None
        network = FaultyNetwork(FAULTS, cut, self.churn_until) if self.has_faults else FaultyNetwork(0.0)
        self.sim = Simulator(seed, network)
        self.complaints = Complaints()
        self.ledger = WantLedger(self._now, FAULTY_WINDOW_S + 2 * CHURN_S[1])
        self.checker = ArrivalChecker(self._now, self.ledger, self.complaints)
        self.checker.window_s = FAULTY_WINDOW_S if self.has_faults else CALM_WINDOW_S
        self.over_s = 4 * FAULTY_WINDOW_S if self.has_faults else ARRIVED_S
        self.sites: dict[int, Site] = {}
        self.under_way: dict[str, int] = {}
        """What clients wait for, by what it is."""
        self.number = 0
        self.sim.on_message = self._on_arrival
        RuleWatch(self.sim, [joined_keys_are_unique(self.sim), left_links_never_go_back(self.sim)], self.complaints)

    def _now(self) -> float:
        return self.sim.now

    # The run

    def run(self) -> list[str]:
        """What is wrong, in words; nothing if all is well."""
        for number in range(self.brokers):
            self.sites[number] = Site(number, self.chance.choice(CLUSTERS))
            self.sim.at(1.0 + number * START_EVERY_S, partial(self.start, self.sites[number]))
        self.sim.run(self.churn_from)
        while self.sim.now < self.churn_until:
            self.step()
            self.sim.run(self.sim.now + self.chance.uniform(0, STEP_MAX_S))
            self.checker.over(self.over_s)
        self.sim.run(self.sim.now + (CALM_S if self.has_faults else ARRIVED_S))
        self._settle()  # what waits to be known is published only then
        self.sim.run(self.sim.now + ARRIVED_S)
        self.checker.over(0.0)
        self.checker.window_s = CALM_WINDOW_S
        self.check_all()
        return self.complaints.first

    def check_all(self) -> None:
        """It is calm: all that was asked for has taken effect, and all brokers know who wants what."""
        asked: list[tuple[Site, str]] = []
        for site in self.living():
            topics = list(site.topics)
            self.chance.shuffle(topics)
            topics = topics[:TOPICS_CHECKED] + [self.a_topic() for _ in range(TOPICS_CHECKED // 2)]
            asked += [(site, topic) for topic in dict.fromkeys(topics)]
        for site, topic in asked:
            self.do(site, f"the advertising of {topic!r}", self._make_known(site, topic))
        self._settle()
        self.complaints.add(f"{what} has not taken effect" for what in self.under_way)
        for site, topic in asked:
            self.check_topic(site, topic)
        for site in self.living():
            for topic, wanted in site.demand.items():
                if site.method is not None and site.method.is_wanted(topic) != wanted:
                    self.complaints.add([f"broker {site.number} was not told that demand for {topic!r} has changed"])
        for position, (site, topic) in enumerate(asked):
            how = ("publish", "surely")[position % 2]
            self.sim.at(self.sim.now + position * 0.01, partial(self.publish, site, topic, how, is_calm=True))
        self.sim.run(self.sim.now + len(asked) * 0.01 + PROOF_S + ARRIVED_S)
        self.checker.over(0.0)

    def _settle(self) -> None:
        """Until all that was asked for has taken effect, or that takes too long."""
        until = self.sim.now + SETTLED_S
        while self.under_way and self.sim.now < until:
            self.sim.run(self.sim.now + 1.0)

    def check_topic(self, site: Site, topic: str) -> None:
        method = site.method
        assert method is not None
        others = [broker for broker in self.ledger.wanting(topic) if broker != site.number]
        if not method.knows(topic):
            self.complaints.add([f"broker {site.number} does not know who wants {topic!r}, though it was advertised"])
        if method.is_wanted(topic) != bool(others):
            self.complaints.add(
                [f"broker {site.number} says of {topic!r}: wanted {method.is_wanted(topic)}; it is by {others}"]
            )

    def living(self) -> list[Site]:
        return [site for site in self.sites.values() if site.is_in]

    # Brokers

    def start(self, site: Site) -> None:
        """A broker begins an incarnation; its clients come back with what they want."""
        host = self.sim.hosts.get(site.number) or self.sim.host(site.number)
        host.restart()
        site.incarnation = host.incarnation
        introduce = partial(self._introduce, site.number)
        method = site.method = self.build(host, introduce, name_of(site.number), site.cluster)
        method.on_message = partial(self._on_message, site, host.incarnation)
        method.on_wants = partial(self._on_wants, site)
        site.demand.clear()
        self.do(site, "its entering", self._enter(site, method))

    async def _enter(self, site: Site, method: WildcardMethod) -> None:
        overlay: Overlay | None = getattr(method, "overlay", None)
        home = key_of(HOME, Role.PUBLISHER, "", name_of(site.number))
        if overlay is not None and overlay.introduce() is None:
            overlay.found(home)
        elif overlay is not None:
            await overlay.join(home)
        await method.subscribe(HOME)
        await method.advertise(HOME)
        site.is_in = True
        for topic_filter in list(site.wants):
            self.subscribe(site, topic_filter)

    def _introduce(self, mine: int) -> Address | None:
        inside = [site.number for site in self.living() if site.number != mine]
        return self.sim.chance.choice(inside) if inside else None

    def crash(self, site: Site) -> None:
        """Gone without a word; some of its clients do not come back."""
        self.sim.hosts[site.number].crash()
        self._forget(site)
        if self.chance.random() < 0.5:
            kept = [topic_filter for topic_filter in site.wants if self.chance.random() < 0.5]
            site.wants = {topic_filter: site.wants[topic_filter] for topic_filter in kept}
        site.topics.clear()

    def _forget(self, site: Site) -> None:
        site.method, site.is_in = None, False
        self.ledger.end_all(site.number)
        for what in [what for what in self.under_way if what.startswith(f"broker {site.number}:")]:
            del self.under_way[what]

    def leave(self, site: Site) -> None:
        """Gives all back, and is gone then."""
        method = site.method
        assert method is not None
        site.is_in = False
        for topic_filter in list(site.wants):
            self.unsubscribe(site, topic_filter)
        for topic in list(site.topics):
            self.withdraw(site, topic)
        mine = f"broker {site.number}: the "

        async def go() -> None:
            while any(what.startswith(mine) for what in self.under_way):
                await self.sim.hosts[site.number].sleep(0.1)
            leave: Callable[[], Coroutine[Any, Any, None]] | None = getattr(method, "leave", None)
            if leave is not None:
                await leave()
            await method.withdraw(HOME)
            await method.unsubscribe(HOME)
            overlay: Overlay | None = getattr(method, "overlay", None)
            if overlay is not None:
                await overlay.leave(key_of(HOME, Role.PUBLISHER, "", name_of(site.number)))
            self._forget(site)
            self.sim.hosts[site.number].crash()

        self.do(site, "its leaving", go())

    def return_one(self) -> None:
        gone = [site for site in self.sites.values() if site.method is None]
        if gone and self.chance.random() < 0.8:
            self.start(self.chance.choice(gone))
        elif len(self.sites) < BROKERS[1]:
            site = self.sites[len(self.sites)] = Site(len(self.sites), self.chance.choice(CLUSTERS))
            self.start(site)

    def do(self, site: Site, what: str, procedure: Coroutine[Any, Any, object]) -> None:
        """A broker does something that takes time; in the end nothing of it may be left."""
        what = f"broker {site.number}: {what}"
        incarnation = site.incarnation

        async def follow() -> None:
            await procedure
            if site.incarnation == incarnation and what in self.under_way:
                self.under_way[what] -= 1
                if not self.under_way[what]:
                    del self.under_way[what]

        self.under_way[what] = self.under_way.get(what, 0) + 1
        self.sim.hosts[site.number].spawn(follow())

    # What clients do

    def step(self) -> None:
        """One of these, by chance."""
        living = self.living()
        if len(living) < LIVING_MIN:
            self.return_one()
            return
        site = self.chance.choice(living)
        deeds: list[tuple[int, Callable[[Site], object]]] = [
            (30, lambda site: self.publish_some(site)),
            (12, lambda site: self.subscribe(site, self.a_filter())),
            (8, self.unsubscribe_one),
            (2, self.devices_come),
            (2, self.devices_go),
            (3, self.topics_come),
            (2, self.withdraw_some),
            (1, lambda _: self.return_one()),
        ]
        if len(living) > LIVING_MIN:
            deeds.append((1, self.leave))
            if self.has_faults:
                deeds += [(1, self.crash), (1, lambda _: self.return_one())]
        self.chance.choices([deed for _, deed in deeds], [weight for weight, _ in deeds])[0](site)

    def subscribe(self, site: Site, topic_filter: str) -> None:
        want = site.wants[topic_filter] = self.ledger.begin(site.number, topic_filter)
        self.do(site, f"the subscription to {topic_filter!r}", self._subscribe(site, topic_filter, want))

    async def _subscribe(self, site: Site, topic_filter: str, want: Want) -> None:
        method = site.method
        assert method is not None
        await method.subscribe(topic_filter)
        if want.effective_at is None:
            want.effective_at = self.sim.now

    def unsubscribe(self, site: Site, topic_filter: str) -> None:
        assert site.method is not None
        del site.wants[topic_filter]
        self.ledger.end(site.number, topic_filter)
        self.do(site, f"the end of {topic_filter!r}", site.method.unsubscribe(topic_filter))

    def unsubscribe_one(self, site: Site) -> None:
        if site.wants:
            topic_filter = self.chance.choice(list(site.wants))
            self.unsubscribe(site, topic_filter)
            if self.chance.random() < 0.2:  # a client that thinks better of it
                self.subscribe(site, topic_filter)

    def devices_come(self, site: Site) -> None:
        """Many filters of one form at once: covers become broader."""
        first, form = self.chance.randrange(1_000), self.chance.choice(("cmd/{}/#", "cmd/{}/go", "s/{}/+/set"))
        for number in range(first, first + self.chance.randint(*DEVICES)):
            if form.format(number) not in site.wants:
                self.subscribe(site, form.format(number))

    def devices_go(self, site: Site) -> None:
        """All of one form, or half of them."""
        form, share = self.chance.choice(("cmd/", "s/")), self.chance.choice((0.5, 1.0))
        for topic_filter in list(site.wants):
            if topic_filter.startswith(form) and self.chance.random() < share:
                self.unsubscribe(site, topic_filter)

    def topics_come(self, site: Site) -> None:
        """Devices that publish, each on a topic of its own, for the first time."""
        first, form = self.chance.randrange(1_000), self.chance.choice(("dev/{}/t", "cmd/{}/go", "s/{}/a/set"))
        for number in range(first, first + self.chance.randint(*DEVICES)):
            self.publish(site, form.format(number), "publish")

    def withdraw_some(self, site: Site) -> None:
        share = self.chance.choice((0.1, 1.0))
        for topic in [topic for topic in site.topics if self.chance.random() < share]:
            self.withdraw(site, topic)

    def withdraw(self, site: Site, topic: str) -> None:
        assert site.method is not None
        del site.topics[topic]
        self.do(site, f"the withdrawal of {topic!r}", site.method.withdraw(topic))

    def publish_some(self, site: Site) -> None:
        topic = self.a_topic()
        if site.topics and self.chance.random() < 0.5:
            topic = self.chance.choice(list(site.topics))
        self.publish(site, topic, self.chance.choice(("publish", "publish", "surely", "within")))

    def publish(self, site: Site, topic: str, how: str, *, is_calm: bool = False) -> None:
        if site.method is not None:
            self.do(site, f"the publication on {topic!r}", self._publish(site, topic, how, is_calm))

    async def _make_known(self, site: Site, topic: str) -> None:
        method = site.method
        assert method is not None
        site.topics[topic] = None
        if not method.knows(topic):
            await method.advertise(topic)
        if len(site.demand) < TOPICS_CHECKED and site.method is method:
            site.demand[topic] = method.is_wanted(topic)

    async def _publish(self, site: Site, topic: str, how: str, is_calm: bool) -> None:
        method = site.method
        assert method is not None
        await self._make_known(site, topic)
        if site.method is not method or topic not in site.topics:
            return  # it left, or has withdrawn the topic meanwhile
        self.number += 1
        is_promised = is_calm or not self.has_faults
        cluster = self.chance.choice(CLUSTERS[1:]) if how == "within" else None
        scope = None if cluster is None else partial(self._is_within, cluster)
        promised = [one for one in self.ledger.wanting(topic) if self.ledger.is_promised(one, topic)]
        self.checker.published(self.number, topic, site.number, promised if is_promised else (), scope)
        body = body_of(self.number)
        if how == "publish":
            method.publish(topic, body)
        elif cluster is not None:
            method.publish_within(topic, body, cluster)
        else:
            outcomes: list[Outcome] = []
            if method.publish_surely(topic, body, PROOF_S, outcomes.append):
                await self.sim.hosts[site.number].sleep(PROOF_S + 1.0)
                name = f"the proof of publication {self.number} of broker {site.number} on {topic!r}"
                if len(outcomes) != 1:
                    self.complaints.add([f"{name} came {len(outcomes)} times"])
                elif is_promised and not outcomes[0].complete:
                    self.complaints.add([f"{name} failed, without any fault: {outcomes[0]}"])

    def _is_within(self, cluster: str, broker: int) -> bool:
        return is_within(self.sites[broker].cluster, cluster)

    # Filters and topics of all kinds

    def a_topic(self) -> str:
        kind = self.chance.randrange(4)
        if kind == 0:
            return self.chance.choice(("dev/{}/t", "cmd/{}/go", "s/{}/a/set")).format(self.chance.randrange(1_100))
        while True:
            topic = "/".join(self.chance.choices(WORDS, k=self.chance.randint(1, 4)))
            if topic:
                return topic

    def a_filter(self) -> str:
        if self.chance.random() < 0.2:
            return self.chance.choice(("dev/+/t", "#", "+/+/t", "dev/#", "cmd/+/go", "$x/#", "+/#", "s/+/+/set", "/+"))
        levels = self.a_topic().split("/")
        levels = ["+" if self.chance.random() < 0.25 else level for level in levels]
        if self.chance.random() < 0.25:
            levels[self.chance.randrange(len(levels)) :] = ["#"]
        return "/".join(levels)

    # What arrives

    def _on_wants(self, site: Site, topic_filter: str) -> None:
        if site.method is not None:
            for topic in [topic for topic in site.demand if topic_filter == "#" or matches(topic_filter, topic)]:
                site.demand[topic] = site.method.is_wanted(topic)

    def _on_arrival(self, sender: Address, to: Address, message: Message, _hops: int) -> None:
        number = publication_of(message)
        if number is not None:
            self.checker.on_arrival(sender, to, number, message)

    def _on_message(self, site: Site, incarnation: int, publication: Publication) -> None:
        number = number_of(publication.body)
        if number is None:
            self.complaints.add([f"a body that nobody published came to broker {site.number}"])
        else:
            self.checker.on_message(site.number, incarnation, number, publication)


def wrong_after_churn(method: str, seed: int) -> list[str]:
    return FilterChurn(seed, built(method)).run()
