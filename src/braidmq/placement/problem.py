"""Who publishes and subscribes to what, how far everybody is from everything, and what the servers have
(Tanaka et al. 2021, §5.1): all that a plan of home servers is made from.

Topics, clients and servers have names outside and numbers inside. What a client has to do with a topic is one row of
`Memberships`; the rows of a topic stand together, and `by_client` lists them client by client. So whatever is to be
known of all topics or all clients is one pass of numpy over the rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from braidmq.placement.errors import PlacementError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class HomeServer:
    """An edge server s_l: its storage limit A_l and its compute limit B_l."""

    name: str
    storage: float
    compute: float


@dataclass(frozen=True, slots=True)
class ManagedTopic:
    """A topic t_n: who publishes how often, who subscribes, and the size u_n of its spool in messages.

    `stored` is the spool's size in the unit of the servers' storage, if that is not messages.
    """

    name: str
    publishers: Mapping[str, float]
    subscribers: Sequence[str]
    spool: float
    stored: float | None = None


@dataclass(frozen=True, slots=True)
class Latencies:
    """Delays one way, in ms: d^H from clients (rows) to servers, d^S between servers, d^C from servers to the cloud.

    Between servers they are the same both ways. A delay that was measured there and back is given by its half.
    """

    client_ms: Floats
    server_ms: Floats
    cloud_ms: Floats

    def checked(self, clients: int, servers: int) -> Latencies:
        client_ms = _delays(self.client_ms, (clients, servers), "from clients to servers")
        server_ms = _delays(self.server_ms, (servers, servers), "between servers")
        cloud_ms = _delays(np.broadcast_to(self.cloud_ms, (servers,)), (servers,), "to the cloud")
        if np.any(np.diagonal(server_ms) != 0):
            raise PlacementError("the delay from a server to itself has to be 0")
        return Latencies(client_ms, (server_ms + server_ms.T) / 2, cloud_ms)


@dataclass(frozen=True, slots=True)
class Memberships:
    """One row for each client and topic that have to do with each other, topic by topic."""

    client: Ints
    topic: Ints
    publishes: Bools
    subscribes: Bools
    rate: Floats
    """Publications in some unit of time that somebody else receives; 0 for those that only subscribe."""
    share: Floats
    """The rate over the number of receivers |S_i|: what one of them hears of this client."""
    topic_starts: Ints
    """The first row of each topic, and the number of rows."""
    by_client: Ints
    """The rows, client by client."""
    client_starts: Ints
    """Where in `by_client` the rows of each client begin, and the number of rows."""


@dataclass(frozen=True)
class PlacementProblem:
    """Numbers of clients, topics and servers are positions in their tuples of names."""

    clients: tuple[str, ...]
    topics: tuple[str, ...]
    servers: tuple[str, ...]
    members: Memberships
    spool: Floats
    """u_n, in messages: what computation is counted in."""
    stored: Floats
    """u_n in the unit of the servers' storage."""
    storage: Floats
    """A_l."""
    compute: Floats
    """B_l."""
    latencies: Latencies
    fixed: Ints
    """The home that a client has whatever is planned, or −1."""

    @cached_property
    def movable(self) -> Ints:
        """The clients that have a topic, and may move."""
        return np.flatnonzero((np.diff(self.members.client_starts) > 0) & (self.fixed < 0))

    def kept(self, homes: Ints) -> Ints:
        """These homes, but for clients whose home is fixed."""
        return np.where(self.fixed >= 0, self.fixed, homes)

    @cached_property
    def rate_total(self) -> float:
        """I: how many publications the means are over."""
        return float(self.members.rate.sum())

    @cached_property
    def distance_weight(self) -> Floats:
        """How much of the sum of all delays is the way between a client and its home: its own publications, and what it
        receives of others."""
        rows = self.members
        heard = sums_by(rows.topic, rows.share, len(self.topics))
        weight = rows.rate + rows.subscribes * (heard[rows.topic] - rows.share)
        return sums_by(rows.client, weight, len(self.clients))

    @cached_property
    def digest(self) -> str:
        """Tells braids apart: servers and what they have, clients, topics and who has to do with them. Delays and rates
        are left out, since they are never measured twice the same."""
        rows = self.members
        told = {
            "servers": [list(each) for each in zip(self.servers, self.storage, self.compute, strict=True)],
            "clients": list(self.clients),
            "topics": [list(each) for each in zip(self.topics, self.spool, self.stored, strict=True)],
            "members": [each.tolist() for each in (rows.topic, rows.client, rows.publishes, rows.subscribes)],
        }
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def rows_of_topic(self, topic: int) -> slice:
        return slice(int(self.members.topic_starts[topic]), int(self.members.topic_starts[topic + 1]))

    def rows_of_client(self, client: int) -> Ints:
        starts = self.members.client_starts
        return self.members.by_client[starts[client] : starts[client + 1]]

    def homes_of(self, homes: Mapping[str, str]) -> Ints:
        """An assignment by names as one by numbers; a PlacementError if it is not of this problem."""
        number = {name: at for at, name in enumerate(self.servers)}
        missing = [client for client in self.clients if client not in homes]
        if missing:
            raise PlacementError(f"no home for {_some(missing)}")
        strangers = sorted(homes.keys() - set(self.clients))
        if strangers:
            raise PlacementError(f"a home for clients that are not there: {_some(strangers)}")
        unknown = sorted({server for server in homes.values() if server not in number})
        if unknown:
            raise PlacementError(f"unknown server: {_some(unknown)}")
        return np.array([number[homes[client]] for client in self.clients], np.int64)

    def named(self, homes: Ints) -> dict[str, str]:
        return {client: self.servers[home] for client, home in zip(self.clients, homes.tolist(), strict=True)}


