"""Sites in virtual time: real brokers, real braid, clients in memory; only the network between the sites is simulated.

A site is a `World` of the conformance tests whose clock is the simulator's. Whatever a client sends, the whole braid
has a second to do what comes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from braidmq.braid.braid import Braid
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.mirrors.settings import CopySettings
from braidmq.braid.transfer.accounting import weigh
from braidmq.broker.broker import Broker
from braidmq.host import Address, Message
from braidmq.overlay import Overlay
from braidmq.overlay.ranges import Cut
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.pubsub.method import Method
from braidmq.pubsub.registry import METHODS, MethodName, MethodSettings, OverlaySettings
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Network, Uniform
from tests.conformance.pair import Peer, World
from tests.conformance.wire import Type

SETTLE_S = 1.0

METHOD = "covers"
"""Of sites of which nothing else is said."""


class Site(World):
    """One broker of the braid."""

    def __init__(self, sites: Sites, number: int, **options: Any) -> None:
        self.sites = sites
        self.number = number
        self.host = sites.sim.hosts.get(number) or sites.sim.host(number)
        self.host.restart()
        copying: CopySettings | None = options.pop("copying", None)
        super().__init__(**options)
        introducers = Introducers(self.host, sites.introducers_of(number))
        overlay = sites.overlay(self, introducers)
        self.cluster = sites.clusters.get(number, "")
        name = sites.names.get(number, f"site{number}")
        method = sites.method(overlay, name, self.cluster, self.host.incarnation)
        self.braid = Braid(
            self.broker, overlay, method, name, self.host.incarnation, introducers, self.cluster, copying=copying
        )
        self.host.spawn(self.braid.enter())

    def _start(self) -> Broker:
        sim = self.sites.sim
        return Broker(
            clock=lambda: sim.now,
            wall=lambda: 1_800_000_000.0 + sim.now,
            wants_flush=lambda: sim.at(sim.now, self._flush),
            **self.options,
        )

    def _flush(self) -> None:
        if self.host.alive:
            self.broker.flush()

    def settle(self) -> None:
        super().settle()
        self.sites.run(self.sites.settle_s)
        super().settle()

    def crash(self) -> None:
        self.host.crash()
        self.sites.all.pop(self.number)


class Sites:
    """A braid of some sites."""

    def __init__(
        self,
        count: int,
        seed: int = 1,
        network: Network | None = None,
        method: str = "",
        clusters: Sequence[str] = (),
    ) -> None:
        """`clusters` are those of the sites, in their order."""
        self.clusters = dict(enumerate(clusters))
        self.names: dict[int, str] = {}
        """Of sites that are not called by their number."""
        self.sim = self.new_simulator(seed, network or Uniform(0.001, 0.02))
        self.entry = METHODS[cast(MethodName, method or METHOD)]
        self.settle_s = SETTLE_S
        self.all: dict[int, Site] = {}
        self.sent: list[tuple[Address, Address]] = []
        """From where to where publications went."""
        self.sim.on_message = self._count
        for number in range(count):
            self.add(number)
            self.run(1.0)
        self.run(10.0)

    def new_simulator(self, seed: int, network: Network) -> Simulator:
        return Simulator(seed, network)

    def add(self, number: int, **options: Any) -> Site:
        site = self.all[number] = Site(self, number, **options)
        return site

    def introducers_of(self, number: int) -> list[Address]:
        """Which sites one is told of when it starts."""
        return [0] if number else []

    def __getitem__(self, number: int) -> Site:
        return self.all[number]

    def __iter__(self) -> Iterator[Site]:
        return iter(self.all.values())

    def run(self, seconds: float) -> None:
        self.sim.run(self.sim.now + seconds)
        for site in self.all.values():
            if self.runs(site.number):
                site.broker.run_timers()

    def thaws_at(self, number: int) -> float:
        """When a site goes on that stands still; 0 if it does not."""
        return 0.0

    def runs(self, number: int) -> bool:
        """Whether a site does not stand still."""
        return not self.thaws_at(number)

    def method(self, overlay: Overlay, name: str, cluster: str, incarnation: int) -> Method:
        cut = Cut.MRF if Cut.MRF in self.entry.cuts[:1] else Cut.SFB  # over Suzaku too, to both sides
        settings = MethodSettings(name=name, cluster=cluster, cut=cut, incarnation=incarnation)
        return self.entry.build_method(overlay, settings)

    def overlay(self, site: Site, introducers: Introducers) -> Overlay:
        settings = OverlaySettings(
            host=site.host,
            introduce=introducers,
            vector=lambda: self.sim.chance.getrandbits(DIGITS_MAX),
            incarnation=site.host.incarnation,
        )
        return self.entry.build_overlay(settings)

    def client(self, number: int, client_id: str = "", **options: Any) -> Peer:
        return self[number].client(client_id or f"c{number}", **options)

    def _count(self, sender: Address, to: Address, message: Message, hops: int) -> None:
        if weigh(message):
            self.sent.append((sender, to))


def payloads(peer: Peer) -> list[bytes]:
    """Of all publications that have come; they are acknowledged."""
    got = [one for one in peer.take() if one.type is Type.PUBLISH]
    for one in got:
        peer.acknowledge(one)
    return [one.payload for one in got]
