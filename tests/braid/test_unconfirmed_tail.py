"""A broker dies right after it has written a publication of QoS 2: when it is back, that is not published again."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.braid.mirrors.own_copies import SILENCE_S
from braidmq.braid.roaming.published_before import FOLLOW_S
from braidmq.host import Address
from tests.braid.journeys.faulty_sites import FaultySites
from tests.braid.sites import payloads
from tests.conformance import wire
from tests.conformance.pair import V5, Peer, Type, persistent

HERE = 1


@pytest.fixture
def sites(tmp_path: Path) -> FaultySites:
    return FaultySites(tmp_path, 5, seed=1, unreliable=False)


def publish(packet_id: int, payload: bytes, qos: int = 2) -> bytes:
    return wire.publish("from/ada", payload, version=V5, qos=qos, packet_id=packet_id)


def again(packet: bytes) -> bytes:
    return bytes((packet[0] | 0x08,)) + packet[1:]


def come(sites: FaultySites, number: int, client_id: str = "ada") -> Peer:
    return sites.client(number, client_id, **persistent(V5))


def die_before_it_is_copied(sites: FaultySites, peer: Peer, *packets: bytes) -> None:
    """The broker writes what it is sent, and ends before its mirror has it."""
    ways: set[tuple[Address, Address]] = {(HERE, other) for other in sites.all if other != HERE}
    sites.cut(ways)
    peer.connection.receive(b"".join(packets))
    sites[HERE].broker.flush()
    sites.crash(HERE)
    sites.mend(ways)


def elsewhere(sites: FaultySites) -> int:
    return next(one for one in sites.all if one not in (HERE, 2))


@pytest.mark.parametrize("count", [1, 3])
def test_what_its_publisher_has_sent_again_elsewhere_is_left_out(sites: FaultySites, count: int) -> None:
    there, here = come(sites, 2, "there"), come(sites, HERE, "here")
    for one in (there, here):
        one.subscribe("from/ada", 2)
    ada = come(sites, HERE)
    ada.publish("from/ada", b"before", 2)
    assert payloads(there) == payloads(here) == [b"before"]
    once = [publish(70 + number, b"%d" % number) for number in range(count)]
    die_before_it_is_copied(sites, ada, *once)
    ada = come(sites, elsewhere(sites))
    assert ada.connack is not None
    assert ada.connack.session_present
    sites.settle_s = FOLLOW_S + 1.0
    for packet in once:
        ada.send(again(packet))
    wanted = [b"%d" % number for number in range(count)]
    for _ in range(30):
        sites.run(1)
        print(sites.sim.now, len(there.link.stream))
    assert payloads(there) == wanted
    sites.start(HERE)
    sites.run(90)
    assert payloads(there) == []
    assert payloads(come(sites, HERE, "here")) == wanted
    other = come(sites, elsewhere(sites), "other")
    other.publish("from/ada", b"after", 2)
    assert payloads(there) == [b"after"]


def test_what_its_publisher_comes_back_with_is_published(sites: FaultySites) -> None:
    there = come(sites, 2, "there")
    there.subscribe("from/ada", 2)
    ada = come(sites, HERE)
    die_before_it_is_copied(sites, ada, publish(77, b"once"), publish(78, b"at least once", 1))
    sites.run(5)
    sites.start(HERE)
    sites.run(5)
    ada = come(sites, HERE)
    assert ada.connack is not None
    assert ada.connack.session_present
    ada.send(again(publish(77, b"once")))
    ada.expect(Type.PUBREC, packet_id=77)
    sites.run(90)
    assert payloads(there) == [b"once", b"at least once"]


def cut_off_its_mirror(sites: FaultySites) -> None:
    mirror = mirror_of(sites)
    sites.cut({(HERE, mirror), (mirror, HERE)})


def mirror_of(sites: FaultySites) -> Address:
    own = sites[HERE].braid.mirrors.own
    assert own is not None
    (mirror,) = own.mirrors
    return mirror


def another(sites: FaultySites) -> int:
    return next(one for one in sites.all if one not in (HERE, mirror_of(sites)))


def test_it_does_not_leave_for_a_session_that_has_just_gone_before_the_copies_have_it(sites: FaultySites) -> None:
    come(sites, HERE, "bob").subscribe("from/ada", 2)
    ada, bob = come(sites, HERE), come(sites, another(sites), "bob")
    cut_off_its_mirror(sites)
    ada.connection.receive(publish(70, b"once"))
    sites.run(0.5)
    assert payloads(bob) == []
    sites.run(SILENCE_S + 1.0)
    assert payloads(bob) == [b"once"], "with one copy less"


def test_it_does_not_leave_with_a_session_that_goes_before_the_copies_have_it(sites: FaultySites) -> None:
    bob = come(sites, HERE, "bob")
    bob.subscribe("from/ada", 2)
    bob.drop()
    ada, new = come(sites, HERE), another(sites)
    cut_off_its_mirror(sites)
    ada.connection.receive(publish(70, b"once"))
    sites[HERE].broker.flush()
    own = sites[HERE].braid.mirrors.own
    assert own is not None
    written = own.end
    bob = sites[new].peer(V5)
    bob.connection.receive(wire.connect("bob", version=V5, **persistent(V5)))
    while "bob" not in sites[new].broker.sessions:
        assert sites.sim.now < 60
        sites.run(0.01)
    assert own.position >= written
    sites.run(2)
    bob._read()
    assert bob.connack is not None
    assert bob.connack.session_present
    assert payloads(bob) == [b"once"]
