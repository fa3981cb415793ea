"""Explicit multicast: exactly the listed brokers, once each, by each other's help; and proof where it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.host import Address, Message
from braidmq.pubsub.covers import multicast as module
from braidmq.pubsub.covers.multicast import (
    ACKNOWLEDGE_S,
    ACKNOWLEDGED_AT_ONCE,
    DIRECT_MAX,
    FANOUT,
    RESEND_S,
    RESEND_S_MAX,
    SEEN_MAX,
    SWEEP_S,
    Multicast,
    Receiver,
    parts_of,
)
from braidmq.pubsub.covers.multicast_messages import CopyReceived, MulticastCopy
from braidmq.pubsub.method import Publication
from braidmq.sim.engine import Constant, Network, Simulator
from braidmq.sim.network import Faults, Uniform

DELAY_S = 0.01
TIMEOUT_S = 60.0

ClusterOf = Callable[[int], str]


def no_cluster(_: int) -> str:
    return ""


class MulticastNetwork:
    """Hosts 0, 1, 2 …, each with its part of the multicast; keeps every copy that was sent, and who got what."""

    def __init__(
        self, hosts: int, cluster_of: ClusterOf = no_cluster, network: Network | None = None, seed: int = 1
    ) -> None:
        self.cluster_of = cluster_of
        self.sim = Simulator(seed, network or Constant(DELAY_S))
        self.sim.on_send = self._on_send
        self.got: dict[int, list[Publication]] = {address: [] for address in range(hosts)}
        self.copies: list[tuple[Address, Address, MulticastCopy]] = []
        self.acknowledgements: list[tuple[Address, Address]] = []
        self.parts = [
            Multicast(self.sim.host(address), cluster_of(address), self.got[address].append) for address in range(hosts)
        ]

    def _on_send(self, sender: Address, to: Address, message: Message, _hops: int, _delays: tuple[float, ...]) -> None:
        if isinstance(message, MulticastCopy):
            self.copies.append((sender, to, message))
        elif isinstance(message, CopyReceived):
            self.acknowledgements.append((sender, to))

    def listed(self, addresses: Iterable[int]) -> list[Receiver]:
        return [Receiver(f"b{address}", address, self.cluster_of(address)) for address in addresses]

    def send(self, addresses: Iterable[int], topic: str = "t", body: bytes = b"hello", root: int = 0) -> None:
        """Sends, and lets all of it arrive."""
        self.copies.clear()
        self.parts[root].send(topic, body, self.listed(addresses))
        self.sim.run(self.sim.now + 10)

    def deliver(self, addresses: Sequence[int], timeout_s: float = TIMEOUT_S) -> list[tuple[Receiver, ...]]:
        """Begins a delivery; what is said of it comes into the list."""
        outcomes: list[tuple[Receiver, ...]] = []
        self.parts[0].deliver("t", b"hello", self.listed(addresses), timeout_s, outcomes.append)
        return outcomes

    def reached(self) -> dict[int, int]:
        """How often each host that got anything was handed something."""
        return {address: len(got) for address, got in self.got.items() if got}

    def handled(self) -> set[Address]:
        """All that sent or were sent a copy."""
        return {place for sender, to, _ in self.copies for place in (sender, to)}

    def crossings(self) -> Counter[str]:
        """By cluster, at any level: how many copies came into it from outside."""
        counts: Counter[str] = Counter()
        for sender, to, _ in self.copies:
            for cluster in enclosing(self.cluster_of(int(to))):
                if cluster not in enclosing(self.cluster_of(int(sender))):
                    counts[cluster] += 1
        return counts


def enclosing(cluster: str) -> list[str]:
    """A cluster, and those that it is in."""
    levels = cluster.split("/") if cluster else []
    return ["/".join(levels[: end + 1]) for end in range(len(levels))]


@pytest.mark.parametrize(("receivers", "depth_max"), [(1, 1), (8, 1), (9, 2), (72, 2), (100, 3), (1000, 4)])
def test_exactly_the_listed_get_it_once(receivers: int, depth_max: int) -> None:
    network = MulticastNetwork(2 * receivers + 1)
    listed = range(1, 2 * receivers + 1, 2)
    network.send(listed)
    assert network.reached() == dict.fromkeys(listed, 1)
    assert network.handled() == {0, *listed}
    assert sorted(to for _, to, _ in network.copies) == [*listed]
    hops = [got[0].hops for got in network.got.values() if got]
    assert max(hops) <= depth_max
    assert min(hops) == 1
    sent = Counter(sender for sender, _, _ in network.copies)
    assert max(sent.values()) <= max(DIRECT_MAX, FANOUT)


def test_what_arrives_says_what_it_is_and_from_whom() -> None:
    network = MulticastNetwork(30)
    network.send(range(1, 30), "some/topic", b"body")
    network.send(range(1, 30), "some/topic", b"body")
    number = network.got[1][0].number
    for address in range(1, 30):
        first, second = network.got[address]
        assert first[:4] == ("some/topic", b"body", 0, number)
        assert second[:4] == ("some/topic", b"body", 0, number + 1)


def test_a_list_of_nobody_is_told_to_nobody() -> None:
    network = MulticastNetwork(3)
    network.send([])
    assert network.copies == []
    assert network.deliver([]) == [()]


def test_topics_share_out_who_passes_on() -> None:
    network = MulticastNetwork(41)
    relays = set()
    for number in range(20):
        network.send(range(1, 41), f"topic/{number}")
        relays |= {sender for sender, _, _ in network.copies} - {0}
    assert len(relays) > 20


def test_a_topic_takes_the_same_way_each_time() -> None:
    network = MulticastNetwork(101, lambda address: f"c{address % 3}")
    network.send(range(1, 101))
    way = [(sender, to) for sender, to, _ in network.copies]
    network.send(range(1, 101))
    assert [(sender, to) for sender, to, _ in network.copies] == way


# Clusters


@pytest.mark.parametrize("listed", [range(1, 6), range(1, 9), range(1, 100)])
def test_one_copy_crosses_into_each_cluster(listed: range) -> None:
    network = MulticastNetwork(100, lambda address: f"c{address % 4}")
    network.send(listed)
    assert network.reached() == dict.fromkeys(listed, 1)
    assert network.crossings() == {"c1": 1, "c2": 1, "c3": 1}


def test_many_clusters_are_reached_through_each_other() -> None:
    network = MulticastNetwork(401, lambda address: f"c{address % 200}")
    network.send(range(1, 401))
    assert network.reached() == dict.fromkeys(range(1, 401), 1)
    assert network.crossings() == {f"c{number}": 1 for number in range(1, 200)}
    sent = Counter(sender for sender, _, _ in network.copies)
    assert max(sent.values()) <= 2 * FANOUT
    assert max(got[0].hops for got in network.got.values() if got) <= 4


CLUSTERS = ["", "eu", "eu/de", "eu/de/a", "eu/de/b", "eu/fr", "eu/fr/a", "us", "us/ny", "us/sf"]


@pytest.mark.parametrize("own", CLUSTERS)
def test_one_copy_crosses_into_each_level_of_nested_clusters(own: str) -> None:
    network = MulticastNetwork(201, lambda address: CLUSTERS[address % len(CLUSTERS)] if address else own)
    for listed in (range(1, 12), range(1, 201)):
        network.send(listed)
        crossings = network.crossings()
        inside = enclosing(own)
        assert {cluster for cluster in CLUSTERS if cluster and cluster not in inside} == crossings.keys()
        assert set(crossings.values()) == {1}
    assert network.reached() == {address: 2 if address < 12 else 1 for address in range(1, 201)}


@given(
    st.sampled_from(CLUSTERS),
    st.lists(st.sampled_from([*CLUSTERS, *(f"x{n}" for n in range(20))]), max_size=120),
)
def test_parts_hold_every_broker_once_and_no_cluster_in_two(own: str, clusters: list[str]) -> None:
    to = list(enumerate(clusters))
    parts = parts_of(own, to)
    assert sorted(one for part in parts for one in part) == to
    assert all(parts)
    for cluster in {*clusters} - {"", own}:
        if cluster not in enclosing(own):
            assert sum(any(cluster in enclosing(other) for _, other in part) for part in parts) == 1
    distances = 2 * (len(enclosing(own)) + 1)
    assert len(parts) <= max(DIRECT_MAX, FANOUT * distances)


# Proof


@pytest.mark.parametrize("receivers", [1, 8, 9, 300])
def test_a_delivery_is_proven_once_all_have_said_so(receivers: int) -> None:
    network = MulticastNetwork(receivers + 2)
    outcomes = network.deliver(range(1, receivers + 1))
    network.sim.run(1.0)
    assert outcomes == [()]
    network.sim.run(TIMEOUT_S * 2)
    assert outcomes == [()]
    assert network.reached() == dict.fromkeys(range(1, receivers + 1), 1)
    assert len(network.copies) == receivers
    assert network.acknowledgements == [(sender, 0) for sender, _ in network.acknowledgements]
    assert len(network.acknowledgements) == receivers


FAULTS = "loss=0.1,dup=0.2,reorder=0.3"


@pytest.mark.parametrize("seed", range(5))
def test_a_delivery_reaches_all_through_faults_and_is_handed_over_once(seed: int) -> None:
    under = Faults.parse(FAULTS).over(Uniform(0.01, 0.1))
    network = MulticastNetwork(121, lambda address: f"c{address % 5}", under, seed)
    outcomes = network.deliver(range(1, 121))
    network.sim.run(TIMEOUT_S * 2)
    assert outcomes == [()]
    assert network.reached() == dict.fromkeys(range(1, 121), 1)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_only_told_comes_at_most_once_through_faults(seed: int) -> None:
    under = Faults.parse(FAULTS).over(Uniform(0.01, 0.1))
    network = MulticastNetwork(121, lambda address: f"c{address % 5}", under, seed)
    for _ in range(3):
        network.send(range(1, 121, 2))
    for address, got in network.got.items():
        assert len({each.number for each in got}) == len(got)
        assert address % 2 == 1 or not got


def test_the_living_get_what_a_dead_head_does_not_pass_on_and_the_dead_are_named() -> None:
    network = MulticastNetwork(101, lambda address: "here" if address < 51 else "there")
    network.send(range(1, 101))
    heads = {int(to) for sender, to, copy in network.copies if sender == 0 and copy.to}
    assert len(heads) >= 2
    for got in network.got.values():
        got.clear()
    for head in heads:
        network.sim.hosts[head].crash()
    outcomes = network.deliver(range(1, 101))
    network.sim.run(network.sim.now + TIMEOUT_S + 2 * SWEEP_S)
    assert [{*each} for each in outcomes] == [{*network.listed(heads)}]
    assert network.reached() == {address: 1 for address in range(1, 101) if address not in heads}


def test_the_silent_are_asked_at_growing_intervals() -> None:
    network = MulticastNetwork(3)
    network.sim.hosts[2].crash()
    times: list[float] = []
    on_send = network.sim.on_send
    assert on_send is not None

    def note(sender: Address, to: Address, message: Message, hops: int, delays: tuple[float, ...]) -> None:
        if to == 2:
            times.append(network.sim.now)
        on_send(sender, to, message, hops, delays)

    network.sim.on_send = note
    outcomes = network.deliver([1, 2])
    network.sim.run(TIMEOUT_S * 2)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits == [1.0, 2.0, 4.0, *[8.0] * 6]
    assert waits[0] == RESEND_S
    assert waits[-1] == RESEND_S_MAX
    assert outcomes == [tuple(network.listed([2]))]
    assert len([to for _, to, _ in network.copies if to == 1]) == 1
    network.sim.run()  # nothing is left to happen


def test_what_comes_again_is_acknowledged_again_and_neither_handed_over_nor_passed_on() -> None:
    network = MulticastNetwork(4)
    copy = MulticastCopy(0, 7, "t", 1, ((2, ""), (3, "")), True, b"hello")
    for _ in range(3):
        network.parts[1].on_copy(0, copy)
    network.sim.run()
    assert network.reached() == {1: 1, 2: 1, 3: 1}
    assert sorted(sender for sender, _ in network.acknowledgements) == [1, 1, 1, 2, 3]


def test_acknowledgements_wait_for_each_other_a_moment() -> None:
    """What comes within it is acknowledged at one time, each copy for itself; many do not wait."""
    network = MulticastNetwork(2)
    times: list[float] = []
    on_send = network.sim.on_send
    assert on_send is not None

    def note(sender: Address, to: Address, message: Message, hops: int, delays: tuple[float, ...]) -> None:
        if isinstance(message, CopyReceived):
            times.append(network.sim.now)
        on_send(sender, to, message, hops, delays)

    network.sim.on_send = note
    outcomes = []
    for _ in range(5):
        outcomes += [network.deliver([1])]
        network.sim.run(network.sim.now + ACKNOWLEDGE_S / 10)
    network.sim.run(network.sim.now + 1)
    assert times == [DELAY_S + ACKNOWLEDGE_S] * 5
    assert outcomes == [[()]] * 5
    times.clear()
    begin = network.sim.now
    for _ in range(ACKNOWLEDGED_AT_ONCE + 1):
        network.deliver([1])
    network.sim.run(network.sim.now + 1)
    assert times[:-1] == pytest.approx([begin + DELAY_S] * ACKNOWLEDGED_AT_ONCE)
    assert times[-1] == pytest.approx(begin + DELAY_S + ACKNOWLEDGE_S)


def test_an_acknowledgement_of_nothing_is_nothing() -> None:
    network = MulticastNetwork(3)
    outcomes = network.deliver([1])
    number = network.copies[0][2].number
    network.parts[0].on_received(1, CopyReceived(number + 1))
    network.parts[0].on_received(2, CopyReceived(number))
    assert outcomes == []
    network.parts[0].on_received(1, CopyReceived(number))
    network.parts[0].on_received(1, CopyReceived(number))
    network.sim.run()
    assert outcomes == [()]


def test_a_delivery_can_begin_another_when_it_ends() -> None:
    network = MulticastNetwork(3)
    network.sim.hosts[2].crash()
    outcomes: list[str] = []

    def begin(name: str, again: int) -> None:
        def over(missing: tuple[Receiver, ...]) -> None:
            outcomes.append(f"{name} {len(missing)}")
            if again:
                begin(name, again - 1)

        network.parts[0].deliver("t", b"", network.listed([1, 2]), 3.0, over)

    begin("one", 2)
    begin("other", 1)
    network.sim.run()
    assert sorted(outcomes) == ["one 1"] * 3 + ["other 1"] * 2


# Bounds


def test_deliveries_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", 3)
    network = MulticastNetwork(2)
    outcomes = [network.deliver([1]) for _ in range(3)]
    with pytest.raises(RuntimeError, match="3 deliveries are under way"):
        network.deliver([1])
    network.sim.run(1.0)
    assert outcomes == [[()]] * 3
    outcomes.append(network.deliver([1]))
    network.sim.run()
    assert outcomes == [[()]] * 4


def test_the_last_copies_are_known_again_and_no_more_are_kept_than_the_bound() -> None:
    recent = module._RecentCopies(SEEN_MAX)
    for number in range(3 * SEEN_MAX):
        assert recent.is_new((0, number))
        assert not recent.is_new((0, number))
        assert not recent.is_new((0, max(0, number - SEEN_MAX // 2 + 1)))
        assert max(len(recent._younger), len(recent._older)) <= SEEN_MAX // 2
    assert recent.is_new((0, 0))


# What travels


def test_numbers_are_always_written_in_eight_bytes() -> None:
    for seed in range(20):
        network = MulticastNetwork(2, seed=seed)
        network.send([1])
        copy = network.copies[0][2]
        assert copy.number.to_bytes(8) in msgspec.msgpack.encode(copy)
        assert 1 << 60 <= copy.number < 1 << 61


def test_a_copy_and_its_acknowledgement_are_what_they_were_behind_the_wire() -> None:
    for message in (MulticastCopy("h:1", 1 << 60, "a/b", 2, (("h:2", "eu"),), True, b"x"), CopyReceived(1 << 60)):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message


def test_who_follows_copies_sees_each_before_it_is_passed_on() -> None:
    network = MulticastNetwork(20)
    seen: list[tuple[Address, int, int]] = []
    for address, part in enumerate(network.parts):
        part.on_hop = lambda origin, copy, at=address: seen.append((origin, at, copy.hops))
    network.send(range(1, 20))
    assert sorted((origin, at) for origin, at, _ in seen) == sorted((sender, to) for sender, to, _ in network.copies)
    assert {at: hops for _, at, hops in seen} == {a: got[0].hops for a, got in network.got.items() if got}
