"""Covers as a whole against a plain oracle: brokers subscribe and publish whatever they like, whenever they like.

What is published after a subscription has taken effect arrives, once, at each broker with a filter that matches it; no
broker is sent anything that none of its filters matches, or has matched a moment ago.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf
from random import Random
from typing import NamedTuple

import pytest

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.mqtt.topics import matches, overlaps
from braidmq.overlay.ranges import Cut
from braidmq.overlay.vectors import Vector
from braidmq.pubsub.covers.covers import Covers
from braidmq.pubsub.covers.multicast_messages import MulticastCopy
from braidmq.sim.network import Network, Uniform
from tests.simulated import BUILDS, AnyOverlay, MethodNetwork, two_faulty_minutes

SETTLED_S = 30.0
"""How long brokers take to form an overlay, and everything that was begun to end."""
MOMENT_S = 0.5
"""In which a broker that publishes hears that a filter is not wanted any more: some messages, of 50 ms at most each."""


class Want(NamedTuple):
    """One broker's filter, from when it was asked for and from when it was in effect, until when."""

    address: Address
    topic_filter: str
    asked_at: float
    since: float
    until: float = inf
    known_until: float = inf
    """Until when others could not but think that it is wanted."""


class Published(NamedTuple):
    address: Address
    topic: str
    asked_at: float
    """When a client published it: the broker may hold it until it is known who wants it."""
    sent_at: float


class Arrival(NamedTuple):
    address: Address
    number: int
    at: float
    hops: int


class Meeting(MethodNetwork[AnyOverlay, Covers]):
    """Brokers that note what they do."""

    def __init__(
        self,
        brokers: int,
        seed: int,
        overlay: str = "flexible",
        network: Network | None = None,
        clusters: Sequence[str] = ("",),
    ) -> None:
        cut = Cut.SFB if overlay == "suzaku" else Cut.MRF
        super().__init__(
            BUILDS[overlay],
            lambda part, address: Covers(
                part, f"b{address}", clusters[int(address) % len(clusters)], cut, self.sim.hosts[address].incarnation
            ),
            seed,
            network or Uniform(0.001, 0.05),
            counted=(MulticastCopy,),
        )
        self.chance = Random(seed)
        self.wants: list[Want] = []
        self.present: dict[tuple[Address, str], Want] = {}
        """Those of filters that are wanted now."""
        self.crashed: dict[Address, list[Want]] = {}
        """Those of brokers that are down."""
        self.published: dict[int, Published] = {}
        """By what is in their bodies."""
        self.held: dict[int, Address] = {}
        """Those that brokers hold."""
        self.said = 0
        self.topics: dict[Address, dict[str, None]] = {}
        """By broker, what its clients have published."""
        self.arrived: list[Arrival] = []
        for address in range(brokers):
            self.start(address, [b"\0%d" % address])
        self.run(SETTLED_S)

    def equip(self, address: Address, overlay: AnyOverlay) -> None:
        super().equip(address, overlay)
        arrived = self.arrived
        self.methods[address].on_message = lambda copy: arrived.append(
            Arrival(address, int(copy.body), self.sim.now, copy.hops)
        )

    def start(self, address: Address, keys: Iterable[Key] = (), vector: Vector | None = None) -> AnyOverlay:
        """Others hear now that a broker that returns does not want any more what it wanted before."""
        self.wants += [want._replace(known_until=self.sim.now) for want in self.crashed.pop(address, [])]
        return super().start(address, keys, vector)

    def crash(self, address: Address) -> None:
        """What it had and held is gone, and what its clients wanted."""
        super().crash(address)
        for wanting, topic_filter in list(self.present):
            if wanting == address:
                want = self.present.pop((wanting, topic_filter))
                self.crashed.setdefault(address, []).append(want._replace(until=self.sim.now))
        self.held = {number: holder for number, holder in self.held.items() if holder != address}
        self.topics.pop(address, None)

    def want(self, address: Address, topic_filter: str) -> None:
        if (address, topic_filter) not in self.present:
            self.present[address, topic_filter] = Want(address, topic_filter, self.sim.now, inf)
            self.do(address, self._want(address, topic_filter))

    async def _want(self, address: Address, topic_filter: str) -> None:
        asked = self.present[address, topic_filter]
        await self.methods[address].subscribe(topic_filter)
        if self.present.get((address, topic_filter)) is asked:
            self.present[address, topic_filter] = asked._replace(since=self.sim.now)
            self._repeat(address, topic_filter)

    def _repeat(self, address: Address, topic_filter: str) -> None:
        """A subscription has just taken effect: that is when others publish again what it matches."""
        for other in self.methods:
            topics = [topic for topic in self.topics.get(other, ()) if matches(topic_filter, topic)]
            if topics and other != address and self.chance.random() < 0.5:
                self.say(other, self.chance.choice(topics))

    def want_no_longer(self, address: Address, topic_filter: str) -> None:
        want = self.present.pop((address, topic_filter))
        self.wants.append(want._replace(until=self.sim.now, known_until=self.sim.now))
        self.do(address, self.methods[address].unsubscribe(topic_filter))

    def say(self, address: Address, topic: str) -> None:
        """A client publishes; its broker holds that until it knows who wants it."""
        self.said += 1
        self.topics.setdefault(address, {})[topic] = None
        self.held[self.said] = address
        self.do(address, self._say(address, topic, self.said, self.sim.now))

    async def _say(self, address: Address, topic: str, number: int, asked_at: float) -> None:
        method = self.methods[address]
        while not method.knows(topic):
            await method.advertise(topic)
        is_wanted = method.is_wanted(topic)
        assert method.publish(topic, b"%d" % number) == is_wanted
        self.published[number] = Published(address, topic, asked_at, self.sim.now)
        del self.held[number]

    def check(self) -> None:
        """All that was sent came where it should, and nowhere else."""
        self.check_copies()
        wants = [*self.wants, *self.present.values()]
        copies = {(address, number) for address, number, _, _ in self.arrived}
        assert not self.held
        for number, sent in self.published.items():
            missed = [
                want
                for want in wants
                if want.address != sent.address and matches(want.topic_filter, sent.topic)
                if want.since <= sent.asked_at and sent.sent_at <= want.until - MOMENT_S
                if (want.address, number) not in copies
            ]
            assert not missed, f"{sent} did not come to {missed}"

    def check_copies(self, moment_s: float = MOMENT_S) -> None:
        """What came came once, and to brokers that want it, or have wanted it a moment ago."""
        wants = [*self.wants, *self.present.values()]
        copies = Counter((address, number) for address, number, _, _ in self.arrived)
        assert not [one for one, count in copies.items() if count > 1]
        for address, number, at, _ in self.arrived:
            sent = self.published[number]
            assert address != sent.address, f"its own publication came to {address}"
            assert any(
                want.address == address and want.asked_at <= at <= want.known_until + moment_s
                for want in wants
                if matches(want.topic_filter, sent.topic)
            ), f"{sent} came to {address}, which wants none of it"

    def begin_anew(self) -> None:
        """What was published so far does not count any more; what is wanted does."""
        self.published.clear()
        self.arrived.clear()
        self.wants.clear()

    def check_knowledge(self) -> None:
        """Every broker knows exactly the wants of all others that can match what it publishes."""
        for address, method in self.methods.items():
            covers = method.publication_covers
            if not covers:
                continue  # what it knew it will be told anew
            expected = {
                (f"b{other}", topic_filter)
                for other, topic_filter in self.present
                if other != address and any(overlaps(topic_filter, cover) for cover in covers)
            }
            index = method.known._index
            known = {
                (one.receiver.name, topic_filter)
                for one in method.known.subscribers
                if not one.is_silent  # a broker that has returned, and wants nothing of this one's now
                for topic_filter in index.filters_of(one)
            }
            assert known == expected, f"{address}, which publishes {covers}: {sorted(known ^ expected)}"


