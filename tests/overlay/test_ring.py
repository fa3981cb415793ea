"""The ring: joins, leaves, crashes and partitions, over a network that loses, repeats and overtakes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import pytest

from braidmq.host import ask
from braidmq.keys import Key
from braidmq.overlay import Peer
from braidmq.overlay.ring import CHECK_INTERVAL_S, FindGap, Gap, Ring, RingNode, RingStatus
from braidmq.sim.checkers.ring import ring_is_closed_and_sorted
from braidmq.sim.engine import Network, SimHost
from tests.simulated import FaultyNetwork, OverlayNetwork

QUIET_S = 40 * CHECK_INTERVAL_S


class OwnNode(NamedTuple):
    """What is in, if anything is."""

    own: dict[Key, RingNode]


class BareRing:
    """A broker's node in a ring that has no overlay above it."""

    def __init__(self, host: SimHost, locate: Callable[[SimHost, Key], Awaitable[Gap | None]]) -> None:
        self.host = host
        self.nodes: dict[Key, RingNode] = {}
        self._ring = Ring(host)
        self._locate = partial(locate, host)

    @property
    def view(self) -> OwnNode:
        return OwnNode({key: node for key, node in self.nodes.items() if node.status is RingStatus.IN})

    def found(self, key: Key) -> None:
        self._node(key).found(self._locate)

    async def join(self, key: Key) -> bytes:
        await self._node(key).join(self._locate)
        return b""

    async def leave(self, key: Key) -> None:
        await self.nodes[key].leave()

    def _node(self, key: Key) -> RingNode:
        node = self.nodes[key] = self._ring.node(0, Peer(key, self.host.address, self.host.incarnation))
        return node


class RingNetwork(OverlayNetwork[BareRing]):
    """Brokers with one node each."""

    def __init__(self, seed: int, network: Network) -> None:
        super().__init__(lambda host, _introduce, _vector: BareRing(host, self.locate), seed, network)

    async def locate(self, host: SimHost, key: Key) -> Gap | None:
        """Asks a broker that is in."""
        inside = [address for address in self.inside() if address not in self.leaving]
        if not inside:
            return None
        address = self.sim.chance.choice(inside)
        return await ask(host, address, FindGap(0, self.wanted[address][0], key), Gap, timeout_s=5.0)

    def broken(self) -> list[str]:
        parts = [part for address, part in self.overlays.items() if address not in self.leaving]
        return ring_is_closed_and_sorted([node for part in parts for node in part.nodes.values()])


def test_nodes_that_join_at_once_form_a_ring() -> None:
    ring = RingNetwork(1, FaultyNetwork(0.0))
    for _ in range(32):
        ring.add()
    ring.sim.run(QUIET_S)
    assert ring.wrong() == []
    assert len(ring.overlays) == 32


def test_all_but_one_leave_at_once() -> None:
    ring = RingNetwork(2, FaultyNetwork(0.0))
    for _ in range(16):
        ring.add()
    ring.sim.run(60)
    for number in range(15):
        ring.leave(number)
    ring.sim.run(60 + QUIET_S)
    assert list(ring.overlays) == [15]
    assert ring.wrong() == []


@pytest.mark.parametrize("seed", range(12))
def test_a_ring_mends_itself(seed: int) -> None:
    """Loss, repetition, overtaking, churn and a partition; then quiet: the ring is whole."""
    ring = RingNetwork(seed, FaultyNetwork(0.02, split=(40.0, 55.0), until=120.0))
    for _ in range(24):
        ring.add()
    for second in range(20, 120):
        ring.sim.at(second, ring.churn_brokers)
    ring.sim.run(120 + QUIET_S)
    assert ring.wrong() == [], f"seed {seed}"
