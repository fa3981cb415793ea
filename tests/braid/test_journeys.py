"""Clients that roam through a braid under faults: some seeds of `tests.soak --overlay sessions:covers`."""

from __future__ import annotations

import pytest

from tests.braid.journeys.run import play


def test_a_seed_is_the_same_each_time() -> None:
    first, second = play(3), play(3)
    assert len(first.trace) > 500
    assert first.trace == second.trace


@pytest.mark.parametrize("seed", [3, 10, 11, 31])
def test_nobody_loses_anything_or_gets_it_twice(seed: int) -> None:
    outcome = play(seed)
    assert outcome.complaints == []
    assert outcome.destroyed
    assert len(outcome.connects) > 50
