"""Brokers that nobody hears for some seconds, and that then go on as if nothing had been: they are found again soon."""

from __future__ import annotations

from random import Random

import pytest

from braidmq.host import Address
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Network
from braidmq.sim.trials.brokers import TrialBrokers
from braidmq.sim.trials.meter import Tally
from braidmq.sim.trials.methods import TRIAL_METHODS, Options
from braidmq.sim.trials.patterns import parse

NODES = 40
STALL_S = 10.0
"""Long enough for neighbours to be taken for gone."""

METHODS = ("relayfree", "adaptive", "suzaku", "locality")
SEEDS = (9, 18)
"""Where brokers were still not found after the time below, when those who had been silent were not asked again."""

SOON_S = 20.0
"""From the end of the stall: two rounds of checks."""


CASES = [(method, count, seed) for method in METHODS for count in (1, 4, NODES) for seed in SEEDS]


class Stalling(Network):
    """For some brokers, what is sent in a certain time arrives at its end."""

    def __init__(self) -> None:
        self.stalled: frozenset[Address] = frozenset()
        self.from_s = self.until_s = 0.0

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        if self.from_s <= now < self.until_s and (source in self.stalled or to in self.stalled):
            return (self.until_s - now + chance.uniform(0.01, 0.02),)
        return (0.01,)


@pytest.mark.parametrize(("method", "count", "seed"), CASES)
def test_brokers_that_were_silent_for_a_moment_are_found_again(method: str, count: int, seed: int) -> None:
    network = Stalling()
    sim = Simulator(seed, network)
    brokers = TrialBrokers(sim, TRIAL_METHODS[method], Options())
    assert brokers.grow(parse("5x12x3").deal(NODES, Random(seed)), lambda _part: None) == []
    sim.run(sim.now + 60 + 10 * sim.chance.random())
    network.from_s, network.until_s = sim.now, sim.now + STALL_S
    network.stalled = frozenset(sim.chance.sample(sorted(brokers.methods), count))
    sim.run(network.until_s + SOON_S)
    tally, complaints = Tally(), Complaints()
    publications = [(topic, broker) for topic, (publishers, _) in brokers.members.items() for broker in publishers]
    brokers.publish_all(publications, tally, complaints, lambda _part: None)
    assert complaints.first == []
    assert tally.expected == tally.deliveries > 0
