"""The Skip Graph: the levels that joins by messages reach, lookups, and what faults leave behind."""

from __future__ import annotations

from random import Random

import pytest

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.ring import CHECK_INTERVAL_S
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.overlay.vectors import DIGITS_MAX, common_digits, is_member, level_of, list_of
from braidmq.sim.checkers.ring import lookups_end_at_owners
from braidmq.sim.checkers.skip_graph import levels_are_right, ranges_reach_each_once
from braidmq.sim.engine import Constant, Network, Simulator
from braidmq.sim.layouts.skip_graph import lay_out, vectors_of
from tests.simulated import FaultyNetwork, OverlayNetwork, build_skip_graph, two_faulty_minutes

QUIET_S = 20 * CHECK_INTERVAL_S


class SkipGraphNetwork(OverlayNetwork[SkipGraph]):
    def __init__(self, seed: int, network: Network) -> None:
        super().__init__(build_skip_graph, seed, network)

    def broken(self) -> list[str]:
        return levels_are_right(list(self.overlays.values()))

    def unreached(self) -> list[str]:
        graphs = list(self.overlays.values())
        keys = [b"%05d" % self.sim.chance.randrange(100_000) for _ in range(4)]
        lost = lookups_end_at_owners(self.sim, graphs, keys)
        return lost + ranges_reach_each_once(self.sim, graphs, min(keys), max(keys))


def wrong_after_faults(seed: int, brokers: int = 12) -> list[str]:
    """What the checkers complain about after faults and churn."""
    network = SkipGraphNetwork(seed, two_faulty_minutes())
    network.endure(brokers, QUIET_S)
    return network.wrong()


def links(graphs: dict[Address, SkipGraph]) -> dict[Key, list[tuple[int, Key, Key]]]:
    return {
        key: [(at.ring, at.left.key, at.right.key) for at in node.levels]
        for graph in graphs.values()
        for key, node in graph.nodes.items()
    }


def some_keys(brokers: int, keys: int, seed: int) -> dict[Address, list[Key]]:
    chance = Random(seed)
    numbers = chance.sample(range(10**6), brokers * keys)
    return {broker: [b"%06d" % numbers.pop() for _ in range(keys)] for broker in range(brokers)}


def test_lists_are_numbered_level_by_level() -> None:
    vector = 0b101 << DIGITS_MAX - 3
    assert [list_of(vector, level) for level in range(4)] == [0, 2, 5, 12]
    assert [level_of(number) for number in (0, 1, 2, 3, 6, 7, 14)] == [0, 1, 1, 2, 2, 3, 3]
    assert is_member(vector, 5)
    assert not is_member(vector, 6)
    assert common_digits(vector, 0b100 << DIGITS_MAX - 3) == 2


@pytest.mark.parametrize(("brokers", "keys"), [(1, 1), (1, 3), (2, 2), (70, 3), (400, 1)])
def test_joins_by_messages_reach_what_is_laid_out(brokers: int, keys: int) -> None:
    wanted = some_keys(brokers, keys, 5)
    vectors = vectors_of(wanted, 7)
    network = SkipGraphNetwork(1, Constant(0.02))
    for number, (address, mine) in enumerate(wanted.items()):
        network.sim.at(number * 0.05, lambda a=address, m=mine: network.start(a, m, vectors[a]))  # type: ignore[misc]
    network.sim.run(brokers * 0.05 + 60)
    assert links(network.overlays) == links(lay_out(Simulator(2), wanted, 7))


def test_brokers_that_join_at_once_form_a_graph() -> None:
    network = SkipGraphNetwork(3, FaultyNetwork(0.0))
    for address in range(32):
        network.start(address, [network.new_key(), network.new_key()])
    network.sim.run(QUIET_S)
    assert network.wrong() == []


def test_all_keys_but_one_leave_at_once() -> None:
    network = SkipGraphNetwork(4, FaultyNetwork(0.0))
    for address in range(12):
        network.start(address, [network.new_key(), network.new_key()])
    network.sim.run(60)
    for address in range(12):
        for _ in range(2 if address else 1):
            network.lose_key(address)
    network.sim.run(60 + QUIET_S)
    assert network.wrong() == []
    assert sum(len(graph.nodes) for graph in network.overlays.values()) == 1


def test_lookups_take_about_log2_n_hops() -> None:
    wanted = some_keys(1024, 1, 8)
    sim = Simulator(9)
    graphs = lay_out(sim, wanted, 9)
    assert levels_are_right(list(graphs.values())) == []
    hops: list[int] = []

    async def look(graph: SkipGraph, key: Key) -> None:
        found = await graph.lookup(key)
        assert found is not None
        hops.append(found.hops)

    for address, graph in graphs.items():
        sim.hosts[address].spawn(look(graph, b"%06d" % sim.chance.randrange(10**6)))
    sim.run(60.0)
    assert len(hops) == 1024
    assert sum(hops) / len(hops) < 10


@pytest.mark.parametrize("seed", range(10))
def test_a_graph_mends_itself(seed: int) -> None:
    assert wrong_after_faults(seed) == [], f"seed {seed}"
