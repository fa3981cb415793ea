"""Access rules: patterns as sets of topics, and what the rules conclude from them."""

from __future__ import annotations

import itertools
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.security.access import AccessRules, BothAccess, UserGlobs
from braidmq.security.identity import ANONYMOUS, Identity
from braidmq.security.settings import AccessConfig, Rule
from braidmq.security.topic_patterns import bound, covers, overlaps, pattern_problem, without_share

ALICE = Identity("alice")
BOB = Identity("bob")

# Every topic of up to four levels over an alphabet with one letter more than the filters use, so that "+" is more than
# all letters of a filter together, and one level more than the filters have, so that "#" is more than a row of "+".
TOPICS = [topic for depth in range(1, 5) for topic in itertools.product(["a", "b", "$s", "z"], repeat=depth)]


@st.composite
def filters(draw: st.DrawFn) -> tuple[str, ...]:
    levels = draw(st.lists(st.sampled_from(["a", "b", "$s", "+"]), max_size=2))
    end = draw(st.sampled_from(["#", "a", "+"]))
    return (*levels, end)


def matched(topic_filter: tuple[str, ...]) -> set[tuple[str, ...]]:
    """The topics that a filter matches, straight from MQTT §4.7."""

    def matches(wanted: tuple[str, ...], topic: tuple[str, ...]) -> bool:
        if wanted == ("#",):
            return True
        if not wanted or not topic:
            return not wanted and not topic
        return wanted[0] in ("+", topic[0]) and matches(wanted[1:], topic[1:])

    return {
        topic
        for topic in TOPICS
        if not (topic[0].startswith("$") and topic_filter[0] in ("+", "#")) and matches(topic_filter, topic)
    }


@given(filters(), filters())
def test_covers_is_the_subset_relation(pattern: tuple[str, ...], topic_filter: tuple[str, ...]) -> None:
    assert covers(pattern, topic_filter) == (matched(topic_filter) <= matched(pattern))


@given(filters(), filters())
def test_overlaps_is_a_common_topic(pattern: tuple[str, ...], topic_filter: tuple[str, ...]) -> None:
    assert overlaps(pattern, topic_filter) == bool(matched(topic_filter) & matched(pattern))
    assert overlaps(pattern, topic_filter) == overlaps(topic_filter, pattern)


@pytest.mark.parametrize(
    ("pattern", "topic_filter", "covered", "overlapping"),
    [
        ("#", "#", True, True),
        ("#", "$SYS/#", False, False),
        ("+/x", "$SYS/x", False, False),
        ("$SYS/#", "$SYS/broker", True, True),
        ("$SYS/#", "#", False, False),
        ("a/#", "a", True, True),
        ("a", "a/#", False, True),
        ("a/#", "a/+/b", True, True),
        ("a/+", "a/#", False, True),
        ("a/b", "a/+", False, True),
        ("a/b", "a/c", False, False),
        ("+/#", "#", True, True),
        ("a/", "a", False, False),
        ("/+", "/", True, True),
    ],
)
def test_patterns_by_example(pattern: str, topic_filter: str, covered: bool, overlapping: bool) -> None:
    assert covers(pattern.split("/"), topic_filter.split("/")) is covered
    assert overlaps(pattern.split("/"), topic_filter.split("/")) is overlapping


@pytest.mark.parametrize("pattern", ["a", "#", "+", "a/+/b/#", "%u/#", "dev-%c/x", "/", "$SYS/#"])
def test_good_patterns(pattern: str) -> None:
    assert pattern_problem(pattern) == ""


@pytest.mark.parametrize("pattern", ["", "a#", "a/#/b", "a+/b", "+%u", "x\0", "$share/g/a"])
def test_bad_patterns(pattern: str) -> None:
    assert pattern_problem(pattern)


def test_placeholders_are_text_within_a_level() -> None:
    assert bound("u/%u/c/dev-%c/#", "alice", "7") == ("u", "alice", "c", "dev-7", "#")
    assert bound("%u/%c", "%c", "%u") == ("%c", "%u")  # what was put in is not looked at again


@pytest.mark.parametrize("value", ["#", "+", "a/b", "a+", "", "x#", "\0"])
def test_values_that_would_widen_a_pattern_never_match(value: str) -> None:
    assert bound("x/%c", "alice", value) is None
    assert bound("x/%u", value, "client") is None
    assert bound("x/y", value, value) == ("x", "y")


