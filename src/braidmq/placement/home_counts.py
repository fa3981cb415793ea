"""An assignment of homes that is changed client by client: what every topic has at every server is kept, so what a move
costs is known without looking at anything but the topics of the client that moves.

The costs are the true ones, I · Y of the model: storage and computation are felt through θ alone. The cost of a server
is

    E_l = 2 d^C (1 − θ_l) P_l + θ_l T_l.

A client that moves from h to l changes E_h and E_l by what it brings, and the T of every other server that publishes
its topics, since their notifications go to l instead of h.
"""

from __future__ import annotations

import numpy as np

from braidmq.placement.model import by_topic_and_server, local_shares, pair_delays, server_costs
from braidmq.placement.problem import Floats, Ints, PlacementProblem, sums_by


class HomeCounts:
    def __init__(self, problem: PlacementProblem, homes: Ints) -> None:
        rows = problem.members
        at = homes[rows.client]
        self.problem = problem
        self.homes = homes.copy()
        self.publishers = by_topic_and_server(problem, at, rows.publishes.astype(np.float64))
        self.heard = by_topic_and_server(problem, at, rows.share)
        """a_{n,l}: what a subscriber of a topic hears from a server."""
        self.subscribers = by_topic_and_server(problem, at, rows.subscribes.astype(np.float64))
        """q_{n,l}."""
        self.storage = problem.stored @ (self.publishers > 0)
        self.compute = problem.spool @ self.publishers
        self.published = sums_by(at, rows.rate, len(problem.servers))
        self.between = pair_delays(problem, self.heard, self.subscribers)
        self._loads = np.where(rows.publishes, problem.spool[rows.topic], 0.0)
        self._stored = np.where(rows.publishes, problem.stored[rows.topic], 0.0)
        self._subscribes = rows.subscribes.astype(np.float64)

    @property
    def cost(self) -> float:
        """I · Y."""
        problem = self.problem
        distances = problem.latencies.client_ms[np.arange(self.homes.size), self.homes]
        share = local_shares(problem, self.storage, self.compute)
        servers = server_costs(problem, share, self.published, self.between)
        return float(problem.distance_weight @ distances + servers.sum())

    def move(self, client: int, server: int) -> None:
        """Changes one home."""
        home = int(self.homes[client])
        if home == server:
            return
        problem = self.problem
        rows = problem.rows_of_client(client)
        topics = problem.members.topic[rows]
        between_ms = problem.latencies.server_ms
        share, receives = problem.members.share[rows], self._subscribes[rows]
        publishes = problem.members.publishes[rows].astype(np.float64)
        # T_j of all servers: first the client is taken out of its topics at its home, then it is put in at the new one.
        for place, sign in ((home, -1.0), (server, 1.0)):
            if sign < 0:
                self._add(topics, place, -publishes, -share, -receives)
            self.between += sign * (receives @ self.heard[topics]) * between_ms[:, place]
            self.between[place] += sign * float(share @ (self.subscribers[topics] @ between_ms[place]))
            if sign > 0:
                self._add(topics, place, publishes, share, receives)
            opens = self.publishers[topics, place] == (publishes if sign > 0 else 0)
            self.storage[place] += sign * float(self._stored[rows] @ opens)
            self.compute[place] += sign * float(self._loads[rows].sum())
            self.published[place] += sign * float(problem.members.rate[rows].sum())
        self.homes[client] = server

    def _add(self, topics: Ints, server: int, publishers: Floats, heard: Floats, subscribers: Floats) -> None:
        self.publishers[topics, server] += publishers
        self.heard[topics, server] += heard
        self.subscribers[topics, server] += subscribers

    def changes(self, clients: Ints) -> Floats:
        """What I · Y changes by if one of these clients moves alone: a row for each, a column for each server."""
        problem = self.problem
        between_ms = problem.latencies.server_ms
        rows, starts = self._rows(clients)
        topics = problem.members.topic[rows]
        homes = self.homes[clients]
        each = np.arange(clients.size)
        share, receives = problem.members.share[rows][:, None], self._subscribes[rows][:, None]
        heard = np.add.reduceat(receives * self.heard[topics], starts)
        sent = np.add.reduceat(share * self.subscribers[topics], starts)
        own = np.add.reduceat(share * receives, starts)[:, 0]
        rate = np.add.reduceat(problem.members.rate[rows], starts)
        loads = np.add.reduceat(self._loads[rows], starts)
        publishers = self.publishers[topics]
        opens = np.add.reduceat(self._stored[rows][:, None] * (publishers == 0), starts)
        at_home = publishers[np.arange(rows.size), np.repeat(homes, np.diff(np.append(starts, rows.size)))]
        closes = np.add.reduceat(self._stored[rows] * (at_home == 1), starts)

        theta = local_shares(problem, self.storage, self.compute)
        costs = server_costs(problem, theta, self.published, self.between)
        to_home = between_ms[homes]  # d^S from each client's home
        # the servers that are neither left nor entered
        felt = theta * heard
        others = felt @ between_ms - (felt * to_home).sum(axis=1)[:, None]
        others += felt * to_home - felt[each, homes][:, None] * to_home
        # the server that is entered
        entered = self.between + sent @ between_ms - (heard + own[:, None]) * to_home
        new = server_costs(
            problem,
            local_shares(problem, self.storage + opens, self.compute + loads[:, None]),
            self.published + rate[:, None],
            entered,
        )
        # the server that is left
        left = (self.between[homes] - (sent * to_home).sum(axis=1))[:, None]
        left = left + (heard[each, homes] - own)[:, None] * to_home
        storage, compute = self.storage[homes] - closes, self.compute[homes] - loads
        remains = np.minimum(
            problem.storage[homes] / np.maximum(storage, problem.storage[homes]),
            problem.compute[homes] / np.maximum(compute, problem.compute[homes]),
        )
        cloud = 2 * problem.latencies.cloud_ms[homes] * (1 - remains) * (self.published[homes] - rate)
        old = cloud[:, None] + remains[:, None] * left
        distances = problem.latencies.client_ms[clients]
        change = problem.distance_weight[clients][:, None] * (distances - distances[each, homes][:, None])
        change += others + new - costs + old - costs[homes][:, None]
        change[each, homes] = 0.0
        return np.asarray(change, np.float64)

    def _rows(self, clients: Ints) -> tuple[Ints, Ints]:
        """(the rows of these clients, one client after the other; where each one's begin)."""
        starts = self.problem.members.client_starts
        counts = starts[clients + 1] - starts[clients]
        ends = np.cumsum(counts)
        within = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
        rows = self.problem.members.by_client[np.repeat(starts[clients], counts) + within]
        return rows, np.asarray(ends - counts, np.int64)
