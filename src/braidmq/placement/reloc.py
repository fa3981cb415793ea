"""RELOC: home servers by locality, by relations, and by cooperation (Tanaka et al. 2021, §6, Algorithm 1).

1. Locality: servers are divided into K clusters, and a client's home is in the cluster that is closest to it.
2. Relations: inside it, a client goes to the home of a client that it has much to do with, so that topics are on few
   servers.
3. Cooperation: a server that would have to delegate passes the client on to the one that has most room.

The algorithm leaves several things open, and the authors' figures were made in a way that it does not tell. Each is an
option of `RelocSettings`. The defaults give the figures: all clients start on the first server of their cluster,
and relations are looked at where that one overflows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from braidmq.placement.clusters import ServerClusters, cluster_servers
from braidmq.placement.problem import Bools, Ints, PlacementProblem
from braidmq.placement.relations import Relations, RelationsFrom

Start = Literal["first", "nearest", "emptiest"]
RelationsWhen = Literal["overflow", "always"]
Steps = Literal["locality", "relations", "cooperation"]


@dataclass(frozen=True, slots=True)
class RelocSettings:
    clusters: int = 4
    """K."""
    related_max: int = 100
    """M'."""
    steps: Steps = "cooperation"
    """The last step that is taken (FIGURE 10)."""
    start: Start = "first"
    """Line 23, "the server that satisfies θ = 1": the first of the cluster, the nearest, or the one with most room."""
    relations_when: RelationsWhen = "overflow"
    """Relations are asked where a server overflows, as the figures need it, or always, as the algorithm says."""
    relations_from: RelationsFrom = "shared topics"
    related_fill: float = 0.8
    """A client follows a relation only to a server that is then at most so full."""
    meets_again: Literal["keeps", "anew"] = "keeps"
    """A client that is met in a further topic keeps its home, or is assigned anew."""
    passes_on: Literal["client", "topic"] = "client"
    """Passed on is the client, as the algorithm says, or all publishers of its topic there, as the text says."""
    drops_moved_to_itself: bool = False
    """The authors' slip: a client that is passed on to the server that it is on is no longer counted there."""


@dataclass(frozen=True, slots=True)
class RelocResult:
    homes: Ints
    counted: Bools
    """The rows of members that the algorithm takes for a load: all that publish, but for the slip."""


def reloc(problem: PlacementProblem, settings: RelocSettings, chance: np.random.Generator) -> RelocResult:
    clusters = cluster_servers(problem, settings.clusters, chance)
    walk = _Walk(problem, settings, clusters)
    rows = problem.members
    for topic in range(len(problem.topics)):
        mine = problem.rows_of_topic(topic)
        for row in range(mine.start, mine.stop):
            walk.meet(int(rows.client[row]), row)
    return RelocResult(walk.homes, walk.counted)


