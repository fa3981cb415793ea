"""Plans against the optimum and the bound."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from braidmq.placement.bound import lower_bound
from braidmq.placement.errors import PlacementError
from braidmq.placement.exact import optimum
from braidmq.placement.field import distances_km
from braidmq.placement.model import evaluate
from braidmq.placement.planning import PLAN_METHODS, assign
from braidmq.placement.priced_search import PricedSearch, Prices
from braidmq.placement.problem import HomeServer, Latencies, ManagedTopic, PlacementProblem, pose
from braidmq.placement.refined import RefinedSettings, refine
from braidmq.placement.reloc import RelocSettings, reloc
from braidmq.placement.replan import ReplanSettings, replan
from braidmq.placement.simple import nearest_homes, random_homes
from tests.placement.problems import paper_field, random_problem, small_field


@pytest.mark.parametrize(("seed", "storage"), [(0, 18.0), (0, 12.0), (2, 18.0), (5, 18.0)])
def test_small_plans_are_next_to_the_optimum(seed: int, storage: float) -> None:
    problem = small_field(seed, 5, storage, 4 * storage).problem
    best = optimum(problem)
    assert best.bound_ms == pytest.approx(best.delay_ms, rel=1e-5)
    assert evaluate(problem, best.homes).delay_ms == pytest.approx(best.delay_ms)
    plan = refine(problem, np.random.default_rng(0))
    delay_ms = evaluate(problem, plan.homes).delay_ms
    assert best.delay_ms * (1 - 1e-9) <= delay_ms <= best.delay_ms * 1.005
    bound = lower_bound(problem, plan.homes)
    assert bound.delay_ms <= best.delay_ms * (1 + 1e-9)
    assert bound.gap(delay_ms) < 0.02


def test_the_optimum_is_the_best_of_all_assignments() -> None:
    """Where servers are overloaded in any case, too: all of 3^5 are tried."""
    problem = tiny_problem(1)
    every = np.array(np.meshgrid(*[range(3)] * len(problem.clients))).reshape(len(problem.clients), -1).T
    least = min(evaluate(problem, homes).delay_ms for homes in every)
    found = optimum(problem)
    assert evaluate(problem, found.homes).local_share.min() < 1
    assert found.delay_ms == pytest.approx(least, rel=1e-6)
    assert lower_bound(problem, found.homes).delay_ms <= least * (1 + 1e-9)
    assert evaluate(problem, refine(problem, np.random.default_rng(1)).homes).delay_ms <= least * 1.02


def tiny_problem(seed: int) -> PlacementProblem:
    """Five clients, three topics, three servers with too little of everything."""
    chance = np.random.default_rng(seed)
    clients = [f"c{number}" for number in range(5)]
    topics = [
        ManagedTopic(f"t{number}", dict.fromkeys(members[:-1], 1.0), members, 3.0 + number)
        for number, members in enumerate([clients[:3], clients[1:4], clients[3:]])
    ]
    servers = [HomeServer(f"s{number}", 3.5, 6.0) for number in range(3)]
    places, posts = chance.uniform(0, 2, (5, 2)), chance.uniform(0, 2, (3, 2))
    return pose(
        servers, clients, topics, Latencies(distances_km(places, posts), distances_km(posts, posts), np.array(3.0))
    )


def test_a_plan_is_never_worse_than_where_it_may_start() -> None:
    problem = small_field(4, 5, 7.0, 28.0).problem
    quick = RefinedSettings(rounds=2, passes=0, rearrangements=0)
    starts = [random_homes(problem, np.random.default_rng(seed)) for seed in range(3)]
    best = min(evaluate(problem, start).delay_ms for start in starts)
    plan = refine(problem, np.random.default_rng(0), quick, tuple(starts))
    assert evaluate(problem, plan.homes).delay_ms <= best


def test_the_paper_at_its_size() -> None:
    """σ = 20, where storage is shortest: below RELOC by a quarter, at most 2 % above the bound, within every A."""
    problem = paper_field(0, 20).problem
    plan = refine(problem, np.random.default_rng(0), RefinedSettings(rearrangements=0))
    found = evaluate(problem, plan.homes)
    by_reloc = evaluate(problem, reloc(problem, RelocSettings(), np.random.default_rng(0)).homes)
    assert found.delay_ms < 0.82 * by_reloc.delay_ms
    assert found.storage.max() <= 640
    bound = lower_bound(problem, plan.homes, rounds=100, known_ms=found.delay_ms, close_enough=0.02)
    assert bound.gap(found.delay_ms) <= 0.02


def test_the_same_seed_gives_the_same_plan() -> None:
    problem = small_field(1, 5, 12.0, 48.0).problem
    first, second = (refine(problem, np.random.default_rng(7)).homes for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("seed", range(4))
def test_no_assignment_is_below_the_bound(seed: int) -> None:
    """Unequal rates, delays that are no distances, servers that are overloaded: it holds after every number of
    rounds."""
    problem = random_problem(seed)
    chance = np.random.default_rng(seed)
    plan = refine(problem, chance).homes
    least = min(evaluate(problem, homes).delay_ms for homes in [plan, nearest_homes(problem)])
    for rounds in (1, 5, 100):
        assert 0 < lower_bound(problem, plan, rounds=rounds).delay_ms <= least * (1 + 1e-9)


def test_pairs_can_be_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are too many pairs: looser, and still a bound."""
    problem = small_field(0, 5, 12.0, 48.0).problem
    best = optimum(problem)
    close = lower_bound(problem, best.homes).delay_ms
    monkeypatch.setattr("braidmq.placement.bound.POTENTIALS_MAX", 0)
    loose = lower_bound(problem, best.homes).delay_ms
    assert 0.8 * best.delay_ms < loose < close <= best.delay_ms * (1 + 1e-9)


