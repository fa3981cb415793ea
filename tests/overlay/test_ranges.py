"""Range delivery: to each node in the range once, to no other, and no claim of completeness that is not true."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.host import Address, Message
from braidmq.keys import Key
from braidmq.overlay import Overlay
from braidmq.overlay.aggregates import Aggregate
from braidmq.overlay.key_ranges import KeyRange, without
from braidmq.overlay.ranges import (
    PROVEN,
    Answering,
    Condition,
    Cut,
    Deliver,
    Outcome,
    Plan,
    RangeArrival,
    RangeDelivery,
    Retrying,
)
from braidmq.overlay.ranges.messages import Covered
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.overlay.suzaku import PERIOD_S, Suzaku
from braidmq.sim.checkers.skip_graph import ranges_reach_each_once
from braidmq.sim.engine import Network, Simulator
from braidmq.sim.layouts.skip_graph import lay_out
from braidmq.sim.layouts.suzaku import lay_out_suzaku
from tests.overlay.test_skip_graph import some_keys
from tests.simulated import FaultyNetwork

keys = st.binary(max_size=2)
ranges = st.tuples(keys, keys).map(lambda pair: (min(pair), max(pair)))


@given(st.lists(ranges), st.lists(ranges, max_size=3), keys)
def test_what_is_taken_off_is_gone_and_nothing_else(gaps: list[KeyRange], taken: list[KeyRange], probe: Key) -> None:
    def holds(some: list[KeyRange] | tuple[KeyRange, ...]) -> bool:
        return any(low <= probe < high for low, high in some)

    assert holds(without(gaps, taken)) == (holds(gaps) and not holds(taken))


class Repeating(Network):
    """Every message arrives twice."""

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return (0.01, 0.01 + chance.uniform(0, 0.1))


class Post:
    """A laid-out network that notes which node got what, and how many messages each sent on."""

    def __init__(
        self, overlay: str, wanted: dict[Address, list[Key]], seed: int = 1, network: Network | None = None
    ) -> None:
        self.sim = Simulator(seed, network)
        self.overlays: dict[Address, Overlay] = (
            dict(lay_out_suzaku(self.sim, wanted)) if overlay == "suzaku" else dict(lay_out(self.sim, wanted, seed))
        )
        self.members = sorted(key for keys in wanted.values() for key in keys)
        self.got: list[RangeArrival] = []
        self.forwards: Counter[Address] = Counter()
        self.receipts: Counter[Address] = Counter()
        self.answers: Counter[Address] = Counter()
        self.sim.on_message = self._count
        self.posts = {address: RangeDelivery(overlay, self.take) for address, overlay in self.overlays.items()}

    def take(self, delivery: RangeArrival) -> bytes:
        self.got.append(delivery)
        return delivery.keys[0].lower()

    def _count(self, sender: Address, to: Address, message: Message, hops: int) -> None:
        if isinstance(message, Deliver):
            self.forwards[sender] += 1
            self.receipts[to] += 1
        elif isinstance(message, Covered):
            self.answers[to] += 1

    def send(self, sender: Address, low: Key, high: Key, cut: Cut) -> list[Key]:
        """The keys reached."""
        for noted in (self.got, self.forwards, self.receipts):
            noted.clear()
        self.posts[sender].send(low, high, b"hello", cut)
        self.sim.run(self.sim.now + 10)
        return self.reached()

    def deliver(self, sender: Address, low: Key, high: Key, timeout_s: float = 60.0, plan: Plan = PROVEN) -> Outcome:
        self.got.clear()
        outcomes: list[Outcome] = []
        self.posts[sender].deliver(low, high, b"hello", timeout_s, outcomes.append, plan)
        self.sim.run(self.sim.now + timeout_s + 10)
        (outcome,) = outcomes
        return outcome

    def reached(self) -> list[Key]:
        return sorted(key for delivery in self.got for key in delivery.keys)

    def inside(self, low: Key, high: Key) -> list[Key]:
        return [key for key in self.members if low <= key < high]


OVERLAYS = pytest.mark.parametrize("overlay", ["suzaku", "skip_graph"])
SIZES = pytest.mark.parametrize(("brokers", "keys"), [(1, 1), (1, 4), (2, 3), (9, 5), (40, 1), (40, 6)])


@OVERLAYS
@SIZES
@pytest.mark.parametrize("cut", list(Cut))
def test_every_key_in_a_range_is_reached_once(overlay: str, brokers: int, keys: int, cut: Cut) -> None:
    post = Post(overlay, some_keys(brokers, keys, 1), 2)
    chance = Random(3)
    for _ in range(40):
        low, high = sorted(b"%06d" % chance.randrange(10**6) for _ in range(2))
        assert post.send(chance.randrange(brokers), low, high, cut) == post.inside(low, high)


@OVERLAYS
@SIZES
@pytest.mark.parametrize("answering", list(Answering))
@pytest.mark.parametrize("retrying", [Retrying.NONE, Retrying.BOTH])
def test_it_is_proven_that_all_have_it(
    overlay: str, brokers: int, keys: int, answering: Answering, retrying: Retrying
) -> None:
    post = Post(overlay, some_keys(brokers, keys, 1), 2)
    chance = Random(4)
    plan = Plan(Cut.RIGHT, answering, retrying)
    for low, high in ((b"", b"\xff"), (b"3", b"6"), (b"500000", b"500001"), (b"999999", b"\xff")):
        outcome = post.deliver(chance.randrange(brokers), low, high, 5.0, plan)
        assert outcome.complete
        assert post.reached() == sorted(outcome.answers) == post.inside(low, high)
        assert all(answer == key.lower() for key, answer in outcome.answers.items())


@OVERLAYS
def test_answers_up_the_tree_are_no_crowd_at_the_root(overlay: str) -> None:
    post = Post(overlay, some_keys(200, 1, 5), 6)
    came = {}
    for answering in Answering:
        post.answers.clear()
        assert post.deliver(0, b"", b"\xff", 10.0, Plan(Cut.RIGHT, answering)).complete
        came[answering] = post.answers[0]
    assert came[Answering.DIRECT] >= 199
    assert came[Answering.UP_THE_TREE] <= 60  # those that the root knows itself: over Suzaku, backups are among them


@OVERLAYS
@pytest.mark.parametrize(("brokers", "keys"), [(9, 5), (40, 1), (40, 6)])
def test_a_node_that_proves_that_none_is_before_the_first_does_not_get_it(
    overlay: str, brokers: int, keys: int
) -> None:
    post = Post(overlay, some_keys(brokers, keys, 1), 2)
    tried = 0
    for low, high in pairwise(post.members[:: max(1, len(post.members) // 7)]):
        above = low + b"\0"  # the node at `low` has to answer for what is before the first
        wanted = {address for address, one in post.overlays.items() if one.view.own_inside(above, high)}
        for sender, one in post.overlays.items():
            if not one.view.inside(above, high, post.sim.now):
                continue  # it can only hand it to a node outside
            tried += 1
            post.receipts.clear()
            assert post.deliver(sender, above, high, timeout_s=5.0).complete
            assert post.reached() == post.inside(above, high)
            assert set(post.receipts) <= wanted
    assert tried > brokers


@OVERLAYS
def test_an_empty_range_reaches_no_node(overlay: str) -> None:
    post = Post(overlay, {0: [b"a"], 1: [b"c"], 2: [b"e"]}, 4)
    for cut in Cut:
        for sender in post.overlays:
            assert post.send(sender, b"c1", b"d", cut) == []
            assert post.send(sender, b"x", b"z", cut) == []


def test_mrf_comes_once_and_goes_on_at_most_twice() -> None:
    """Each broker has one key in the range, as the subscribers of a topic have (Banno et al. 2015, Table 1)."""
    post = Post("skip_graph", some_keys(300, 1, 5), 6)
    for sender in range(0, 300, 10):
        assert len(post.send(sender, b"2", b"8", Cut.MRF)) > 100
        assert max(post.receipts.values()) == 1
        assert max(post.forwards.values()) <= 2


def test_sfb_takes_fewer_hops_than_mrf() -> None:
    post = Post("skip_graph", some_keys(300, 1, 7), 8)
    hops = {}
    for cut in (Cut.MRF, Cut.SFB):
        post.send(0, b"2", b"8", cut)
        hops[cut] = mean(delivery.hops for delivery in post.got)
    assert hops[Cut.SFB] < hops[Cut.MRF] < 12


def test_the_way_over_suzaku_is_short() -> None:
    post = Post("suzaku", some_keys(1000, 1, 9))
    assert post.deliver(0, b"", b"\xff").complete
    assert max(delivery.hops for delivery in post.got) <= 10
    assert mean(delivery.hops for delivery in post.got) < 5


@OVERLAYS
@pytest.mark.parametrize("cut", list(Cut))
def test_what_the_network_repeats_is_delivered_once(overlay: str, cut: Cut) -> None:
    post = Post(overlay, some_keys(30, 3, 9), 10, Repeating())
    assert post.send(3, b"1", b"7", cut) == post.inside(b"1", b"7")


@OVERLAYS
def test_a_broker_without_a_key_can_send(overlay: str) -> None:
    post = Post(overlay, some_keys(20, 1, 11), 12)
    host = post.sim.host("stranger")
    stranger: Overlay = Suzaku(host, lambda: 7) if overlay == "suzaku" else SkipGraph(host, 0, lambda: 7)
    post.posts["stranger"] = RangeDelivery(stranger, post.take)
    for cut in Cut:
        assert post.send("stranger", b"1", b"7", cut) == post.inside(b"1", b"7")
    assert post.deliver("stranger", b"1", b"7").complete


@OVERLAYS
@pytest.mark.parametrize("answering", list(Answering))
@pytest.mark.parametrize("seed", range(4))
def test_losses_do_not_show(overlay: str, answering: Answering, seed: int) -> None:
    post = Post(overlay, some_keys(64, 1, seed), seed, FaultyNetwork(0.05, until=1e9))
    plan = Plan(Cut.RIGHT, answering, Retrying.BOTH)
    assert post.deliver(0, b"2", b"8", 120, plan).complete
    assert post.reached() == post.inside(b"2", b"8"), f"seed {seed}"


@OVERLAYS
@pytest.mark.parametrize("answering", list(Answering))
@pytest.mark.parametrize("seed", range(3))
def test_it_is_not_complete_where_no_node_can_answer(overlay: str, answering: Answering, seed: int) -> None:
    """A host is gone and no other has noticed: what it owned stays a gap, and nodes that got it, got it once."""
    wanted = some_keys(32, 1, seed)
    post = Post(overlay, wanted, seed)
    gone = 5 + seed
    post.sim.hosts[gone].crash()
    outcome = post.deliver(0, b"", b"\xff", 60, Plan(Cut.RIGHT, answering, Retrying.BOTH))
    assert not outcome.complete
    assert any(low <= wanted[gone][0] < high for low, high in outcome.gaps)
    got = post.reached()
    assert len(got) == len({*got})
    missed = [key for key in post.members if key not in got]
    assert all(any(low <= key < high for low, high in outcome.gaps) for key in missed), f"seed {seed}"
    assert len(missed) <= 3


@pytest.mark.parametrize("seed", range(3))
def test_nodes_that_have_left_are_no_gaps(seed: int) -> None:
    """Others still know them for a while: a message goes round them, and its sender is told."""
    sim = Simulator(seed)
    posts = []
    for number in range(16):
        overlay = Suzaku(sim.host(number), lambda: 0)
        posts.append(RangeDelivery(overlay, lambda _delivery: None))
        if number:
            overlay.host.spawn(overlay.join(b"a%02d" % number))
        else:
            overlay.found(b"a00")
        sim.run(sim.now + 1)
    for number, post in enumerate(posts):
        post.host.spawn(post.overlay.join(b"t%02d" % number))
    sim.run(sim.now + 20)
    for number in range(4, 10):
        posts[number].host.spawn(posts[number].overlay.leave(b"t%02d" % number))
    sim.run(sim.now + 10)
    outcomes: list[Outcome] = []
    for post in posts:
        post.deliver(b"t", b"u", b"x", 30.0, outcomes.append)
    sim.run(sim.now + 40)
    assert [outcome.gaps for outcome in outcomes] == [()] * 16


def test_a_plan_that_proves_nothing_is_refused() -> None:
    post = Post("suzaku", {0: [b"a"]})
    for plan in (Plan(), Plan(Cut.SFB, Answering.DIRECT)):
        with pytest.raises(ValueError, match="right links"):
            post.posts[0].deliver(b"", b"\xff", b"", 1.0, lambda _: None, plan)


def test_the_checker_sees_who_was_left_out() -> None:
    sim = Simulator(14)
    graphs = lay_out(sim, some_keys(8, 1, 13), 14)
    assert ranges_reach_each_once(sim, list(graphs.values()), b"0", b":") == []
    sim.hosts[3].crash()
    assert ranges_reach_each_once(sim, list(graphs.values()), b"0", b":") != []


# Conditions


@pytest.mark.parametrize(
    ("label", "test"), [("slots:max", "at_most"), ("slots:min", "at_least"), ("tags:union", "is"), ("slots", "at_most")]
)
def test_a_condition_that_aggregates_cannot_answer_is_refused(label: str, test: str) -> None:
    with pytest.raises(ValueError, match=r"reducer|told from an aggregate"):
        Condition(label, test, 1)


class Market:
    """A Suzaku network that has grown by messages, each broker with some free slots and a tag."""

    def __init__(self, brokers: int, seed: int) -> None:
        self.sim = Simulator(seed)
        chance = Random(seed)
        self.slots = {b"%04d" % (n * 7919 % 10_000): chance.choice([0, 0, 0, 1, 2]) for n in range(brokers)}
        self.got: list[Key] = []
        self.posts: list[RangeDelivery] = []
        self.joined_at: dict[Key, float] = {}
        for number, key in enumerate(self.slots):
            overlay = Suzaku(self.sim.host(number), lambda: 0)
            overlay.value = self.value
            post = RangeDelivery(overlay, self.take, values=self.value)
            self.posts.append(post)
            if number:
                self.sim.at(number * 0.3, lambda o=overlay, k=key: o.host.spawn(self.join(o, k)))  # type: ignore[misc]
            else:
                overlay.found(key)
                self.joined_at[key] = 0.0

    async def join(self, overlay: Suzaku, key: Key) -> None:
        await overlay.join(key)
        self.joined_at[key] = self.sim.now

    def value(self, key: Key) -> Aggregate:
        return {"slots:max": self.slots[key], "tags:union": (f"s{self.slots[key]}",)}

    def take(self, delivery: RangeArrival) -> None:
        self.got += delivery.keys

    def ask(self, condition: Condition) -> tuple[Outcome, list[Key]]:
        self.got.clear()
        outcomes: list[Outcome] = []
        plan = Plan(Cut.RIGHT, Answering.DIRECT, Retrying.BOTH, condition)
        self.posts[0].deliver(b"", b"\xff", b"", 20.0, outcomes.append, plan)
        self.sim.run(self.sim.now + 25)
        return outcomes[0], sorted(self.got)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settle_s", [12.0, 15.0, 30.0, 40 * PERIOD_S])
def test_a_conditional_delivery_reaches_every_match_or_says_that_it_did_not(seed: int, settle_s: float) -> None:
    """While the tables are still being learnt, too: what is not known counts as a match."""
    market = Market(40, seed)
    market.sim.run(settle_s)
    for condition in (Condition("slots:max", "at_least", 2), Condition("tags:union", "contains", "s1")):
        outcome, got = market.ask(condition)
        matching = sorted(k for k in market.slots if condition.holds(market.value(k)))
        assert all(condition.holds(market.value(key)) for key in got)
        asked_at = market.sim.now - 25
        old = [key for key in matching if market.joined_at[key] < asked_at - outcome.age_s]
        assert not outcome.gaps
        assert {*old} <= {*got}, "nodes that have matched for longer than the oldest aggregate are all there"
        if outcome.complete:
            assert got == matching


def test_a_conditional_delivery_leaves_out_what_cannot_match() -> None:
    market = Market(64, 1)
    market.sim.run(80 * PERIOD_S)
    market.slots = dict.fromkeys(market.slots, 0)
    market.sim.run(market.sim.now + 80 * PERIOD_S)
    sent: list[Message] = []
    market.sim.on_message = lambda _s, _t, message, _h: sent.append(message) if isinstance(message, Deliver) else None
    outcome, got = market.ask(Condition("slots:max", "at_least", 1))
    assert not outcome.gaps
    assert got == []
    assert outcome.ruled_out
    assert not outcome.complete, "an aggregate is of the past"
    assert len(sent) <= 8
