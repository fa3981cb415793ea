"""How a network of each publish/subscribe method is laid out, and how one broker of it starts.

A laid-out network has the links that the protocol reaches by messages, made at once: for networks too large to grow.
Links are all that is laid out, and that each broker knows what its own clients publish and want. What the checkers ask
for, such as which topics are wanted and which way leads to a subscriber, the brokers find out by messages. A started
broker is one of a network that grows: it subscribes and advertises by messages, as on a real network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final, Protocol

import msgspec

from braidmq.host import Address
from braidmq.keys import Key, Role, key_of, parts_of
from braidmq.overlay import Introduce, Overlay
from braidmq.overlay.flexible import FlexibleGraph
from braidmq.overlay.ranges import Cut
from braidmq.overlay.suzaku import PERIOD_S, Suzaku
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.pubsub.baselines.bayeux import Bayeux
from braidmq.pubsub.baselines.can.multicast import CanMulticast
from braidmq.pubsub.baselines.scribe import Scribe
from braidmq.pubsub.covers.cover_set import CoverSet, literal_prefix
from braidmq.pubsub.covers.covers import Covers
from braidmq.pubsub.covers.rendezvous import keys_at
from braidmq.pubsub.locality.delegates import CHECK_S
from braidmq.pubsub.locality.locality import Locality
from braidmq.pubsub.method import Method
from braidmq.pubsub.registry import METHODS, TABLE_SIZE_DEFAULT, MethodEntry, MethodSettings, OverlaySettings
from braidmq.pubsub.relay_free import RelayFree
from braidmq.sim.engine import SimHost, Simulator
from braidmq.sim.layouts import flexible as layout_flexible
from braidmq.sim.layouts import skip_graph as layout_skip
from braidmq.sim.layouts.suzaku import lay_out_suzaku
from braidmq.sim.trials.patterns import RoleAssignment

CALM_S = 240.0
"""Suspicions last two minutes, and checks are due some times after that."""

SUZAKU_CALM_S = CALM_S + 60 * PERIOD_S
"""Until every finger has been asked for several times: one of a node's is in each period."""

SIGNALLED_S = 10.0
"""How long a signal may take to the last publisher, when nothing is lost."""


ASK_EVERY_S = 0.0001
"""The time between two brokers of a laid-out network that begin to find out what they do not know yet."""


class Options(msgspec.Struct, frozen=True):
    """What can be set about a method."""

    cut: Cut = Cut.MRF
    table_size: int = TABLE_SIZE_DEFAULT
    clusters: int = 1
    learn_s: float | None = None
    """How long tables are learnt before the trial; without it they are laid out, the best by their order."""

    def cluster_of(self, broker: int) -> str:
        """Brokers are dealt out to the clusters in turn."""
        return "" if self.clusters < 2 else f"c{broker % self.clusters:04d}"


def name_of(broker: int) -> str:
    return f"b{broker:07d}"


class TrialMethod(Protocol):
    """A method that can be tried."""

    @property
    def entry(self) -> MethodEntry:
        """What the method is."""
        ...

    @property
    def calm_s(self) -> float:
        """How long after the end of faults everything has to be as if there had been none."""
        ...

    @property
    def demand_s(self) -> float:
        """How long after a change of demand every publisher knows of it, when nothing is lost."""
        ...

    @property
    def laid_out(self) -> tuple[Role, ...]:
        """The roles that brokers have in a laid-out network; the others they still have to ask for."""
        ...

    def lay_out(self, sim: Simulator, assignment: RoleAssignment, options: Options) -> dict[int, Method]:
        """The brokers with their links, in a simulator that has not run yet: they find out the rest when it does."""
        ...

    def start(self, host: SimHost, broker: int, introduce: Introduce, options: Options) -> Method:
        """A broker of a growing network, in a new incarnation of its host."""
        ...

    def is_in(self, method: Method) -> bool:
        """Whether a started broker can introduce others."""
        ...


