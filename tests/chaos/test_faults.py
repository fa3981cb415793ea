"""The plan of a run."""

from __future__ import annotations

import random

from tests.chaos.faults import KINDS, OF_BROKERS, plan


def test_a_seed_gives_the_same_plan() -> None:
    one, same, other = (plan(random.Random(seed), 600.0, 3.0, 10, 50, KINDS) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert {fault.kind for fault in one} == set(KINDS)


def test_at_most_a_third_of_the_brokers_is_out_of_reach() -> None:
    faults = plan(random.Random(3), 600.0, 0.5, 10, 50, KINDS)
    for fault in faults:
        at = [one for one in faults if one.at_s <= fault.at_s < one.at_s + one.lasts_s and one.kind in OF_BROKERS]
        assert len(at) <= 3


def test_one_way_has_a_direction() -> None:
    faults = plan(random.Random(4), 600.0, 3.0, 10, 50, ("mute",))
    assert any(one > other for one, other in (fault.targets for fault in faults))
    assert any(one < other for one, other in (fault.targets for fault in faults))
