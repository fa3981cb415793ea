"""A session belongs to the user that made it, at whatever broker another user comes with its client identifier."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.braid.roaming.directory_entries import ENTRY_KEPT_S, REGISTER_S
from braidmq.braid.roaming.tail import TAIL_S
from braidmq.security.access import AccessRules
from braidmq.security.client_ids import ClientIdRules
from braidmq.security.settings import AccessConfig
from braidmq.sim.network import Partition, Uniform
from tests.broker.test_session_owner import OWNERS_WORD, SECRETS, Names
from tests.conformance import wire
from tests.conformance.pair import Peer, persistent
from tests.conformance.wire import V3, V5

from .sites import Sites, payloads

VERSIONS = pytest.mark.parametrize("version", [V3, V5])


def secured(count: int, access: AccessConfig = SECRETS, **options: Any) -> Sites:
    """Sites that know their users, all with the same rules."""
    sites = Sites(0, **options)
    for number in range(count):
        sites.add(number, **rules(access))
        sites.run(1)
    sites.run(10)
    return sites


def rules(access: AccessConfig) -> dict[str, Any]:
    return {"authenticator": Names(), "access": AccessRules(access), "client_ids": ClientIdRules(access)}


def come(
    sites: Sites, number: int, user: str, version: int = V5, client_id: str = "op-desk1", reason: int = 0, **more: Any
) -> Peer:
    peer = sites[number].peer(version)
    peer.connect(client_id, reason=reason, username=user or None, **{**persistent(version), **more})
    return peer


def where(sites: Sites, client_id: str = "op-desk1") -> list[int]:
    return [site.number for site in sites if client_id in site.broker.sessions]


@VERSIONS
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("method", ["covers", "relayfree", "adaptive"])
def test_another_user_is_refused_and_reads_nothing(method: str, version: int, clean: bool) -> None:
    sites = secured(4, method=method)
    op = come(sites, 0, "op", version)
    op.subscribe("secret/#", 1)
    sender = come(sites, 3, "op", client_id="pub")
    sender.publish("secret/x", b"0", 1)
    bob = come(sites, 2, "bob", version, reason=OWNERS_WORD[version], clean=clean)
    for number in range(int(TAIL_S) + 5):
        sender.publish("secret/x", b"%d" % (number + 1), 1)
    bob.expect_nothing()
    assert payloads(op) == [b"%d" % number for number in range(int(TAIL_S) + 6)]
    op.expect_open()
    assert where(sites) == [0]


def test_the_owner_away_finds_all_that_waited_after_others_have_tried() -> None:
    sites = secured(4)
    op = come(sites, 0, "op")
    op.subscribe("secret/#", 1)
    op.drop()
    sender = come(sites, 3, "op", client_id="pub")
    for number in range(3):
        for user in ("bob", ""):
            come(sites, 1 + number % 2, user, reason=0x87, clean=bool(number % 2))
        sender.publish("secret/x", b"%d" % number, 1)
    sites.run(2 * REGISTER_S)
    again = come(sites, 2, "op")
    assert again.connack is not None
    assert again.connack.session_present
    assert payloads(again) == [b"0", b"1", b"2"]
    assert where(sites) == [2]


def test_a_session_that_has_ended_does_not_keep_others_out() -> None:
    sites = secured(3)
    come(sites, 0, "op", clean=True, properties=b"").drop()
    bob = come(sites, 2, "bob")
    assert bob.connack is not None
    assert not bob.connack.session_present
    sites.run(2 * REGISTER_S)
    bob.expect_open()
    come(sites, 1, "op", reason=0x87)


def test_a_fresh_session_where_the_configuration_says_so() -> None:
    sites = secured(3, AccessConfig(rules=SECRETS.rules, foreign_session="fresh"))
    op = come(sites, 0, "op")
    op.subscribe("open", 1)
    come(sites, 2, "bob", reason=0x87)
    op.expect_open()
    op.drop()
    come(sites, 1, "op", client_id="pub").publish("open", b"1", 1)
    bob = come(sites, 2, "bob")
    assert bob.connack is not None
    assert not bob.connack.session_present
    sites.run(2 * REGISTER_S)
    assert payloads(bob) == []
    assert where(sites) == [2]


def test_a_user_without_a_session_is_told_to_come_again_while_the_holder_does_not_answer() -> None:
    sites = secured(4)
    come(sites, 0, "op").subscribe("secret/#", 1)
    sites[0].crash()
    bob = sites[2].peer(V5)

    bob.send(wire.connect("op-desk1", username="bob"))
    sites.run(15)
    bob.expect_refused(0x88)


def test_what_a_site_forbids_is_not_brought_there_by_a_session_that_moves() -> None:
    """The rules of sites may differ: what is still on its way to the old site is judged at the new one."""
    sites = secured(3, AccessConfig())
    sites.add(3, **rules(SECRETS))
    sites.run(10)
    eve = come(sites, 0, "eve")
    for one in ("secret/#", "open"):
        eve.subscribe(one, 1)
    eve.drop()
    sender = come(sites, 0, "op", client_id="pub")
    sender.publish("secret/x", b"before", 1)
    sender.publish("open", b"open before", 1)
    moved = come(sites, 3, "eve")
    for _ in range(5):
        sender.publish("secret/x", b"after", 1)
        sender.publish("open", b"open after", 1)
    assert payloads(moved) == [b"open before", *[b"open after"] * 5]


def test_what_a_client_has_unsubscribed_from_is_not_passed_on_from_where_it_was() -> None:
    sites = secured(3, AccessConfig())
    eve = come(sites, 0, "eve")
    eve.subscribe("tide", 1)
    eve.drop()
    moved = come(sites, 2, "eve")
    moved.unsubscribe("tide")
    sender = come(sites, 0, "op", client_id="pub")
    for _ in range(3):
        sender.publish("tide", b"x", 1)
    assert payloads(moved) == []


@pytest.mark.parametrize("seed", range(4))
def test_after_a_partition_the_one_who_came_first_keeps_the_client_id(seed: int) -> None:
    from_s, until_s = 30.0, 90.0 + ENTRY_KEPT_S
    sites = secured(5, seed=seed, network=Partition([[0]], from_s, until_s, Uniform(0.001, 0.02)))
    op = come(sites, 0, "op")
    op.subscribe("secret/#", 1)
    assert sites.sim.now < from_s
    sites.run(until_s - 20 - sites.sim.now)
    bob = come(sites, 3, "bob")
    bob.subscribe("open", 1)
    assert sites.sim.now < until_s
    for _ in range(int(4 * REGISTER_S / 10)):
        sites.run(10)
    bob.expect_closed(0x87)
    assert where(sites) == [0]
    come(sites, 2, "op", client_id="pub").publish("secret/x", b"1", 1)
    assert payloads(op) == [b"1"]
    come(sites, 4, "bob", reason=0x87)
