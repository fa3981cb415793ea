"""Brokers with a publish/subscribe method each, and what arrived where: for the tests of the baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from braidmq.host import Address
from braidmq.overlay.skip_graph import IdRouter, SkipGraph, id_of
from braidmq.overlay.vectors import DIGITS_MAX, common_digits
from braidmq.pubsub.baselines.bayeux import Bayeux
from braidmq.pubsub.baselines.can.multicast import CanMulticast
from braidmq.pubsub.baselines.scribe import Scribe
from braidmq.pubsub.method import OnDemand, OnMessage, Publication
from braidmq.sim.engine import Constant, Network, Simulator
from braidmq.sim.layouts.skip_graph import lay_out

M = TypeVar("M", Scribe, Bayeux, CanMulticast)
Make = Callable[[IdRouter, OnMessage, OnDemand], M]

GROWN_S = 60.0
"""How long a small network grows before a test begins."""


def name_of(address: int) -> bytes:
    return b"broker %05d" % (address * 7919 % 100_000)


class Village(Generic[M]):
    """Some brokers. They either grow together by messages, or are laid out, and then mend nothing."""

    def __init__(self, make: Make[M], brokers: int, seed: int, network: Network | None = None) -> None:
        self.sim = Simulator(seed, network or Constant(0.01))
        self.make: Make[M] = make
        self.seed = seed
        self.graphs: dict[Address, SkipGraph] = {}
        self.methods: dict[Address, M] = {}
        self.got: list[tuple[Address, Publication]] = []
        self.demand: list[tuple[Address, str, bool]] = []
        self.brokers = brokers

    def lay_out(self) -> Village[M]:
        names: dict[Address, list[bytes]] = {address: [name_of(address)] for address in range(self.brokers)}
        for address, graph in lay_out(self.sim, names, self.seed).items():
            self._settle(address, graph)
        return self

    def grow(self) -> Village[M]:
        for address in range(self.brokers):
            self.start(address)
        self.sim.run(GROWN_S)
        return self

    def start(self, address: int, vector: int | None = None) -> None:
        host = self.sim.hosts.get(address) or self.sim.host(address)
        host.restart()
        if vector is None:
            vector = self.sim.chance.getrandbits(DIGITS_MAX)
        graph = SkipGraph(host, vector, lambda: self._introduce(address), host.incarnation)
        if self.graphs:
            host.spawn(graph.join(name_of(address)))
        else:
            graph.found(name_of(address))
        self._settle(address, graph)

    def _settle(self, address: Address, graph: SkipGraph) -> None:
        self.graphs[address] = graph
        self.methods[address] = self.make(
            IdRouter(graph),
            lambda publication: self.got.append((address, publication)),
            lambda topic, wanted: self.demand.append((address, topic, wanted)),
        )

    def _introduce(self, mine: Address) -> Address | None:
        inside = [a for a, graph in self.graphs.items() if graph.view.own and a != mine]
        return self.sim.chance.choice(inside) if inside else None

    def crash(self, address: Address) -> None:
        self.sim.hosts[address].crash()
        del self.graphs[address], self.methods[address]

    def do(self, address: Address, what: Awaitable[None]) -> None:
        """Lets a broker do something; `run` lets it happen."""

        async def doing() -> None:
            await what

        self.sim.hosts[address].spawn(doing())

    def subscribe(self, topic: str, addresses: Iterable[Address]) -> None:
        for address in addresses:
            self.do(address, self.methods[address].subscribe(topic))

    def advertise(self, topic: str, address: Address) -> None:
        self.do(address, self.methods[address].advertise(topic))

    def run(self, seconds: float) -> None:
        self.sim.run(self.sim.now + seconds)

    def publish(self, topic: str, address: Address, body: bytes = b"news", seconds: float = 5.0) -> list[Publication]:
        """Publishes, lets it spread, and says what arrived."""
        self.got.clear()
        assert self.methods[address].publish(topic, body)
        self.run(seconds)
        return [publication for _, publication in self.got]

    def receivers(self) -> Counter[Address]:
        return Counter(address for address, _ in self.got)

    def root_of(self, topic: str) -> Address:
        """By looking at everybody."""
        sought = id_of(topic)
        shared = max(common_digits(graph.vector, sought) for graph in self.graphs.values())
        nearest = [(a, g) for a, g in self.graphs.items() if common_digits(g.vector, sought) == shared]
        return min((abs(graph.vector - sought), min(graph.nodes), address) for address, graph in nearest)[2]
