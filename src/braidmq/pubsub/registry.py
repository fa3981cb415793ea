"""The publish/subscribe methods by name: what each is, how one broker's part of it is built, and what brokers then say.

This is the one list. The configuration has its choices from it, a live broker and the simulator build their parts by
it, and the command line describes what it has. A new method is one more entry here.

The command line starts quickly, and reads no more than names and descriptions: so the code of overlays and methods is
imported when a part is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from braidmq.host import Host, Message
from braidmq.overlay.ranges import Cut
from braidmq.pubsub.method import Method, ignore

if TYPE_CHECKING:
    from braidmq.overlay import Introduce, Overlay
    from braidmq.overlay.skip_graph import IdRouter
    from braidmq.overlay.vectors import Vector

MethodName = Literal["covers", "adaptive", "relayfree", "suzaku", "locality", "scribe", "bayeux", "canmc"]
"""The methods that a configuration can name."""

METHOD_DEFAULT: Final = "covers"

TABLE_SIZE_DEFAULT: Final = 60
"""Entries of a flexible routing table, the one thing that can be set about a method of a live broker."""


class OverlaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one broker's part of an overlay is built from."""

    host: Host
    introduce: Introduce
    vector: Callable[[], Vector]
    """The broker's membership vector, asked for by overlays that have them."""
    incarnation: int = 0
    table_size: int = TABLE_SIZE_DEFAULT


class MethodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one broker's part of a method is built from, over its part of an overlay."""

    name: str
    cluster: str = ""
    cut: Cut | None = None
    """How ranges are split; None is the method's first choice."""
    incarnation: int = 0
    """Of the broker: it grows from one start to the next."""
    is_lossless: bool = False
    """Nothing is lost or crashes: what a method does now and then to mend that is left out."""


class MethodEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A method over the overlay that it needs."""

    what: str
    """In a few words."""
    known_as: str = ""
    """What the literature calls it, or what sets it apart."""
    build_overlay: Callable[[OverlaySettings], Overlay]
    method: Callable[[Overlay, MethodSettings, Cut], Method]
    message_modules: tuple[str, ...]
    """Where the messages are that its brokers send each other, besides those of every method."""
    cuts: tuple[Cut, ...] = ()
    """How it can split ranges, its first choice first; none if it delivers otherwise.

    When a node is told that it is in, the right link to it is set, and the left link a moment later: by right links
    alone it gets all that is sent from then on; by those of both sides it can miss what is sent in that moment.
    """
    has_tables: bool = False
    """Its overlay has routing tables of a size that can be set, and that are learnt."""
    is_relay_free: bool = True
    """No broker handles a publication unless it publishes or subscribes to its topic."""
    knows_demand: bool = True
    """It says when a topic is wanted, and sends nothing when it is not."""
    is_proven: bool = True
    """It can prove that every subscriber has a publication (`ProvenMethod`)."""
    is_scoped: bool = True
    """It can keep a publication inside a cluster (`ScopedMethod`)."""
    takes_filters: bool = False
    """It is given filters with wildcards as they are (`WildcardMethod`); the others are given a key a topic."""
    delivers_own: bool = True
    """It brings a broker its own publications, if that subscribes to their topic."""
    is_baseline: bool = False
    """It is here for comparison."""

    def build_method(self, overlay: Overlay, settings: MethodSettings) -> Method:
        """The method of one broker, which does not subscribe or publish yet."""
        return self.method(overlay, settings, settings.cut or next(iter(self.cuts), Cut.MRF))

    def messages(self) -> list[type[Message]]:
        """All messages that brokers with this method send each other."""
        modules = (*_OF_ALL, *self.message_modules)
        for module in modules:
            import_module(module)
        return [kind for kind in message_kinds() if kind.__module__ in modules]


def message_kinds() -> list[type[Message]]:
    """All kinds of messages in the modules that are imported."""
    return list(dict.fromkeys(_below(Message)))


def _below(base: type[Message]) -> Iterator[type[Message]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _below(kind)


# Overlays


def _suzaku(settings: OverlaySettings) -> Overlay:
    from braidmq.overlay.suzaku import Suzaku

    return Suzaku(settings.host, settings.introduce, settings.incarnation)


def _skip_graph(settings: OverlaySettings) -> Overlay:
    from braidmq.overlay.skip_graph import SkipGraph

    return SkipGraph(settings.host, settings.vector(), settings.introduce, settings.incarnation)


def _flexible_graph(settings: OverlaySettings) -> Overlay:
    from braidmq.overlay.flexible import FlexibleGraph

    return FlexibleGraph(
        settings.host, settings.vector(), settings.introduce, settings.incarnation, settings.table_size
    )


# Methods


def _relay_free(overlay: Overlay, settings: MethodSettings, cut: Cut) -> Method:
    from braidmq.pubsub.relay_free.relay_free import COMPARE_S, RelayFree

    return RelayFree(overlay, settings.name, settings.cluster, cut, None if settings.is_lossless else COMPARE_S)


def _covers(overlay: Overlay, settings: MethodSettings, cut: Cut) -> Method:
    from braidmq.pubsub.covers.covers import Covers

    return Covers(overlay, settings.name, settings.cluster, cut, settings.incarnation)


def _locality(overlay: Overlay, settings: MethodSettings, _cut: Cut) -> Method:
    from braidmq.pubsub.locality.locality import Locality

    return Locality(overlay, settings.name, settings.cluster)


def _scribe(overlay: Overlay, settings: MethodSettings, _cut: Cut) -> Method:
    from braidmq.pubsub.baselines.scribe import Scribe

    return Scribe(_router(overlay), ignore, ignore, _refresh_s(settings))


def _bayeux(overlay: Overlay, settings: MethodSettings, _cut: Cut) -> Method:
    from braidmq.pubsub.baselines.bayeux import Bayeux

    return Bayeux(_router(overlay), ignore, ignore, _refresh_s(settings))


def _can_multicast(overlay: Overlay, settings: MethodSettings, _cut: Cut) -> Method:
    from braidmq.pubsub.baselines.can.multicast import CanMulticast

    return CanMulticast(_router(overlay), ignore, ignore, _refresh_s(settings))


def _router(overlay: Overlay) -> IdRouter:
    """The DHT that leads to the root of a topic."""
    from braidmq.overlay.skip_graph import IdRouter, SkipGraph

    assert isinstance(overlay, SkipGraph)
    return IdRouter(overlay)


def _refresh_s(settings: MethodSettings) -> float | None:
    from braidmq.pubsub.baselines.rendezvous_tree import REFRESH_S

    return None if settings.is_lossless else REFRESH_S


# Messages

_OF_ALL = (
    "braidmq.detours.messages",
    "braidmq.overlay.peers",
    "braidmq.overlay.ring.messages",
    "braidmq.overlay.overlay",
    "braidmq.overlay.ranges.messages",
)
_OF_SUZAKU = ("braidmq.overlay.suzaku.messages",)
_OF_SKIP_GRAPHS = ("braidmq.overlay.lookup", "braidmq.overlay.skip_graph.messages")
_OF_FLEXIBLE_GRAPHS = ("braidmq.overlay.lookup", "braidmq.overlay.flexible.messages")
_OF_RELAY_FREE = ("braidmq.pubsub.relay_free.signals", "braidmq.pubsub.effect")
_OF_COVERS = ("braidmq.pubsub.covers.messages", "braidmq.pubsub.covers.multicast_messages")
_OF_LOCALITY = (
    "braidmq.pubsub.locality.locality",
    "braidmq.pubsub.locality.delegates",
    "braidmq.pubsub.locality.proofs",
    "braidmq.pubsub.effect",
)
_OF_DHTS = (*_OF_SKIP_GRAPHS, "braidmq.overlay.skip_graph.dht", "braidmq.pubsub.baselines.introducer")
_OF_TREES = (*_OF_DHTS, "braidmq.pubsub.baselines.rendezvous_tree")

# The list

METHODS: Final[Mapping[MethodName, MethodEntry]] = {
    "covers": MethodEntry(
        what="few broad filters in the overlay, exact ones from broker to broker",
        build_overlay=_flexible_graph,
        method=_covers,
        message_modules=(*_OF_FLEXIBLE_GRAPHS, *_OF_RELAY_FREE, *_OF_COVERS),
        cuts=(Cut.SFB, Cut.MRF),
        has_tables=True,
        takes_filters=True,
        delivers_own=False,
    ),
    "suzaku": MethodEntry(
        what="range delivery over Suzaku",
        build_overlay=_suzaku,
        method=_relay_free,
        message_modules=(*_OF_SUZAKU, *_OF_RELAY_FREE),
        cuts=(Cut.RIGHT,),
        is_relay_free=False,  # what lies before a topic's first subscriber is for the node that is there
    ),
    "relayfree": MethodEntry(
        what="SG-TBPS: over a Skip Graph",
        known_as="SG-TBPS",
        build_overlay=_skip_graph,
        method=_relay_free,
        message_modules=(*_OF_SKIP_GRAPHS, *_OF_RELAY_FREE),
        cuts=(Cut.MRF, Cut.SFB),
    ),
    "adaptive": MethodEntry(
        what="over flexible routing tables",
        known_as="flexible routing tables",
        build_overlay=_flexible_graph,
        method=_relay_free,
        message_modules=(*_OF_FLEXIBLE_GRAPHS, *_OF_RELAY_FREE),
        cuts=(Cut.SFB, Cut.MRF),
        has_tables=True,
    ),
    "locality": MethodEntry(
        what="PIQT: by delegates in each cluster, over Suzaku",
        known_as="PIQT",
        build_overlay=_suzaku,
        method=_locality,
        message_modules=(*_OF_SUZAKU, *_OF_LOCALITY),
    ),
    "scribe": MethodEntry(
        what="Scribe: trees of the ways to a root",
        build_overlay=_skip_graph,
        method=_scribe,
        message_modules=(*_OF_TREES, "braidmq.pubsub.baselines.scribe"),
        is_relay_free=False,
        knows_demand=False,
        is_proven=False,
        is_scoped=False,
        is_baseline=True,
    ),
    "bayeux": MethodEntry(
        what="Bayeux: trees of the ways from a root",
        build_overlay=_skip_graph,
        method=_bayeux,
        message_modules=(*_OF_TREES, "braidmq.pubsub.baselines.bayeux"),
        is_relay_free=False,
        knows_demand=False,
        is_proven=False,
        is_scoped=False,
        is_baseline=True,
    ),
    "canmc": MethodEntry(
        what="CAN-MC: a small space a topic, flooded",
        build_overlay=_skip_graph,
        method=_can_multicast,
        message_modules=(*_OF_DHTS, "braidmq.pubsub.baselines.can.messages"),
        knows_demand=False,
        is_proven=False,
        is_scoped=False,
        is_baseline=True,
    ),
}
"""By the name in a configuration and on the command line."""


def described() -> str:
    """All methods in one line, for an error message."""
    return ", ".join(f"{name} ({entry.what})" for name, entry in METHODS.items())
