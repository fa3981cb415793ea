"""Relay-free publish/subscribe: one copy each, nobody else bothered, and silence where nobody listens."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from braidmq.host import Address, Message
from braidmq.keys import Role, key_of
from braidmq.overlay import Overlay
from braidmq.overlay.ranges import Cut, Deliver, Outcome
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.overlay.suzaku import Suzaku
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.pubsub.method import Publication
from braidmq.pubsub.relay_free.demand import SIGNAL_S
from braidmq.pubsub.relay_free.relay_free import COMPARE_S, RelayFree
from braidmq.pubsub.relay_free.signals import RESUME, SUSPEND, Suspend
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Faults, Network, Uniform

SETTLED_S = 30.0


class Harbour:
    """Brokers that publish and subscribe; what they get and what they are told about demand is noted."""

    def __init__(
        self, brokers: int, seed: int = 1, network: Network | None = None, overlay: str = "skip_graph"
    ) -> None:
        self.sim = Simulator(seed, network or Uniform(0.01, 0.05))
        self.kind = overlay
        self.brokers: dict[Address, RelayFree] = {}
        self.got: dict[Address, list[Publication]] = {}
        self.demand: dict[tuple[Address, str], list[bool]] = {}
        self.sent: list[tuple[Address, Address]] = []
        self.sim.on_message = self._count
        for address in range(brokers):
            self.start(address)
            if address:
                self.run(address, self.brokers[address].overlay.join(b"\0%d" % address))
            else:
                self.brokers[address].overlay.found(b"\0%d" % address)
        self.sim.run(SETTLED_S)

    def start(self, address: int) -> None:
        host = self.sim.hosts.get(address) or self.sim.host(address)
        host.restart()
        overlay: Overlay
        if self.kind == "suzaku":
            overlay = Suzaku(host, lambda: self.introduce(address), host.incarnation)
        else:
            vector = self.sim.chance.getrandbits(DIGITS_MAX)
            overlay = SkipGraph(host, vector, lambda: self.introduce(address), host.incarnation)
        broker = self.brokers[address] = RelayFree(
            overlay, f"b{address}", cut=Cut.SFB if self.kind == "suzaku" else Cut.MRF
        )
        got = self.got[address] = []
        broker.on_message = got.append
        broker.on_demand = lambda topic, wanted: self.demand.setdefault((address, topic), []).append(wanted)

    def introduce(self, mine: Address) -> Address | None:
        others = [a for a, broker in self.brokers.items() if a != mine and broker.overlay.view.own]
        return self.sim.chance.choice(others) if others else None

    def run(self, address: Address, procedure: Coroutine[Any, Any, object]) -> None:
        self.sim.hosts[address].spawn(procedure)

    def settle(self, seconds: float = SETTLED_S) -> None:
        self.sim.run(self.sim.now + seconds)

    def subscribe(self, topic: str, *addresses: Address) -> None:
        for address in addresses:
            self.run(address, self.brokers[address].subscribe(topic))

    def unsubscribe(self, topic: str, *addresses: Address) -> None:
        for address in addresses:
            self.run(address, self.brokers[address].unsubscribe(topic))

    def advertise(self, topic: str, *addresses: Address) -> None:
        for address in addresses:
            self.run(address, self.brokers[address].advertise(topic))

    def publish(self, address: Address, topic: str, body: bytes = b"hello") -> list[Address]:
        """Who got it, once for each copy."""
        for got in self.got.values():
            got.clear()
        self.sent.clear()
        self.brokers[address].publish(topic, body)
        self.settle(5)
        assert all(p.topic == topic and p.body == body for got in self.got.values() for p in got)
        return [a for a, got in self.got.items() for _ in got]

    def wanted(self, topic: str) -> dict[Address, bool]:
        return {a: b.is_wanted(topic) for a, b in self.brokers.items() if topic in b._adverts}

    def _count(self, sender: Address, to: Address, message: Message, hops: int) -> None:
        if isinstance(message, Deliver):
            self.sent.append((sender, to))


OVERLAYS = pytest.mark.parametrize("overlay", ["skip_graph", "suzaku"])


@OVERLAYS
def test_one_copy_each_and_nobody_else_is_bothered(overlay: str) -> None:
    harbour = Harbour(24, overlay=overlay)
    harbour.subscribe("tide", *range(4, 16))
    harbour.subscribe("wind", 2, 3, 20)
    harbour.advertise("tide", 0, 17, 18)
    harbour.settle()
    for publisher in (0, 17, 18):
        assert harbour.publish(publisher, "tide") == [*range(4, 16)]
        involved = {0, 17, 18, *range(4, 16)}
        assert {place for hop in harbour.sent for place in hop} <= involved
        assert len(harbour.sent) <= 12 + 2


def test_with_mrf_a_broker_forwards_a_publication_at_most_twice() -> None:
    harbour = Harbour(40)
    harbour.subscribe("tide", *range(5, 40))
    harbour.advertise("tide", 0, 1, 2)
    harbour.settle()
    for publisher in (0, 1, 2):
        assert harbour.publish(publisher, "tide") == [*range(5, 40)]
        forwards = [sender for sender, _ in harbour.sent]
        assert max(forwards.count(a) for a in {*forwards}) <= 2
        receivers = [to for _, to in harbour.sent]
        assert max(receivers.count(a) for a in {*receivers}) == 1


@OVERLAYS
def test_what_nobody_wants_is_not_sent(overlay: str) -> None:
    harbour = Harbour(12, overlay=overlay)
    harbour.advertise("tide", 0, 1, 2)
    harbour.settle()
    assert harbour.wanted("tide") == {0: False, 1: False, 2: False}
    assert harbour.publish(1, "tide") == []
    assert harbour.sent == []
    assert harbour.demand == {}


@OVERLAYS
def test_demand_begins_and_ends_at_all_publishers(overlay: str) -> None:
    harbour = Harbour(12, overlay=overlay)
    harbour.advertise("tide", 0, 1, 2)
    harbour.settle()
    harbour.subscribe("tide", 7, 8)
    harbour.settle()
    assert harbour.wanted("tide") == {0: True, 1: True, 2: True}
    harbour.unsubscribe("tide", 7)
    harbour.settle()
    assert harbour.wanted("tide") == {0: True, 1: True, 2: True}
    harbour.unsubscribe("tide", 8)
    harbour.settle()
    assert harbour.wanted("tide") == {0: False, 1: False, 2: False}
    assert harbour.demand == {(a, "tide"): [True, False] for a in (0, 1, 2)}


@OVERLAYS
@pytest.mark.parametrize("subscribed", [True, False])
def test_a_new_publisher_learns_the_demand_with_its_insertion(overlay: str, subscribed: bool) -> None:
    """At the left end, in the middle and as the new rendezvous point; without a signal to anybody else."""
    harbour = Harbour(12, overlay=overlay)
    harbour.advertise("tide", 2, 6)
    if subscribed:
        harbour.subscribe("tide", 9)
    harbour.settle()
    before = dict(harbour.demand)
    harbour.sent.clear()
    for address in (0, 4, 8):
        harbour.advertise("tide", address)
        harbour.settle(2)
    assert harbour.wanted("tide") == dict.fromkeys((0, 2, 4, 6, 8), subscribed)
    assert {key: told for key, told in harbour.demand.items() if key in before} == before
    assert harbour.sent == []


@OVERLAYS
def test_who_subscribes_to_its_own_topic_wants_it_itself(overlay: str) -> None:
    harbour = Harbour(6, overlay=overlay)
    harbour.advertise("tide", 0)
    harbour.settle()
    harbour.subscribe("tide", 0)
    harbour.settle()
    assert harbour.publish(0, "tide") == [0]
    assert harbour.sent == []
    assert [key for key in harbour.brokers[0].overlay.view.own if key.startswith(b"tide")] == [
        key_of("tide", Role.SUBSCRIBER, "", "b0")
    ]
    harbour.subscribe("tide", 3)
    harbour.settle()
    harbour.unsubscribe("tide", 0)
    harbour.settle()
    assert harbour.publish(0, "tide") == [3]
    harbour.unsubscribe("tide", 3)
    harbour.settle()
    assert harbour.demand[0, "tide"] == [True, False]
    assert harbour.publish(0, "tide") == []


def test_publishing_what_is_not_advertised_is_an_error() -> None:
    harbour = Harbour(2)
    with pytest.raises(ValueError, match="'tide' is not advertised"):
        harbour.brokers[0].publish("tide", b"")


def test_who_goes_on_publishing_is_told_to_stop() -> None:
    """§5.3.6 (i): a signal was lost, and the next publication ends at the rendezvous point."""
    harbour = Harbour(12)
    harbour.advertise("tide", 0, 1, 2)
    harbour.settle()
    harbour.brokers[0]._demand.set_wanted("tide", True)
    assert harbour.publish(0, "tide") == []
    assert 1 <= len(harbour.sent) <= 2
    assert harbour.wanted("tide") == {0: False, 1: False, 2: False}


def test_who_is_silent_though_somebody_listens_finds_out() -> None:
    """§5.3.6 (ii): a signal was lost; neighbours that differ report it, and the rendezvous point signals again."""
    harbour = Harbour(12)
    harbour.advertise("tide", 0, 1, 2, 3)
    harbour.subscribe("tide", 7)
    harbour.settle()
    for lost in ((0,), (0, 1), (1, 2)):
        for address in lost:
            harbour.brokers[address]._demand.set_wanted("tide", False)
        harbour.settle(2 * COMPARE_S)
        assert harbour.wanted("tide") == {0: True, 1: True, 2: True, 3: True}


def test_the_next_publisher_becomes_the_rendezvous_point_when_it_crashes() -> None:
    harbour = Harbour(12)
    harbour.advertise("tide", 0, 1, 2)
    harbour.subscribe("tide", 7)
    harbour.settle()
    harbour.sim.hosts[2].crash()
    del harbour.brokers[2]
    harbour.sim.hosts[7].crash()
    del harbour.brokers[7]
    harbour.settle(200)
    assert harbour.wanted("tide") == {0: False, 1: False}
    harbour.subscribe("tide", 8)
    harbour.settle()
    assert harbour.publish(0, "tide") == [8]


def test_signals_are_one_byte() -> None:
    assert {len(SUSPEND), len(RESUME)} == {1}
    assert SUSPEND != RESUME


@OVERLAYS
def test_a_publication_that_is_proven(overlay: str) -> None:
    harbour = Harbour(16, overlay=overlay)
    harbour.advertise("tide", 0)
    harbour.subscribe("tide", *range(5, 12))
    harbour.settle()
    outcomes: list[Outcome] = []
    assert harbour.brokers[0].publish_surely("tide", b"x", 10.0, outcomes.append)
    harbour.settle(5)
    assert [outcome.complete for outcome in outcomes] == [True]
    assert [a for a, got in harbour.got.items() for _ in got] == [*range(5, 12)]


@OVERLAYS
@pytest.mark.parametrize("seed", range(4))
def test_after_faults_and_churn_demand_is_right_and_everybody_gets_one_copy(overlay: str, seed: int) -> None:
    """Loss, repetition, overtaking, a partition, crashes and returns, subscribers that come and go; then quiet."""
    network = Faults.parse("loss=0.02,dup=0.02,reorder=0.05,partition=70-85").over(Uniform(0.01, 0.05))
    harbour = Harbour(20, seed, network, overlay)
    chance = harbour.sim.chance
    topics = ("tide", "wind")
    wants: dict[tuple[Address, str], str] = {}

    def change() -> None:
        address = chance.choice(list(harbour.brokers))
        topic = chance.choice(topics)
        broker = harbour.brokers[address]
        what = chance.choice(["subscribe", "unsubscribe", "advertise", "withdraw", "crash"])
        if what == "crash":
            harbour.sim.hosts[address].crash()
            del harbour.brokers[address]
            for one in topics:
                wants.pop((address, one), None)
            harbour.sim.at(harbour.sim.now + 5, lambda: back(address))
            return
        if what in ("subscribe", "unsubscribe"):
            wants[address, topic] = what
        harbour.run(address, getattr(broker, what)(topic))

    def back(address: Address) -> None:
        harbour.start(int(address))
        harbour.run(address, harbour.brokers[address].overlay.join(b"\0%d" % int(address)))

    for second in range(40, 120):
        harbour.sim.at(second, change)
    harbour.sim.run(120)
    harbour.sim.network = Uniform(0.01, 0.05)
    harbour.settle(400)
    for topic in topics:
        subscribers = sorted(a for (a, of), what in wants.items() if of == topic and what == "subscribe")
        publishers = harbour.wanted(topic)
        assert all(wanted == bool(subscribers) for wanted in publishers.values()), f"seed {seed}: {publishers}"
        for publisher in publishers:
            assert sorted(harbour.publish(publisher, topic), key=int) == subscribers, f"seed {seed}"


# What is known when


@OVERLAYS
@pytest.mark.parametrize("seed", range(5))
def test_all_publishers_know_of_a_subscriber_when_subscribe_returns(overlay: str, seed: int) -> None:
    harbour = Harbour(12, seed, overlay=overlay)
    harbour.advertise("tide", *range(6))
    harbour.settle()
    known: list[dict[Address, bool]] = []

    async def subscribe(address: Address) -> None:
        await harbour.brokers[address].subscribe("tide")
        known.append(harbour.wanted("tide"))

    for address in (9, 8):
        harbour.run(address, subscribe(address))
    harbour.settle(5)
    assert known == 2 * [dict.fromkeys(range(6), True)]


@OVERLAYS
@pytest.mark.parametrize("seed", range(8))
def test_publishers_that_begin_together_all_know_what_is_wanted(overlay: str, seed: int) -> None:
    """None of them takes over from another what that one does not know yet."""
    harbour = Harbour(16, seed, overlay=overlay)
    harbour.subscribe("tide", 15)
    harbour.settle()
    harbour.advertise("tide", *range(8))
    harbour.settle(5)
    assert harbour.wanted("tide") == dict.fromkeys(range(8), True)


def test_a_suspension_that_was_said_before_is_not_believed() -> None:
    harbour = Harbour(8)
    harbour.advertise("tide", 0, 1, 2)
    harbour.settle()
    harbour.subscribe("tide", 5)
    harbour.settle(1)
    for publisher in (0, 1, 2):
        harbour.brokers[publisher]._demand.on_suspend(7, Suspend("tide"))
    assert all(harbour.wanted("tide").values())
    harbour.settle(SIGNAL_S - 2)
    assert all(harbour.wanted("tide").values())
    harbour.unsubscribe("tide", 5)
    harbour.settle(3)
    assert not any(harbour.wanted("tide").values()), "what is true is believed, however soon it comes"
