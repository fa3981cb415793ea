"""Range delivery: everybody in the range once, nobody else, and no claim of completeness that is not true."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.ranges import Outcome, Range, RangeDelivery, without
from braidmq.sim.engine import Network, Simulator
from braidmq.sim.layout import lay_out_suzaku

from .test_ring import Rough

keys = st.binary(max_size=2)


@given(st.lists(st.tuples(keys, keys).map(lambda pair: Range(min(pair), max(pair)))), st.tuples(keys, keys), keys)
def test_what_is_taken_off_is_gone_and_nothing_else(gaps: list[Range], pair: tuple[Key, Key], probe: Key) -> None:
    covered = Range(min(pair), max(pair))
    was_in = any(gap.start <= probe < gap.end for gap in gaps)
    is_in = any(gap.start <= probe < gap.end for gap in without(gaps, covered))
    assert is_in == (was_in and not covered.start <= probe < covered.end)


class Post:
    """A laid-out network with a mailbox at every node."""

    def __init__(self, count: int, seed: int = 1, network: Network | None = None, keys_each: int = 1) -> None:
        self.sim = Simulator(seed, network)
        spots = [(b"%05d" % (number * 7919 % 100_000), number // keys_each) for number in range(count)]
        self.keys = sorted(key for key, _ in spots)
        self.overlays = lay_out_suzaku(self.sim, spots)
        self.nodes = [node for overlay in self.overlays.values() for node in overlay.nodes.values()]
        self.got: Counter[Key] = Counter()
        self.hops: list[int] = []
        self.posts = {
            overlay.host.address: RangeDelivery(overlay, self.on_delivery) for overlay in self.overlays.values()
        }

    def on_delivery(self, key: Key, _body: bytes, hops: int) -> None:
        self.got[key] += 1
        self.hops.append(hops)

    def deliver(self, sender: Address, start: Key, end: Key, timeout_s: float = 60.0) -> Outcome:
        outcomes: list[Outcome] = []

        async def go() -> None:
            outcomes.append(await self.posts[sender].deliver(start, end, b"x", timeout_s))

        self.sim.hosts[sender].spawn(go())
        self.sim.run(self.sim.now + timeout_s + 10)
        return outcomes[0]

    def members(self, start: Key, end: Key) -> Counter[Key]:
        return Counter(key for key in self.keys if start <= key < end)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100])
@pytest.mark.parametrize(("start", "end"), [(b"", b"\xff"), (b"3", b"6"), (b"50000", b"50001"), (b"99999", b"\xff")])
@pytest.mark.parametrize("keys_each", [1, 3])
def test_everybody_in_the_range_once_and_nobody_else(count: int, start: Key, end: Key, keys_each: int) -> None:
    post = Post(count, keys_each=keys_each)
    outcome = post.deliver(0, start, end)
    assert outcome.complete
    assert post.got == post.members(start, end)


def test_the_way_is_short() -> None:
    post = Post(1000)
    assert post.deliver(0, b"", b"\xff").complete
    assert max(post.hops) <= 10
    assert sum(post.hops) / len(post.hops) < 5


@pytest.mark.parametrize("seed", range(6))
def test_losses_do_not_show(seed: int) -> None:
    post = Post(64, seed, Rough(0.05, until=1e9))
    assert post.deliver(0, b"2", b"8", timeout_s=120).complete
    assert post.got == post.members(b"2", b"8"), f"seed {seed}"


@pytest.mark.parametrize("seed", range(6))
def test_it_is_not_complete_where_nobody_can_answer(seed: int) -> None:
    """A host is gone and nobody has noticed yet: what it owned stays a gap, and all others have the message."""
    post = Post(32, seed)
    gone = post.sim.chance.choice([node for node in post.nodes if node.me.address != 0])
    post.sim.hosts[gone.me.address].crash()
    outcome = post.deliver(0, b"", b"\xff", timeout_s=30)
    assert not outcome.complete
    assert all(gap.start <= gone.link.right.key or gone.link.right.key < gone.me.key for gap in outcome.gaps)
    assert any(gap.start <= gone.me.key < gap.end for gap in outcome.gaps)
    wanted = post.members(b"", b"\xff")
    del wanted[gone.me.key]
    assert post.got == wanted, f"seed {seed}"
