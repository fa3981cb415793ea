"""Errands over a Skip Graph: a message comes to each broker of a range once, whatever keys the broker has there."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from braidmq.host import Address, Message
from braidmq.keys import Key
from braidmq.net.faults import LinkError
from braidmq.net.frames import LENGTH_BYTES, Codec, Tell
from braidmq.overlay import Peer
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.ranges import PROVEN, Cut, Deliver, Outcome, Plan, RangeDelivery, Retrying
from braidmq.overlay.ranges.messages import Covered, Errand, ProbeRange
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.overlay.vectors import DIGITS_MAX, is_member, list_of, shared_digits
from braidmq.sim.engine import Simulator
from braidmq.sim.layouts.skip_graph import vectors_of
from tests.simulated import FaultyNetwork

from .test_ranges import Post

WHOLE = (b"", b"\xff")
KINDS = {"one": (1,), "three": (3,), "six": (6,), "twelve": (12,), "one or six": (1, 6), "few with many": (1, 1, 1, 6)}


def keys_of(brokers: int, counts: tuple[int, ...], seed: int) -> dict[Address, list[Key]]:
    """Keys for each broker, drawn by chance, as many as one of the counts says."""
    chance = Random(seed)
    most = max(counts)
    drawn = [b"%06d" % number for number in chance.sample(range(10**6), brokers * most)]
    return {n: drawn[n * most : n * most + chance.choice(counts)] for n in range(brokers)}


@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(15))
def test_each_broker_receives_once(kind: str, cut: Cut, seed: int) -> None:
    """The promise of multi-range forwarding (Banno et al. 2015, §5.2), from any sender and for any range."""
    brokers = 100 if seed < 3 else 10 + 3 * seed
    wanted = keys_of(brokers, KINDS[kind], seed)
    post = Post("skip_graph", wanted, seed)
    chance = Random(seed)
    low, high = sorted(b"%06d" % chance.randrange(10**6) for _ in range(2))
    for begin, end in (WHOLE, (low, high)):
        inside = {broker for broker, keys in wanted.items() if any(begin <= key < end for key in keys)}
        for sender in chance.sample(range(brokers), 5):
            assert post.send(sender, begin, end, cut) == post.inside(begin, end)
            assert max(post.receipts.values(), default=0) <= 1
            assert {*post.receipts} >= inside - {sender}
            if cut is Cut.MRF:
                assert max(post.forwards.values(), default=0) <= 2


def test_the_papers_example() -> None:
    """Banno et al. 2015, Fig. 5: brokers 00, 01 and 10 with the keys 0 to 5, and a message from 00 to 0 ≤ key ≤ 6."""
    prefixes = [0b00, 0b01, 0b10]
    seed = next(
        s for s in range(10**6) if [v >> (DIGITS_MAX - 2) for v in vectors_of(range(3), s).values()] == prefixes
    )
    post = Post("skip_graph", {0: [b"0", b"1", b"3"], 1: [b"2", b"4"], 2: [b"5"]}, seed)
    assert post.send(0, b"0", b"7", Cut.MRF) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert post.receipts == {1: 1, 2: 1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_the_owner_of_a_part_answers_for_it_and_no_other_does(kind: str, seed: int) -> None:
    wanted = keys_of(30, KINDS[kind], seed)
    post = Post("skip_graph", wanted, seed)
    count = post.sim.on_message
    answered: list[KeyRange] = []

    def note(sender: Address, to: Address, message: Message, hops: int) -> None:
        assert count is not None
        count(sender, to, message, hops)
        if isinstance(message, Covered):
            answered.extend(message.ranges)

    post.sim.on_message = note
    chance = Random(seed)
    for low, high in (WHOLE, (b"300000", b"700000"), (b"500000", b"500001"), (post.members[3], post.members[-3])):
        for plan in (PROVEN, Plan(PROVEN.cut, PROVEN.answering, Retrying.NONE)):
            answered.clear()
            post.receipts.clear()
            sender = chance.randrange(30)
            outcome = post.deliver(sender, low, high, 5.0, plan)
            assert outcome.complete
            assert post.reached() == sorted(outcome.answers) == post.inside(low, high)
            assert max(post.receipts.values(), default=0) <= 1
            assert all(one[1] <= other[0] for one, other in pairwise(sorted(answered)))
            owners = {key: broker for broker, keys in wanted.items() for key in keys}
            for begin, end in answered:
                assert [key for key in post.members if begin <= key < end] in ([], [begin])
                assert owners.get(begin) != sender  # what the sender owns it has answered to itself


@pytest.mark.parametrize("seed", range(8))
def test_losses_do_not_show(seed: int) -> None:
    post = Post("skip_graph", keys_of(40, (1, 4), seed), seed, FaultyNetwork(0.05, until=1e9))
    assert post.deliver(seed, b"2", b"8", 120.0).complete
    assert post.reached() == post.inside(b"2", b"8")


@pytest.mark.parametrize("seed", range(8))
def test_a_silent_broker_is_a_gap_and_hides_no_other(seed: int) -> None:
    """No broker has noticed that it is gone: others of its list are found instead."""
    wanted = keys_of(40, (4,), seed)
    post = Post("skip_graph", wanted, seed)
    gone = 5 + seed
    post.sim.hosts[gone].crash()
    outcome = post.deliver(0, *WHOLE, 60.0)
    assert not outcome.complete
    assert all(any(low <= key < high for low, high in outcome.gaps) for key in wanted[gone])
    got = post.reached()
    assert len(got) == len({*got})
    missed = {*post.members} - {*got}
    assert all(any(low <= key < high for low, high in outcome.gaps) for key in missed)
    assert {*wanted[gone]} <= missed
    assert len(missed) <= 4 * len(wanted[gone])


@pytest.mark.parametrize("seed", range(4))
def test_who_has_just_joined_gets_what_is_proven(seed: int) -> None:
    """A node that stands on level 0 only is in none of the lists by which brokers are divided: it is a gap at first."""
    sim = Simulator(seed)
    got: list[Key] = []
    posts = []
    for number in range(16):
        graph = SkipGraph(sim.host(number), sim.chance.getrandbits(DIGITS_MAX), lambda: 0)
        posts.append(RangeDelivery(graph, lambda delivery: got.extend(delivery.keys)))
    posts[0].overlay.found(b"00")
    chance = Random(seed)
    joined: set[Key] = {b"00"}

    async def join(post: RangeDelivery, key: Key) -> None:
        await post.overlay.join(key)
        joined.add(key)

    wanted = [(number, b"%02d" % (number + 16 * turn)) for turn in range(3) for number in range(16)][1:]
    chance.shuffle(wanted)
    for number, key in wanted:
        posts[number].host.spawn(join(posts[number], key))
        sim.run(sim.now + 0.3)
        got.clear()
        outcomes: list[Outcome] = []
        before = {*joined}
        posts[0].deliver(*WHOLE, b"x", 30.0, outcomes.append)
        while not outcomes:
            sim.run(sim.now + 0.1)
        assert not outcomes[0].gaps
        assert before <= {*got}
        assert len(got) == len({*got})
    sim.run(sim.now + 120)
    receipts: list[Address] = []
    sim.on_message = lambda _sender, to, message, _hops: receipts.append(to) if isinstance(message, Deliver) else None
    got.clear()
    posts[3].send(*WHOLE, b"x", Cut.MRF)
    sim.run(sim.now + 5)
    assert sorted(got) == sorted(joined)
    assert sorted(receipts, key=int) == [number for number in range(16) if number != 3]


@pytest.mark.parametrize("ring", [-1, (2 << DIGITS_MAX) - 1])
def test_a_list_that_cannot_be_is_refused(ring: int) -> None:
    codec = Codec((Deliver,), 10)
    peer = Peer(b"k", "h:1")
    for errand in (Errand(ring), Errand(0, ((peer, ring),)), Errand(0, (), (ring,))):
        message = Deliver("h:1", 5, 0, (WHOLE,), 1, b"", Plan(), (), (), errand)
        with pytest.raises(LinkError):
            codec.decode(codec.frame(Tell(1, message))[LENGTH_BYTES:])
    told: Tell[Message] = Tell(1, Deliver("h:1", 5, 0, (WHOLE,), 1, b"", Plan(), (), (), Errand(7, ((peer, 3),), (1,))))
    assert codec.decode(codec.frame(told)[LENGTH_BYTES:]) == [told]


def test_an_errand_to_no_range_is_none() -> None:
    post = Post("skip_graph", {0: [b"0"], 1: [b"1"]})
    post.sim.hosts[0].send(1, Deliver(0, 1, 0, (), 1, b"", Plan(), (), (), Errand(0)))
    post.sim.hosts[0].send(1, ProbeRange(0, 1, 0, (), 1, (), (), True))
    post.sim.run(1.0)
    assert post.receipts == {1: 1}
    assert not post.got
    assert post.send(0, b"0", b"2", Cut.MRF) == [b"0", b"1"]


def test_digits_that_a_vector_shares_with_a_list() -> None:
    vector = 0b0110 << (DIGITS_MAX - 4)
    for other in range(16):
        for level in range(5):
            ring = list_of(other << (DIGITS_MAX - 4), level)
            shared = shared_digits(vector, ring)
            assert shared == next((n for n in range(level) if (other ^ 0b0110) >> (3 - n) & 1), level)
            assert (shared == level) == is_member(vector, ring)
