"""Who acts for a broker that does not answer: nobody, as long as anybody reaches it."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.braid.mirrors.own_copies import SILENCE_S
from tests.braid.journeys.faulty_sites import ROUND_TRIP_S, FaultySites
from tests.braid.sites import payloads
from tests.conformance import wire
from tests.conformance.pair import V5, Peer, persistent

OLD = 1
MORE_S = 0.3
STEP_S = 0.005


@pytest.fixture
def sites(tmp_path: Path) -> FaultySites:
    sites = FaultySites(tmp_path, 5, seed=1, unreliable=False)
    sites.run(5)
    return sites


def mirror_of(sites: FaultySites, number: int) -> int:
    own = sites[number].braid.mirrors.own
    assert own is not None
    (mirror,) = own.mirrors
    return int(mirror)


def adopted(sites: FaultySites) -> int:
    return sum(site.braid.adoptions.adopted for site in sites)


def come(sites: FaultySites, number: int, within_s: float) -> Peer:
    """The client finds its session at a broker, so soon."""
    sites.settle_s = STEP_S
    began = sites.sim.now
    ada = sites[number].peer(V5)
    ada.connection.receive(wire.connect("ada", version=V5, **persistent(V5)))
    while ada.connack is None and sites.sim.now < began + 2 * within_s:
        sites.run(STEP_S)
        ada._read()
    sites.settle_s = 1.0
    assert ada.connack is not None
    assert ada.connack.session_present
    assert sites.sim.now - began <= within_s + 2 * STEP_S
    return ada


@pytest.mark.parametrize("since_s", [SILENCE_S + 0.2, 3.0])
def test_a_mirror_that_was_given_up_does_not_act_while_others_reach_the_broker(
    sites: FaultySites, since_s: float
) -> None:
    ada = sites.client(OLD, "ada", version=V5, **persistent(V5))
    ada.subscribe("tide", 2)
    mirror = mirror_of(sites, OLD)
    sites.cut({(OLD, mirror), (mirror, OLD)})
    sites.run(since_s)
    sites.client(OLD, "publisher").publish("tide", b"0", 2)
    assert payloads(ada) == [b"0"], "with one copy less"
    ada.drop()
    ada = come(sites, mirror, within_s=3.0)
    assert adopted(sites) == 0
    for _ in range(60):
        sites.run(1)
        assert payloads(ada) == []


def test_a_mirror_that_nobody_hears_acts_though_it_hears_the_broker(sites: FaultySites) -> None:
    """It can pass nothing on to the broker, and what it has is all that the broker has."""
    ada = sites.client(OLD, "ada", version=V5, **persistent(V5))
    ada.subscribe("tide", 2)
    ada.drop()
    sites.client(OLD, "publisher").publish("tide", b"0", 2)
    mirror = mirror_of(sites, OLD)
    sites.cut({(mirror, other) for other in range(sites.count) if other != mirror})
    sites.run(0.3)
    ada = come(sites, mirror, ROUND_TRIP_S + MORE_S)
    assert adopted(sites) == 1
    sites.run(5)
    assert payloads(ada) == [b"0"]
    sites.mend(set(sites.cuts.now))
    for _ in range(60):
        sites.run(1)
        assert payloads(ada) == []


def test_another_broker_at_the_address_does_not_answer_for_one_that_is_gone(sites: FaultySites) -> None:
    ada = sites.client(OLD, "ada", version=V5, **persistent(V5))
    ada.subscribe("tide", 2)
    ada.drop()
    mirror = mirror_of(sites, OLD)
    sites.destroy(OLD)
    sites.run(1)
    sites.start(OLD)
    sites.run(3)
    come(sites, mirror, ROUND_TRIP_S + MORE_S)


@pytest.mark.parametrize("one_way", [True, False])
def test_a_broker_without_a_mirror_is_reached_by_others(sites: FaultySites, one_way: bool) -> None:
    ada = sites.client(OLD, "ada", version=V5, **persistent(V5))
    ada.subscribe("tide", 2)
    ada.drop()
    mirror = mirror_of(sites, OLD)
    (new, *_) = [one for one in range(sites.count) if one not in (OLD, mirror)]
    sites.cut({(new, OLD)} if one_way else {(new, OLD), (OLD, new)})
    sites.crash(mirror)
    sites.run(0.3)
    come(sites, new, within_s=1.0 if one_way else 3.0)


def test_brokers_that_were_silent_are_looked_for_again_when_one_of_them_answers(sites: FaultySites) -> None:
    """A cut has healed."""
    reach = sites[0].braid.roaming.reach
    others = [1, 2, 3]
    sites.cut({(0, other) for other in range(1, sites.count)})
    for other in others:
        reach.look(other)
    sites.run(0.5)
    assert [reach.is_there(sites[one].braid.identity, one) for one in others] == [False] * 3
    sites.mend(set(sites.cuts.now))
    search = sites[0].braid.roaming.search.begin("ada", 0)
    sites.run(0.3)
    assert all(one in search.result for one in others)
    assert not any(reach.is_known(one) and reach.way_to(one) is None for one in others)
