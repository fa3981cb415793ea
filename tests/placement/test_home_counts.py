from __future__ import annotations

import numpy as np
import pytest

from braidmq.placement.home_counts import HomeCounts
from braidmq.placement.model import evaluate
from tests.placement.problems import random_problem, small_field


@pytest.mark.parametrize("seed", range(8))
def test_what_a_move_costs_is_what_the_model_says(seed: int) -> None:
    problem = random_problem(seed) if seed % 2 else small_field(seed).problem
    chance = np.random.default_rng(seed)
    homes = chance.integers(0, len(problem.servers), len(problem.clients))
    counts = HomeCounts(problem, homes)
    active = np.flatnonzero(np.diff(problem.members.client_starts))
    for _ in range(15):
        changes = counts.changes(active)
        at = int(chance.integers(active.size))
        before = evaluate(problem, counts.homes).delay_ms
        for server in range(len(problem.servers)):
            moved = counts.homes.copy()
            moved[active[at]] = server
            expected = (evaluate(problem, moved).delay_ms - before) * problem.rate_total
            assert changes[at, server] == pytest.approx(expected, abs=1e-9)
        counts.move(int(active[at]), int(chance.integers(len(problem.servers))))


@pytest.mark.parametrize("seed", range(4))
def test_counts_stay_right_over_many_moves(seed: int) -> None:
    problem = random_problem(seed) if seed % 2 else small_field(seed).problem
    chance = np.random.default_rng(seed)
    counts = HomeCounts(problem, np.zeros(len(problem.clients), np.int64))
    for _ in range(60):
        counts.move(int(chance.integers(len(problem.clients))), int(chance.integers(len(problem.servers))))
    fresh = HomeCounts(problem, counts.homes)
    for name in ("publishers", "heard", "subscribers", "storage", "compute", "published", "between"):
        assert getattr(counts, name) == pytest.approx(getattr(fresh, name), abs=1e-9), name
    assert counts.cost == pytest.approx(evaluate(problem, counts.homes).delay_ms * problem.rate_total)
