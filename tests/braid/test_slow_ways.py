"""A broker that is slow to answer is gone round to: nothing is lost by that, and it is soon reached directly again."""

from __future__ import annotations

from braidmq.braid.roaming.directory_messages import AreYouThere
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


def test_a_detour_by_a_broker_that_may_be_gone_gives_way_to_another() -> None:
    network = SlowPaths(Uniform(0.001, 0.02))
    sites = Sites(4, network=network)
    network.slower_s[0, 1] = network.slower_s[1, 0] = 60.0
    detours = sites[0].braid.detours
    detours.go_round(1, 2)
    sites.run(2)
    detours.go_round(1, 3)
    assert detours.ways == {1: 3}
    reply = AreYouThere()
    assert sites[0].host.ways.detour_of(reply, 1) == 3
    assert sites[0].host.ways.detour_of(reply, 1, came_by=2) == 2, "as its request came"
    assert sites[0].host.ways.detour_of(reply, 2, came_by=1) is None, "that one cannot be reached directly"


def test_a_direct_way_that_is_there_again_is_taken_at_once_if_somebody_waits_for_it() -> None:
    """In both directions: each of the two goes round by a broker that may be on the other side of a cut by now."""
    network = SlowPaths(Uniform(0.001, 0.02))
    sites = Sites(3, network=network)
    network.slower_s[0, 1] = network.slower_s[1, 0] = 60.0
    detours = [sites[number].braid.detours for number in (0, 1)]
    detours[0].go_round(1, 2)
    detours[1].go_round(0, 2)
    sites.run(2.1)
    network.slower_s.clear()
    assert [one.ways for one in detours] == [{1: 2}, {0: 2}]
    detours[0].try_directly(1)
    sites.run(0.1)
    assert [one.ways for one in detours] == [{}, {}]


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
