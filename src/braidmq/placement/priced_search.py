"""Homes at prices: storage and computation cost something at each server, and nothing is delegated. Then topics have
nothing to do with each other, but for clients that have several, and all of them can be improved at once.

A topic's spool is paid for once at each server that has one of its publishers. So one client alone rarely finds it
worth while to go where the others might follow, and what is tried for each topic is also: all its publishers at a
server go to another one; they spread over the servers that the topic is at anyway; the topic is opened at a server,
with all members that come. The best of these for each topic is done; then costs are counted anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from braidmq.placement.model import by_topic_and_server
from braidmq.placement.problem import Bools, Floats, Ints, PlacementProblem

GAIN_MIN: Final = 1e-9
"""What lowers the cost by less is rounding."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a unit of storage, and one of computation, costs at each server, in the unit of I · Y."""

    storage: Floats
    compute: Floats


@dataclass(frozen=True, slots=True)
class _Proposals:
    """What could be done for some topics: what it gains, and whose clients then move where."""

    topics: Ints
    gains: Floats
    moves: Callable[[int], tuple[Ints, Ints]]
    """The moves of the proposal at a position: worked out only for those that are chosen."""


class PricedSearch:
    """Homes that are improved at given prices, a round at a time."""

    def __init__(self, problem: PlacementProblem, homes: Ints) -> None:
        self.problem = problem
        self.homes = problem.kept(homes)
        rows = problem.members
        self._receives = rows.subscribes.astype(np.float64)
        self._publishes = rows.publishes.astype(np.float64)
        self._stored = np.where(rows.publishes, problem.stored[rows.topic], 0.0)
        self._loads = np.where(rows.publishes, problem.spool[rows.topic], 0.0)
        self.active = np.flatnonzero(np.diff(rows.client_starts))
        """Clients that have a topic at all."""
        self._starts = rows.client_starts[self.active]
        self._distances = problem.distance_weight[:, None] * problem.latencies.client_ms
        self._publishing = np.flatnonzero(rows.publishes)
        self._count()

    def _count(self) -> None:
        at = self.homes[self.problem.members.client]
        self.publishers = by_topic_and_server(self.problem, at, self._publishes)
        self._heard = by_topic_and_server(self.problem, at, self.problem.members.share)
        self._subscribers = by_topic_and_server(self.problem, at, self._receives)

    @property
    def storage(self) -> Floats:
        return np.asarray(self.problem.stored @ (self.publishers > 0), np.float64)

    @property
    def compute(self) -> Floats:
        return np.asarray(self.problem.spool @ self.publishers, np.float64)

    def differences(self, prices: Prices) -> Floats:
        """What it costs a client to be at each server rather than at home, if nobody else moves."""
        rows = self.problem.members
        between_ms = self.problem.latencies.server_ms
        at = self.homes[rows.client]
        costs = self._receives[:, None] * (self._heard @ between_ms)[rows.topic]
        costs += rows.share[:, None] * (self._subscribers @ between_ms)[rows.topic]
        costs -= (2 * rows.share * self._receives)[:, None] * between_ms[at]
        others = self.publishers[rows.topic]
        others[np.arange(at.size), at] -= self._publishes
        costs += (self._stored[:, None] * (others == 0)) * prices.storage
        costs += self._loads[:, None] * prices.compute
        total = self._distances.copy()
        total[self.active] += np.add.reduceat(costs[rows.by_client], self._starts)
        total -= total[np.arange(self.homes.size), self.homes][:, None]
        stays = np.flatnonzero(self.problem.fixed >= 0)
        total[stays] = np.inf
        total[stays, self.homes[stays]] = 0.0
        return total

    def round(self, prices: Prices, allowed: Bools) -> float:
        """Does the best that was found for each allowed topic; returns what that gains by itself."""
        differences = self.differences(prices)[self.problem.members.client]
        found = [self._singles(differences), *self._blocks(differences, prices)]
        topics = np.concatenate([each.topics for each in found])
        gains = np.concatenate([each.gains for each in found])
        kind = np.repeat(np.arange(len(found)), [each.topics.size for each in found])
        position = np.concatenate([np.arange(each.topics.size) for each in found])
        good = np.flatnonzero((gains > GAIN_MIN) & allowed[topics])
        order = good[np.lexsort((-gains[good], topics[good]))]
        is_first = np.ones(order.size, np.bool_)
        is_first[1:] = topics[order[1:]] != topics[order[:-1]]
        chosen = order[is_first]
        if not chosen.size:
            return 0.0
        for at in chosen.tolist():
            rows, servers = found[kind[at]].moves(int(position[at]))
            self.homes[self.problem.members.client[rows]] = servers
        self._count()
        return float(gains[chosen].sum())

    def _singles(self, differences: Floats) -> _Proposals:
        """For each topic the client that gains most."""
        servers = np.argmin(differences, axis=1)
        gains = -differences[np.arange(servers.size), servers]
        topic = self.problem.members.topic
        order = np.lexsort((-gains, topic))
        topics, first = np.unique(topic[order], return_index=True)
        rows = order[first]
        return _Proposals(topics, gains[rows], lambda at: (rows[at : at + 1], servers[rows[at : at + 1]]))

    def _blocks(self, differences: Floats, prices: Prices) -> list[_Proposals]:
        """For each topic and server that it is at: all its publishers there go to another server, or to all that are
        open; and for each topic the server that is best opened."""
        problem = self.problem
        members = problem.members
        rows = self._publishing
        topic, at = members.topic[rows], self.homes[members.client[rows]]
        order = np.lexsort((at, topic))
        rows, topic, at = rows[order], topic[order], at[order]
        is_first = np.ones(rows.size, np.bool_)
        is_first[1:] = (topic[1:] != topic[:-1]) | (at[1:] != at[:-1])
        starts = np.flatnonzero(is_first)
        ends = np.append(starts[1:], rows.size)
        topics, homes, sizes = topic[starts], at[starts], ends - starts
        share, receives = members.share[rows], self._receives[rows]
        pairs = np.add.reduceat(share, starts) * np.add.reduceat(receives, starts)
        pairs -= np.add.reduceat(share * receives, starts)
        is_open = self.publishers > 0
        freed = np.where(sizes > 1, problem.stored[topics] * prices.storage[homes], 0.0)
        each = np.arange(topics.size)

        together = np.add.reduceat(differences[rows], starts)
        together -= 2 * pairs[:, None] * problem.latencies.server_ms[homes]
        together -= ((sizes - 1) * problem.stored[topics])[:, None] * prices.storage * ~is_open[topics]
        together[each, homes] = np.inf
        target = np.argmin(together, axis=1)

        elsewhere = np.where(is_open[topic], differences[rows], np.inf)
        elsewhere[np.arange(rows.size), at] = np.inf
        nearest = np.argmin(elsewhere, axis=1)
        apart = np.add.reduceat(elsewhere[np.arange(rows.size), nearest], starts)

        def move_together(block: int) -> tuple[Ints, Ints]:
            return rows[starts[block] : ends[block]], target[block : block + 1]

        def move_apart(block: int) -> tuple[Ints, Ints]:
            return rows[starts[block] : ends[block]], nearest[starts[block] : ends[block]]

        return [
            _Proposals(topics, freed - together[each, target], move_together),
            _Proposals(topics, freed - apart, move_apart),
            self._opened(differences, prices, is_open),
        ]

    def _opened(self, differences: Floats, prices: Prices, is_open: Bools) -> _Proposals:
        """For each topic the server that is best opened, and the members that come."""
        members = self.problem.members
        coming = np.minimum(differences - self._stored[:, None] * prices.storage * ~is_open[members.topic], 0.0)
        topics = np.flatnonzero(np.diff(members.topic_starts))
        paid = self.problem.stored[topics][:, None] * prices.storage
        gains = -np.add.reduceat(coming, members.topic_starts[topics]) - paid
        gains = np.where(is_open[topics], -np.inf, gains)
        server = np.argmax(gains, axis=1)

        def move(at: int) -> tuple[Ints, Ints]:
            rows = self.problem.rows_of_topic(int(topics[at]))
            return rows.start + np.flatnonzero(coming[rows, server[at]] < 0), server[at : at + 1]

        return _Proposals(topics, gains[np.arange(topics.size), server], move)
