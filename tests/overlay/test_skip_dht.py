"""Routing by numeric ID: one owner for each ID, whoever asks, in about log2 N hops."""

from __future__ import annotations

import pytest

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.membership import DIGITS_MAX, common_digits
from braidmq.overlay.skip_dht import FoundId, NumericLookup
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.sim.engine import Simulator
from braidmq.sim.layout_skip import lay_out
from tests.overlay.test_skip_graph import some_keys


def owner_of(graphs: dict[Address, SkipGraph], sought: int) -> Key:
    """By looking at everybody."""
    shared = max(common_digits(graph.vector, sought) for graph in graphs.values())
    nearest = [graph for graph in graphs.values() if common_digits(graph.vector, sought) == shared]
    return min((abs(graph.vector - sought), key) for graph in nearest for key in graph.nodes)[1]


def look_everywhere(brokers: int, keys: int, ids: int) -> list[int]:
    """Checks that everybody finds the owners of some IDs; the hops it took."""
    sim = Simulator(1)
    graphs = lay_out(sim, some_keys(brokers, keys, 2), 3)
    hops: list[int] = []

    async def look(lookup: NumericLookup, sought: int) -> None:
        found = await lookup.lookup(sought)
        assert isinstance(found, FoundId)
        assert found.owner.key == owner_of(graphs, sought)
        hops.append(found.hops)

    lookups = {address: NumericLookup(graph) for address, graph in graphs.items()}
    for _ in range(ids):
        sought = sim.chance.getrandbits(DIGITS_MAX)
        for address, lookup in lookups.items():
            sim.hosts[address].spawn(look(lookup, sought))
    sim.run(60)
    assert len(hops) == brokers * ids
    return hops


@pytest.mark.parametrize(("brokers", "keys"), [(1, 1), (1, 3), (2, 2), (30, 1), (30, 3)])
def test_everybody_finds_the_same_owner(brokers: int, keys: int) -> None:
    look_everywhere(brokers, keys, 20)


def test_it_takes_about_log2_n_hops() -> None:
    hops = look_everywhere(256, 1, 8)
    assert sum(hops) / len(hops) < 10


def test_an_id_has_so_many_digits() -> None:
    sim = Simulator(4)
    lookup = NumericLookup(lay_out(sim, {0: [b"a"]}, 4)[0])

    refused: list[str] = []

    async def look() -> None:
        with pytest.raises(ValueError, match="binary digits") as error:
            await lookup.lookup(1 << DIGITS_MAX)
        refused.append(str(error.value))

    sim.hosts[0].spawn(look())
    sim.run(1)
    assert len(refused) == 1
