"""A session belongs to the user who made it: on one broker, after a restart, and when access rules change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from braidmq.broker.journal_store import JournalStore
from braidmq.broker.limits import Limits
from braidmq.security.access import AccessRules
from braidmq.security.client_id_patterns import client_id_matches, client_id_problem
from braidmq.security.client_ids import ClientIdRules
from braidmq.security.identity import ANONYMOUS, Credentials, Identity, Origin
from braidmq.security.settings import AccessConfig, ClientIdRule, Rule
from tests.conformance import wire
from tests.conformance.pair import Peer, World, persistent
from tests.conformance.wire import V3, V5, Type, Will

VERSIONS = pytest.mark.parametrize("version", [V3, V5])
OWNERS_WORD = {V3: 5, V5: 0x87}
"""The refusal of whoever comes with the client identifier of another user's session."""

SECRETS = AccessConfig(
    rules=(
        Rule(users=("op",), allow=("publish", "subscribe"), topics=("#",)),
        Rule(users=("*",), deny=("subscribe", "publish"), topics=("secret/#",)),
        Rule(allow=("publish", "subscribe"), topics=("#",)),
    )
)
OPEN = AccessConfig()


class Names:
    """Believes every user name; without one the client is anonymous."""

    def authenticate(self, credentials: Credentials) -> Identity:
        return Identity(credentials.username) if credentials.username else ANONYMOUS


def world(access: AccessConfig = SECRETS, **options: Any) -> World:
    rules = {"access": AccessRules(access), "client_ids": ClientIdRules(access)}
    return World(authenticator=Names(), **rules, **options)


def reload(scene: World, access: AccessConfig) -> None:
    broker = scene.broker
    broker.reconfigure(broker.limits, broker.authenticator, {}, AccessRules(access), ClientIdRules(access))
    scene.settle()


def come(scene: World, user: str, version: int = V5, client_id: str = "desk", reason: int = 0, **options: Any) -> Peer:
    peer = scene.peer(version)
    peer.connect(client_id, reason=reason, username=user or None, **{**persistent(version), **options})
    return peer


# Another user comes


@VERSIONS
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("intruder", ["bob", ""])
def test_another_user_is_refused_and_the_owner_stays(version: int, clean: bool, intruder: str) -> None:
    scene = world()
    op = come(scene, "op", version)
    op.subscribe("secret/#", 1)
    bob = come(scene, intruder, version, reason=OWNERS_WORD[version], clean=clean)
    assert bob.link.closed
    come(scene, "op", version, "pub").publish("secret/x", b"1", 1)
    op.expect_payloads(b"1")
    bob.expect_nothing()


@VERSIONS
@pytest.mark.parametrize("clean", [True, False])
def test_another_user_is_refused_while_the_owner_is_away(version: int, clean: bool) -> None:
    scene = world()
    op = come(scene, "op", version)
    op.subscribe("secret/#", 1)
    op.drop()
    come(scene, "op", version, "pub").publish("secret/x", b"1", 1)
    come(scene, "bob", version, reason=OWNERS_WORD[version], clean=clean)
    again = come(scene, "op", version)
    assert again.connack is not None
    assert again.connack.session_present
    again.expect_payloads(b"1")


def test_a_session_that_ended_with_its_connection_is_nobodys() -> None:
    scene = world()
    come(scene, "op", clean=True, properties=b"").drop()
    bob = come(scene, "bob")
    assert bob.connack is not None
    assert not bob.connack.session_present


def test_a_fresh_session_where_the_configuration_says_so() -> None:
    scene = world(AccessConfig(rules=SECRETS.rules, foreign_session="fresh"))
    op = come(scene, "op")
    op.subscribe("secret/#", 1)
    op.subscribe("open", 1)
    come(scene, "bob", reason=0x87)
    op.expect_open()
    op.drop()
    come(scene, "op", client_id="pub").publish("open", b"1", 1)
    bob = come(scene, "bob")
    assert bob.connack is not None
    assert not bob.connack.session_present
    bob.expect_nothing()
    come(scene, "op", reason=0x87)


def test_what_an_anonymous_client_left_behind_is_a_users_as_far_as_it_may_read() -> None:
    scene = world(OPEN)
    first = come(scene, "")
    for one in ("secret/#", "open"):
        first.subscribe(one, 1)
    first.drop()
    sender = come(scene, "op", client_id="pub")
    for topic in ("secret/x", "open"):
        sender.publish(topic, topic.encode(), 1)
    reload(scene, SECRETS)
    bob = come(scene, "bob")
    assert bob.connack is not None
    assert bob.connack.session_present
    bob.expect_payloads(b"open")
    come(scene, "", reason=0x87)


