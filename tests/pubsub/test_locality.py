"""Locality with delegates: everybody once, each cluster entered once, and nothing lost without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from statistics import mean

import msgspec
import pytest

from braidmq.host import Address, Message
from braidmq.keys import Role, is_within, key_of, segment
from braidmq.overlay.key_ranges import without
from braidmq.overlay.ranges import Cut, Deliver, Outcome
from braidmq.overlay.suzaku import Suzaku
from braidmq.overlay.suzaku.messages import FindAlongFingers
from braidmq.pubsub.locality import locality
from braidmq.pubsub.locality.delegates import (
    CHECK_S,
    DIRECTORIES_MAX,
    EXPIRY_S,
    WAITING_MAX,
    ClusterArea,
    ClusterDirectories,
    area_of,
)
from braidmq.pubsub.locality.locality import HandOver, Locality
from braidmq.pubsub.locality.proofs import RoutedPublication
from braidmq.sim.engine import Simulator
from braidmq.sim.layouts.skip_graph import lay_out
from braidmq.sim.layouts.suzaku import lay_out_suzaku
from braidmq.sim.network import ClusterDelays, Constant, Faults, Network
from tests.simulated import BUILDS, AnyOverlay, MethodNetwork

TOPIC = "plant/heat"

NESTED = ["x", "x", "x/1", "x/1", "x/1/a", "x/2", "x/2", "y/1", "y/1", "y/2", "y/2", "y/2", "z", "z", "", "xx"]
"""Clusters of 16 brokers: with and without brokers of their own above their children, and without any name."""


class ClusterNetwork(MethodNetwork[AnyOverlay, Locality]):
    """Brokers, each in a cluster, and one topic; what enters which cluster is counted."""

    def __init__(self, clusters: list[str], seed: int = 1, network: Network | None = None) -> None:
        self.clusters: dict[Address, str] = dict(enumerate(clusters))
        self.outcomes: list[Outcome] = []
        super().__init__(
            BUILDS["suzaku"],
            lambda overlay, address: Locality(overlay, f"b{address}", self.clusters[address]),
            seed,
            network,
            counted=(HandOver, Deliver),
        )

    def lay_out(self, subscribers: Iterable[Address], overlay: str = "suzaku") -> ClusterNetwork:
        """All in the overlay, and some subscribed; nothing is mended."""
        wanted = {*subscribers}
        keys = {
            a: [
                key_of("", Role.PUBLISHER, c, f"b{a}"),
                *([key_of(TOPIC, Role.SUBSCRIBER, c, f"b{a}")] if a in wanted else []),
            ]
            for a, c in self.clusters.items()
        }
        overlays: dict[Address, AnyOverlay] = (
            dict(lay_out_suzaku(self.sim, keys)) if overlay == "suzaku" else dict(lay_out(self.sim, keys, 1))
        )
        for address, one in overlays.items():
            one.introduce = lambda address=address: self.introduce(address)  # type: ignore[misc]
            self.equip(address, one)
            if address in wanted:
                self.methods[address].adopt([TOPIC])
        return self

    def grow(self, subscribers: Iterable[Address]) -> ClusterNetwork:
        """All by messages, with repair."""
        for address in self.clusters:
            self.start(address)
            self.advertise("something else", address)
            self.run(1)
        self.subscribe(TOPIC, *subscribers)
        self.run(20)
        return self

    def begin_publishing(self, address: Address, seconds: float = 10.0) -> None:
        self.advertise(TOPIC, address)
        self.run(seconds)

    def begin_subscribing(self, *addresses: Address, seconds: float = 10.0) -> None:
        self.subscribe(TOPIC, *addresses)
        self.run(seconds)

    def insert_silently(self, *addresses: Address, seconds: float = 2.0) -> None:
        """As subscribers that cannot tell any broker."""
        for address in addresses:
            self.methods[address].adopt([TOPIC])
            self.join(address, key_of(TOPIC, Role.SUBSCRIBER, self.clusters[address], f"b{address}"))
        self.run(seconds)

    def end_subscribing(self, *addresses: Address, seconds: float = 10.0) -> None:
        self.unsubscribe(TOPIC, *addresses)
        self.run(seconds)

    def reached(self, address: Address, within: str | None = None, seconds: float = 5.0) -> list[Address]:
        """Publishes, lets it spread, and says which brokers got it."""
        if within is None:
            self.publish(TOPIC, address, b"hot", seconds)
        else:
            self.forget()
            assert self.methods[address].publish_within(TOPIC, b"hot", within)
            self.run(seconds)
        return self.all_receivers()

    def publish_surely(self, address: Address, timeout_s: float, within: str | None = None) -> Outcome:
        self.forget()
        self.outcomes.clear()
        assert self.methods[address].publish_surely(TOPIC, b"hot", timeout_s, self.outcomes.append, within)
        self.run(timeout_s + 5)
        (outcome,) = self.outcomes
        return outcome

    def all_receivers(self) -> list[Address]:
        assert all(publication.body == b"hot" and publication.topic == TOPIC for _, publication in self.got)
        return self.receivers()

    def entries(self) -> Counter[str]:
        """How often the publication came into each cluster, from outside it and of what is below it."""
        paths = sorted(
            {"/".join(c.split("/")[: n + 1]) for c in self.clusters.values() for n in range(c.count("/") + 1)}
        )
        inside = {a: [path for path in paths if is_within(c, path)] for a, c in self.clusters.items()}
        return Counter(path for sender, to in self.sent for path in inside[to] if path not in inside[sender])

    def figures(self) -> tuple[float, int]:
        """The mean number of hops, and how many messages went from one cluster to another."""
        crossings = sum(self.clusters[sender] != self.clusters[to] for sender, to in self.sent)
        return mean(publication.hops for _, publication in self.got), crossings

    def delegate_of(self, address: Address, path: str) -> Address:
        """Who a broker would hand messages for a cluster to."""
        directory = self.methods[address].directories.of(TOPIC, None)
        return next(d.first.address for d in directory.delegates if d.area.path == path)


# Areas


@pytest.mark.parametrize(
    ("cluster", "own", "scope", "area"),
    [
        ("x", "x", None, ClusterArea("x", True)),
        ("x", "x/1/a", None, ClusterArea("x", True)),
        ("x/1", "x", None, ClusterArea("x/1", False)),
        ("x/2/b", "x/1/a", None, ClusterArea("x/2", False)),
        ("y/1/b", "x/1/a", None, ClusterArea("y", False)),
        ("xx", "x", None, ClusterArea("xx", False)),
        ("", "x", None, ClusterArea("", False)),
        ("x", "", None, ClusterArea("x", False)),
        ("", "", None, ClusterArea("", True)),
        ("y/1/b", "x", "y/1", ClusterArea("y/1", False)),
        ("y/1/b", "y/2", "y", ClusterArea("y/1", False)),
        ("x/1/a", "x", "x/1/a", ClusterArea("x/1/a", False)),
    ],
)
def test_clusters_are_seen_from_the_own_one(cluster: str, own: str, scope: str | None, area: ClusterArea) -> None:
    assert area_of(cluster, own, scope) == area


@pytest.mark.parametrize("own", sorted({*NESTED, "elsewhere"}))
def test_areas_do_not_overlap_and_hold_all_of_their_clusters(own: str) -> None:
    areas = {area_of(cluster, own, None) for cluster in NESTED}
    ranges = sorted(area.range_of(TOPIC) for area in areas)
    assert all(one[1] <= other[0] for one, other in pairwise(ranges))
    for cluster in NESTED:
        low, high = area_of(cluster, own, None).range_of(TOPIC)
        assert low <= key_of(TOPIC, Role.SUBSCRIBER, cluster, "b1") < high


@pytest.mark.parametrize(("name", "cluster"), [("", "x"), ("b\0", "x"), ("b", "x\x01y")])
def test_a_name_that_no_key_can_hold_is_refused(name: str, cluster: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Locality(Suzaku(Simulator(1).host(0), lambda: None), name, cluster)


# Everybody once, each cluster once


def grid(clusters: int, brokers: int) -> list[str]:
    return [f"c{n % clusters:02}" for n in range(clusters * brokers)]


@pytest.mark.parametrize("overlay", ["suzaku", "skip_graph"])
@pytest.mark.parametrize("publisher", [0, 59])
def test_each_subscriber_gets_it_once_and_each_cluster_once(overlay: str, publisher: int) -> None:
    """Of 60 brokers in 6 clusters 50 subscribe, the publisher or not."""
    network = ClusterNetwork(grid(6, 10)).lay_out(range(50), overlay)
    network.begin_publishing(publisher)
    assert network.reached(publisher) == list(range(50))
    home = network.clusters[publisher]
    assert network.entries() == {path: 1 for path in network.clusters.values() if path != home}
    assert len(network.sent) == 50 - (publisher < 50), "nobody else was bothered"
    assert {publication.number for _, publication in network.got} == {network.got[0][1].number}
    assert network.publish_surely(publisher, 20.0).complete
    assert network.all_receivers() == list(range(50))
    assert network.entries() == {path: 1 for path in network.clusters.values() if path != home}


@pytest.mark.parametrize("publisher", range(len(NESTED)))
def test_nested_clusters_are_entered_once_on_every_level(publisher: int) -> None:
    network = ClusterNetwork(NESTED).lay_out(range(len(NESTED)))
    network.begin_publishing(publisher)
    everybody = list(range(len(NESTED)))
    paths = {"x", "x/1", "x/1/a", "x/2", "y", "y/1", "y/2", "z", "", "xx"}
    others = {path: 1 for path in paths if not is_within(NESTED[publisher], path)}
    for _ in range(2):
        assert network.reached(publisher) == everybody
        assert network.entries() == others
        assert len(network.sent) == len(NESTED) - 1
    assert network.publish_surely(publisher, 20.0).complete
    assert network.all_receivers() == everybody
    assert network.entries() == others


@pytest.mark.parametrize("scope", sorted({*NESTED, "y"}))
@pytest.mark.parametrize("publisher", [0, 4, 9])
def test_a_publication_stays_inside_its_scope(scope: str, publisher: int) -> None:
    network = ClusterNetwork(NESTED).lay_out(range(len(NESTED)))
    network.begin_publishing(publisher)
    inside = [a for a, cluster in enumerate(NESTED) if is_within(cluster, scope)]
    assert network.reached(publisher, scope) == inside
    assert all(to in inside for _, to in network.sent), "no message about it leaves the scope, or passes through others"
    assert max(network.entries().values(), default=1) == 1
    assert network.publish_surely(publisher, 20.0, scope).complete
    assert network.all_receivers() == inside


def test_a_scope_without_subscribers_costs_nothing_once_that_is_known() -> None:
    network = ClusterNetwork(NESTED).lay_out([0, 1, 2])
    network.begin_publishing(0)
    assert network.reached(0, "z") == []
    assert not network.sent
    assert not network.methods[0].publish_within(TOPIC, b"hot", "z")


def test_the_check_costs_one_question_a_cluster_and_no_lookup() -> None:
    network = ClusterNetwork(grid(12, 5)).lay_out(range(60))
    network.begin_publishing(0)
    network.kinds.clear()
    network.run(CHECK_S)
    assert network.kinds["AskOwner"] <= 13
    assert network.kinds[FindAlongFingers.__name__] == 0


# Demand


def test_demand_is_known_when_subscribe_returns_and_nothing_is_sent_without() -> None:
    network = ClusterNetwork(grid(4, 4)).grow([])
    network.begin_publishing(5)
    assert not network.methods[5].publish(TOPIC, b"hot")
    network.sent.clear()
    assert network.demand == []
    known: list[bool] = []

    async def subscribe() -> None:
        await network.methods[6].subscribe(TOPIC)
        known.append(network.methods[5].is_wanted(TOPIC))

    network.do(6, subscribe())
    network.run(2)
    assert known == [True]
    assert network.demand == [(5, TOPIC, True)]
    assert network.methods[5].is_wanted(TOPIC)
    assert network.reached(5) == [6]
    network.end_subscribing(6, seconds=CHECK_S + 5)
    assert network.demand == [(5, TOPIC, True), (5, TOPIC, False)]
    assert not network.methods[5].publish(TOPIC, b"hot")
    assert not network.methods[5].publish_surely(TOPIC, b"hot", 5.0, network.outcomes.append)
    network.do(5, network.methods[5].withdraw(TOPIC))
    network.begin_subscribing(6, seconds=CHECK_S + 5)
    assert len(network.demand) == 2, "nobody asks about what is not advertised"
    with pytest.raises(ValueError, match="not advertised"):
        network.methods[5].publish(TOPIC, b"hot")


def test_the_own_subscription_is_demand_at_once() -> None:
    network = ClusterNetwork(grid(2, 2)).grow([])
    network.begin_publishing(1)
    network.begin_subscribing(1, seconds=3)
    assert network.reached(1) == [1]
    network.end_subscribing(1, seconds=3)
    assert network.demand == [(1, TOPIC, True), (1, TOPIC, False)]


def test_who_changes_its_mind_ends_as_it_said_last() -> None:
    network = ClusterNetwork(grid(2, 3)).grow([])
    for _ in range(3):
        network.do(3, network.methods[3].subscribe(TOPIC))
        network.do(3, network.methods[3].unsubscribe(TOPIC))
    network.run(20)
    assert network.methods[3].overlay.view.own_inside(*segment(TOPIC, Role.SUBSCRIBER)) == []
    network.do(3, network.methods[3].unsubscribe(TOPIC))
    network.do(3, network.methods[3].subscribe(TOPIC))
    network.run(20)
    network.begin_publishing(0)
    assert network.reached(0) == [3]


# Clusters that come and go


def test_a_cluster_that_appears_is_entered_at_once() -> None:
    network = ClusterNetwork(grid(4, 4)).grow([0, 4, 2, 6])  # of c00 and c02
    network.begin_publishing(0)
    network.begin_subscribing(8, 10, seconds=2)
    assert network.reached(0) == [0, 2, 4, 6, 8, 10]
    network.begin_subscribing(1, 3, 5, 7, 9, seconds=2)
    assert network.reached(0) == list(range(11))
    assert network.entries() == {"c01": 1, "c02": 1, "c03": 1}


def test_who_could_not_tell_is_found_by_the_next_check() -> None:
    network = ClusterNetwork(grid(4, 4)).grow([0, 4, 2, 6])
    network.begin_publishing(0)
    network.insert_silently(8, 10)
    assert network.reached(0) == [0, 2, 4, 6, 8, 10], "who is not the first of its cluster is reached at once"
    network.insert_silently(1, 3, 5, 7, 9, seconds=CHECK_S + 5)
    assert network.reached(0) == list(range(11))
    assert network.entries() == {"c01": 1, "c02": 1, "c03": 1}


class SlowAnswer(Network):
    """While it is slow, what the first broker says to the last takes long."""

    is_slow = False

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return (1.5 if self.is_slow and (source, to) == (0, 5) else 0.01,)


def test_what_was_asked_before_a_subscriber_told_does_not_make_it_unknown_again() -> None:
    slow = SlowAnswer()
    network = ClusterNetwork(grid(3, 2), network=slow).grow([0])
    network.begin_publishing(5)
    directories = network.methods[5].directories
    slow.is_slow = True
    network.do(5, directories.learn(directories.of(TOPIC, None)))
    network.run(0.05)
    slow.is_slow = False
    network.begin_subscribing(1, seconds=1)
    assert network.reached(5, seconds=0.5) == [0, 1]
    network.run(3)  # the answer of before has come
    assert network.reached(5) == [0, 1]


def test_what_was_known_before_a_broker_stood_for_the_topic_again_is_forgotten() -> None:
    """A delegate that has left hears nothing of clusters that come meanwhile."""
    network = ClusterNetwork(["x", "y", "y/1"]).grow([1])
    network.begin_publishing(0)
    assert network.reached(0) == [1]
    network.end_subscribing(1, seconds=3)
    network.begin_subscribing(2, seconds=3)
    network.begin_subscribing(1, seconds=3)
    assert network.reached(0) == [1, 2]


@pytest.mark.parametrize(("known", "new"), [([0, 4, 2, 6], [1, 5, 3, 7]), ([2, 6], [0, 4, 1]), ([1], [0, 2, 3])])
def test_a_sure_publication_reaches_clusters_that_nobody_knows_of(known: list[Address], new: list[Address]) -> None:
    """Between those that are known, behind and before them."""
    network = ClusterNetwork(grid(4, 4)).grow(known)
    network.begin_publishing(15)
    network.insert_silently(*new)
    assert network.publish_surely(15, 20.0).complete
    assert network.all_receivers() == sorted([*known, *new])


@pytest.mark.parametrize("can_tell", [True, False])
def test_a_nested_cluster_that_appears_is_entered_at_once_or_when_the_delegate_looks_again(can_tell: bool) -> None:
    network = ClusterNetwork(["x", "y", "y", "y/1", "y/1", "y/2"]).grow([0, 1, 2, 5])
    network.begin_publishing(0)
    assert network.reached(0) == [0, 1, 2, 5]
    if can_tell:
        network.begin_subscribing(3, 4, seconds=2)
    else:
        network.insert_silently(3, 4)
        assert network.reached(0) == [0, 1, 2, 5]
        network.run(EXPIRY_S)
    assert network.reached(0) == [0, 1, 2, 3, 4, 5]
    assert network.entries() == {"y": 1, "y/1": 1, "y/2": 1}


def test_a_cluster_that_disappears_is_left_alone_and_not_mourned() -> None:
    network = ClusterNetwork(grid(4, 4)).grow(range(16))
    network.begin_publishing(0)
    network.end_subscribing(1, 5, 9, 13)
    left = [a for a in range(16) if a % 4 != 1]
    assert network.reached(0) == left, "its delegate says no, and nobody is there any more"
    assert network.methods[0].given_up == 0
    assert network.reached(0) == left
    assert network.entries() == {"c02": 1, "c03": 1}
    network.end_subscribing(*left)
    network.reached(0, seconds=20)
    assert network.demand == [(0, TOPIC, True), (0, TOPIC, False)], "the publication found nobody"


def test_those_who_have_just_left_hinder_nobody() -> None:
    """Some still have them in their tables."""
    network = ClusterNetwork(grid(3, 8)).grow(range(24))
    network.begin_publishing(0)
    gone = [3, 7, 8, 11, 12, 15, 16, 20]
    network.end_subscribing(*gone)
    left = [a for a in range(24) if a not in gone]
    assert network.reached(0, seconds=20) == left
    assert network.publish_surely(0, 30.0).complete
    assert network.all_receivers() == left


def test_a_delegate_that_subscribes_no_longer_is_replaced() -> None:
    network = ClusterNetwork(grid(4, 4)).grow(range(16))
    network.begin_publishing(0)
    stale = network.delegate_of(0, "c02")
    network.end_subscribing(stale)
    assert network.reached(0) == [a for a in range(16) if a != stale]
    assert network.kinds["HandOverDeclined"] == 1
    assert network.reached(0) == [a for a in range(16) if a != stale]
    assert network.kinds["HandOverDeclined"] == 0
    assert network.methods[0].given_up == 0


@pytest.mark.parametrize("surely", [False, True])
def test_a_delegate_that_crashes_is_replaced(surely: bool) -> None:
    """At once, by the last of its cluster; nobody waits for the ring to be mended."""
    network = ClusterNetwork(grid(4, 4)).lay_out(range(16))
    network.begin_publishing(0)
    gone = network.delegate_of(0, "c02")
    network.crash(gone)
    alive = [a for a in range(16) if a != gone]
    if surely:
        outcome = network.publish_surely(0, 40.0)
        key = key_of(TOPIC, Role.SUBSCRIBER, "c02", f"b{gone}")
        assert [low <= key < high for low, high in outcome.gaps] == [True], (
            "the part of the dead is all that is missing"
        )
        inside = without([segment(TOPIC, Role.SUBSCRIBER, "c02")], outcome.gaps)
        others = (key_of(TOPIC, Role.SUBSCRIBER, "c02", f"b{a}") for a in alive if network.clusters[a] == "c02")
        assert all(any(low <= other < high for low, high in inside) for other in others)
    else:
        network.reached(0, seconds=10)
        assert network.methods[0].given_up == 0
    assert network.all_receivers() == alive


def test_a_delegate_that_crashes_is_forgotten_when_the_ring_is_mended() -> None:
    network = ClusterNetwork(grid(4, 4)).grow([a for a in range(16) if a not in (6, 10, 14)])  # 2 is alone in c02
    network.begin_publishing(0)
    network.crash(2)
    alive = [0, 1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15]
    assert network.reached(0, seconds=90) == alive
    assert network.methods[0].given_up == 0
    assert network.reached(0) == alive
    assert network.entries() == {"c01": 1, "c03": 1}
    outcome = network.publish_surely(0, 20.0)
    assert outcome.complete
    assert network.all_receivers() == alive


def test_what_nobody_takes_is_counted() -> None:
    """Nothing is mended here, so the cluster of one dead broker is looked for in vain."""
    network = ClusterNetwork(["x", "y", "z"]).lay_out(range(3))
    network.begin_publishing(0)
    network.crash(1)
    assert network.reached(0, seconds=300) == [0, 2]
    assert network.methods[0].given_up == 1


def test_a_failed_over_message_is_not_delivered_twice() -> None:
    """Two delegates of one cluster run the same publication: each subscriber gets it once."""
    network = ClusterNetwork(grid(3, 5)).lay_out(range(15))
    network.begin_publishing(0)
    delegates: list[Address] = [a for a in range(15) if a % 3 == 1]
    first: list[HandOver] = []
    counted = network.sim.on_message

    def keep(sender: Address, to: Address, message: Message, hops: int) -> None:
        if isinstance(message, HandOver) and to in delegates:
            first.append(message)
        if counted is not None:
            counted(sender, to, message, hops)

    network.sim.on_message = keep
    network.reached(0)
    for address in delegates:
        network.sim.hosts[0].send(address, first[0])
    network.run(5)
    assert network.all_receivers() == list(range(15))


# Losses


@pytest.mark.parametrize("seed", range(6))
def test_losses_and_repetitions_do_not_show(seed: int) -> None:
    """Publications that must be proven, over a network that loses, repeats and reorders, nested clusters included."""
    faults = Faults.parse("loss=0.05,dup=0.05,reorder=0.1")
    clusters = [*NESTED, *grid(6, 4)]
    network = ClusterNetwork(clusters, seed, faults.over(Constant(0.02))).lay_out(range(len(clusters)))
    network.begin_publishing(3, seconds=60)
    for _ in range(5):
        assert network.publish_surely(3, 120.0).complete, f"seed {seed}"
        assert network.all_receivers() == list(range(len(clusters))), f"seed {seed}"


@pytest.mark.parametrize("seed", range(3))
def test_plain_publications_are_never_doubled_and_each_cluster_is_entered(seed: int) -> None:
    """Without proof a loss inside a cluster may show; on the way into one it does not."""
    faults = Faults.parse("loss=0.05,dup=0.05,reorder=0.1")
    network = ClusterNetwork(grid(10, 4), seed, faults.over(Constant(0.02))).lay_out(range(40))
    network.begin_publishing(0, seconds=60)
    came = 0
    for _ in range(10):
        got = network.reached(0, seconds=60)
        assert len(got) == len({*got}), f"seed {seed}"
        assert {network.clusters[a] for a in got} == {*network.clusters.values()}, f"seed {seed}"
        came += len(got)
    assert came > 0.9 * 400
    assert network.methods[0].given_up == 0


def test_losses_do_not_show_while_brokers_come_and_go() -> None:
    """Those who subscribe all the time get every proven publication once."""
    faults = Faults.parse("loss=0.02,dup=0.02,reorder=0.05")
    network = ClusterNetwork(grid(4, 5), 3, faults.over(Constant(0.02))).grow(range(10))
    network.run(60)
    network.begin_publishing(0, seconds=60)
    for _ in range(3):
        for address in range(10, 20):
            delay_s = network.sim.chance.uniform(0, 4)
            network.sim.at(
                network.sim.now + delay_s,
                lambda a=address: network.do(a, network.methods[a].subscribe(TOPIC)),  # type: ignore[misc]
            )
            network.sim.at(
                network.sim.now + delay_s + 3,
                lambda a=address: network.do(a, network.methods[a].unsubscribe(TOPIC)),  # type: ignore[misc]
            )
        assert network.publish_surely(0, 120.0).complete
        got = network.all_receivers()
        assert len(got) == len({*got})
        assert {*range(10)} <= {*got}


# Bounds and nonsense


@pytest.mark.parametrize("name", [b"\xff", b"a\0b\0c", b"c00/x\0b1", b"c00", b"", b"zz\x03"])
def test_who_stands_where_no_subscriber_can_stand_gets_nothing_and_hinders_nobody(name: bytes) -> None:
    network = ClusterNetwork(grid(3, 3)).grow([0, 1, 2, 4, 5])
    network.join(8, segment(TOPIC, Role.SUBSCRIBER)[0] + name)
    network.run(10)
    network.begin_publishing(0)
    assert network.reached(0) == [0, 1, 2, 4, 5]
    assert network.publish_surely(0, 20.0).complete
    assert network.all_receivers() == [0, 1, 2, 4, 5]


def test_of_directories_those_used_longest_ago_go_first() -> None:
    directories = ClusterDirectories(Suzaku(Simulator(1).host(0), lambda: None), "x")
    kept, used, unused = directories.keep("kept"), directories.of("used", None), directories.of("unused", None)
    for number in range(DIRECTORIES_MAX):
        directories.of(f"topic {number}", None)
        directories.of("used", None)
    assert directories.of("kept", None) is kept
    assert directories.of("used", None) is used
    assert directories.of("unused", None) is not unused
    directories.release("kept")
    assert directories.of("kept", None) is not kept


def test_what_waits_for_a_directory_keeps_its_order_and_what_finds_no_room_is_counted() -> None:
    network = ClusterNetwork(grid(2, 3)).lay_out(range(6))
    network.begin_publishing(0)
    broker = network.methods[0]
    for number in range(WAITING_MAX + 3):
        assert broker.publish_within(TOPIC, b"%d" % number, "c01")
    assert network.got == []
    assert broker.given_up == 3
    network.run(10)
    for subscriber in (1, 3, 5):
        bodies = [publication.body for address, publication in network.got if address == subscriber]
        assert bodies == [b"%d" % number for number in range(WAITING_MAX)]
    assert broker.given_up == 3


def test_hand_overs_without_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locality, "HANDING_MAX", 2)
    network = ClusterNetwork(grid(6, 2)).lay_out(range(12))
    network.begin_publishing(0)
    got = network.reached(0)
    assert len({network.clusters[address] for address in got}) == 3
    assert network.methods[0].given_up == 3
    assert network.publish_surely(0, 60.0).complete, "a proof comes back to what found no room"
    assert network.all_receivers() == list(range(12))


# The figures


def test_the_way_is_short_and_crosses_between_clusters_once() -> None:
    """200 subscribers in 20 clusters, one publication, against one plain range delivery to all of them."""
    clusters = grid(20, 10)
    delays = {a: {b: 0.002 if a == b else 0.05 for b in {*clusters}} for a in {*clusters}}
    far = ClusterDelays(delays, lambda address: clusters[int(address)])
    network = ClusterNetwork(clusters, 1, far).lay_out(range(200))
    network.begin_publishing(0)
    assert network.reached(0) == list(range(200))
    by_delegates = network.figures()
    network.forget()
    network.methods[0].ranges.send(
        *segment(TOPIC, Role.SUBSCRIBER), msgspec.msgpack.encode(RoutedPublication(0, 1, 0, None, b"hot")), Cut.SFB
    )
    network.run(5)
    assert network.all_receivers() == list(range(200))
    plain = network.figures()
    assert by_delegates[1] == 19 < plain[1]
    assert by_delegates[0] < 3
