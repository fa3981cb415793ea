"""The states of a ring's node: a table that the code goes by, and the diagram drawn from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.overlay import Peer
from braidmq.overlay.ring import Gap, LinkEvent, Ring, RingNode, RingStatus
from braidmq.overlay.ring.status import TRANSITIONS, diagram
from braidmq.sim.engine import Simulator

DOCUMENT = Path(__file__).parents[2] / "docs" / "overlays.md"


def node_in(status: RingStatus) -> RingNode:
    """A node that has come to a state by the shortest way."""
    node = Ring(Simulator(1).host(0)).node(0, Peer(b"a", 0))
    for event in {
        RingStatus.OUT: (),
        RingStatus.INSERTING: (LinkEvent.ASKED_IN,),
        RingStatus.IN: (LinkEvent.ASKED_IN, LinkEvent.LINKED),
        RingStatus.DELETING: (LinkEvent.FOUNDED, LinkEvent.ASKED_OUT),
    }[status]:
        node.become(event)
    return node


def test_the_documented_diagram_is_drawn_from_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in DOCUMENT.read_text()


def test_every_state_can_be_reached_and_left() -> None:
    assert {before for before, _ in TRANSITIONS} == set(TRANSITIONS.values()) == set(RingStatus)
    assert {event for _, event in TRANSITIONS} == set(LinkEvent)


@pytest.mark.parametrize("status", RingStatus)
@pytest.mark.parametrize("event", LinkEvent)
def test_a_node_does_only_what_the_table_has(status: RingStatus, event: LinkEvent) -> None:
    node = node_in(status)
    assert node.status is status
    if (status, event) in TRANSITIONS:
        node.become(event)
        assert node.status is TRANSITIONS[status, event]
    else:
        with pytest.raises(KeyError):
            node.become(event)
        assert node.status is status


def test_what_waits_for_an_insertion_goes_on_when_it_is_over() -> None:
    sim = Simulator(1)
    node = Ring(sim.host(0)).node(0, Peer(b"a", 0))
    ended: list[tuple[float, bool]] = []

    async def wait(timeout_s: float) -> None:
        ended.append((sim.now, await node.insertion_over().wait(timeout_s)))

    node.become(LinkEvent.ASKED_IN)
    sim.hosts[0].spawn(wait(5.0))
    sim.hosts[0].spawn(wait(1.0))
    sim.at(2.0, lambda: node.become(LinkEvent.LINKED))
    sim.run()
    assert [done for _, done in ended] == [False, True]


def test_a_node_that_is_being_linked_leaves_once_it_is() -> None:
    """A leave that comes while the left neighbour has not answered yet waits for the answer."""
    sim = Simulator(1)
    nodes = [Ring(sim.host(number)).node(0, Peer(b"%d" % number, number)) for number in range(2)]
    gap = Gap(nodes[0].me, nodes[0].me)

    async def locate(_key: bytes) -> Gap:
        return gap

    nodes[0].found()
    sim.hosts[1].spawn(nodes[1].join(locate))
    sim.hosts[1].spawn(nodes[1].leave())
    sim.run(60.0)
    assert nodes[1].status is RingStatus.OUT
    assert nodes[0].right == nodes[0].left == nodes[0].me
