"""A broker on the network of its braid: the host, the overlay and the method that its configuration names."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from hashlib import sha256
from types import ModuleType

from braidmq.braid.braid import Braid
from braidmq.braid.identity import identity_of
from braidmq.braid.inspect.status import BraidInspector
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.transfer.accounting import weigh
from braidmq.broker.broker import Broker
from braidmq.config.braid_security import security_of
from braidmq.config.naming import lasting_address
from braidmq.config.settings import BraidConfig
from braidmq.host import Host, Message
from braidmq.net.host import NetHost
from braidmq.overlay import Overlay, lookup, overlay, peers
from braidmq.overlay.flexible import FlexibleGraph
from braidmq.overlay.flexible import messages as flexible_messages
from braidmq.overlay.ranges import messages as range_messages
from braidmq.overlay.ring import messages as ring_messages
from braidmq.overlay.skip_graph import IdRouter, SkipGraph
from braidmq.overlay.skip_graph import dht as skip_dht
from braidmq.overlay.skip_graph import messages as skip_messages
from braidmq.overlay.suzaku import Suzaku
from braidmq.overlay.suzaku import messages as suzaku_messages
from braidmq.overlay.vectors import DIGITS_MAX, Vector
from braidmq.pubsub import effect, proofs, relay_free, signals
from braidmq.pubsub.baselines import bayeux, introducer, rendezvous_tree, scribe
from braidmq.pubsub.baselines.can import messages as can_messages
from braidmq.pubsub.baselines.can import multicast as can_multicast
from braidmq.pubsub.baselines.can import network as can
from braidmq.pubsub.locality import delegates, locality
from braidmq.pubsub.method import Method, ignore
from braidmq.pubsub.relay_free import CUTS

PROTOCOL = "1"
"""What brokers say to each other: another number if a message changes so that other brokers cannot read it any more."""

LEAVE_S = 5.0
"""How long a broker that ends has to leave the braid in good order."""

INCARNATION_EPOCH_S = 1_750_000_000
INCARNATIONS_A_SECOND = 10
"""A restart is another incarnation: the tenths of a second since then."""

_log = logging.getLogger("braidmq.braid")

_ALWAYS = (peers, ring_messages, overlay, range_messages)
_SKIP = (lookup, skip_messages)
_DHT = (*_SKIP, skip_dht, introducer)
_TREES = (*_DHT, rendezvous_tree)
MODULES: dict[str, tuple[ModuleType, ...]] = {
    "adaptive": (lookup, flexible_messages, signals, effect),
    "relayfree": (*_SKIP, signals, effect),
    "suzaku": (suzaku_messages, signals, effect),
    "locality": (suzaku_messages, locality, delegates, proofs, effect),
    "scribe": (*_TREES, scribe),
    "bayeux": (*_TREES, bayeux),
    "canmc": (*_DHT, can, can_messages, can_multicast),
}
"""By method: where the messages are that its brokers send each other."""


def messages_of(method: str) -> list[type[Message]]:
    """All messages that brokers with this method send each other: those of its modules, and of the whole braid."""
    modules = {module.__name__ for module in (*_ALWAYS, *MODULES[method])}
    kinds = dict.fromkeys(_kinds(Message))
    return [one for one in kinds if one.__module__ in modules or one.__module__.startswith(f"{__package__}.")]


def _kinds(base: type[Message]) -> Iterator[type[Message]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def vector_of(name: str) -> Vector:
    """A broker's admission vector: as good as random, and the same each time it starts."""
    return int.from_bytes(sha256(name.encode()).digest()[:8]) >> (64 - DIGITS_MAX)


class BraidNode:
    """From start to stop."""

    def __init__(self, broker: Broker, config: BraidConfig) -> None:
        self._broker = broker
        self._config = config
        self._identity = identity_of(broker, random.SystemRandom(), config.name, lasting_address(config))
        self.host = NetHost(
            config.listen,
            messages_of(config.method),
            name=self._identity.name,
            advertise=config.advertise,
            security=security_of(config),
            identity=self._identity.identity,
            terms={"braid.method": config.method, "protocol": PROTOCOL},
        )
        self.host.is_member = False
        self.host.weigh = weigh
        self.braid: Braid | None = None
        """From the start on."""

    @property
    def status(self) -> BraidInspector | None:
        """What can be told of the braid; from the start on."""
        return None if self.braid is None else self.braid.status

    async def start(self) -> None:
        """Listens for other brokers, and begins to join them. OSError if it cannot listen."""
        await self.host.start()
        config = self._config
        name = self._identity.name
        incarnation = int((time.time() - INCARNATION_EPOCH_S) * INCARNATIONS_A_SECOND)
        introducers = Introducers(self.host, config.join)
        overlay_, method = build(config, self.host, name, incarnation, introducers)
        self.braid = braid = Braid(
            self._broker,
            overlay_,
            method,
            name,
            incarnation,
            introducers,
            config.cluster,
            self._identity,
            config.method,
        )
        self._join_host(braid)
        self.host.spawn(self._enter(braid))

    def _join_host(self, braid: Braid) -> None:
        """What only a host with real links has."""
        admission = braid.membership.admission
        admission.refusals = lambda: self.host.refusals
        self.host.watch(admission.on_linked, admission.on_parted)
        braid.transfer.use_links(self.host, braid.overlay)

    async def _enter(self, braid: Braid) -> None:
        await braid.enter()
        self.host.is_member = True
        _log.info("%s is in the braid, at %s", braid.name, self.host.address)

    async def stop(self, is_polite: bool = True) -> bool:
        """Leaves, in good order if `is_polite` and that does not take too long: whether it did not."""
        if is_polite and self.braid is not None and self.braid.presence.is_in and not _is_alone(self.braid):
            try:
                async with asyncio.timeout(LEAVE_S):
                    await self.braid.leave()
            except TimeoutError:
                is_polite = False
                _log.warning("left the braid without a word: that took more than %g s", LEAVE_S)
        self.host.say_farewell()
        await self.host.stop()
        return is_polite

    def trouble(self) -> str | None:
        """Why this broker is not in its braid, None if it is."""
        return "this broker is just starting" if self.braid is None else self.braid.membership.admission.trouble


def _is_alone(braid: Braid) -> bool:
    """Whether nobody else is in the braid: then there is nobody to tell."""
    own = braid.host.address
    return all(node.left.address == own == node.right.address for node in braid.overlay.view.own.values())


def build(
    config: BraidConfig, host: Host, name: str, incarnation: int, introducers: Introducers
) -> tuple[Overlay, Method]:
    """The overlay and the method that a configuration names."""
    vector = vector_of(name)
    if config.method == "adaptive":
        flexible = FlexibleGraph(host, vector, introducers, incarnation, config.table_size)
        return flexible, relay_free.RelayFree(flexible, name, config.cluster, CUTS[config.method][0])
    if config.method in ("suzaku", "locality"):
        ring_ = Suzaku(host, introducers, incarnation)
        if config.method == "suzaku":
            return ring_, relay_free.RelayFree(ring_, name, config.cluster, CUTS[config.method][0])
        return ring_, locality.Locality(ring_, name, config.cluster)
    graph = SkipGraph(host, vector, introducers, incarnation)
    if config.method == "relayfree":
        return graph, relay_free.RelayFree(graph, name, config.cluster, CUTS[config.method][0])
    router = IdRouter(graph)
    if config.method == "canmc":
        return graph, can_multicast.CanMulticast(router, ignore, ignore)
    tree = scribe.Scribe if config.method == "scribe" else bayeux.Bayeux
    return graph, tree(router, ignore, ignore)