def learn_fingers(methods: Iterable[Method]) -> None:
    """Where the overlay is Suzaku, all nodes ask for their fingers now, as they do level by level over many minutes.

    In a laid-out network they do not do so by themselves.
    """
    for method in methods:
        overlay = getattr(method, "overlay", None)
        if isinstance(overlay, Suzaku):
            for node in overlay.nodes.values():
                overlay.host.spawn(node.learn_all(overlay.both_ways))


def _start_overlay(entry: MethodEntry, host: SimHost, introduce: Introduce, options: Options) -> Overlay:
    """The overlay of a broker of a growing network; its vector is drawn if it has one."""
    return entry.build_overlay(
        OverlaySettings(
            host=host,
            introduce=introduce,
            vector=partial(host.chance.getrandbits, DIGITS_MAX),
            incarnation=host.incarnation,
            table_size=options.table_size,
        )
    )


def _settings(broker: int, options: Options, *, incarnation: int = 0, is_lossless: bool = False) -> MethodSettings:
    cluster = options.cluster_of(broker)
    return MethodSettings(
        name=name_of(broker), cluster=cluster, cut=options.cut, incarnation=incarnation, is_lossless=is_lossless
    )


def build(entry: MethodEntry, host: SimHost, broker: int, introduce: Introduce, options: Options) -> Method:
    """The method of a broker that comes into a growing network."""
    overlay = _start_overlay(entry, host, introduce, options)
    return entry.build_method(overlay, _settings(broker, options, incarnation=host.incarnation))


LayOutOverlay = Callable[
    [Simulator, Mapping[Address, Sequence[Key]], Options, Callable[[Key], bool]], Mapping[Address, Overlay]
]
"""Lays out an overlay; of what is costly to lay out well, the keys for which the last argument holds come first."""


class Ordered(msgspec.Struct, frozen=True):
    """Relay-free delivery over an overlay in the order of keys."""

    entry: MethodEntry
    lay_out_overlay: LayOutOverlay
    calm_s: float = CALM_S
    demand_s: float = SIGNALLED_S
    laid_out: tuple[Role, ...] = (Role.PUBLISHER, Role.SUBSCRIBER)

    def lay_out(self, sim: Simulator, assignment: RoleAssignment, options: Options) -> dict[int, Method]:
        keys: dict[Address, list[Key]] = {broker: [] for broker in range(assignment.brokers)}
        measured: dict[Key, None] = {}
        for topic in assignment.topics:
            for role, members in ((Role.PUBLISHER, topic.publishers), (Role.SUBSCRIBER, topic.subscribers)):
                for broker in members:
                    key = key_of(topic.name, role, options.cluster_of(broker), name_of(broker))
                    keys[broker].append(key)
                    if topic.measured:
                        measured[key] = None
        overlays = self.lay_out_overlay(sim, keys, options, measured.__contains__)
        methods: dict[int, Method] = {}
        for broker, (subscribed, adverts) in enumerate(assignment.roles()):
            method = self.entry.build_method(overlays[broker], _settings(broker, options, is_lossless=True))
            assert isinstance(method, RelayFree)
            method.adopt(subscribed, adverts)
            methods[broker] = method
            if adverts:  # as if its links had just come about: a rendezvous point looks to its right, and signals
                sim.at(sim.now + broker * ASK_EVERY_S, method.overlay.on_change)
        return methods

    def start(self, host: SimHost, broker: int, introduce: Introduce, options: Options) -> Method:
        return build(self.entry, host, broker, introduce, options)

    def is_in(self, method: Method) -> bool:
        assert isinstance(method, RelayFree)
        return bool(method.overlay.view.own)


