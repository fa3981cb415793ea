"""Brokers that are far from each other: a round trip of 0.4 s is no reason to take one of them for gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.sim.network import Constant
from tests.braid.sites import payloads
from tests.braid.test_mirrors import MirroredSites
from tests.conformance.pair import V5, persistent

ONE_WAY_S = 0.2


@pytest.mark.parametrize("new", [0, 2, 3])
def test_a_session_moves_between_brokers_that_are_far(tmp_path: Path, new: int) -> None:
    sites = MirroredSites(tmp_path, 4, network=Constant(ONE_WAY_S))
    sites.settle_s = 8.0
    sites.run(30)
    ada = sites.client(1, "ada", version=V5, **persistent(V5))
    ada.subscribe("tide", 2)
    ada.drop()
    publisher = sites.client(0, "p")
    for number in range(5):
        publisher.publish("tide", b"%d" % number, 1)
    moved = sites.client(new, "ada", version=V5, **persistent(V5))
    assert moved.connack is not None
    assert moved.connack.session_present
    for number in range(5, 10):
        publisher.publish("tide", b"%d" % number, 1)
    sites.run(60)
    assert payloads(moved) == [b"%d" % number for number in range(10)]
    assert sum(site.braid.adoptions.adopted for site in sites) == 0, "its broker was there all the time"
    assert [site.number for site in sites if "ada" in site.broker.sessions] == [new]
