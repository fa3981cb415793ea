"""Clients that are at home elsewhere: told once, their sessions with them, and left alone if they do not follow."""

from __future__ import annotations

import pytest

from braidmq.braid.roaming import client_homes
from braidmq.braid.roaming.client_homes import HomeRule, MoveOutcome
from tests.conformance import wire
from tests.conformance.wire import V3, V5, Type

from .draining import advertise, come, where
from .sites import Sites, payloads

NAME = "device"


def at_home(sites: Sites, home: str, client_id: str = NAME, plan: str = "p1") -> None:
    """Tells all brokers where a client is at home."""
    for site in sites:
        site.braid.homes.assign(plan, {client_id: home})


def names(sites: Sites) -> list[str]:
    return [site.braid.name for site in sites]


@pytest.fixture
def sites() -> Sites:
    made = Sites(3)
    advertise(made)
    return made


def test_a_client_is_sent_home_and_finds_its_session_there(sites: Sites) -> None:
    peer = come(sites, 0, NAME)
    peer.subscribe("tide/+", 2)
    at_home(sites, names(sites)[2])
    assert sites[0].braid.homes.move([NAME]) == {NAME: MoveOutcome.SENT}
    sites.run(1)
    told = peer.expect(Type.DISCONNECT, reason=0x9C)
    assert told.properties["server_reference"] == "host2:1883"
    publisher = sites.client(1, "pub")
    for number in range(3):
        publisher.publish("tide/west", b"%d" % number, 2)
    assert where(sites, NAME) == [2]
    new = come(sites, 2, NAME)
    assert new.connack is not None
    assert new.connack.session_present
    assert payloads(new) == [b"0", b"1", b"2"]
    assert sites[2].braid.homes.move([NAME]) == {NAME: MoveOutcome.HOME}


def test_one_that_does_not_follow_is_served_and_not_sent_away_again(sites: Sites) -> None:
    peer = come(sites, 0, NAME)
    peer.subscribe("tide", 1)
    at_home(sites, names(sites)[1])
    sites[0].braid.homes.move([NAME])
    sites.run(1)
    assert peer.link.closed
    back = come(sites, 0, NAME)
    assert back.connack is not None
    assert back.connack.session_present
    homes = sites[0].braid.homes
    assert (homes.sent, homes.staying) == (1, 1)
    assert homes.move([NAME]) == {NAME: MoveOutcome.STAYS}
    sites.run(1)
    assert not back.link.closed
    sites.client(2, "pub").publish("tide", b"high", 1)
    assert payloads(back) == [b"high"]


def test_one_that_has_followed_is_told_again_when_it_comes_much_later(sites: Sites) -> None:
    come(sites, 0, NAME)
    at_home(sites, names(sites)[1])
    sites[0].braid.homes.move([NAME])
    sites.run(client_homes.RETURN_S + 1)
    peer = sites[0].peer(V5)
    peer.send(wire.connect(NAME, version=V5))
    assert peer.expect(Type.CONNACK, reason=0x9C).properties["server_reference"] == "host1:1883"
    assert peer.link.closed


def test_who_comes_is_told_in_the_connack_and_only_once(sites: Sites) -> None:
    at_home(sites, names(sites)[1])
    peer = sites[0].peer(V5)
    peer.send(wire.connect(NAME, version=V5))
    assert peer.expect(Type.CONNACK, reason=0x9C).properties["server_reference"] == "host1:1883"
    assert come(sites, 0, NAME).connack is not None
    assert sites[0].braid.homes.staying == 1


def test_rules_go_before_plans(sites: Sites) -> None:
    at_home(sites, names(sites)[0])
    sites[0].braid.homes.rules = [HomeRule(names(sites)[2], topic="#"), HomeRule(names(sites)[1], clients="dev*")]
    peer = sites[0].peer(V5)
    peer.send(wire.connect(NAME, version=V5))
    assert peer.expect(Type.CONNACK, reason=0x9C).properties["server_reference"] == "host1:1883"
    assert come(sites, 0, "other").connack is not None


def test_who_cannot_be_told_stays(sites: Sites) -> None:
    old = come(sites, 0, NAME, version=V3)
    at_home(sites, names(sites)[1])
    homes = sites[0].braid.homes
    assert homes.move([NAME, "nobody"]) == {NAME: MoveOutcome.CANNOT_BE_TOLD, "nobody": MoveOutcome.HOME}
    sites.run(1)
    assert not old.link.closed
    at_home(sites, "atlantis", plan="p2")
    assert homes.move([NAME]) == {NAME: MoveOutcome.NO_HOME}
    at_home(sites, names(sites)[1], "absent", plan="p3")
    assert homes.move([NAME, "absent"]) == {NAME: MoveOutcome.HOME, "absent": MoveOutcome.AWAY}


def test_a_home_without_a_listener_is_none() -> None:
    sites = Sites(2)
    peer = come(sites, 0, NAME)
    at_home(sites, names(sites)[1])
    assert sites[0].braid.homes.move([NAME]) == {NAME: MoveOutcome.CANNOT_BE_TOLD}
    assert not peer.link.closed


def test_a_home_that_is_gone_changes_nothing(sites: Sites) -> None:
    peer = come(sites, 0, NAME)
    peer.subscribe("tide", 1)
    at_home(sites, names(sites)[1])
    sites[1].crash()
    sites[0].braid.homes.move([NAME])
    sites.run(30)
    assert peer.link.closed
    assert where(sites, NAME) == [0]
    assert sites[0].braid.homes.refused == 1
    sites.client(2, "pub").publish("tide", b"high", 1)
    back = come(sites, 0, NAME)
    assert payloads(back) == [b"high"]


def test_another_plan_begins_anew_and_no_plan_ends_it(sites: Sites) -> None:
    at_home(sites, names(sites)[1])
    peer = sites[0].peer(V5)
    peer.send(wire.connect(NAME, version=V5))
    peer.expect(Type.CONNACK, reason=0x9C)
    homes = sites[0].braid.homes
    assert homes.sent == 1
    homes.assign("p2", {NAME: names(sites)[2]})
    assert homes.sent == 0
    homes.assign("", {})
    assert come(sites, 0, NAME).connack is not None
    too_many = {str(number): "b" for number in range(client_homes.HOMES_MAX + 1)}
    with pytest.raises(ValueError, match=f"at most {client_homes.HOMES_MAX:,}"):
        homes.assign("p3", too_many)
