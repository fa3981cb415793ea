"""A broker that is slow to answer is gone round to: nothing is lost by that, and it is soon reached directly again."""

from __future__ import annotations

from braidmq.sim.network import Uniform
from tests.braid.sites import Sites
from tests.braid.slow_paths import SlowPaths


def test_a_detour_round_a_broker_that_is_there_ends_at_once() -> None:
    sites = Sites(3)
    detours = sites[0].braid.detours
    detours.go_round(1, 2)
    assert detours.ways == {1: 2}
    sites.run(0.1)
    assert not detours.ways


def test_a_detour_becomes_sure_if_a_broker_does_not_answer() -> None:
    network = SlowPaths(Uniform(0.001, 0.02))
    sites = Sites(3, network=network)
    network.slower_s[0, 1] = 60.0
    host = sites[0].host
    made_sure: list[bool] = []
    go_round = host.ways.go_round

    def note(to: int, by: int, is_sure: bool = True) -> None:
        made_sure.append(is_sure)
        go_round(to, by, is_sure)

    host.ways.go_round = note  # type: ignore[method-assign, assignment]
    sites[0].braid.detours.go_round(1, 2)
    sites.run(2)
    assert made_sure == [False, True]
    assert sites[0].braid.detours.ways == {1: 2}
