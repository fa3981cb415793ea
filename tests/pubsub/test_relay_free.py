"""Relay-free publish/subscribe: one copy each, nobody else bothered, and silence where nobody listens."""

from __future__ import annotations

import pytest

from braidmq.host import Address
from braidmq.keys import Key, Role, key_of
from braidmq.overlay.ranges import Cut, Deliver, Outcome
from braidmq.pubsub.relay_free.demand import SIGNAL_S
from braidmq.pubsub.relay_free.relay_free import COMPARE_S, RelayFree
from braidmq.pubsub.relay_free.signals import RESUME, SUSPEND, Suspend
from braidmq.sim.network import Faults, Network, Uniform
from tests.simulated import BUILDS, AnyOverlay, MethodNetwork

SETTLED_S = 30.0


class RelayFreeNetwork(MethodNetwork[AnyOverlay, RelayFree]):
    """Brokers that are in the overlay with a key of no topic, before they publish and subscribe."""

    def __init__(
        self, brokers: int, seed: int = 1, network: Network | None = None, overlay: str = "skip_graph"
    ) -> None:
        cut = Cut.SFB if overlay == "suzaku" else Cut.MRF
        super().__init__(
            BUILDS[overlay],
            lambda part, address: RelayFree(part, f"b{address}", cut=cut),
            seed,
            network or Uniform(0.01, 0.05),
            counted=(Deliver,),
        )
        for address in range(brokers):
            self.start(address, [home_of(address)])
        self.run(SETTLED_S)

    def reached(self, address: Address, topic: str) -> list[Address]:
        """Publishes, and says which brokers got it, once for each copy."""
        self.publish(topic, address, b"hello", must_send=False)
        return self.receivers()

    def wanted_at(self, topic: str) -> dict[Address, bool]:
        """By publisher, whether it knows of demand."""
        return {a: method.is_wanted(topic) for a, method in self.methods.items() if topic in method._adverts}


def home_of(address: Address) -> Key:
    return b"\0%d" % int(address)


OVERLAYS = pytest.mark.parametrize("overlay", ["skip_graph", "suzaku"])


@OVERLAYS
def test_one_copy_each_and_nobody_else_is_bothered(overlay: str) -> None:
    network = RelayFreeNetwork(24, overlay=overlay)
    network.subscribe("tide", *range(4, 16))
    network.subscribe("wind", 2, 3, 20)
    network.advertise("tide", 0, 17, 18)
    network.run(SETTLED_S)
    for publisher in (0, 17, 18):
        assert network.reached(publisher, "tide") == [*range(4, 16)]
        involved = {0, 17, 18, *range(4, 16)}
        assert {place for hop in network.sent for place in hop} <= involved
        assert len(network.sent) <= 12 + 2


def test_with_mrf_a_broker_forwards_a_publication_at_most_twice() -> None:
    network = RelayFreeNetwork(40)
    network.subscribe("tide", *range(5, 40))
    network.advertise("tide", 0, 1, 2)
    network.run(SETTLED_S)
    for publisher in (0, 1, 2):
        assert network.reached(publisher, "tide") == [*range(5, 40)]
        forwards = [sender for sender, _ in network.sent]
        assert max(forwards.count(a) for a in {*forwards}) <= 2
        receivers = [to for _, to in network.sent]
        assert max(receivers.count(a) for a in {*receivers}) == 1


@OVERLAYS
def test_what_nobody_wants_is_not_sent(overlay: str) -> None:
    network = RelayFreeNetwork(12, overlay=overlay)
    network.advertise("tide", 0, 1, 2)
    network.run(SETTLED_S)
    assert network.wanted_at("tide") == {0: False, 1: False, 2: False}
    assert network.reached(1, "tide") == []
    assert network.sent == []
    assert network.told() == {}


@OVERLAYS
def test_demand_begins_and_ends_at_all_publishers(overlay: str) -> None:
    network = RelayFreeNetwork(12, overlay=overlay)
    network.advertise("tide", 0, 1, 2)
    network.run(SETTLED_S)
    network.subscribe("tide", 7, 8)
    network.run(SETTLED_S)
    assert network.wanted_at("tide") == {0: True, 1: True, 2: True}
    network.unsubscribe("tide", 7)
    network.run(SETTLED_S)
    assert network.wanted_at("tide") == {0: True, 1: True, 2: True}
    network.unsubscribe("tide", 8)
    network.run(SETTLED_S)
    assert network.wanted_at("tide") == {0: False, 1: False, 2: False}
    assert network.told() == {(a, "tide"): [True, False] for a in (0, 1, 2)}