class _Walk:
    """Clients topic by topic, and what the servers have to bear so far."""

    def __init__(self, problem: PlacementProblem, settings: RelocSettings, clusters: ServerClusters) -> None:
        self._problem = problem
        self._settings = settings
        self._relations = Relations(problem, settings.relations_from, settings.related_max)
        self._servers = [clusters.servers(cluster) for cluster in range(settings.clusters)]
        self._cluster_of_server = clusters.of_server
        self._cluster = clusters.of_client
        self.homes = np.full(len(problem.clients), -1, np.int64)
        self.counted = np.zeros(problem.members.client.size, np.bool_)
        self._publishers = np.zeros((len(problem.topics), len(problem.servers)), np.int64)
        self._storage = np.zeros(len(problem.servers))
        self._compute = np.zeros(len(problem.servers))

    def meet(self, client: int, row: int) -> None:
        """Lines 22–43 of the algorithm."""
        if self._problem.fixed[client] >= 0:
            self.homes[client] = self._problem.fixed[client]
        elif self.homes[client] < 0 or self._settings.meets_again == "anew":
            self._leave(client)
            self.homes[client] = self._first_home(client)
        if not self._problem.members.publishes[row] or self.counted[row]:
            return
        self._count(row, int(self.homes[client]))
        for other in self._rows(client):  # after a new start, the topics that it was met in before come along
            if self._settings.meets_again == "anew" and other < row and not self.counted[other]:
                self._count(other, int(self.homes[client]))
        is_last = self._settings.steps != "cooperation" or self._problem.fixed[client] >= 0
        if not is_last and self._is_over(int(self.homes[client])):
            self._cooperate(client, row)

    def _first_home(self, client: int) -> int:
        servers = self._servers[self._cluster[client]]
        if self._settings.steps != "locality" and self._settings.relations_when == "always":
            related = self._related_home(client, int(servers[0]), is_passing=False)
            if related is not None:
                return related
        free = servers[[not self._is_over(int(server)) for server in servers]]
        among = free if free.size and self._settings.start != "first" else servers
        if self._settings.start == "nearest":
            return int(among[np.argmin(self._problem.latencies.client_ms[client, among])])
        if self._settings.start == "emptiest":
            return int(among[np.argmin(self._storage[among])])
        return int(servers[0])

    def _cooperate(self, client: int, row: int) -> None:
        here = int(self.homes[client])
        server = None
        if self._settings.relations_when == "overflow":
            server = self._related_home(client, here, is_passing=True)
        if server is None:
            server = self._least_used(client)
        passed = [client]
        if self._settings.passes_on == "topic" and server != here:
            mine = self._problem.rows_of_topic(int(self._problem.members.topic[row]))
            there = self._problem.members.client[mine][self.counted[mine]]
            passed = [int(one) for one in there if self.homes[one] == here and self._problem.fixed[one] < 0]
        for one in passed:
            if server != here:
                counted = [each for each in self._rows(one) if self.counted[each] or one == client]
                self._leave(one)
                self.homes[one] = server
                for each in counted:
                    self._count(each, server)
            elif self._settings.drops_moved_to_itself:
                self._leave(one)

    def _related_home(self, client: int, here: int, *, is_passing: bool) -> int | None:
        """The home of the strongest relation in the cluster that has room for this client as well."""
        seen = set()
        for other in self._relations.strongest(client).tolist():
            server = int(self.homes[other])
            if server in seen or server < 0 or self._cluster_of_server[server] != self._cluster[client]:
                continue
            seen.add(server)
            storage, compute = self._with_client(client, server)
            fill = self._settings.related_fill if is_passing else 1.0
            if (server != here or not is_passing) and (
                storage <= fill * self._problem.storage[server] and compute <= fill * self._problem.compute[server]
            ):
                return server
        return None

    def _least_used(self, client: int) -> int:
        """The server of the cluster with the least storage in use, among those that can compute what comes."""
        servers = self._servers[self._cluster[client]]
        able = [
            int(server)
            for server in servers
            if self._with_client(client, int(server))[1] <= self._problem.compute[server]
        ]
        return min(able or servers.tolist(), key=lambda server: self._storage[server])

    def _with_client(self, client: int, server: int) -> tuple[float, float]:
        """What a server has to bear when it has this client with all its topics."""
        storage, compute = float(self._storage[server]), float(self._compute[server])
        is_there = self.homes[client] == server
        for row in self._rows(client):
            topic = int(self._problem.members.topic[row])
            if not (is_there and self.counted[row]):
                compute += float(self._problem.spool[topic])
                storage += float(self._problem.stored[topic]) * (self._publishers[topic, server] == 0)
        return storage, compute

    def _rows(self, client: int) -> list[int]:
        rows = self._problem.rows_of_client(client)
        return [int(row) for row in rows[self._problem.members.publishes[rows]]]

    def _is_over(self, server: int) -> bool:
        return bool(
            self._storage[server] > self._problem.storage[server]
            or self._compute[server] > self._problem.compute[server]
        )

    def _leave(self, client: int) -> None:
        for row in self._rows(client):
            if self.counted[row]:
                self.counted[row] = False
                self._add(int(self._problem.members.topic[row]), int(self.homes[client]), -1)

    def _count(self, row: int, server: int) -> None:
        self.counted[row] = True
        self._add(int(self._problem.members.topic[row]), server, 1)

    def _add(self, topic: int, server: int, change: int) -> None:
        before = self._publishers[topic, server]
        self._publishers[topic, server] = after = before + change
        self._compute[server] += change * self._problem.spool[topic]
        self._storage[server] += self._problem.stored[topic] * (int(after > 0) - int(before > 0))