def test_a_value_cannot_lead_into_dollar_topics() -> None:
    assert bound("%c/#", "alice", "$SYS") is None
    assert bound("x/%c", "alice", "$SYS") == ("x", "$SYS")
    assert bound("$own/%c", "alice", "c") == ("$own", "c")
    assert bound("%u/#", None, "c") is None


def test_share_prefix() -> None:
    assert without_share("a/#") == "a/#"
    assert without_share("$share/g/a/#") == "a/#"
    assert without_share("$share/g//") == "/"
    assert without_share("$share/g") is None
    assert without_share("$share/g/") is None


def test_user_globs() -> None:
    assert UserGlobs(["*"]).match(None)
    assert UserGlobs(["*"]).match("anonymous")
    assert UserGlobs(["anonymous"]).match(None)
    assert not UserGlobs(["anonymous"]).match("anonymous")
    assert not UserGlobs(["a*"]).match(None)
    assert UserGlobs(["a*", "b?b"]).match("bob")
    assert not UserGlobs(["A*"]).match("alice")
    assert not UserGlobs(["alice"]).match("alice\n")


def rules(*rules: Rule, default: str | None = None) -> AccessRules:
    return AccessRules(AccessConfig(rules=rules, default=default))  # type: ignore[arg-type]


def test_no_rules_allow_everything_and_rules_nothing_else() -> None:
    free = rules()
    assert free.may_publish(ANONYMOUS, "c", "a")
    assert free.may_subscribe(ANONYMOUS, "c", "$SYS/#")
    assert free.may_will(ANONYMOUS, "c", "a")
    assert free.unrestricted(ANONYMOUS, "c")
    assert not rules(default="deny").may_publish(ALICE, "c", "a")
    strict = rules(Rule(allow=("publish",), topics=("a",)))
    assert strict.may_publish(ALICE, "c", "a")
    assert not strict.may_publish(ALICE, "c", "b")
    assert not strict.may_subscribe(ALICE, "c", "a")
    assert rules(Rule(deny=("publish",), topics=("a",)), default="allow").may_publish(ALICE, "c", "b")


def test_the_first_matching_rule_decides() -> None:
    access = rules(
        Rule(users=("alice",), allow=("publish",), topics=("door/key",)),
        Rule(deny=("publish",), topics=("door/#",)),
        Rule(allow=("publish",), topics=("#",)),
    )
    assert access.may_publish(ALICE, "c", "door/key")
    assert not access.may_publish(BOB, "c", "door/key")
    assert not access.may_publish(ALICE, "c", "door")
    assert access.may_publish(BOB, "c", "window")


def test_rules_by_client_identifier() -> None:
    access = rules(Rule(clients=("sensor-*",), allow=("publish",), topics=("s/%c",)))
    assert access.may_publish(ANONYMOUS, "sensor-1", "s/sensor-1")
    assert not access.may_publish(ANONYMOUS, "sensor-1", "s/sensor-2")
    assert not access.may_publish(ANONYMOUS, "other", "s/other")


def test_subscriptions_are_allowed_as_a_whole() -> None:
    access = rules(
        Rule(deny=("subscribe",), topics=("a/secret",)),
        Rule(allow=("subscribe",), topics=("a/#", "b/+/c")),
    )
    assert access.may_subscribe(ALICE, "c", "a/b")
    assert not access.may_subscribe(ALICE, "c", "a/secret")
    assert not access.may_subscribe(ALICE, "c", "a/+")  # would bring a/secret
    assert not access.may_subscribe(ALICE, "c", "#")
    assert access.may_subscribe(ALICE, "c", "a/b/#")
    assert access.may_subscribe(ALICE, "c", "b/+/c")
    assert not access.may_subscribe(ALICE, "c", "b/#")


def test_shared_subscriptions_are_judged_by_their_filter() -> None:
    access = rules(Rule(allow=("subscribe",), topics=("a/#",)))
    assert access.may_subscribe(ALICE, "c", "$share/g/a/b")
    assert not access.may_subscribe(ALICE, "c", "$share/a/b")
    assert not rules().may_subscribe(ALICE, "c", "$share/g")


