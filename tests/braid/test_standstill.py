"""A broker that stood still, and was taken for gone: what its clients had sent it is not published a second time."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.braid.roaming.published_before import FOLLOW_S
from tests.braid.journeys.faulty_sites import FaultySites
from tests.braid.sites import payloads
from tests.conformance import wire
from tests.conformance.pair import V5, Peer, Type, persistent

from .standing_still import StandingStill

STOPPED_S = 5.0
ONCE = wire.publish("from/ada", b"once", version=V5, qos=2, packet_id=77)
AGAIN = bytes((ONCE[0] | 0x08,)) + ONCE[1:]


@pytest.fixture
def sites(tmp_path: Path) -> FaultySites:
    return FaultySites(tmp_path, 5, seed=1, unreliable=False)


def come(sites: FaultySites, number: int) -> Peer:
    return sites.client(number, "ada", **persistent(V5))


def other_than(sites: FaultySites, number: int) -> int:
    """A broker that is neither this one nor a mirror of it."""
    own = sites[number].braid.mirrors.own
    assert own is not None
    return next(one for one in sites.all if one != number and one not in own.mirrors)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.3], ids=["first", "while it asks", "behind"])
def test_what_it_reads_from_clients_that_have_gone_is_not_published(sites: FaultySites, after_s: float) -> None:
    watcher = sites.client(2, "watcher")
    watcher.subscribe("from/ada", 2)
    stale = come(sites, 1)
    still = StandingStill(sites.sim)
    still.stop(1, STOPPED_S)
    sites.sim.at(still.goes_on_at(1) + after_s, lambda: stale.connection.receive(ONCE))  # it has waited in the kernel
    ada = come(sites, other_than(sites, 1))
    assert ada.connack is not None
    assert ada.connack.session_present
    sites.settle_s = FOLLOW_S + 1.0  # what the publisher had published before is asked for at a broker that is silent
    ada.send(AGAIN)
    ada.expect(Type.PUBREC, packet_id=77)
    assert payloads(watcher) == [b"once"]
    sites.run(STOPPED_S + 60)
    sites[1].settle()
    assert payloads(watcher) == []
    assert stale.link.closed


def test_what_it_reads_from_clients_that_have_stayed_is_published(sites: FaultySites) -> None:
    watcher = sites.client(2, "watcher")
    watcher.subscribe("from/ada", 2)
    ada = come(sites, 1)
    still = StandingStill(sites.sim)
    still.stop(1, STOPPED_S)
    sites.sim.at(still.goes_on_at(1), lambda: ada.connection.receive(ONCE))
    sites.run(STOPPED_S + 0.01)
    assert payloads(watcher) == []
    sites.run(1.0)
    ada.expect(Type.PUBREC, packet_id=77)
    assert payloads(watcher) == [b"once"]
    own = sites[1].braid.mirrors.own
    assert own is not None
    assert own.count == 2, "the mirror is not given up for what was not read"
    assert own.standstill.count == 1


def test_a_mirror_that_does_not_answer_is_not_waited_for(sites: FaultySites) -> None:
    watcher = sites.client(2, "watcher")
    watcher.subscribe("from/ada", 2)
    ada = come(sites, 1)
    own = sites[1].braid.mirrors.own
    assert own is not None
    (mirror,) = own.mirrors
    still = StandingStill(sites.sim)
    still.stop(1, STOPPED_S)
    assert isinstance(mirror, int)
    sites.crash(mirror)
    sites.sim.at(still.goes_on_at(1), lambda: ada.connection.receive(ONCE))
    sites.run(STOPPED_S + 0.5)
    assert ada.take() == []
    for _ in range(60):
        sites.run(0.1)
    ada.expect(Type.PUBREC, packet_id=77)
    sites.run(60)
    assert payloads(watcher) == [b"once"]
