"""Topic names and filters: what is a good one, and `matches` against the words of the specification (§4.7)."""

from __future__ import annotations

import itertools
import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import (
    HIDDEN,
    LEVELS_MAX,
    check_filter,
    check_topic,
    covers,
    has_wildcard,
    matches,
    overlaps,
    split_share,
)

EXAMPLES = settings(max_examples=300, deadline=None, print_blob=True)

levels = st.sampled_from(["", "a", "b", "ab", "$", "$a", "é"])
topics = st.lists(levels, min_size=1, max_size=5).map("/".join).filter(bool)
wild_levels = st.one_of(levels, st.just("+"))
filters = (
    st.tuples(st.lists(wild_levels, max_size=5), st.booleans())
    .map(lambda drawn: "/".join([*drawn[0], "#"] if drawn[1] else drawn[0]))
    .filter(bool)
)


def as_expression(topic_filter: str) -> re.Pattern[str]:
    """The filter as a regular expression: a second way to say what §4.7.1 says."""
    parts = topic_filter.split("/")
    rest = parts[-1] == "#"
    known = "/".join("[^/]*" if part == "+" else re.escape(part) for part in (parts[:-1] if rest else parts))
    if rest:
        known = f"{known}(/.*)?" if len(parts) > 1 else ".*"
    first = "(?![$])" if topic_filter[0] in "+#" else ""
    return re.compile(f"{first}{known}", re.DOTALL)


@given(filters, topics)
@EXAMPLES
def test_matches_is_what_the_specification_says(topic_filter: str, topic: str) -> None:
    assert matches(topic_filter, topic) == bool(as_expression(topic_filter).fullmatch(topic))


@given(topics, topics)
@EXAMPLES
def test_a_filter_without_a_wildcard_matches_the_topic_it_spells_and_no_other(spelt: str, other: str) -> None:
    assert not has_wildcard(spelt)
    assert matches(spelt, spelt)
    assert matches(spelt, other) == (spelt == other)


@given(filters.filter(lambda topic_filter: "+" in topic_filter or "#" in topic_filter))
@EXAMPLES
def test_a_filter_with_a_wildcard_matches_more_than_one_topic(topic_filter: str) -> None:
    assert has_wildcard(topic_filter)
    assert all(matches(topic_filter, topic_filter.replace("+", level).replace("#", level)) for level in ("x", "y"))


