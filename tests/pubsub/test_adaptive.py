"""The adaptive method: publishing over flexible routing tables, which look for the subscribers that they lack."""

from __future__ import annotations

from braidmq.keys import Role, key_of
from braidmq.overlay.flexible import FlexibleGraph
from braidmq.overlay.ranges import Cut
from braidmq.pubsub.relay_free import RelayFree
from tests.simulated import MethodNetwork, flexible_of

BROKERS = 16


def grown() -> MethodNetwork[FlexibleGraph, RelayFree]:
    """Brokers that all subscribe to one topic, but for the first, which publishes it."""
    network = MethodNetwork(flexible_of(), lambda graph, address: RelayFree(graph, f"b{address:02}", cut=Cut.SFB))
    for address in range(BROKERS):
        network.start(address)
        method = network.methods[address]
        network.do(address, method.subscribe("news") if address else method.advertise("news"))
        network.run(1)
    network.run(60)
    return network


def hops(network: MethodNetwork[FlexibleGraph, RelayFree]) -> list[int]:
    """How many hops a publication takes to each subscriber."""
    return [one.hops for one in network.publish("news", 0, seconds=1)]


def test_who_publishes_looks_for_subscribers_at_once() -> None:
    network = grown()
    assert hops(network) == [1] * (BROKERS - 1)
    graph = network.overlays[0]
    network.run(60)
    for address in range(3, BROKERS):
        graph.forget(key_of("news", Role.SUBSCRIBER, "", f"b{address:02}"))
    assert max(hops(network)) > 1
    assert hops(network) == [1] * (BROKERS - 1)