def any_level(chance: Random) -> str:
    return chance.choice(["", "a", "b", "c", "$x", "$y"])


def fleet_topic(chance: Random) -> str:
    return f"dev/{chance.randrange(40)}/{chance.choice(['telemetry', 'state'])}"


def fleet_filter(chance: Random) -> str:
    number = chance.randrange(40)
    return chance.choice([fleet_topic(chance), f"dev/{number}/#", f"dev/{number}/+", "dev/+/state", "+/+/telemetry"])


def small_topic(chance: Random) -> str:
    return "/".join([any_level(chance) for _ in range(chance.randint(1, 3))]) or "a"


def small_filter(chance: Random) -> str:
    levels = [chance.choice(["+", any_level(chance)]) for _ in range(chance.randint(0, 3))]
    return "/".join([*levels, "#"] if chance.random() < 0.3 else levels) or "+"


def scattered_topic(chance: Random) -> str:
    """More first levels than a broker has covers for, and more with `$` as well."""
    return f"{chance.choice(['', '$'])}site{chance.randrange(80)}/{chance.choice('ab')}"


def scattered_filter(chance: Random) -> str:
    return chance.choice([scattered_topic(chance), f"$site{chance.randrange(80)}/#", "+/a", "#"])


class Kind(NamedTuple):
    topic: Callable[[Random], str]
    topic_filter: Callable[[Random], str]


KINDS = {
    "small": Kind(small_topic, small_filter),
    "fleet": Kind(fleet_topic, fleet_filter),
    "scattered": Kind(scattered_topic, scattered_filter),
}