@pytest.mark.parametrize(
    ("topic_filter", "topic", "matched"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("#", "a", True),
        ("#", "/", True),
        ("#", "$SYS", False),
        ("#", "$SYS/a", False),
        ("+", "$SYS", False),
        ("+/a", "$SYS/a", False),
        ("+/a", "a$/a", True),
        ("$SYS/#", "$SYS/a/b", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/+", "$SYS/a", True),
        ("$SYS/+/$x", "$SYS/a/$x", True),
        ("a/+", "a/$x", True),
        ("a/#", "a/$x", True),
        ("+", "finance", True),
        ("+", "/finance", False),
        ("/+", "/finance", True),
        ("+/+", "/finance", True),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("sport/+/player1", "sport/tennis/player1", True),
        ("sport/+", "sport/tennis/player1", False),
        ("a", "A", False),
        ("a", "/a", False),
        ("a/", "a", False),
        ("+/#", "a", True),
        ("+/#", "$a/b", False),
        ("/#", "/", True),
        ("/#", "a", False),
    ],
)
def test_the_examples_of_the_specification(topic_filter: str, topic: str, matched: bool) -> None:
    assert matches(topic_filter, topic) is matched


@pytest.mark.parametrize(
    "topic", ["a", "/", "//", "a b", "$SYS/x", "a" * 65535, "/" * (LEVELS_MAX - 1), "é/😀", "a\tb"]
)
def test_good_topic_names(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize("topic", ["", "+", "#", "a/#", "a/+/b", "a+", "#a", "/" * LEVELS_MAX])
def test_bad_topic_names(topic: str) -> None:
    with pytest.raises(PacketError) as caught:
        check_topic(topic)
    assert caught.value.reason is Reason.TOPIC_NAME_INVALID
    assert caught.value.text


@pytest.mark.parametrize("topic_filter", ["a", "/", "#", "+", "+/+/#", "a/+/#", "/#", "$SYS/#", "/" * (LEVELS_MAX - 1)])
def test_good_filters(topic_filter: str) -> None:
    check_filter(topic_filter)


@pytest.mark.parametrize(
    "topic_filter", ["", "a#", "#a", "a/#/b", "#/", "##", "a+", "+a", "++", "a/b+/c", "a/b#", "/" * LEVELS_MAX]
)
def test_bad_filters(topic_filter: str) -> None:
    with pytest.raises(PacketError) as caught:
        check_filter(topic_filter)
    assert caught.value.reason is Reason.TOPIC_FILTER_INVALID
    assert caught.value.text


@given(filters)
@EXAMPLES
def test_every_filter_made_by_the_rules_is_good(topic_filter: str) -> None:
    check_filter(topic_filter)


def test_the_bound_of_levels_is_the_callers() -> None:
    check_topic("a/b", 2)
    check_filter("a/#", 2)
    with pytest.raises(PacketError, match="more than 2 levels"):
        check_topic("a/b/c", 2)
    with pytest.raises(PacketError, match="more than 2 levels"):
        check_filter("a/b/#", 2)


@pytest.mark.parametrize(
    ("full_filter", "parts"),
    [
        ("a/b", (None, "a/b")),
        ("$share", (None, "$share")),
        ("$shared/g/a", (None, "$shared/g/a")),
        ("/$share/g/a", (None, "/$share/g/a")),
        ("$share/g/a", ("g", "a")),
        ("$share/g//", ("g", "/")),
        ("$share/g/+/b/#", ("g", "+/b/#")),
        ("$share/$share/$share/x", ("$share", "$share/x")),
    ],
)
def test_the_parts_of_a_shared_filter(full_filter: str, parts: tuple[str | None, str]) -> None:
    assert split_share(full_filter) == parts


@pytest.mark.parametrize("full_filter", ["$share/", "$share//a", "$share/g", "$share/g/", "$share/+/a", "$share/a#/a"])
def test_what_is_no_shared_filter(full_filter: str) -> None:
    with pytest.raises(PacketError) as caught:
        split_share(full_filter)
    assert caught.value.reason is Reason.TOPIC_FILTER_INVALID


few_levels = st.sampled_from(["", "a", "b", "$a"])
few_filters = st.one_of(
    st.just(HIDDEN),
    st.tuples(st.lists(st.one_of(few_levels, st.just("+")), max_size=3), st.booleans())
    .map(lambda drawn: "/".join([*drawn[0], "#"] if drawn[1] else drawn[0]))
    .filter(bool),
)
ALL_TOPICS = [
    "/".join(parts)
    for depth in range(1, 5)
    for parts in itertools.product(["", "a", "b", "$a", "other", "$other"], repeat=depth)
]
"""Deeper by a level than the filters, and with levels that none of them spells; also the empty one, a topic of one
level, though nobody may publish to it."""


@cache
def matched(topic_filter: str) -> frozenset[str]:
    if topic_filter == HIDDEN:
        return frozenset(topic for topic in ALL_TOPICS if topic[:1] == "$")
    return frozenset(topic for topic in ALL_TOPICS if matches(topic_filter, topic))


@given(few_filters, few_filters)
@EXAMPLES
def test_a_filter_covers_another_if_it_matches_all_that_the_other_matches(broad: str, narrow: str) -> None:
    assert covers(broad, narrow) == (matched(narrow) <= matched(broad))


@given(few_filters, few_filters)
@EXAMPLES
def test_filters_overlap_if_both_match_some_topic(one: str, other: str) -> None:
    assert overlaps(one, other) == overlaps(other, one) == bool(matched(one) & matched(other))


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("a/#", "a", True),
        ("a/+/#", "a", False),
        ("a/+/#", "a/b", True),
        ("a/+/c", "+/b/+", True),
        ("a/+/c", "a/b", False),
        ("+/x", "$a/x", False),
        ("#", "$a/x", False),
        ("$a/#", "$a/+", True),
        (HIDDEN, "$a/+", True),
        (HIDDEN, "#", False),
        (HIDDEN, "a", False),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_examples_of_filters_that_overlap(one: str, other: str, together: bool) -> None:
    assert overlaps(one, other) is overlaps(other, one) is together