def test_a_hostile_client_identifier_gains_nothing() -> None:
    access = rules(Rule(allow=("subscribe", "publish"), topics=("c/%c/#", "%c/#")))
    for client_id, wanted in [("#", "#"), ("+", "c/+/#"), ("a/b", "c/a/b"), ("$SYS", "$SYS/#"), ("", "c//x")]:
        assert not access.may_subscribe(ALICE, client_id, wanted)
    assert access.may_subscribe(ALICE, "me", "c/me/#")


@given(st.lists(st.tuples(st.booleans(), filters()), max_size=4), filters(), st.sampled_from(["allow", "deny"]))
def test_an_allowed_subscription_brings_only_allowed_topics(
    said: list[tuple[bool, tuple[str, ...]]], topic_filter: tuple[str, ...], default: str
) -> None:
    """A subscription is let through only if each of its topics would be, asked for by itself."""
    access = rules(
        *(
            Rule(topics=("/".join(levels),), **{"allow" if allows else "deny": ("subscribe",)})  # type: ignore[arg-type]
            for allows, levels in said
        ),
        default=default,
    )
    if access.may_subscribe(ALICE, "c", "/".join(topic_filter)):
        for topic in matched(topic_filter):
            assert access.may_subscribe(ALICE, "c", "/".join(topic))


@pytest.mark.parametrize(
    ("allow", "deny", "publish", "will"),
    [
        (("publish",), (), True, True),
        (("publish",), ("will",), True, False),
        (("will",), (), False, True),
        (("will",), ("publish",), False, True),
        (("subscribe",), (), False, False),
    ],
)
def test_wills(allow: tuple[str, ...], deny: tuple[str, ...], publish: bool, will: bool) -> None:
    access = rules(Rule(allow=allow, deny=deny, topics=("a",)))  # type: ignore[arg-type]
    assert access.may_publish(ALICE, "c", "a") is publish
    assert access.may_will(ALICE, "c", "a") is will


def test_a_rule_for_wills_alone_leaves_them_open_where_it_says_nothing() -> None:
    access = rules(Rule(deny=("will",), topics=("a",)), Rule(allow=("publish",), topics=("#",)))
    assert not access.may_will(ALICE, "c", "a")
    assert access.may_will(ALICE, "c", "b")
    assert access.may_publish(ALICE, "c", "a")


def test_unrestricted_means_every_topic() -> None:
    assert not rules(Rule(allow=("publish",), topics=("#",))).unrestricted(ALICE, "c")  # not $ topics
    only_bob = rules(Rule(users=("bob",), deny=("publish",), topics=("x/%u",)), default="allow")
    assert only_bob.unrestricted(ALICE, "c")
    assert not only_bob.unrestricted(BOB, "c")
    assert rules(Rule(deny=("subscribe", "will"), topics=("#",)), default="allow").unrestricted(ALICE, "c")
    assert rules(Rule(deny=("publish",), topics=("x/%u",)), default="allow").unrestricted(ANONYMOUS, "c")


class NoSecrets:
    """A plug-in that forbids what is called secret, and fails on what is called broken."""

    def _may(self, topic: str) -> bool:
        if "broken" in topic:
            raise RuntimeError("the directory is down")
        return 1 if "odd" in topic else "secret" not in topic  # type: ignore[return-value]

    def may_publish(self, identity: Identity, client_id: str, topic: str) -> bool:
        return self._may(topic)

    def may_will(self, identity: Identity, client_id: str, topic: str) -> bool:
        return self._may(topic)

    def may_subscribe(self, identity: Identity, client_id: str, topic_filter: str) -> bool:
        return self._may(topic_filter)

    def unrestricted(self, identity: Identity, client_id: str) -> bool:
        return client_id == "root"


def test_rules_and_plugin_must_both_allow(caplog: pytest.LogCaptureFixture) -> None:
    access = BothAccess(rules(Rule(deny=("publish", "subscribe"), topics=("b",)), default="allow"), NoSecrets())
    for may in (access.may_publish, access.may_subscribe, access.may_will):
        assert may(ALICE, "c", "a")
        assert not may(ALICE, "c", "b")
        assert not may(ALICE, "c", "secret")
        with caplog.at_level(logging.ERROR):
            assert not may(ALICE, "c", "broken")
            assert not may(ALICE, "c", "odd")
    assert "the directory is down" in caplog.text
    assert not access.unrestricted(ALICE, "root")
    assert BothAccess(rules(), NoSecrets()).unrestricted(ALICE, "root")
    assert not BothAccess(rules(), NoSecrets()).unrestricted(ALICE, "c")
