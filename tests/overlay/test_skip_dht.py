"""Routing by numeric ID: one owner for each ID, whoever asks, in about log2 N hops."""

from __future__ import annotations

import pytest

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.skip_graph import FoundId, IdRouter, SkipGraph, Walk, id_of
from braidmq.overlay.skip_graph.dht import HOPS_MAX
from braidmq.overlay.vectors import DIGITS_MAX, common_digits
from braidmq.sim.engine import Simulator
from braidmq.sim.layouts.skip_graph import lay_out
from tests.overlay.test_skip_graph import some_keys


def owner_of(graphs: dict[Address, SkipGraph], sought: int) -> Key:
    """By looking at all nodes."""
    shared = max(common_digits(graph.vector, sought) for graph in graphs.values())
    nearest = [graph for graph in graphs.values() if common_digits(graph.vector, sought) == shared]
    return min((abs(graph.vector - sought), key) for graph in nearest for key in graph.nodes)[1]


def look_everywhere(brokers: int, keys: int, ids: int) -> list[int]:
    """Checks that all brokers find the owners of some IDs; the hops it took."""
    sim = Simulator(1)
    graphs = lay_out(sim, some_keys(brokers, keys, 2), 3)
    hops: list[int] = []

    async def look(lookup: IdRouter, sought: int) -> None:
        found = await lookup.lookup(sought)
        assert isinstance(found, FoundId)
        assert found.owner.key == owner_of(graphs, sought)
        hops.append(found.hops)

    lookups = {address: IdRouter(graph) for address, graph in graphs.items()}
    for _ in range(ids):
        sought = sim.chance.getrandbits(DIGITS_MAX)
        for address, lookup in lookups.items():
            sim.hosts[address].spawn(look(lookup, sought))
    sim.run(60)
    assert len(hops) == brokers * ids
    return hops


@pytest.mark.parametrize(("brokers", "keys"), [(1, 1), (1, 3), (2, 2), (30, 1), (30, 3)])
def test_all_find_the_same_owner(brokers: int, keys: int) -> None:
    look_everywhere(brokers, keys, 20)


def test_it_takes_about_log2_n_hops() -> None:
    hops = look_everywhere(256, 1, 8)
    assert sum(hops) / len(hops) < 10


def test_an_id_has_so_many_digits() -> None:
    sim = Simulator(4)
    lookup = IdRouter(lay_out(sim, {0: [b"a"]}, 4)[0])

    refused: list[str] = []

    async def look() -> None:
        with pytest.raises(ValueError, match="binary digits") as error:
            await lookup.lookup(1 << DIGITS_MAX)
        refused.append(str(error.value))

    sim.hosts[0].spawn(look())
    sim.run(1)
    assert len(refused) == 1


@pytest.mark.parametrize(("brokers", "keys"), [(1, 1), (2, 1), (30, 1), (30, 3)])
def test_a_walk_comes_to_the_owner_from_everywhere(brokers: int, keys: int) -> None:
    """Any message can travel so: each broker says where to go next, and the owner that it has arrived."""
    sim = Simulator(5)
    graphs = lay_out(sim, some_keys(brokers, keys, 6), 7)
    routers = {address: IdRouter(graph) for address, graph in graphs.items()}
    for _ in range(20):
        sought = sim.chance.getrandbits(DIGITS_MAX)
        owner = owner_of(graphs, sought)
        for start in graphs:
            at, walk = start, Walk(sought)
            while (step := routers[at].step(walk)) is not None and step.to is not None:
                assert step.to != at
                at, walk = step.to, step.walk
            assert step is not None, "it was lost"
            assert owner in graphs[at].nodes


def test_until_the_last_list_the_next_hop_depends_on_the_broker_and_the_id_alone() -> None:
    sim = Simulator(8)
    graphs = lay_out(sim, some_keys(64, 1, 9), 10)
    routers = {address: IdRouter(graph) for address, graph in graphs.items()}
    sought = sim.chance.getrandbits(DIGITS_MAX)
    most = max(common_digits(graph.vector, sought) for graph in graphs.values())
    for start in graphs:
        at, walk = start, Walk(sought)
        while common_digits(graphs[at].vector, sought) < most:
            step, afresh = routers[at].step(walk), routers[at].step(Walk(sought))
            assert step is not None
            assert afresh is not None
            assert step.to is not None
            assert step.to == afresh.to
            at, walk = step.to, step.walk


def test_a_walk_to_a_key_that_is_not_there_or_without_end_is_lost() -> None:
    sim = Simulator(11)
    graphs = lay_out(sim, {0: [b"a"], 1: [b"b"]}, 11)
    router = IdRouter(graphs[0])
    assert router.step(Walk(0, b"b")) is None
    assert router.step(Walk(0, b"a", hops=HOPS_MAX + 1)) is None
    assert router.step(router.walk_to(0, graphs[1].nodes[b"b"].levels[0].me)) is None


def test_the_id_of_a_name_is_the_same_everywhere() -> None:
    assert id_of("room/1") == 0xB3322680676815
