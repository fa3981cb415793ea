"""The ring: joins, leaves, crashes and partitions, over a network that loses, repeats and overtakes."""

from __future__ import annotations

from random import Random

import pytest

from braidmq.host import Address, CallError
from braidmq.keys import Key
from braidmq.overlay import Peer
from braidmq.overlay.ring import CHECK_INTERVAL_S, FindGap, Gap, Ring, RingNode, RingStatus
from braidmq.sim.checkers.ring import ring_is_closed_and_sorted
from braidmq.sim.engine import Network, SimHost, Simulator

QUIET_S = 40 * CHECK_INTERVAL_S


class Rough(Network):
    """Loses, repeats and delays, and for a while splits the hosts into even and odd ones."""

    def __init__(self, faults: float, split: tuple[float, float] | None = None, until: float = 0.0) -> None:
        self.faults = faults
        self.split = split
        self.until = until

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        delay = chance.uniform(0.01, 0.1)
        if self.split and self.split[0] <= now < self.split[1] and (int(source) - int(to)) % 2:
            return ()
        if now >= self.until:
            return (delay,)
        if chance.random() < self.faults:
            return ()
        if chance.random() < self.faults:
            delay += chance.uniform(0, 3)
        return (delay, delay + chance.uniform(0, 2)) if chance.random() < self.faults else (delay,)


class Town:
    """Hosts with one node each; which are in, want in, or want out."""

    def __init__(self, seed: int, network: Network) -> None:
        self.sim = Simulator(seed, network)
        self.nodes: dict[int, RingNode] = {}
        self.leaving: set[int] = set()
        self.next = 0

    def key(self, number: int) -> Key:
        return b"%04d" % (number * 7919 % 10_000)

    def add(self, number: int | None = None) -> RingNode:
        if number is None:
            number, self.next = self.next, self.next + 1
        host = self.sim.hosts.get(number) or self.sim.host(number)
        host.restart()
        node = Ring(host).node(0, Peer(self.key(number), number, host.incarnation))
        introducers = [other for other in self.nodes if self.nodes[other].status is RingStatus.IN]
        self.nodes[number] = node
        if introducers or len(self.nodes) > 1:
            host.spawn(node.join(lambda key: self.locate(host, key)))
        else:
            node.found(lambda key: self.locate(host, key))
        return node

    async def locate(self, host: SimHost, key: Key) -> Gap | None:
        inside = [n for n, node in self.nodes.items() if node.status is RingStatus.IN and n not in self.leaving]
        if not inside:
            return None
        number = self.sim.chance.choice(inside)
        try:
            gap = await host.call(number, FindGap(0, self.key(number), key), 5.0)
        except CallError:
            return None
        assert isinstance(gap, Gap)
        return gap

    def leave(self, number: int) -> None:
        self.leaving.add(number)

        async def go() -> None:
            await self.nodes[number].leave()
            del self.nodes[number]
            self.leaving.discard(number)

        self.sim.hosts[number].spawn(go())

    def crash(self, number: int) -> None:
        self.sim.hosts[number].crash()
        self.nodes.pop(number, None)
        self.leaving.discard(number)

    def churn(self) -> None:
        """One join, leave, crash or return of a node."""
        chance = self.sim.chance
        inside = [n for n, node in self.nodes.items() if node.status is RingStatus.IN and n not in self.leaving]
        gone = [n for n in range(self.next) if n not in self.nodes]
        what = chance.randrange(4)
        if what == 0 or len(inside) < 8:
            self.add()
        elif what == 1 and gone:
            self.add(chance.choice(gone))
        elif what == 2:
            self.leave(chance.choice(inside))
        else:
            self.crash(chance.choice(inside))


def wrong(town: Town) -> list[str]:
    return ring_is_closed_and_sorted([node for n, node in town.nodes.items() if n not in town.leaving])


def test_nodes_that_join_at_once_form_a_ring() -> None:
    town = Town(1, Rough(0.0))
    for _ in range(32):
        town.add()
    town.sim.run(QUIET_S)
    assert wrong(town) == []
    assert len(town.nodes) == 32


def test_all_but_one_leave_at_once() -> None:
    town = Town(2, Rough(0.0))
    for _ in range(16):
        town.add()
    town.sim.run(60)
    for number in range(15):
        town.leave(number)
    town.sim.run(60 + QUIET_S)
    assert list(town.nodes) == [15]
    assert wrong(town) == []


@pytest.mark.parametrize("seed", range(12))
def test_a_ring_mends_itself(seed: int) -> None:
    """Loss, repetition, overtaking, churn and a partition; then quiet: the ring is whole."""
    town = Town(seed, Rough(0.02, split=(40.0, 55.0), until=120.0))
    for _ in range(24):
        town.add()
    for second in range(20, 120):
        town.sim.at(second, town.churn)
    town.sim.run(120 + QUIET_S)
    assert wrong(town) == [], f"seed {seed}"