@OVERLAYS
@pytest.mark.parametrize("subscribed", [True, False])
def test_a_new_publisher_learns_the_demand_with_its_insertion(overlay: str, subscribed: bool) -> None:
    """At the left end, in the middle and as the new rendezvous point; without a signal to anybody else."""
    network = RelayFreeNetwork(12, overlay=overlay)
    network.advertise("tide", 2, 6)
    if subscribed:
        network.subscribe("tide", 9)
    network.run(SETTLED_S)
    before = network.told()
    network.sent.clear()
    for address in (0, 4, 8):
        network.advertise("tide", address)
        network.run(2)
    assert network.wanted_at("tide") == dict.fromkeys((0, 2, 4, 6, 8), subscribed)
    assert {key: told for key, told in network.told().items() if key in before} == before
    assert network.sent == []


@OVERLAYS
def test_who_subscribes_to_its_own_topic_wants_it_itself(overlay: str) -> None:
    network = RelayFreeNetwork(6, overlay=overlay)
    network.advertise("tide", 0)
    network.run(SETTLED_S)
    network.subscribe("tide", 0)
    network.run(SETTLED_S)
    assert network.reached(0, "tide") == [0]
    assert network.sent == []
    assert [key for key in network.methods[0].overlay.view.own if key.startswith(b"tide")] == [
        key_of("tide", Role.SUBSCRIBER, "", "b0")
    ]
    network.subscribe("tide", 3)
    network.run(SETTLED_S)
    network.unsubscribe("tide", 0)
    network.run(SETTLED_S)
    assert network.reached(0, "tide") == [3]
    network.unsubscribe("tide", 3)
    network.run(SETTLED_S)
    assert network.told()[0, "tide"] == [True, False]
    assert network.reached(0, "tide") == []


def test_publishing_what_is_not_advertised_is_an_error() -> None:
    network = RelayFreeNetwork(2)
    with pytest.raises(ValueError, match="'tide' is not advertised"):
        network.methods[0].publish("tide", b"")


def test_who_goes_on_publishing_is_told_to_stop() -> None:
    """§5.3.6 (i): a signal was lost, and the next publication ends at the rendezvous point."""
    network = RelayFreeNetwork(12)
    network.advertise("tide", 0, 1, 2)
    network.run(SETTLED_S)
    network.methods[0]._demand.set_wanted("tide", True)
    assert network.reached(0, "tide") == []
    assert 1 <= len(network.sent) <= 2
    assert network.wanted_at("tide") == {0: False, 1: False, 2: False}


def test_who_is_silent_though_somebody_listens_finds_out() -> None:
    """§5.3.6 (ii): a signal was lost; neighbours that differ report it, and the rendezvous point signals again."""
    network = RelayFreeNetwork(12)
    network.advertise("tide", 0, 1, 2, 3)
    network.subscribe("tide", 7)
    network.run(SETTLED_S)
    for lost in ((0,), (0, 1), (1, 2)):
        for address in lost:
            network.methods[address]._demand.set_wanted("tide", False)
        network.run(2 * COMPARE_S)
        assert network.wanted_at("tide") == {0: True, 1: True, 2: True, 3: True}


def test_the_next_publisher_becomes_the_rendezvous_point_when_it_crashes() -> None:
    network = RelayFreeNetwork(12)
    network.advertise("tide", 0, 1, 2)
    network.subscribe("tide", 7)
    network.run(SETTLED_S)
    network.crash(2)
    network.crash(7)
    network.run(200)
    assert network.wanted_at("tide") == {0: False, 1: False}
    network.subscribe("tide", 8)
    network.run(SETTLED_S)
    assert network.reached(0, "tide") == [8]


def test_signals_are_one_byte() -> None:
    assert {len(SUSPEND), len(RESUME)} == {1}
    assert SUSPEND != RESUME


