"""A plan for a braid that is at work already: a few moves that are worth their price, and nothing else.

Clients roam, and what was a good home is one no longer. But a move costs something too, so a new plan may make so many
moves, each has to gain more than its price, one that was moved before more than that, and a plan that gains too little
altogether is none. Where nobody of a topic moves, its notifications do not get slower: no server may have to delegate a
larger part than it does now.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from braidmq.placement.errors import PlacementError
from braidmq.placement.home_counts import HomeCounts
from braidmq.placement.model import local_shares
from braidmq.placement.problem import Floats, Ints, PlacementProblem

ROUNDS_MAX: Final = 20
RETREATS_MAX: Final = 100
RETREAT_PARTS: Final = 8
"""Of the clients that are to stay after all, one in so many is told at once; then losses are counted anew."""
ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class ReplanSettings:
    budget: int = 50
    """Clients that may move."""
    price_ms: float = 0.0
    """What a move has to gain, for each message that the client sends or hears of in the unit of time."""
    again: float = 1.0
    """How much more a client has to gain that was moved by the plan before: 1 is twice as much."""
    gain_min: float = 0.005
    """A plan that lowers Y by a smaller part moves nobody."""


def replan(
    problem: PlacementProblem,
    now: Ints,
    target: Ints,
    settings: ReplanSettings,
    moved_before: Collection[str] = (),
) -> Ints:
    """Homes on the way from those of now to those of a target plan, as good as the budget allows: step by step from now
    on, or back from the target, whichever comes to more."""
    if settings.budget < 0 or not settings.price_ms >= 0 or not settings.again >= 0 or not settings.gain_min >= 0:
        raise PlacementError("the budget, the price, and the least gain of a new plan cannot be negative")
    may_move = np.zeros(now.size, np.bool_)
    may_move[problem.movable] = True
    target = np.where(may_move, target, now)
    forth = _Way(problem, now, settings, moved_before)
    forth.follow(target)
    forth.shift()
    forth.follow(target)
    back = _Way(problem, now, settings, moved_before)
    back.retreat(target)
    back.shift()
    way = back if back.is_allowed and back.cost < forth.cost else forth
    before = HomeCounts(problem, now).cost
    return way.counts.homes if way.counts.cost <= before * (1 - settings.gain_min) else now.copy()


class _Way:
    def __init__(
        self, problem: PlacementProblem, now: Ints, settings: ReplanSettings, moved_before: Collection[str]
    ) -> None:
        self._now = now
        self._budget = settings.budget
        self.counts = HomeCounts(problem, now)
        self._active = problem.movable
        again = np.isin(np.array(problem.clients), list(moved_before))
        self._prices = problem.distance_weight * settings.price_ms * np.where(again, 1 + settings.again, 1.0) + ROUNDING
        self._least_shares = local_shares(problem, self.counts.storage, self.counts.compute) - ROUNDING

    @property
    def cost(self) -> float:
        """With the price of all moves."""
        return self.counts.cost + float(self._prices[self.counts.homes != self._now].sum())

    @property
    def is_allowed(self) -> bool:
        """Whether the budget is kept, and no server has to delegate more than now."""
        shares = local_shares(self.counts.problem, self.counts.storage, self.counts.compute)
        return self._left >= 0 and bool(np.all(shares >= self._least_shares))

    @property
    def _left(self) -> int:
        return self._budget - int(np.count_nonzero(self.counts.homes != self._now))

    def follow(self, target: Ints) -> None:
        """Takes over the homes of the target, for all clients of a topic together that are not there yet, if that pays:
        the topics first that gain most for each move."""
        problem = self.counts.problem
        found = []
        for topic in range(len(problem.topics)):
            clients = self._not_there(topic, target)
            if clients.size:
                gain = self._try(clients, target[clients], is_kept=False)
                if gain > 0:
                    found.append((gain / clients.size, topic))
        for _, topic in sorted(found, reverse=True):
            clients = self._not_there(topic, target)
            if clients.size:
                self._try(clients, target[clients], is_kept=True)

    def _not_there(self, topic: int, target: Ints) -> Ints:
        """The clients of a topic that the target has elsewhere, and that may move."""
        problem = self.counts.problem
        clients = problem.members.client[problem.rows_of_topic(topic)]
        apart = (self.counts.homes[clients] != target[clients]) & (problem.fixed[clients] < 0)
        return np.asarray(clients[apart], np.int64)

    def retreat(self, target: Ints) -> None:
        """From the target itself, lets clients stay after all who lose least by it, until the budget is kept and every
        move is worth its price."""
        self.counts = HomeCounts(self.counts.problem, target)
        for _ in range(RETREATS_MAX):
            moved = np.flatnonzero(self.counts.homes != self._now)
            if not moved.size:
                return
            changes = self.counts.changes(moved)
            losses = changes[np.arange(moved.size), self._now[moved]] - self._prices[moved]
            over = moved.size - self._budget
            count = max(int(np.count_nonzero(losses < 0)), over)
            if count <= 0:
                return
            for client in moved[np.argsort(losses)[: -(-count // RETREAT_PARTS)]].tolist():
                self.counts.move(client, int(self._now[client]))

    def shift(self) -> None:
        """Single clients, the one that gains most first."""
        for _ in range(ROUNDS_MAX):
            if self._left <= 0 or not self._active.size:
                return
            gains = -(self.counts.changes(self._active) + self._fares(self._active)).min(axis=1)
            order = self._active[np.argsort(-gains)][: np.count_nonzero(gains > 0)]
            moved = 0
            for client in order.tolist():
                one = np.array([client])
                costs = (self.counts.changes(one) + self._fares(one))[0]
                server = int(np.argmin(costs))
                if costs[server] < 0:
                    moved += self._try(one, np.array([server]), is_kept=True) > 0
            if not moved:
                return

    def _fares(self, clients: Ints) -> Floats:
        """What the price adds to a client's going to each server: nothing to going on from where it was moved to."""
        servers = np.arange(len(self.counts.problem.servers))
        away = servers[None] != self._now[clients][:, None]
        is_away = self.counts.homes[clients] != self._now[clients]
        return np.asarray((away * 1.0 - is_away[:, None]) * self._prices[clients][:, None], np.float64)

    def _try(self, clients: Ints, servers: Ints, *, is_kept: bool) -> float:
        """What it gains to move them all, after its price; they are moved if it is something and may be."""
        homes = self.counts.homes[clients].copy()
        gain = 0.0
        for client, server in zip(clients.tolist(), servers.tolist(), strict=True):
            one = np.array([client])
            gain -= float((self.counts.changes(one) + self._fares(one))[0, server])
            self.counts.move(client, server)
        is_good = gain > 0 and self.is_allowed
        if not (is_good and is_kept):
            for client, home in zip(clients.tolist(), homes.tolist(), strict=True):
                self.counts.move(client, home)
        return gain if is_good else 0.0