class LearningTables(Ordered, frozen=True):
    """Relay-free delivery over flexible routing tables, whose nodes learn who subscribes to their topics."""

    def begin_to_learn(self, sim: Simulator, assignment: RoleAssignment, methods: Mapping[int, Method]) -> None:
        """The nodes of measured topics learn from now on, in a laid-out network."""
        graphs: dict[int, FlexibleGraph] = {}
        for broker, method in methods.items():
            assert isinstance(method, RelayFree)
            assert isinstance(method.overlay, FlexibleGraph)
            graphs[broker] = method.overlay
        inside = [broker for broker, graph in graphs.items() if graph.nodes]
        for broker, graph in graphs.items():
            graph.introduce = partial(_other, sim.chance, inside, broker)
        for topic in assignment.topics:
            if topic.measured:
                for broker in (*topic.publishers, *topic.subscribers):
                    for key, node in graphs[broker].nodes.items():
                        if parts_of(key)[0] == topic.name:
                            sim.hosts[broker].spawn(graphs[broker].learning.learn(node))


def _other(chance: Random, inside: Sequence[int], mine: int) -> Address | None:
    """Some other broker of those that are in, None if there is none."""
    broker = chance.choice(inside)
    while broker == mine and len(inside) > 1:
        broker = chance.choice(inside)
    return None if broker == mine else broker


class ByCovers(Ordered, frozen=True):
    """Few covers of each broker in the overlay, and exact wants told from broker to broker.

    Laid out are the keys for the covers alone. Which brokers there are besides, and what they want and publish, all of
    them find out by messages, as they subscribe and advertise.
    """

    laid_out: tuple[Role, ...] = ()

    def lay_out(self, sim: Simulator, assignment: RoleAssignment, options: Options) -> dict[int, Method]:
        keys: dict[Address, list[Key]] = {}
        for broker, names in enumerate(assignment.roles()):
            keys[broker] = [_home_of(broker)]
            for role, some in zip((Role.SUBSCRIBER, Role.PUBLISHER), names, strict=True):
                prefixes = [literal_prefix(cover) for cover in CoverSet().rebuilt(some)]
                keys[broker] += keys_at(role, prefixes, options.cluster_of(broker), name_of(broker))
        overlays = self.lay_out_overlay(sim, keys, options, lambda _key: False)
        methods: dict[int, Method] = {}
        for broker, (subscribed, adverts) in enumerate(assignment.roles()):
            method = self.entry.build_method(overlays[broker], _settings(broker, options))
            assert isinstance(method, Covers)
            method.adopt(subscribed, adverts)
            methods[broker] = method
        return methods

    def start(self, host: SimHost, broker: int, introduce: Introduce, options: Options) -> Method:
        method = build(self.entry, host, broker, introduce, options)
        assert isinstance(method, Covers)
        if introduce() is None:
            method.overlay.found(_home_of(broker))
        else:
            host.spawn(method.overlay.join(_home_of(broker)))
        return method

    async def leave(self, broker: int, method: Method) -> None:
        """The last that a broker does that has given its roles back."""
        assert isinstance(method, Covers)
        await method.leave()
        await method.overlay.leave(_home_of(broker))

    def is_in(self, method: Method) -> bool:
        assert isinstance(method, Covers)
        return bool(method.overlay.view.own)


def _home_of(broker: int) -> Key:
    """Where a broker stands for itself."""
    return key_of("", Role.PUBLISHER, "", name_of(broker))


