"""The Skip Graph: the levels that joins by messages reach, lookups, and what faults leave behind."""

from __future__ import annotations

from random import Random

import pytest

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.membership import DIGITS_MAX, common_digits, is_member, level_of, list_of
from braidmq.overlay.ring import CHECK_INTERVAL_S
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.sim.checkers_skip import levels_are_right, lookups_end_at_owners, ranges_reach_each_once
from braidmq.sim.engine import Constant, Network, Simulator
from braidmq.sim.layout_skip import lay_out, vectors_of
from tests.overlay.test_ring import Rough

QUIET_S = 20 * CHECK_INTERVAL_S


class City:
    """Brokers with a few keys each, that come, go, crash and return."""

    def __init__(self, seed: int, network: Network) -> None:
        self.sim = Simulator(seed, network)
        self.graphs: dict[Address, SkipGraph] = {}
        self.wanted: dict[Address, list[Key]] = {}
        self.lost: dict[int, list[Key]] = {}
        """The keys of those who crashed, with which they may return."""
        self.next_key = 0

    def new_key(self) -> Key:
        self.next_key += 1
        return b"%05d" % (self.next_key * 7919 % 100_000)

    def introduce(self, mine: Address) -> Address | None:
        inside = [address for address in self.inside() if address != mine]
        return self.sim.chance.choice(inside) if inside else None

    def inside(self) -> list[Address]:
        """Those who have a key in the graph."""
        return [a for a, graph in self.graphs.items() if any(node.is_linked(0) for node in graph.nodes.values())]

    def start(self, address: int, keys: list[Key], vector: int | None = None) -> None:
        host = self.sim.hosts.get(address) or self.sim.host(address)
        host.restart()
        if vector is None:
            vector = self.sim.chance.getrandbits(DIGITS_MAX)
        graph = SkipGraph(host, vector, lambda: self.introduce(address), host.life)
        first = not self.graphs
        self.graphs[address], self.wanted[address] = graph, list(keys)
        for place, key in enumerate(keys):
            if first and place == 0:
                graph.found(key)
            else:
                host.spawn(graph.join(key))

    def subscribe(self, address: Address) -> None:
        key = self.new_key()
        self.wanted[address].append(key)
        self.sim.hosts[address].spawn(self.graphs[address].join(key))

    def unsubscribe(self, address: Address) -> None:
        key = self.sim.chance.choice(self.wanted[address])
        self.wanted[address].remove(key)
        self.sim.hosts[address].spawn(self.graphs[address].leave(key))

    def crash(self, address: Address) -> None:
        self.sim.hosts[address].crash()
        del self.graphs[address]
        self.lost[int(address)] = self.wanted.pop(address)

    def churn(self) -> None:
        """Somebody starts, crashes, returns, or has one key more or less."""
        chance = self.sim.chance
        what = chance.randrange(5)
        busy = [address for address, keys in self.wanted.items() if len(keys) > 1]
        if what == 0 or len(self.inside()) < 8:  # if all were lost who are in, nobody could ever come back in
            self.start(len(self.sim.hosts), [self.new_key() for _ in range(1 + chance.randrange(2))])
        elif what == 1 and self.lost:
            address = chance.choice(list(self.lost))
            self.start(address, self.lost.pop(address))
        elif what == 2 and busy:
            self.unsubscribe(chance.choice(busy))
        elif what == 3:
            self.subscribe(chance.choice(list(self.graphs)))
        else:
            self.crash(chance.choice(list(self.graphs)))

    def wrong(self) -> list[str]:
        graphs = list(self.graphs.values())
        found = [
            f"{address} has {sorted(graph.nodes)}, not {sorted(self.wanted[address])}"
            for address, graph in self.graphs.items()
            if sorted(graph.nodes) != sorted(self.wanted[address])
        ]
        keys = [b"%05d" % self.sim.chance.randrange(100_000) for _ in range(4)]
        found += levels_are_right(graphs) + lookups_end_at_owners(self.sim, graphs, keys)
        return found + ranges_reach_each_once(self.sim, graphs, min(keys), max(keys))


def rough_city(seed: int, brokers: int = 12) -> City:
    """Loss, repetition, overtaking, churn and a partition; then quiet."""
    city = City(seed, Rough(0.02, split=(60.0, 75.0), until=120.0))
    for address in range(brokers):
        city.start(address, [city.new_key() for _ in range(1 + address % 3)])
    for second in range(30, 120):
        city.sim.at(second, city.churn)
    city.sim.run(120 + QUIET_S)
    return city


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


@pytest.mark.parametrize(("brokers", "keys"), [(1, 1), (1, 3), (2, 2), (70, 3), (1000, 1)])
def test_joins_by_messages_reach_what_is_laid_out(brokers: int, keys: int) -> None:
    wanted = some_keys(brokers, keys, 5)
    vectors = vectors_of(wanted, 7)
    city = City(1, Constant(0.02))
    for number, (address, mine) in enumerate(wanted.items()):
        city.sim.at(number * 0.05, lambda a=address, m=mine: city.start(a, m, vectors[a]))  # type: ignore[misc]
    city.sim.run(brokers * 0.05 + 60)
    assert links(city.graphs) == links(lay_out(Simulator(2), wanted, 7))


def test_brokers_that_join_at_once_form_a_graph() -> None:
    city = City(3, Rough(0.0))
    for address in range(32):
        city.start(address, [city.new_key(), city.new_key()])
    city.sim.run(QUIET_S)
    assert city.wrong() == []


def test_all_keys_but_one_leave_at_once() -> None:
    city = City(4, Rough(0.0))
    for address in range(12):
        city.start(address, [city.new_key(), city.new_key()])
    city.sim.run(60)
    for address in range(12):
        for _ in range(2 if address else 1):
            city.unsubscribe(address)
    city.sim.run(60 + QUIET_S)
    assert city.wrong() == []
    assert sum(len(graph.nodes) for graph in city.graphs.values()) == 1


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
    assert rough_city(seed).wrong() == [], f"seed {seed}"
