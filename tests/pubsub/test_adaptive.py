"""The adaptive method: publishing over flexible routing tables, which look for the subscribers that they lack."""

from __future__ import annotations

from braidmq.host import Address
from braidmq.keys import Role, key_of
from braidmq.overlay.flexible import FlexibleGraph
from braidmq.overlay.ranges import Cut
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.pubsub.method import Publication
from braidmq.pubsub.relay_free import RelayFree
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Constant

BROKERS = 16


class Region:
    """Brokers that all subscribe to one topic, but for the first, which publishes it."""

    def __init__(self) -> None:
        self.sim = Simulator(1, Constant(0.01))
        self.methods: dict[Address, RelayFree] = {}
        self.got: list[Publication] = []
        for address in range(BROKERS):
            host = self.sim.host(address)
            graph = FlexibleGraph(host, self.sim.chance.getrandbits(DIGITS_MAX), self.introduce, host.incarnation)
            method = self.methods[address] = RelayFree(graph, f"b{address:02}", cut=Cut.SFB)
            method.on_message = self.got.append
            host.spawn(method.subscribe("news") if address else method.advertise("news"))
            self.sim.run(self.sim.now + 1)
        self.sim.run(self.sim.now + 60)

    def introduce(self) -> Address | None:
        return 0 if self.methods and self.methods[0].overlay.view.own else None

    def publish(self) -> list[int]:
        """How many hops a publication takes to each subscriber."""
        self.got.clear()
        assert self.methods[0].publish("news", b"x")
        self.sim.run(self.sim.now + 1)
        return [one.hops for one in self.got]


def test_who_publishes_looks_for_subscribers_at_once() -> None:
    region = Region()
    assert region.publish() == [1] * (BROKERS - 1)
    graph = region.methods[0].overlay
    assert isinstance(graph, FlexibleGraph)
    region.sim.run(region.sim.now + 60)
    for address in range(3, BROKERS):
        graph.forget(key_of("news", Role.SUBSCRIBER, "", f"b{address:02}"))
    assert max(region.publish()) > 1
    assert region.publish() == [1] * (BROKERS - 1)
