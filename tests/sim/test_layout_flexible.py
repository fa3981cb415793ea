"""Ideal tables of flexible graphs, laid out: as good as if every node had met all others, without looking at all."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from braidmq.host import Address
from braidmq.keys import Key, Role, key_of
from braidmq.overlay.flexible import Contact, FlexibleNode
from braidmq.sim.engine import Simulator
from braidmq.sim.layouts.flexible import Crowd, lay_out

SIZE = 30


def keys(brokers: int, each: int) -> dict[Address, Sequence[Key]]:
    """So many keys a broker, of many topics, so that tables have room for more than subscribers."""
    chance = Random(1)
    roles = (Role.PUBLISHER, Role.SUBSCRIBER)
    return {
        broker: [
            key_of(f"t{topic:03d}", chance.choice(roles), "", f"b{broker:04d}")
            for topic in chance.sample(range(400), each)
        ]
        for broker in range(brokers)
    }


@pytest.mark.parametrize("each", [3, 12])
def test_an_ideal_table_is_what_remains_of_all_nodes(each: int) -> None:
    graphs = lay_out(Simulator(1), keys(60, each), 1, SIZE)
    nodes = [node for graph in graphs.values() for node in graph.nodes.values()]
    everybody = [node.contact for node in nodes]
    for node in nodes[::7]:
        had = node.table.contacts
        assert had
        node.table.contacts = ()
        node.learn(everybody)
        assert node.table.contacts == had


def test_those_of_brokers_with_many_keys_need_no_look_at_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    nearest = Crowd._nearest

    def note(crowd: Crowd, node: FlexibleNode, count: int) -> tuple[list[Contact], bool]:
        assert count <= 2 * SIZE
        return nearest(crowd, node, count)

    monkeypatch.setattr(Crowd, "_nearest", note)
    assert len(lay_out(Simulator(1), keys(100, 12), 1, SIZE)) == 100
