"""Range delivery: every key in the range once, in few hops, over laid-out graphs; and over a network that repeats."""

from __future__ import annotations

from random import Random

import pytest

from braidmq.host import Address, Message
from braidmq.keys import Key
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.overlay.skip_range import Cut, Delivery, RangeDelivery, RangeMessage, without
from braidmq.sim.checkers_skip import ranges_reach_each_once
from braidmq.sim.engine import Network, Simulator
from braidmq.sim.layout_skip import lay_out
from tests.overlay.test_skip_graph import some_keys


class Repeating(Network):
    """Every message arrives twice."""

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return (0.01, 0.01 + chance.uniform(0, 0.1))


class Post:
    """A laid-out graph that notes who got what, and who sent how many messages on."""

    def __init__(self, wanted: dict[Address, list[Key]], seed: int, network: Network | None = None) -> None:
        self.sim = Simulator(seed, network)
        self.graphs = lay_out(self.sim, wanted, seed)
        self.members = sorted(key for keys in wanted.values() for key in keys)
        self.got: list[Delivery] = []
        self.forwards: dict[Address, int] = {}
        self.receipts: dict[Address, int] = {}
        self.sim.on_message = self._count
        self.deliveries = {address: RangeDelivery(graph, self.got.append) for address, graph in self.graphs.items()}

    def _count(self, sender: Address, to: Address, message: Message, hops: int) -> None:
        if isinstance(message, RangeMessage):
            self.forwards[sender] = self.forwards.get(sender, 0) + 1
            self.receipts[to] = self.receipts.get(to, 0) + 1

    def send(self, sender: Address, low: Key, high: Key, cut: Cut) -> list[Key]:
        """The keys reached."""
        for noted in (self.got, self.forwards, self.receipts):
            noted.clear()
        self.deliveries[sender].send(low, high, b"hello", cut)
        self.sim.run(self.sim.now + 10)
        return sorted(key for delivery in self.got for key in delivery.keys)


@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize(("brokers", "keys"), [(1, 1), (1, 4), (2, 3), (9, 5), (40, 1), (40, 6)])
def test_every_key_in_a_range_is_reached_once(brokers: int, keys: int, cut: Cut) -> None:
    post = Post(some_keys(brokers, keys, 1), 2)
    chance = Random(3)
    for _ in range(60):
        low, high = sorted(b"%06d" % chance.randrange(10**6) for _ in range(2))
        reached = post.send(chance.randrange(brokers), low, high, cut)
        assert reached == [key for key in post.members if low <= key < high]


def test_an_empty_range_reaches_nobody() -> None:
    post = Post({0: [b"a"], 1: [b"c"], 2: [b"e"]}, 4)
    for cut in Cut:
        for sender in post.graphs:
            assert post.send(sender, b"c1", b"d", cut) == []
            assert post.send(sender, b"x", b"z", cut) == []


def test_mrf_comes_once_and_goes_on_at_most_twice() -> None:
    """Each broker has one key in the range, as the subscribers of a topic have (seed 001, Table 1)."""
    post = Post(some_keys(300, 1, 5), 6)
    for sender in range(0, 300, 10):
        assert len(post.send(sender, b"2", b"8", Cut.MRF)) > 100
        assert max(post.receipts.values()) == 1
        assert max(post.forwards.values()) <= 2


def test_sfb_takes_fewer_hops_than_mrf() -> None:
    post = Post(some_keys(300, 1, 7), 8)
    mean = {}
    for cut in Cut:
        post.send(0, b"2", b"8", cut)
        mean[cut] = sum(delivery.hops for delivery in post.got) / len(post.got)
    assert mean[Cut.SFB] < mean[Cut.MRF] < 12


def test_what_the_network_repeats_is_delivered_once() -> None:
    post = Post(some_keys(30, 3, 9), 10, Repeating())
    for cut in Cut:
        assert post.send(3, b"1", b"7", cut) == [key for key in post.members if b"1" <= key < b"7"]


def test_a_broker_without_a_key_can_send() -> None:
    post = Post(some_keys(20, 1, 11), 12)
    stranger = SkipGraph(post.sim.host("stranger"), 0, lambda: 7)
    post.deliveries["stranger"] = RangeDelivery(stranger, post.got.append)
    for cut in Cut:
        assert post.send("stranger", b"1", b"7", cut) == [key for key in post.members if b"1" <= key < b"7"]


def test_the_checker_sees_who_was_left_out() -> None:
    wanted = some_keys(8, 1, 13)
    sim = Simulator(14)
    graphs = lay_out(sim, wanted, 14)
    assert ranges_reach_each_once(sim, list(graphs.values()), b"0", b":") == []
    sim.hosts[3].crash()
    assert ranges_reach_each_once(sim, list(graphs.values()), b"0", b":") != []


def test_parts_of_ranges() -> None:
    assert without((b"a", b"k"), []) == [(b"a", b"k")]
    assert without((b"a", b"k"), [(b"c", b"d"), (b"f", b"z")]) == [(b"a", b"c"), (b"d", b"f")]
    assert without((b"a", b"k"), [(b"a", b"k")]) == []
    assert without((b"a", b"k"), [(b"k", b"z")]) == [(b"a", b"k")]
