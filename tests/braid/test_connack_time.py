"""How long a client that has roamed waits for its CONNACK: a round trip of the slowest path, and 300 ms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from braidmq.braid.roaming.messages import GiveUp
from braidmq.braid.roaming.takeover import MIRRORED_WAIT_S
from tests.braid.journeys.faulty_sites import ROUND_TRIP_S, FaultySites
from tests.conformance import wire
from tests.conformance.pair import V5, persistent

MORE_S = 0.3
STEP_S = 0.005
OLD, NEW = 1, 3

SINCE_S = 0.3
"""How long before the client comes it happens."""


def befall(sites: FaultySites, situation: str) -> None:
    """Something happens to the broker that has the session, or to its path to the one that the client comes to."""
    if situation == "down":
        sites.crash(OLD)
    elif situation == "destroyed":
        sites.destroy(OLD)
    elif situation == "cut one way":
        sites.cut({(NEW, OLD)})
    elif situation == "cut both ways":
        sites.cut({(NEW, OLD), (OLD, NEW)})


def begin(folder: Path, seed: int) -> FaultySites:
    """A client has a session at one broker, and has lost its connection."""
    sites = FaultySites(folder, 5, seed, unreliable=False)
    sites.run(5)
    ada = sites.client(OLD, "ada", version=V5, **persistent(V5))
    ada.subscribe("tide", 2)
    watcher = sites.client(NEW, "watcher", version=V5, **persistent(V5))
    watcher.subscribe("tide", 2)
    ada.drop()
    sites.run(2)
    return sites


def connack_s(sites: FaultySites) -> float:
    """How long it waits for its CONNACK at another one, with its session."""
    sites.settle_s = 0.001
    peer = sites[NEW].peer(V5)
    began = sites.sim.now
    peer.connection.receive(wire.connect("ada", version=V5, **persistent(V5)))
    sites[NEW].settle()
    while peer.connack is None and sites.sim.now < began + 5:
        sites.run(STEP_S)
        peer._read()
    assert peer.connack is not None
    assert peer.connack.session_present
    return sites.sim.now - began


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("situation", ["up", "down", "destroyed", "cut one way", "cut both ways"])
def test_a_client_that_has_roamed_is_in_soon(tmp_path: Path, situation: str, seed: int) -> None:
    sites = begin(tmp_path, seed)
    befall(sites, situation)
    sites.run(SINCE_S)
    slowest_s = 2 * ROUND_TRIP_S if situation.startswith("cut") else ROUND_TRIP_S  # by another broker
    assert connack_s(sites) <= slowest_s + MORE_S + STEP_S


@pytest.mark.parametrize("seed", range(4))
def test_a_broker_that_goes_just_when_it_is_asked_is_not_waited_for_long(tmp_path: Path, seed: int) -> None:
    """It has said that it has the session. Its mirror is asked next, once that does not hear it any more either."""
    sites = begin(tmp_path, seed)
    count = sites.sim.on_message

    def watch(sender: Any, to: Any, message: Any, hops: int) -> None:
        if isinstance(message, GiveUp) and to == OLD and OLD in sites.all:
            sites.destroy(OLD)
        if count is not None:
            count(sender, to, message, hops)

    sites.sim.on_message = watch
    assert connack_s(sites) <= 2 * ROUND_TRIP_S + MORE_S + MIRRORED_WAIT_S + STEP_S
    assert OLD in sites.down
