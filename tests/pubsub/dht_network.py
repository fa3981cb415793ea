"""Brokers with a baseline method each, over the DHT on a Skip Graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Self, TypeVar

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.skip_graph import IdRouter, SkipGraph, id_of
from braidmq.overlay.vectors import Vector, common_digits
from braidmq.pubsub.baselines import Bayeux, CanMulticast, Scribe
from braidmq.pubsub.method import OnDemand, OnMessage, ignore
from braidmq.sim.engine import Network
from braidmq.sim.layouts.skip_graph import lay_out
from tests.simulated import MethodNetwork, build_skip_graph

M = TypeVar("M", bound=Scribe | Bayeux | CanMulticast)
Make = Callable[[IdRouter, OnMessage, OnDemand], M]

GROWN_S = 60.0
"""How long a small network grows before a test begins."""


def name_of(address: Address) -> Key:
    return b"broker %05d" % (int(address) * 7919 % 100_000)


class DhtNetwork(MethodNetwork[SkipGraph, M], Generic[M]):
    """They either grow together by messages, or are laid out, and then mend nothing."""

    def __init__(self, make: Make[M], brokers: int, seed: int, network: Network | None = None) -> None:
        super().__init__(build_skip_graph, lambda graph, _address: make(IdRouter(graph), ignore, ignore), seed, network)
        self.seed = seed
        self.brokers = brokers

    def lay_out(self) -> Self:
        names: dict[Address, list[Key]] = {address: [name_of(address)] for address in range(self.brokers)}
        for address, graph in lay_out(self.sim, names, self.seed).items():
            self.equip(address, graph)
        return self

    def grow(self) -> Self:
        for address in range(self.brokers):
            self.start(address)
        self.sim.run(GROWN_S)
        return self

    def start(self, address: Address, keys: Iterable[Key] = (), vector: Vector | None = None) -> SkipGraph:
        return super().start(address, keys or [name_of(address)], vector)

    def root_of(self, topic: str) -> Address:
        """By looking at every broker."""
        sought = id_of(topic)
        shared = max(common_digits(graph.vector, sought) for graph in self.overlays.values())
        nearest = [(a, g) for a, g in self.overlays.items() if common_digits(g.vector, sought) == shared]
        return min((abs(graph.vector - sought), min(graph.nodes), address) for address, graph in nearest)[2]