def sums_by(group: Ints, weight: Floats, groups: int) -> Floats:
    """The sum of the weights of each group."""
    return np.asarray(np.bincount(group, weight, groups), np.float64)


def pose(
    servers: Sequence[HomeServer],
    clients: Sequence[str],
    topics: Sequence[ManagedTopic],
    latencies: Latencies,
    fixed: Mapping[str, str] | None = None,
) -> PlacementProblem:
    """Checks everything that is given and numbers it. `fixed` are the homes of clients that cannot move."""
    _check_names("server", [each.name for each in servers])
    _check_names("client", clients)
    _check_names("topic", [each.name for each in topics])
    for server in servers:
        _check_positive(f"the storage of server {server.name}", server.storage)
        _check_positive(f"the computation of server {server.name}", server.compute)
    stored = [topic.spool if topic.stored is None else topic.stored for topic in topics]
    for topic, size in zip(topics, stored, strict=True):
        _check_positive(f"the spool of topic {topic.name}", topic.spool)
        _check_positive(f"the stored size of topic {topic.name}", size)
    members = _memberships(clients, topics)
    if not np.any(members.rate > 0):
        raise PlacementError("nobody publishes to anybody: there is no delay to be lowered")
    return PlacementProblem(
        tuple(clients),
        tuple(topic.name for topic in topics),
        tuple(server.name for server in servers),
        members,
        np.array([topic.spool for topic in topics], np.float64),
        np.array(stored, np.float64),
        np.array([server.storage for server in servers], np.float64),
        np.array([server.compute for server in servers], np.float64),
        latencies.checked(len(clients), len(servers)),
        _fixed(fixed or {}, clients, [server.name for server in servers]),
    )


def _fixed(fixed: Mapping[str, str], clients: Sequence[str], servers: Sequence[str]) -> Ints:
    number = {name: at for at, name in enumerate(servers)}
    unknown = sorted({server for server in fixed.values() if server not in number})
    if unknown:
        raise PlacementError(f"unknown server: {_some(unknown)}")
    strangers = sorted(fixed.keys() - set(clients))
    if strangers:
        raise PlacementError(f"a home for clients that are not there: {_some(strangers)}")
    return np.array([number[fixed[client]] if client in fixed else -1 for client in clients], np.int64)


def _memberships(clients: Sequence[str], topics: Sequence[ManagedTopic]) -> Memberships:
    number = {name: at for at, name in enumerate(clients)}
    rows: list[tuple[int, int, bool, bool, float, float]] = []
    starts = [0]
    for at, topic in enumerate(topics):
        subscribers = set(topic.subscribers)
        members = subscribers | topic.publishers.keys()
        strangers = sorted(member for member in members if member not in number)
        if strangers:
            raise PlacementError(f"topic {topic.name} has members that are not among the clients: {_some(strangers)}")
        for client in sorted(members, key=number.__getitem__):
            publishes = client in topic.publishers
            rate = topic.publishers[client] if publishes else 0.0
            if publishes:
                _check_positive(f"the rate of {client} on topic {topic.name}", rate)
            receivers = len(subscribers) - (client in subscribers)
            counted = rate if receivers else 0.0
            share = counted / receivers if receivers else 0.0
            rows.append((number[client], at, publishes, client in subscribers, counted, share))
        starts.append(len(rows))
    client_of = np.array([row[0] for row in rows], np.int64)
    return Memberships(
        client_of,
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.bool_),
        np.array([row[3] for row in rows], np.bool_),
        np.array([row[4] for row in rows], np.float64),
        np.array([row[5] for row in rows], np.float64),
        np.array(starts, np.int64),
        np.argsort(client_of, kind="stable"),
        np.concatenate([[0], np.cumsum(np.bincount(client_of, minlength=len(clients)))]).astype(np.int64),
    )


def _check_names(kind: str, names: Sequence[str]) -> None:
    if not names:
        raise PlacementError(f"there is no {kind}")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1}) if len(names) < 10_000 else ["…"]
        raise PlacementError(f"the same {kind} twice: {_some(twice)}")


def _check_positive(what: str, value: float) -> None:
    if not 0 < value < np.inf:
        raise PlacementError(f"{what} has to be a number above 0, not {value}")


def _delays(given: npt.ArrayLike, shape: tuple[int, ...], which: str) -> Floats:
    delays = np.asarray(given, np.float64)
    if delays.shape != shape:
        raise PlacementError(f"delays {which}: {shape} are wanted, and {delays.shape} are given")
    if not np.all(np.isfinite(delays)) or np.any(delays < 0):
        raise PlacementError(f"delays {which}: there is one that is negative, infinite or no number")
    return delays


def _some(names: Sequence[str], count_max: int = 5) -> str:
    more = f" and {len(names) - count_max:,} more" if len(names) > count_max else ""
    return ", ".join(names[:count_max]) + more