def test_the_owner_is_known_after_a_restart(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    scene = world(store=store)
    come(scene, "op").subscribe("secret/#", 1)
    scene.settle()
    store.close()
    store = JournalStore(tmp_path)
    scene = world(store=store)
    come(scene, "bob", reason=0x87)
    op = come(scene, "op")
    assert op.connack is not None
    assert op.connack.session_present
    store.close()


# Rules change


def test_new_rules_take_what_waits_of_retained_messages() -> None:
    scene = world(OPEN, limits=Limits(inflight_max=1))
    sender = come(scene, "op", client_id="pub")
    for number in range(5):
        sender.publish(f"secret/{number}", b"s%d" % number, 1, retain=True)
        sender.publish(f"open/{number}", b"o%d" % number, 1, retain=True)
    bob = come(scene, "bob", properties=wire.props(session_expiry=1000, receive_maximum=1))
    bob.subscribe("#", 1)
    reload(scene, SECRETS)
    seen = []
    while got := bob.take():
        seen += [one.payload for one in got]
        bob.acknowledge(got[0])
    assert sorted(one for one in seen if one.startswith(b"o")) == [b"o%d" % number for number in range(5)]
    assert all(one.startswith(b"o") for one in seen[1:]), "only the one that was under way already"
    scene.broker.flush()
    assert scene.broker.metrics.queued_messages == 0


def test_new_rules_are_for_sessions_without_a_client_too() -> None:
    scene = world(OPEN)
    for user in ("op", "bob"):
        away = come(scene, user, client_id=user)
        away.subscribe("secret/#", 1)
        away.drop()
    reload(scene, SECRETS)
    sender = come(scene, "op", client_id="pub")
    assert sender.publish("secret/x", b"1", 1) == 0
    assert scene.broker.sessions["bob"].subscriptions == {}
    assert scene.broker.sessions["bob"].burden == 0
    come(scene, "op", client_id="op").expect_payloads(b"1")


def test_a_member_that_loses_a_shared_subscription_passes_nothing_on_to_one_that_loses_it_too() -> None:
    scene = world(OPEN)
    members = {}
    for user in ("bob", "eve", "op"):
        members[user] = come(scene, user, client_id=user, properties=wire.props(receive_maximum=1))
        members[user].subscribe("$share/g/secret/#", 1)
    sender = come(scene, "op", client_id="pub")
    for number in range(9):
        sender.publish("secret/x", b"%d" % number, 1)
    seen = {user: member.take() for user, member in members.items()}
    assert [len(got) for got in seen.values()] == [1, 1, 1]
    reload(scene, SECRETS)
    for user in ("bob", "eve"):
        members[user].acknowledge(seen[user][0])
        members[user].expect_nothing()
    rest = seen["op"]
    payloads = []
    while rest:
        members["op"].acknowledge(rest[0])
        rest = members["op"].take()
        payloads += [one.payload for one in rest]
    assert len(payloads) == 6


def test_a_restart_with_new_rules_judges_what_is_in_the_store(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    scene = world(OPEN, store=store)
    bob = come(scene, "bob")
    bob.subscribe("secret/#", 1)
    bob.drop()
    come(scene, "op", client_id="pub").publish("secret/x", b"1", 1)
    scene.settle()
    store.close()
    store = JournalStore(tmp_path)
    scene = world(SECRETS, store=store)
    assert scene.broker.sessions["desk"].subscriptions == {}
    come(scene, "bob").expect_nothing()
    store.close()


# Wills


@pytest.mark.parametrize("how", ["reload", "restart"])
def test_a_will_that_is_no_longer_allowed_is_not_published(tmp_path: Path, how: str) -> None:
    store = JournalStore(tmp_path)
    scene = world(OPEN, store=store)
    delay = wire.props(will_delay=5)
    for user in ("op", "bob"):
        will = Will(f"secret/{user}", b"gone", properties=delay, retain=True, qos=1)
        come(scene, user, client_id=user, will=will).drop()
    if how == "reload":
        reload(scene, SECRETS)
    else:
        scene.settle()
        store.close()
        store = JournalStore(tmp_path)
        scene = world(SECRETS, store=store)
    for _ in range(8):
        scene.advance(1)
    assert [one.topic for one in scene.broker.retained.match("#", scene.broker.now())] == ["secret/op"]
    store.close()


def test_another_user_neither_sets_off_a_will_nor_takes_it_away() -> None:
    scene = world()
    watcher = come(scene, "op", client_id="watcher")
    watcher.subscribe("will", 1)
    op = come(scene, "op", will=Will("will", b"gone", properties=wire.props(will_delay=5)))
    for clean in (True, False):
        come(scene, "bob", reason=0x87, clean=clean)
    watcher.expect_nothing()
    op.drop()
    come(scene, "bob", reason=0x87)
    for _ in range(8):
        scene.advance(1)
    watcher.expect_payloads(b"gone")


# Client identifiers that are bound


@pytest.mark.parametrize(
    ("pattern", "client_id", "user", "certificate", "matches"),
    [
        ("{user}-+", "op-desk1", "op", None, True),
        ("{user}-+", "op-", "op", None, False),
        ("{user}-*", "op-", "op", None, True),
        ("{user}-+", "op-desk1", "bob", None, False),
        ("{user}-+", "op-desk1", None, None, False),
        ("{user}", "a.b", "a.b", None, True),
        ("{user}", "axb", "a.b", None, False),
        ("{user}", "anything", "+", None, False),
        ("{certificate}", "pump7", "op", "pump7", True),
        ("{certificate}", "pump7", "pump7", None, False),
        ("{certificate}-{user}", "pump7-op", "op", "pump7", True),
        ("fixed", "fixed", None, None, True),
        ("a+b", "a\nb", None, None, True),
        ("a+b", "ab", None, None, False),
    ],
)
def test_patterns_of_client_ids(
    pattern: str, client_id: str, user: str | None, certificate: str | None, matches: bool
) -> None:
    assert not client_id_problem(pattern)
    assert client_id_matches(pattern, client_id, user, certificate) is matches


@pytest.mark.parametrize("pattern", ["{client}", "{user", "user}", "{{user}}"])
def test_patterns_that_make_no_sense(pattern: str) -> None:
    assert "{user}" in client_id_problem(pattern)


BOUND = AccessConfig(
    client_ids=(
        ClientIdRule(users=("service",), client_id="*"),
        ClientIdRule(users=("anonymous",), client_id="guest-+"),
        ClientIdRule(client_id="{user}-+"),
    )
)


@VERSIONS
def test_a_client_id_that_is_not_the_users(version: int) -> None:
    scene = world(BOUND)
    refused = {V3: 2, V5: 0x85}[version]
    come(scene, "bob", version, "op-desk1", refused)
    come(scene, "", version, "op-desk1", refused)
    come(scene, "op", version, "op-desk1")
    come(scene, "service", version, "anything")
    come(scene, "", version, "guest-1")
    given = scene.peer(version)
    given.connect("", username="bob", clean=True)


def test_the_certificate_counts_and_not_what_the_client_says() -> None:
    rules = ClientIdRules(AccessConfig(client_ids=(ClientIdRule(client_id="{certificate}"),)))
    assert rules.allows(Identity("op"), Origin(common_name="pump7"), "pump7")
    assert not rules.allows(Identity("pump7"), Origin(), "pump7")
    assert not rules.allows(Identity("op"), Origin(common_name="pump8"), "pump7")


def test_new_rules_end_connections_with_client_ids_that_are_not_theirs() -> None:
    scene = world(OPEN)
    bob, op = come(scene, "bob", client_id="op-1"), come(scene, "op", client_id="op-2")
    reload(scene, BOUND)
    bob.expect_closed(0x87)
    op.expect_open()


# Authentication anew


def test_an_open_connection_cannot_become_another_users() -> None:
    class Exchange:
        final_data = None

        def step(self, data: bytes | None) -> Identity:
            return Identity((data or b"").decode())

    class Says:
        name = "SAYS"

        def begin(self, _credentials: Credentials) -> Exchange:
            return Exchange()

    scene = World(access=AccessRules(SECRETS), methods={"SAYS": Says()})
    peer = scene.peer(V5)
    peer.connect("c", properties=wire.props(auth_method="SAYS", auth_data=b"op"))
    peer.send(wire.auth(0x19, wire.props(auth_method="SAYS", auth_data=b"op")))
    peer.expect(Type.AUTH, reason=0)
    peer.send(wire.auth(0x19, wire.props(auth_method="SAYS", auth_data=b"bob")))
    peer.expect_closed(0x87)
