from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from braidmq.placement.errors import PlacementError
from braidmq.placement.field import Field, FieldSettings, located, scattered
from braidmq.placement.model import evaluate
from braidmq.placement.problem import HomeServer, Ints, Latencies, ManagedTopic, PlacementProblem, pose
from braidmq.placement.refined import RefinedSettings, refine
from braidmq.placement.replan import ReplanSettings, replan
from braidmq.placement.social import GraphShape, made_up

SHAPE = GraphShape(12, 4, 8, 3, 1, 60, 72)
SETTINGS = FieldSettings(4.0, 1.0, 9, 26.0, 150.0)
QUICK = RefinedSettings(rearrangements=2)


def roaming(seed: int, moving: float) -> tuple[Field, Field]:
    """The same clients before and after a part of them has gone somewhere else."""

    chance = np.random.default_rng(seed)
    topics = made_up(SHAPE, chance)
    before = scattered(topics, SETTINGS, chance)
    places = before.clients_km.copy()
    gone = chance.random(len(places)) < moving
    places[gone] = chance.uniform(0, 25, (int(gone.sum()), 2))
    return before, located(topics, places, before.servers_km, SETTINGS)


@pytest.fixture(scope="module")
def moved() -> tuple[PlacementProblem, Ints, Ints]:
    """(the problem now, homes from before clients went elsewhere, what would be best now)."""
    before, after = roaming(1, 0.3)
    now = refine(before.problem, np.random.default_rng(0), QUICK).homes
    return after.problem, now, refine(after.problem, np.random.default_rng(0), QUICK).homes


def test_a_budget_is_kept_and_more_of_it_is_better(moved: tuple[PlacementProblem, Ints, Ints]) -> None:
    problem, now, target = moved
    delays = [evaluate(problem, now).delay_ms]
    for budget in (3, 10, 100):
        homes = replan(problem, now, target, ReplanSettings(budget))
        assert 0 < np.count_nonzero(homes != now) <= budget
        delays.append(evaluate(problem, homes).delay_ms)
    assert delays == sorted(delays, reverse=True)
    assert delays[1] < 0.99 * delays[0]
    assert delays[-1] <= 1.03 * evaluate(problem, target).delay_ms
    assert np.array_equal(replan(problem, now, target, ReplanSettings(0)), now)


def test_each_move_is_worth_its_price(moved: tuple[PlacementProblem, Ints, Ints]) -> None:
    problem, now, target = moved
    free, dear, too_dear = (
        replan(problem, now, target, ReplanSettings(100, price_ms=price)) for price in (0.0, 0.3, 100.0)
    )
    assert np.count_nonzero(free != now) > np.count_nonzero(dear != now) > 0
    assert np.array_equal(too_dear, now)
    gained = (evaluate(problem, now).delay_ms - evaluate(problem, dear).delay_ms) * problem.rate_total
    assert gained >= 0.3 * problem.distance_weight[dear != now].sum()


def test_who_was_moved_before_has_to_gain_more(moved: tuple[PlacementProblem, Ints, Ints]) -> None:
    problem, now, target = moved
    settings = ReplanSettings(100, price_ms=0.1, again=1e6)
    first = replan(problem, now, target, settings)
    went = [problem.clients[client] for client in np.flatnonzero(first != now)]
    second = replan(problem, now, target, settings, moved_before=went)
    assert went
    assert not np.any((second != now) & np.isin(np.array(problem.clients), went))


def test_a_plan_that_gains_too_little_moves_nobody(moved: tuple[PlacementProblem, Ints, Ints]) -> None:
    problem, now, target = moved
    homes = replan(problem, now, target, ReplanSettings(1, gain_min=0.5))
    assert np.array_equal(homes, now)
    settled = replan(problem, target, target, ReplanSettings(100))
    assert np.array_equal(settled, target)


@pytest.mark.parametrize("seed", range(3))
def test_what_does_not_move_does_not_get_slower(seed: int) -> None:
    """Topics none of whose clients move, message by message: θ of their servers is what they could suffer from."""
    before, after = roaming(seed, 0.4)
    problem = replace(after.problem, storage=after.problem.storage * 0.6)  # overloaded before and after
    now = refine(before.problem, np.random.default_rng(seed), QUICK).homes
    target = refine(problem, np.random.default_rng(seed), QUICK).homes
    homes = replan(problem, now, target, ReplanSettings(15))
    assert np.any(homes != now)
    old, new = evaluate(problem, now), evaluate(problem, homes)
    assert old.local_share.min() < 1
    assert np.all(new.local_share >= old.local_share - 1e-6)
    assert new.delay_ms < old.delay_ms


def test_who_has_no_topic_stays() -> None:
    """A move would gain nothing."""
    servers = [HomeServer("near", 100, 100), HomeServer("far", 100, 100)]
    topics = [ManagedTopic("t", {"a": 1.0}, ["b"], 1)]
    delays = Latencies(np.array([[0, 5], [0, 5], [0, 5]]), np.array([[0, 1], [1, 0]]), np.array(9.0))
    problem = pose(servers, ["a", "idle", "b"], topics, delays)
    now = np.array([1, 1, 1])
    assert replan(problem, now, np.zeros(3, np.int64), ReplanSettings(3)).tolist() == [0, 1, 0]
    assert refine(problem, np.random.default_rng(0)).homes.tolist() == [0, 0, 0]


def test_senseless_settings_are_refused(moved: tuple[PlacementProblem, Ints, Ints]) -> None:
    problem, now, target = moved
    for settings in (ReplanSettings(-1), ReplanSettings(1, price_ms=float("nan")), ReplanSettings(1, gain_min=-0.1)):
        with pytest.raises(PlacementError, match="cannot be negative"):
            replan(problem, now, target, settings)
