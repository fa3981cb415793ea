"""The problem that a running braid poses: from what was published, subscribed to and measured there.

Publications come from logs: who has published how much to which topic. A topic's spool is that of the processor that
takes it; its subscribers are the clients whose filters match it, or the processor's output. How far clients are from
sites is what was measured or given; where nothing is known, a client is as far from a site as by way of the one that it
is connected to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from braidmq.mqtt.topics import matches
from braidmq.mqtt.trees import FilterTree
from braidmq.placement.errors import PlacementError
from braidmq.placement.problem import Floats, HomeServer, Latencies, ManagedTopic, PlacementProblem, pose

SPOOL_WITHOUT_PROCESSOR: Final = 1
"""Messages of a topic that nobody processes: the one that is passed on."""


@dataclass(frozen=True, slots=True)
class ObservedSite:
    """A broker: what it has for processing, and its round trips to others, by name."""

    name: str
    storage: float
    compute: float
    round_trips_ms: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class ObservedClient:
    """A client: where its session is, what it subscribes to, and whether it can be told to go elsewhere."""

    name: str
    site: str
    filters: Sequence[str] = ()
    can_move: bool = True
    pinned_to: str | None = None
    """The site that a rule has it at, whatever is planned."""


@dataclass(frozen=True, slots=True)
class ObservedPublisher:
    """What one client has published to one topic."""

    topic: str
    client: str
    messages: int
    size: float
    """Bytes of a message, on average."""


@dataclass(frozen=True, slots=True)
class ObservedProcessor:
    """A message processor: the topics that it takes, its spool in messages, and where its notifications go."""

    topic: str
    spool: int
    output: str | None = None


@dataclass(frozen=True, slots=True)
class ObservedBraid:
    sites: Sequence[ObservedSite]
    clients: Sequence[ObservedClient]
    publishers: Sequence[ObservedPublisher]
    processors: Sequence[ObservedProcessor]
    period_s: float
    """How long publications were counted."""
    cloud_ms: float
    """One way from a site to the cloud."""
    topic_homes: Sequence[tuple[str, str]] = ()
    """Filters and sites: who publishes to a topic that matches is at home there; the first that fits counts."""
    client_ms: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """One way from a client to a site, where that is known."""


@dataclass(frozen=True, slots=True)
class PosedProblem:
    problem: PlacementProblem
    now: Mapping[str, str]
    """Where clients are at present."""


def pose_observed(braid: ObservedBraid) -> PosedProblem:
    """A PlacementError says what is missing."""
    if not braid.sites:
        raise PlacementError("no site can be reached: there is nothing to be planned")
    if not braid.publishers:
        raise PlacementError("the logs have no publication with a client id: is anything logged? See [log] topics")
    site_of = {one.name: one.site for one in braid.clients}
    unknown = sorted({*site_of.values()} - {one.name for one in braid.sites})
    if unknown:
        raise PlacementError(f"clients at sites that cannot be reached: {', '.join(unknown[:5])}")
    topics = _topics(braid, site_of)
    if not topics:
        raise PlacementError("none of the clients that have published has a session now: there is nobody to be moved")
    members = {client for topic in topics for client in (*topic.publishers, *topic.subscribers)}
    clients = [one for one in braid.clients if one.name in members]
    names = [one.name for one in clients]
    servers = [HomeServer(one.name, one.storage, one.compute) for one in braid.sites]
    between = _between(braid.sites)
    latencies = Latencies(_client_ms(braid, clients, between), between, np.array([braid.cloud_ms]))
    pinned = _pinned(braid, clients)
    strange = sorted({*pinned.values()} - {one.name for one in braid.sites})
    if strange:
        raise PlacementError(f"rules have clients at home at sites that are not there: {', '.join(strange[:5])}")
    fixed = {one.name: one.site for one in clients if not one.can_move} | pinned
    problem = pose(servers, names, topics, latencies, fixed)
    return PosedProblem(problem, {one.name: one.site for one in clients})


def _topics(braid: ObservedBraid, site_of: Mapping[str, str]) -> list[ManagedTopic]:
    """Topics that are published to by clients that still have a session."""
    tree: FilterTree[list[str]] = FilterTree()
    for client in braid.clients:
        for topic_filter in client.filters:
            found = tree.get(topic_filter)
            if found is None:
                tree.set(topic_filter, [client.name])
            else:
                found.append(client.name)
    rates: dict[str, dict[str, float]] = {}
    sizes: dict[str, list[tuple[int, float]]] = {}
    for one in braid.publishers:
        if one.client in site_of and one.messages > 0:
            rates.setdefault(one.topic, {})[one.client] = one.messages / braid.period_s
            sizes.setdefault(one.topic, []).append((one.messages, one.size))
    outputs: dict[str, set[str]] = {}
    topics: list[ManagedTopic] = []
    for topic, publishers in sorted(rates.items()):
        processor = next((one for one in braid.processors if matches(one.topic, topic)), None)
        subscribers = _subscribers(tree, topic)
        if processor is not None and processor.output is not None:
            if processor.output not in outputs:
                outputs[processor.output] = _subscribers(tree, processor.output)
            subscribers |= outputs[processor.output]
        spool = SPOOL_WITHOUT_PROCESSOR if processor is None else processor.spool
        messages = sum(count for count, _ in sizes[topic])
        size = sum(count * size for count, size in sizes[topic]) / messages
        topics.append(ManagedTopic(topic, publishers, sorted(subscribers), spool, max(1.0, spool * size)))
    return topics


def _pinned(braid: ObservedBraid, clients: Sequence[ObservedClient]) -> dict[str, str]:
    """Where rules have clients at home; one of the client itself goes before one of its topics."""
    found: dict[str, str] = {}
    for one in braid.publishers:
        site = next((site for topic_filter, site in braid.topic_homes if matches(topic_filter, one.topic)), None)
        if site is not None:
            found.setdefault(one.client, site)
    movable = {one.name for one in clients if one.can_move}
    found = {name: site for name, site in found.items() if name in movable}
    return found | {one.name: one.pinned_to for one in clients if one.pinned_to is not None}


def _subscribers(tree: FilterTree[list[str]], topic: str) -> set[str]:
    return {client for found in tree.match(topic) for client in found}


def _between(sites: Sequence[ObservedSite]) -> Floats:
    """Delays one way: half of the shorter round trip of both directions, or of the way by a third site."""
    count = len(sites)
    found = np.full((count, count), np.inf)
    number = {one.name: at for at, one in enumerate(sites)}
    for at, site in enumerate(sites):
        found[at, at] = 0.0
        for name, round_trip_ms in site.round_trips_ms.items():
            other = number.get(name)
            if other is not None and round_trip_ms is not None:
                found[at, other] = found[other, at] = min(found[at, other], round_trip_ms / 2)
    for by in range(count):
        np.minimum(found, found[:, by, None] + found[None, by, :], out=found)
    if np.isinf(found).any():
        left, right = (sites[int(at)].name for at in np.argwhere(np.isinf(found))[0])
        raise PlacementError(f"no round trip between {left} and {right} was measured, not by way of others either")
    return found


def _client_ms(braid: ObservedBraid, clients: Sequence[ObservedClient], between: Floats) -> Floats:
    number = {one.name: at for at, one in enumerate(braid.sites)}
    found = np.empty((len(clients), len(braid.sites)))
    for at, client in enumerate(clients):
        here = number[client.site]
        own_ms = braid.client_ms.get((client.name, client.site), 0.0)
        found[at] = own_ms + between[here]
    row = {one.name: at for at, one in enumerate(clients)}
    for (client_name, site), delay_ms in braid.client_ms.items():
        if client_name in row and site in number:
            found[row[client_name], number[site]] = delay_ms
    return found