PAUSES_S = (0.0, 0.0, 0.0, 0.01, 0.05, 0.3, 2.0)
LONG_PAUSES_S = (*PAUSES_S, *PAUSES_S, 20.0, 400.0, 2000.0)
"""In which covers are given up that were idle, and made narrower."""


def meet(seed: int, kind: str, overlay: str = "flexible", steps: int = 150) -> Meeting:
    """Three to six brokers: some subscribe more, some publish more, in bursts and with pauses."""
    chance = Random(seed)
    network = Meeting(chance.randint(3, 6), seed, overlay)
    act(network, chance, KINDS[kind], steps, PAUSES_S)
    network.run(SETTLED_S)
    network.check()
    network.check_knowledge()
    return network


def act(network: Meeting, chance: Random, kind: Kind, steps: int, pauses_s: Sequence[float]) -> None:
    eagerness = {address: chance.choice([0.1, 0.5, 0.9]) for address in network.sim.hosts}
    for _ in range(steps):
        address = chance.choice(list(network.methods))
        mine = [topic_filter for wanting, topic_filter in network.present if wanting == address]
        if chance.random() > eagerness[address]:
            network.say(address, kind.topic(chance))
        elif mine and chance.random() < 0.3:
            network.want_no_longer(address, chance.choice(mine))
        else:
            network.want(address, kind.topic_filter(chance))
        network.run(chance.choice(pauses_s))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("overlay", ["flexible", "suzaku"])
@pytest.mark.parametrize("seed", range(4))
def test_all_that_was_wanted_arrives_once_and_nothing_else_does(seed: int, overlay: str, kind: str) -> None:
    assert meet(seed, kind, overlay).arrived


def meet_in_clusters(seed: int, kind: str) -> Meeting:
    """So many brokers that some of those that want a publication pass it on to others."""
    chance = Random(seed)
    network = Meeting(18, seed, clusters=["", "cloud/east", "cloud/west"])
    act(network, chance, KINDS[kind], 250, PAUSES_S)
    network.run(SETTLED_S)
    network.check()
    network.check_knowledge()
    return network


@pytest.mark.parametrize("kind", KINDS)
def test_many_brokers_pass_publications_on_only_where_they_are_wanted(kind: str) -> None:
    assert any(one.hops > 1 for one in meet_in_clusters(1, kind).arrived)


def meet_slowly(seed: int, kind: str) -> Meeting:
    """Much of what is wanted and published ceases to be, and covers with it."""
    chance = Random(seed)
    network = Meeting(chance.randint(3, 4), seed)
    act(network, chance, KINDS[kind], 100, LONG_PAUSES_S)
    network.run(SETTLED_S)
    network.check()
    network.check_knowledge()
    return network


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(1))
def test_the_same_while_covers_are_given_up(seed: int, kind: str) -> None:
    assert meet_slowly(seed, kind).arrived


FAULTS_S = 120.0
HEARD_S = 60.0
"""In which a broker hears of what is not wanted any more, while messages are lost."""
RECOVERED_S = 200.0
"""In which brokers that were away have met all others again."""


def meet_with_crashes(seed: int, kind: str) -> Meeting:
    """Brokers crash and return, now and then; when it is over, all is as before."""
    chance = Random(seed)
    network = Meeting(6, seed)
    for _ in range(4):
        act(network, chance, KINDS[kind], 30, PAUSES_S)
        network.crash(chance.choice(list(network.methods)))
        act(network, chance, KINDS[kind], 15, PAUSES_S)
        network.run(chance.choice([0.5, 5.0, 60.0]))
        network.return_one()
        act(network, chance, KINDS[kind], 15, PAUSES_S)
    network.run(RECOVERED_S)
    network.check_copies()
    meet_as_before(network, chance, kind)
    return network


def meet_as_before(network: Meeting, chance: Random, kind: str) -> None:
    """Nothing is left of what went wrong."""
    network.begin_anew()
    act(network, chance, KINDS[kind], 50, PAUSES_S)
    network.run(SETTLED_S)
    network.check()
    network.check_knowledge()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(1))
def test_brokers_that_return_are_sent_nothing_that_they_wanted_before(seed: int, kind: str) -> None:
    assert meet_with_crashes(seed, kind).arrived


def meet_in_faults(seed: int, kind: str) -> Meeting:
    """Two minutes in which messages are lost, doubled or late, and the network is parted for a while."""
    chance = Random(seed)
    network = Meeting(5, seed, network=two_faulty_minutes())
    while network.sim.now < FAULTS_S:
        act(network, chance, KINDS[kind], 10, PAUSES_S)
    network.run(RECOVERED_S)
    network.check_copies(HEARD_S)
    meet_as_before(network, chance, kind)
    return network


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(1))
def test_faults_leave_nothing_behind(seed: int, kind: str) -> None:
    assert meet_in_faults(seed, kind).arrived
