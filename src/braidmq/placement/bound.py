"""A lower bound: no assignment of homes has a smaller Y (Lagrangian relaxation, improved by ascent).

What makes the problem hard is taken out of it and paid for instead, so that each client can choose by itself:

- Storage and computation have prices λ_l and μ_l. Delegating can be no better than paying: a message that goes to the
  cloud costs at least 2 d^C − max d^S more than one that does not, so 2 d^C (1 − θ_l) P_l + θ_l T_l is at least
  T_l + λ_l (U_l − A_l) + μ_l (v_l − B_l) for all prices up to a cap.
- A spool is paid for by the publishers of its topic, who share its price at each server, whether they are there or not.
- The delay between the homes of two clients is at least φ(l) − φ(l') for every φ that differs by at most d^S between
  any two servers. Each pair has a φ of its own, and each of the two pays its side of it.

Then the best that each client can do, all added, less what all servers' capacity is worth at these prices, is a bound,
whatever the prices, shares and φ are. All three follow what the clients choose, softened so that it does not jump:
prices rise where too many go, publishers share the price where they go, and φ rises where one of a pair is and the
other is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from braidmq.placement.pair_potentials import PairPotentials, TopicPotentials, metric_closure
from braidmq.placement.priced_search import Prices
from braidmq.placement.problem import Bools, Floats, Ints, PlacementProblem
from braidmq.placement.progress import Progress

POTENTIALS_MAX: Final = 30_000_000
"""Numbers that the φ of all pairs consist of. Where there are more, each topic gets its φ together: a looser bound."""
WORK_MAX: Final = 2_000_000_000
"""Steps of the innermost loop that a bound takes if it is not told how many rounds: some 20 s on one core."""
ROUNDS: Final = 200
ROUNDS_MIN: Final = 25
SLOW_SHARE: Final = 0.05
"""Publishers that publish so much less than usual, for the storage that their topic takes, are taken for no load."""
SHRINKS_AFTER: Final = 50
SOFTNESS: Final = 0.03
"""How much worse than its best a server may be to a client that it still counts for, in mean delays between servers."""
PRICE_STEP: Final = 0.07
SHARE_STEP: Final = 20


@dataclass(frozen=True, slots=True)
class LowerBound:
    delay_ms: float
    """No assignment has a smaller Y."""
    rounds: int

    def gap(self, delay_ms: float) -> float:
        """How far a plan may be above the optimum at most: 0.01 is 1 %."""
        return delay_ms / self.delay_ms - 1 if self.delay_ms > 0 else np.inf


def lower_bound(
    problem: PlacementProblem,
    homes: Ints,
    prices: Prices | None = None,
    *,
    rounds: int | None = None,
    known_ms: float = np.inf,
    close_enough: float = 0.0005,
    progress: Progress | None = None,
) -> LowerBound:
    """Begins at a plan and, if there are some, at the prices that it was made with; the better they are the closer it
    gets.
    Ends early when a plan with Y = `known_ms` is as close to it as wanted. A large problem gets fewer rounds."""
    if rounds is None:
        work = pairs_of(problem) * len(problem.servers) ** 2
        rounds = max(ROUNDS_MIN, min(ROUNDS, WORK_MAX // max(1, work)))
    ascent = _Ascent(problem, homes, prices)
    best = 0.0
    done = 0
    for done in range(1, rounds + 1):
        if progress is not None:
            progress("lower bound", done / rounds)
        best = max(best, ascent.step(done))
        if known_ms <= best * (1 + close_enough):
            break
    return LowerBound(best, done)


def pairs_of(problem: PlacementProblem) -> int:
    """Pairs of clients with a topic in common, for each topic that they have in common."""
    sizes = np.diff(problem.members.topic_starts)
    return int((sizes * (sizes - 1) // 2).sum())


class _Ascent:
    def __init__(self, problem: PlacementProblem, homes: Ints, prices: Prices | None) -> None:
        self._problem = problem
        rows = problem.members
        cloud_ms = 2 * problem.latencies.cloud_ms
        limit = np.minimum.outer(cloud_ms, cloud_ms)
        np.fill_diagonal(limit, 0.0)
        between_ms = metric_closure(np.minimum(problem.latencies.server_ms, limit))
        worse_ms = cloud_ms - between_ms.max(axis=1)
        self._distances = problem.distance_weight[:, None] * problem.latencies.client_ms
        stays = np.flatnonzero(problem.fixed >= 0)
        at_home = self._distances[stays, problem.fixed[stays]]
        self._distances[stays] = np.inf
        self._distances[stays, problem.fixed[stays]] = at_home
        self._stores, self._storage_cap = self._load(problem.stored, worse_ms)
        self._computes, self._compute_cap = self._load(problem.spool, worse_ms)
        sizes = np.diff(rows.topic_starts)
        is_small = pairs_of(problem) * len(problem.servers) <= POTENTIALS_MAX
        kind = PairPotentials if is_small else TopicPotentials
        self._potentials = kind(problem, between_ms, homes)
        self._has_rows = np.flatnonzero(np.diff(rows.client_starts))
        self._topic_starts = rows.topic_starts[np.flatnonzero(sizes)]
        self._of_topic = np.repeat(np.arange(self._topic_starts.size), sizes[sizes > 0])
        payers = np.add.reduceat(self._stores.astype(np.float64), self._topic_starts)
        self._shares = np.where(self._stores, 1 / np.maximum(payers, 1)[self._of_topic], 0.0)[:, None] * np.ones(
            len(problem.servers)
        )
        self._storage_price = np.zeros(len(problem.servers)) if prices is None else prices.storage
        self._compute_price = np.zeros(len(problem.servers)) if prices is None else prices.compute
        self._keep_to_caps()
        scale = float(self._distances[np.arange(homes.size), homes].sum())
        self._storage_unit = PRICE_STEP * scale / problem.storage.sum()
        self._compute_unit = PRICE_STEP * scale / problem.compute.sum()
        mean_ms = float(between_ms.sum()) / max(1, between_ms.size - len(between_ms))
        self._softness = max(SOFTNESS * mean_ms * float(problem.distance_weight.mean()), 1e-9)

    def _load(self, size: Floats, worse_ms: Floats) -> tuple[Bools, Floats]:
        """(the rows that count as a load, what a unit of it may cost at most at each server)."""
        rows = self._problem.members
        worth = rows.rate / size[rows.topic]
        counts = rows.publishes & (worth > 0)
        if not counts.any():
            return counts, np.zeros(worse_ms.size)
        counts &= worth >= SLOW_SHARE * np.median(worth[counts])
        return counts, np.asarray(worth[counts].min() * np.maximum(worse_ms, 0.0), np.float64)

    def step(self, number: int) -> float:
        """Returns the bound at the prices, shares and φ as they are, and improves them."""
        problem = self._problem
        rows = problem.members
        stored, spool = problem.stored[rows.topic][:, None], problem.spool[rows.topic][:, None]
        paid = stored * self._shares * self._storage_price
        paid += (spool * self._computes[:, None]) * self._compute_price
        paid += self._potentials.felt()
        costs = self._distances.copy()
        costs[self._has_rows] += np.add.reduceat(paid[rows.by_client], rows.client_starts[self._has_rows])
        least = costs.min(axis=1)
        capacity = self._storage_price @ problem.storage + self._compute_price @ problem.compute
        bound = float(least.sum() - capacity) / problem.rate_total

        slower = 1 / (1 + number / SHRINKS_AFTER)
        chosen = np.exp((least[:, None] - costs) / (self._softness * slower))
        chosen /= chosen.sum(axis=1, keepdims=True)
        by_row = chosen[rows.client]
        self._potentials.follow(by_row, number)
        self._follow_loads(by_row, number)
        return bound

    def _follow_loads(self, by_row: Floats, number: int) -> None:
        problem = self._problem
        there = by_row * self._stores[:, None]
        self._shares *= np.exp(SHARE_STEP / (SHARE_STEP + number) * there)
        total = np.add.reduceat(self._shares, self._topic_starts)
        self._shares /= np.where(total > 0, total, 1.0)[self._of_topic]
        topics = problem.members.topic[self._topic_starts]
        storage = problem.stored[topics] @ np.maximum.reduceat(there, self._topic_starts)
        compute = (problem.spool[problem.members.topic] * self._computes) @ by_row
        step = 1 / (1 + number / 20)
        self._storage_price = np.maximum(
            self._storage_price + step * self._storage_unit * (storage / problem.storage - 1), 0.0
        )
        self._compute_price = np.maximum(
            self._compute_price + step * self._compute_unit * (compute / problem.compute - 1), 0.0
        )
        self._keep_to_caps()

    def _keep_to_caps(self) -> None:
        # 1 − θ is at least each of its two reasons, so at least any mean of them: both prices share one cap
        used = _ratio(self._storage_price, self._storage_cap) + _ratio(self._compute_price, self._compute_cap)
        self._storage_price = self._storage_price / np.maximum(used, 1.0)
        self._compute_price = self._compute_price / np.maximum(used, 1.0)


def _ratio(price: Floats, cap: Floats) -> Floats:
    return np.asarray(np.where(price > 0, price / np.maximum(cap, 1e-300), 0.0), np.float64)
