"""What a client has published before it roamed comes before what it publishes after, on each topic."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conformance import wire
from tests.conformance.pair import Peer
from tests.conformance.wire import V5, Type

from .journeys.faulty_sites import FaultySites
from .sites import payloads
from .test_takeover import come

SEEDS = range(3)
OLD = 1
BEFORE, AFTER = [b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"]


class Journey(NamedTuple):
    """A client that publishes at one broker, and then at another, where one subscriber is; one more is elsewhere."""

    sites: FaultySites
    new: int
    other: int
    mirror: int
    pub: Peer
    ada: Peer
    """At the broker that the publisher goes to."""
    bob: Peer
    """At another one."""


def begin(folder: Path, seed: int, is_met: bool = True) -> Journey:
    """`is_met` if the subscribers have had something of the publisher's first broker before."""
    sites = FaultySites(folder / str(seed), 5, seed, unreliable=False)
    sites.run(5)
    own = sites[OLD].braid.mirrors.own
    assert own is not None
    mirror = int(own.mirrors[0])
    new, other, *_ = [number for number in sites.all if number not in (OLD, mirror)]
    ada, bob = come(sites, new, client_id="ada"), come(sites, other, client_id="bob")
    ada.subscribe("tide", 2)
    bob.subscribe("tide", 2)
    pub = come(sites, OLD, client_id="pub")
    if is_met:
        pub.publish("tide", b"met", 1)
        sites.run(2)
        assert payloads(ada) == payloads(bob) == [b"met"]
    return Journey(sites, new, other, mirror, pub, ada, bob)


def publish(sites: FaultySites, pub: Peer, some: list[bytes], qos: int, within_s: float = 0.2) -> None:
    """All are sent at once, and acknowledged soon."""
    sites.settle_s = within_s
    pub.send(*[wire.publish("tide", one, version=V5, qos=qos, packet_id=10 + int(one)) for one in some])
    answer = Type.PUBACK if qos == 1 else Type.PUBREC
    assert [one.type for one in pub.take() if one.type is not Type.PUBREL] == len(some) * [answer]
    if qos == 2:
        pub.send(*[wire.ack(Type.PUBREL, 10 + int(one)) for one in some])
        pub.take()


def go(journey: Journey, qos: int) -> None:
    """The client roams, and publishes on."""
    journey.sites.settle_s = 1.0
    pub = come(journey.sites, journey.new, client_id="pub")
    assert pub.connack is not None
    assert pub.connack.session_present
    publish(journey.sites, pub, AFTER, qos)


def check(journey: Journey, seed: int) -> None:
    journey.sites.settle_s = 1.0
    journey.sites.run(25)
    for peer in (journey.ada, journey.bob):
        assert payloads(peer) == BEFORE + AFTER, f"seed {seed}"


@pytest.mark.parametrize("is_met", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_way_from_the_old_broker_is_slow(tmp_path: Path, qos: int, is_met: bool) -> None:
    for seed in SEEDS:
        journey = begin(tmp_path, seed, is_met)
        journey.sites.paths.slower_s[OLD, journey.other] = 3.0
        publish(journey.sites, journey.pub, BEFORE, qos, 0.2 if is_met else 1.5)
        go(journey, qos)
        check(journey, seed)


@pytest.mark.parametrize("qos", [1, 2])
def test_the_old_broker_is_cut_off_from_a_subscriber(tmp_path: Path, qos: int) -> None:
    for seed in SEEDS:
        journey = begin(tmp_path, seed)
        journey.sites.cut({(OLD, journey.other), (journey.other, OLD)})
        publish(journey.sites, journey.pub, BEFORE, qos)
        go(journey, qos)
        check(journey, seed)


@pytest.mark.parametrize("is_destroyed", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_old_broker_is_gone_before_others_had_what_was_published(
    tmp_path: Path, qos: int, is_destroyed: bool
) -> None:
    """Only its mirror had it."""
    for seed in SEEDS:
        journey = begin(tmp_path, seed)
        sites = journey.sites
        others = {number for number in sites.all if number not in (OLD, journey.mirror)}
        sites.cut({pair for one in others for pair in ((OLD, one), (one, OLD))})
        publish(sites, journey.pub, BEFORE, qos)
        if is_destroyed:
            sites.destroy(OLD)
        else:
            sites.cut({(OLD, journey.mirror), (journey.mirror, OLD)})
        sites.run(2)
        go(journey, qos)
        check(journey, seed)


def test_it_publishes_only_at_the_third_broker(tmp_path: Path) -> None:
    """What it has published last goes with its session, also over a broker where it publishes nothing."""
    for seed in SEEDS:
        journey = begin(tmp_path, seed)
        journey.sites.paths.slower_s[OLD, journey.other] = 5.0
        publish(journey.sites, journey.pub, BEFORE, 1)
        journey.sites.settle_s = 1.0
        come(journey.sites, journey.mirror, client_id="pub")
        go(journey, 1)
        check(journey, seed)


def test_the_new_broker_starts_again_before_it_publishes(tmp_path: Path) -> None:
    for seed in SEEDS:
        journey = begin(tmp_path, seed)
        sites = journey.sites
        sites.paths.slower_s[OLD, journey.other] = 10.0
        publish(sites, journey.pub, BEFORE, 1)
        sites.settle_s = 1.0
        come(sites, journey.new, client_id="pub")
        got = payloads(journey.ada)
        sites.crash(journey.new)
        sites.start(journey.new)
        sites.run(2)
        ada = come(sites, journey.new, client_id="ada")
        go(journey, 1)
        sites.settle_s = 1.0
        sites.run(25)
        assert got + payloads(ada) == BEFORE + AFTER, f"seed {seed}"
        assert payloads(journey.bob) == BEFORE + AFTER, f"seed {seed}"


def test_others_do_not_wait_for_a_publisher_that_roams(tmp_path: Path) -> None:
    """Another topic of the same publisher, and another broker's publications on the topic, come at once."""
    journey = begin(tmp_path, 1)
    sites = journey.sites
    journey.bob.subscribe("wind", 1)
    eve = come(sites, journey.mirror, client_id="eve")
    eve.publish("tide", b"met", 1)
    sites.run(1)
    assert payloads(journey.bob) == [b"met"]
    sites.paths.slower_s[OLD, journey.other] = 3.0
    publish(sites, journey.pub, BEFORE, 1)
    sites.settle_s = 0.5
    pub = come(sites, journey.new, client_id="pub")
    pub.send(wire.publish("tide", b"held", version=V5, qos=1, packet_id=1))
    pub.send(wire.publish("wind", b"free", version=V5, qos=1, packet_id=2))
    eve.send(wire.publish("tide", b"too", version=V5, qos=1, packet_id=3))
    assert sorted(payloads(journey.bob)) == [b"free", b"too"]
    sites.run(5)
    assert payloads(journey.bob) == [*BEFORE, b"held"]
