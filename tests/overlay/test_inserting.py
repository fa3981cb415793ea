"""A node that is just being inserted: its left neighbour has linked it, and it does not know that yet.

A node that meets it then must not take it for gone: neither with a message for it, nor in a check of the ring.
"""

from __future__ import annotations

from random import Random

import pytest

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.ranges import Cut, Outcome, RangeArrival, RangeDelivery
from braidmq.overlay.suzaku import Suzaku
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Network

STEP_S = 0.001
LEFT, NEW, RIGHT = b"a", b"m", b"z"


class SlowAnswer(Network):
    """While it is slow, what the left neighbour says to the broker of the new node takes long."""

    is_slow = False

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return (0.5 if self.is_slow and (source, to) == (0, 1) else 0.01,)


class Street:
    """Three brokers. The second one, which stands at another key, is being inserted between the two others."""

    def __init__(self) -> None:
        self.network = SlowAnswer()
        self.sim = Simulator(1, self.network)
        self.got: list[bytes] = []
        self.overlays = [Suzaku(self.sim.host(address), lambda: 0) for address in range(3)]
        self.posts = [RangeDelivery(overlay, self.take) for overlay in self.overlays]
        self.overlays[0].found(LEFT)
        self.sim.hosts[1].spawn(self.overlays[1].join(b"b"))
        self.run(2)
        self.sim.hosts[2].spawn(self.overlays[2].join(RIGHT))
        self.run(10)
        self.sim.hosts[0].spawn(self.overlays[0].join(b"c"))
        self.run(2)
        self.network.is_slow = True
        self.sim.hosts[1].spawn(self.overlays[1].join(NEW))
        while self.right_of(0, b"c") != NEW:
            self.run(STEP_S)
        self.network.is_slow = False
        assert NEW not in self.overlays[1].view.own, "it knows already"

    def take(self, delivery: RangeArrival) -> None:
        self.got += [delivery.body for key in delivery.keys if key == NEW]

    def right_of(self, address: int, key: Key) -> Key:
        return self.overlays[address].view.own[key].right.key

    def run(self, seconds: float) -> None:
        self.sim.run(self.sim.now + seconds)


@pytest.mark.parametrize("cut", [Cut.MRF, Cut.SFB])
def test_what_comes_for_it_waits_until_it_knows(cut: Cut) -> None:
    street = Street()
    street.posts[0].send(NEW, RIGHT, b"early", cut)
    street.run(5)
    assert street.got == [b"early"]
    street.posts[0].send(NEW, RIGHT, b"later", cut)
    street.run(5)
    assert street.got == [b"early", b"later"], "it was taken for gone"


def test_a_proof_for_it_waits_until_it_knows() -> None:
    street = Street()
    outcomes: list[Outcome] = []
    street.posts[0].deliver(b"", b"\xff", b"sure", 0.9, outcomes.append)
    street.run(0.9)
    assert [one.complete for one in outcomes] == [True], "it had to be sent again"
    assert street.got == [b"sure"]


def test_its_right_neighbour_does_not_link_past_it() -> None:
    street = Street()
    street.sim.hosts[2].spawn(street.overlays[2].view.own[RIGHT].check_left())
    street.run(0.3)
    assert street.right_of(0, b"c") == NEW
    street.run(10)
    assert street.right_of(0, b"c") == NEW
    assert street.right_of(1, NEW) == RIGHT
    assert street.overlays[2].view.own[RIGHT].left.key == NEW
