"""The view of a broker with many keys: links are in it at once, and what is gone is not."""

from __future__ import annotations

from braidmq.host import Address
from braidmq.keys import Key, Role, key_of
from braidmq.overlay.flexible import FlexibleGraph
from braidmq.overlay.flexible.tables import KEYS_FEW, VIEW_AGE_S
from braidmq.overlay.ranges import Outcome, RangeDelivery
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.sim.engine import Constant, Simulator

OWN = [key_of(f"t{number:02}", Role.SUBSCRIBER, "", "b0") for number in range(2 * KEYS_FEW)]


class Pair:
    """A broker with many keys, and one that has one key more each time it is asked to."""

    def __init__(self) -> None:
        self.sim = Simulator(1, Constant(0.001))
        self.many, self.other = (
            FlexibleGraph(self.sim.host(address), self.sim.chance.getrandbits(DIGITS_MAX), lambda: self.first)
            for address in range(2)
        )
        self.first: Address | None = None
        self.many.found(OWN[0])
        for key in OWN[1:]:
            self.sim.hosts[0].spawn(self.many.join(key))
            self.sim.run(self.sim.now + 1)
        self.first = 0

    def join(self, key: Key, seconds: float) -> None:
        self.sim.hosts[1].spawn(self.other.join(key))
        self.sim.run(self.sim.now + seconds)

    def known(self) -> list[Key]:
        return [entry.peer.key for entry in self.many.view.entries]


def test_a_new_link_is_used_at_once_and_what_is_gone_no_more() -> None:
    pair = Pair()
    assert pair.known() == []
    assert pair.many.view.own_keys == OWN
    keys = [key_of(f"t{number:02}", Role.SUBSCRIBER, "", "b1") for number in (3, 9, 5)]
    for count, key in enumerate(keys, 1):
        pair.sim.run(pair.sim.now + 2 * VIEW_AGE_S)
        before = pair.many.view
        pair.join(key, VIEW_AGE_S / 10)
        assert pair.known() == sorted(keys[:count])
        assert pair.many.view is not before, "what was kept of the one before must not be taken for true"
    pair.many.forget(keys[1])
    assert pair.known() == sorted((keys[0], keys[2]))


def test_a_proof_does_not_rest_on_links_that_have_changed() -> None:
    """A broker with many keys keeps for a moment who sees to which part of a range: not longer than its links hold."""
    pair = Pair()
    outcomes: list[Outcome] = []
    arrived: list[tuple[Key, ...]] = []
    ranges = RangeDelivery(pair.many, lambda _: None)
    RangeDelivery(pair.other, lambda delivery: arrived.append(delivery.keys))
    pair.join(key_of("t00", Role.SUBSCRIBER, "", "b1"), 1.0)
    low, high = OWN[4], OWN[5]
    pair.sim.run(pair.sim.now + 2 * VIEW_AGE_S)
    ranges.deliver(low, high, b"nobody", 1.0, outcomes.append)
    new = key_of("t04", Role.SUBSCRIBER, "", "b1")
    pair.join(new, VIEW_AGE_S / 10)
    ranges.deliver(low, high, b"one more", 1.0, outcomes.append)
    pair.sim.run(pair.sim.now + 1.0)
    assert [outcome.complete for outcome in outcomes] == [True, True]
    assert arrived == [(new,)]


def test_own_nodes_come_and_go_at_once() -> None:
    pair = Pair()
    pair.sim.run(pair.sim.now + 2 * VIEW_AGE_S)
    assert pair.many.view.own_keys == OWN
    pair.sim.hosts[0].spawn(pair.many.leave(OWN[4]))
    pair.sim.run(pair.sim.now + VIEW_AGE_S / 10)
    assert pair.many.view.own_keys == [*OWN[:4], *OWN[5:]]
    pair.sim.hosts[0].spawn(pair.many.join(OWN[4]))
    pair.sim.run(pair.sim.now + VIEW_AGE_S / 10)
    assert pair.many.view.own_keys == OWN
    assert pair.many.view.own[OWN[4]].right.key == OWN[5]