@OVERLAYS
def test_a_publication_that_is_proven(overlay: str) -> None:
    network = RelayFreeNetwork(16, overlay=overlay)
    network.advertise("tide", 0)
    network.subscribe("tide", *range(5, 12))
    network.run(SETTLED_S)
    outcomes: list[Outcome] = []
    assert network.methods[0].publish_surely("tide", b"x", 10.0, outcomes.append)
    network.run(5)
    assert [outcome.complete for outcome in outcomes] == [True]
    assert network.receivers() == [*range(5, 12)]


@OVERLAYS
@pytest.mark.parametrize("seed", range(4))
def test_after_faults_and_churn_demand_is_right_and_everybody_gets_one_copy(overlay: str, seed: int) -> None:
    """Loss, repetition, overtaking, a partition, crashes and returns, subscribers that come and go; then quiet."""
    faulty = Faults.parse("loss=0.02,dup=0.02,reorder=0.05,partition=70-85").over(Uniform(0.01, 0.05))
    network = RelayFreeNetwork(20, seed, faulty, overlay)
    chance = network.sim.chance
    topics = ("tide", "wind")
    wants: dict[tuple[Address, str], str] = {}

    def change() -> None:
        address = chance.choice(list(network.methods))
        topic = chance.choice(topics)
        broker = network.methods[address]
        what = chance.choice(["subscribe", "unsubscribe", "advertise", "withdraw", "crash"])
        if what == "crash":
            network.crash(address)
            for one in topics:
                wants.pop((address, one), None)
            network.sim.at(network.sim.now + 5, lambda: back(address))
            return
        if what in ("subscribe", "unsubscribe"):
            wants[address, topic] = what
        network.do(address, getattr(broker, what)(topic))

    def back(address: Address) -> None:
        network.start(address, [home_of(address)])

    for second in range(40, 120):
        network.sim.at(second, change)
    network.sim.run(120)
    network.sim.network = Uniform(0.01, 0.05)
    network.run(400)
    for topic in topics:
        subscribers = sorted(a for (a, of), what in wants.items() if of == topic and what == "subscribe")
        publishers = network.wanted_at(topic)
        assert all(wanted == bool(subscribers) for wanted in publishers.values()), f"seed {seed}: {publishers}"
        for publisher in publishers:
            assert sorted(network.reached(publisher, topic), key=int) == subscribers, f"seed {seed}"


# What is known when


@OVERLAYS
@pytest.mark.parametrize("seed", range(5))
def test_all_publishers_know_of_a_subscriber_when_subscribe_returns(overlay: str, seed: int) -> None:
    network = RelayFreeNetwork(12, seed, overlay=overlay)
    network.advertise("tide", *range(6))
    network.run(SETTLED_S)
    known: list[dict[Address, bool]] = []

    async def subscribe(address: Address) -> None:
        await network.methods[address].subscribe("tide")
        known.append(network.wanted_at("tide"))

    for address in (9, 8):
        network.do(address, subscribe(address))
    network.run(5)
    assert known == 2 * [dict.fromkeys(range(6), True)]


@OVERLAYS
@pytest.mark.parametrize("seed", range(8))
def test_publishers_that_begin_together_all_know_what_is_wanted(overlay: str, seed: int) -> None:
    """None of them takes over from another what that one does not know yet."""
    network = RelayFreeNetwork(16, seed, overlay=overlay)
    network.subscribe("tide", 15)
    network.run(SETTLED_S)
    network.advertise("tide", *range(8))
    network.run(5)
    assert network.wanted_at("tide") == dict.fromkeys(range(8), True)


def test_a_suspension_that_was_said_before_is_not_believed() -> None:
    network = RelayFreeNetwork(8)
    network.advertise("tide", 0, 1, 2)
    network.run(SETTLED_S)
    network.subscribe("tide", 5)
    network.run(1)
    for publisher in (0, 1, 2):
        network.methods[publisher]._demand.on_suspend(7, Suspend("tide"))
    assert all(network.wanted_at("tide").values())
    network.run(SIGNAL_S - 2)
    assert all(network.wanted_at("tide").values())
    network.unsubscribe("tide", 5)
    network.run(3)
    assert not any(network.wanted_at("tide").values()), "what is true is believed, however soon it comes"
