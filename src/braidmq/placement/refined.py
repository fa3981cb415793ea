"""The refined plan: homes at prices first, then at their true cost. It is the default.

1. From the nearest servers on, every topic is improved at prices of storage and computation, which rise where a server
   has too little and fall where it has more than enough, in steps that shrink.
2. At the true cost, single clients and all publishers of a topic at a server move where that lowers Y.
3. Where topics are few, it matters how they fit into the servers: a few topics at a time are arranged anew at prices
   that are off by chance, and what is better is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from braidmq.placement.home_counts import HomeCounts
from braidmq.placement.model import evaluate
from braidmq.placement.polish import polish, polish_blocks
from braidmq.placement.priced_search import GAIN_MIN, PricedSearch, Prices
from braidmq.placement.problem import Floats, Ints, PlacementProblem
from braidmq.placement.progress import Progress
from braidmq.placement.simple import nearest_homes

PRICE_START: Final = 0.01
"""The first price, in shares of what a unit of storage would cost if storage were all that costs."""
PRICE_MIN: Final = 1e-6
"""The least price, in the same shares: it has to be able to rise again."""
SHRINKS_AFTER: Final = 15
"""Rounds after which the steps of prices are half as large."""
PASS_GAIN_MIN: Final = 1e-4
"""A pass over all topics that lowers the cost by a smaller part is the last."""
ROUNDS_AGAIN: Final = 12
"""Rounds of search for the topics that are arranged anew."""


@dataclass(frozen=True, slots=True)
class RefinedSettings:
    rounds: int = 80
    """Rounds of prices."""
    passes: int = 3
    """Times that all topics are looked at, at the true cost."""
    rearrangements: int = 12
    """Times that a few topics are arranged anew."""
    topics_at_once: int = 5
    few_topics_max: int = 200
    """Up to so many topics are arranged anew at all."""


@dataclass(frozen=True, slots=True)
class RefinedResult:
    homes: Ints
    prices: Prices


def refine(
    problem: PlacementProblem,
    chance: np.random.Generator,
    settings: RefinedSettings | None = None,
    starts: tuple[Ints, ...] = (),
    progress: Progress | None = None,
) -> RefinedResult:
    """A plan; `starts` are assignments that it must not be worse than, such as the one that is in force."""
    settings = settings or RefinedSettings()
    tell = progress or (lambda _what, _part: None)
    homes, prices = _at_prices(problem, settings, tell)
    active = problem.movable
    counts = _at_true_cost(problem, homes, active, settings, chance, tell)
    if len(problem.topics) <= settings.few_topics_max:
        counts = _rearranged(counts, prices, active, settings, chance, tell)
    for start in starts:
        other = _at_true_cost(problem, start, active, settings, chance, tell)
        if other.cost < counts.cost:
            counts = other
    return RefinedResult(counts.homes, prices)


def _at_prices(problem: PlacementProblem, settings: RefinedSettings, tell: Progress) -> tuple[Ints, Prices]:
    """The homes with the lowest true cost among those of all rounds, and the last prices."""
    search = PricedSearch(problem, nearest_homes(problem))
    total = evaluate(problem, search.homes).delay_ms * problem.rate_total
    unit = Prices(_split(total, problem.storage), _split(total, problem.compute))
    prices = Prices(PRICE_START * unit.storage, PRICE_START * unit.compute)
    everything = np.ones(len(problem.topics), np.bool_)
    best, best_cost = search.homes.copy(), np.inf
    for number in range(settings.rounds):
        tell("prices", number / settings.rounds)
        search.round(prices, everything)
        storage, compute = search.storage, search.compute
        step = 1 / (1 + number / SHRINKS_AFTER)
        prices = Prices(
            _adjusted(prices.storage, storage / problem.storage, step, unit.storage),
            _adjusted(prices.compute, compute / problem.compute, step, unit.compute),
        )
        if number >= settings.rounds // 4:
            cost = evaluate(problem, search.homes).delay_ms
            if cost < best_cost:
                best, best_cost = search.homes.copy(), cost
    return best, prices


def _split(total: float, capacity: Floats) -> Floats:
    return np.full(capacity.size, total / capacity.sum())


def _adjusted(price: Floats, use: Floats, step: float, unit: Floats) -> Floats:
    return np.asarray(np.maximum(price * np.exp(step * np.clip(use - 1, -1, 1)), PRICE_MIN * unit), np.float64)


def _at_true_cost(
    problem: PlacementProblem,
    homes: Ints,
    active: Ints,
    settings: RefinedSettings,
    chance: np.random.Generator,
    tell: Progress,
) -> HomeCounts:
    counts = HomeCounts(problem, problem.kept(homes))
    polish(counts, active)
    for number in range(settings.passes):
        tell("true costs", number / settings.passes)
        before = counts.cost
        polish_blocks(counts, chance.permutation(len(problem.topics)).tolist())
        polish(counts, active)
        if counts.cost > before * (1 - PASS_GAIN_MIN):
            break
    return counts


def _rearranged(
    counts: HomeCounts,
    prices: Prices,
    active: Ints,
    settings: RefinedSettings,
    chance: np.random.Generator,
    tell: Progress,
) -> HomeCounts:
    problem = counts.problem
    cost = counts.cost
    for number in range(settings.rearrangements):
        tell("rearrangement", number / settings.rearrangements)
        size = min(settings.topics_at_once, len(problem.topics))
        topics = chance.choice(len(problem.topics), size, replace=False)
        allowed = np.zeros(len(problem.topics), np.bool_)
        allowed[topics] = True
        off = Prices(
            prices.storage * np.exp(chance.normal(0, 1, prices.storage.size)),
            prices.compute * np.exp(chance.normal(0, 1, prices.compute.size)),
        )
        search = PricedSearch(problem, counts.homes)
        for _ in range(ROUNDS_AGAIN):
            if search.round(off, allowed) <= GAIN_MIN:
                break
        tried = HomeCounts(problem, search.homes)
        polish(tried, active)
        polish_blocks(tried, topics.tolist())
        if tried.cost < cost - GAIN_MIN:
            counts, cost = tried, tried.cost
    return counts