def test_gains_at_prices_are_what_they_are_said_to_be() -> None:
    """A round in which one topic may change gains what the priced cost, written out, falls by."""
    problem = small_field(2).problem
    prices = Prices(np.full(4, 0.05), np.full(4, 0.01))
    single = np.flatnonzero(np.diff(problem.members.client_starts) == 1)
    for topic in range(len(problem.topics)):
        search = PricedSearch(problem, random_homes(problem, np.random.default_rng(topic)))
        allowed = np.zeros(len(problem.topics), np.bool_)
        allowed[topic] = True
        before, homes = priced_cost(problem, search, prices), search.homes.copy()
        gain = search.round(prices, allowed)
        moved = np.flatnonzero(search.homes != homes)
        after = priced_cost(problem, search, prices)
        assert gain >= 0
        if moved.size == 1 and np.isin(moved, single).all():
            assert before - after == pytest.approx(gain)
        assert after <= before + 1e-9


def priced_cost(problem: PlacementProblem, search: PricedSearch, prices: Prices) -> float:
    """I · Y with room for everything, and what storage and computation cost."""
    ample = dataclasses.replace(problem, storage=problem.storage * 1e6, compute=problem.compute * 1e6)
    delays = evaluate(ample, search.homes)
    paid = delays.storage @ prices.storage + delays.compute @ prices.compute
    return delays.delay_ms * problem.rate_total + float(paid)


def test_what_has_no_exact_optimum_is_refused() -> None:
    with pytest.raises(PlacementError, match="too large for an exact optimum"):
        optimum(paper_field(0).problem)
    problem = small_field(0).problem
    near = dataclasses.replace(problem, latencies=dataclasses.replace(problem.latencies, cloud_ms=np.full(4, 0.1)))
    with pytest.raises(PlacementError, match="the way to the cloud and back"):
        optimum(near)


def test_who_cannot_move_stays() -> None:
    """With every method; and plans are made around them, as the optimum shows."""
    free = small_field(0, 5, 18.0, 72.0).problem
    fixed = np.full(len(free.clients), -1)
    fixed[::3] = np.arange(fixed[::3].size) % 4
    problem = dataclasses.replace(free, fixed=fixed)
    stays = fixed >= 0
    for method in PLAN_METHODS:
        homes = assign(method, problem, np.random.default_rng(0), RelocSettings(clusters=2)).homes
        assert np.array_equal(homes[stays], fixed[stays]), method
    best = optimum(problem)
    assert np.array_equal(best.homes[stays], fixed[stays])
    assert best.delay_ms > optimum(free).delay_ms
    plan = assign("refined", problem, np.random.default_rng(0))
    delay_ms = evaluate(problem, plan.homes).delay_ms
    assert best.delay_ms * (1 - 1e-9) <= delay_ms <= best.delay_ms * 1.01
    assert lower_bound(problem, plan.homes, plan.prices).delay_ms <= best.delay_ms * (1 + 1e-9)
    now = problem.kept(random_homes(free, np.random.default_rng(3)))
    changed = replan(problem, now, nearest_homes(free), ReplanSettings(100))
    assert np.any(changed != now)
    assert np.array_equal(changed[stays], fixed[stays])


def test_nobody_can_move() -> None:
    free = small_field(0).problem
    homes = random_homes(free, np.random.default_rng(0))
    problem = dataclasses.replace(free, fixed=homes)
    assert np.array_equal(refine(problem, np.random.default_rng(0)).homes, homes)
    assert lower_bound(problem, homes).delay_ms <= evaluate(problem, homes).delay_ms * (1 + 1e-9)