class ByDelegates(msgspec.Struct, frozen=True):
    """Delivery by a delegate in each cluster, over Suzaku. Publishers find the delegates by messages."""

    entry: MethodEntry
    calm_s: float = SUZAKU_CALM_S
    demand_s: float = CHECK_S + SIGNALLED_S
    laid_out: tuple[Role, ...] = (Role.SUBSCRIBER,)

    def lay_out(self, sim: Simulator, assignment: RoleAssignment, options: Options) -> dict[int, Method]:
        keys: dict[Address, list[Key]] = {}
        for broker, (subscribed, adverts) in enumerate(assignment.roles()):
            name, cluster = name_of(broker), options.cluster_of(broker)
            keys[broker] = [key_of(topic, Role.SUBSCRIBER, cluster, name) for topic in subscribed]
            keys[broker] += [key_of(topic, Role.PUBLISHER, cluster, name) for topic in adverts]
        overlays = lay_out_suzaku(sim, keys)
        methods: dict[int, Method] = {}
        for broker, subscribed in enumerate(assignment.subscriptions()):
            method = self.entry.build_method(overlays[broker], _settings(broker, options, is_lossless=True))
            assert isinstance(method, Locality)
            method.adopt(subscribed)
            methods[broker] = method
        return methods

    def start(self, host: SimHost, broker: int, introduce: Introduce, options: Options) -> Method:
        return build(self.entry, host, broker, introduce, options)

    def is_in(self, method: Method) -> bool:
        assert isinstance(method, Locality)
        return bool(method.overlay.view.own)


class ByHash(msgspec.Struct, frozen=True):
    """The baselines: a broker stands in a Skip Graph by its name alone, and a topic's ID leads to its root.

    Their trees and spaces are laid out by messages: every broker subscribes and advertises.
    """

    entry: MethodEntry
    calm_s: float = CALM_S
    demand_s: float = 0.0
    laid_out: tuple[Role, ...] = ()

    def lay_out(self, sim: Simulator, assignment: RoleAssignment, options: Options) -> dict[int, Method]:
        names: dict[Address, tuple[Key, ...]] = {
            broker: (name_of(broker).encode(),) for broker in range(assignment.brokers)
        }
        graphs = layout_skip.lay_out(sim, names, sim.seed)
        return {
            broker: self.entry.build_method(graphs[broker], _settings(broker, options, is_lossless=True))
            for broker in range(assignment.brokers)
        }

    def start(self, host: SimHost, broker: int, introduce: Introduce, options: Options) -> Method:
        graph = _start_overlay(self.entry, host, introduce, options)
        name = name_of(broker).encode()
        if introduce() is None:
            graph.found(name)
        else:
            host.spawn(graph.join(name))
        return self.entry.build_method(graph, _settings(broker, options))

    def is_in(self, method: Method) -> bool:
        assert isinstance(method, Scribe | Bayeux | CanMulticast)
        return bool(method.router.graph.view.own)


def _lay_out_suzaku(
    sim: Simulator, keys: Mapping[Address, Sequence[Key]], options: Options, matters: Callable[[Key], bool]
) -> Mapping[Address, Overlay]:
    return lay_out_suzaku(sim, keys)


def _lay_out_skip_graph(
    sim: Simulator, keys: Mapping[Address, Sequence[Key]], options: Options, matters: Callable[[Key], bool]
) -> Mapping[Address, Overlay]:
    return layout_skip.lay_out(sim, keys, sim.seed)


def _lay_out_flexible_graph(
    sim: Simulator, keys: Mapping[Address, Sequence[Key]], options: Options, matters: Callable[[Key], bool]
) -> Mapping[Address, Overlay]:
    is_ideal = matters if options.learn_s is None else lambda _key: False
    return layout_flexible.lay_out(sim, keys, sim.seed, options.table_size, is_ideal)


TRIAL_METHODS: Final[Mapping[str, TrialMethod]] = {
    "covers": ByCovers(METHODS["covers"], _lay_out_flexible_graph),
    "suzaku": Ordered(METHODS["suzaku"], _lay_out_suzaku, calm_s=SUZAKU_CALM_S),
    "relayfree": Ordered(METHODS["relayfree"], _lay_out_skip_graph),
    "adaptive": LearningTables(METHODS["adaptive"], _lay_out_flexible_graph),
    "locality": ByDelegates(METHODS["locality"]),
    "scribe": ByHash(METHODS["scribe"]),
    "bayeux": ByHash(METHODS["bayeux"]),
    "canmc": ByHash(METHODS["canmc"]),
}
"""By the names in the registry."""
