"""Covers against a plain oracle: whatever was added stays covered, within all bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.mqtt.topics import HIDDEN, covers, overlaps
from braidmq.pubsub.covers.cover_set import (
    COVER_LENGTH_MAX,
    COVER_LEVELS_MAX,
    COVERS_MAX,
    FIRST_LEVELS_MAX,
    SIBLINGS_MAX,
    CoverSet,
    literal_prefix,
)
from tests.pubsub.covers.names import matched, names

EXAMPLES = settings(max_examples=200, deadline=None, print_blob=True)

many_levels = st.integers(0, 40).map(lambda number: f"n{number}")
wide_names = st.builds(
    lambda top, parts, end: "/".join([*top, *parts, *end]),
    st.sampled_from([[], ["dev"], ["$x"], ["+"]]),
    st.lists(st.one_of(many_levels, st.just("+"), many_levels.map("$".__add__)), min_size=1, max_size=4),
    st.sampled_from([[], ["#"], ["state"], ["telemetry"]]),
)


def check(held: CoverSet, added: list[str]) -> None:
    kept = list(held)
    assert len(kept) == len(held) <= held.covers_max
    assert all(any(covers(cover, name) for cover in kept) for name in added)
    for name in added:
        cover = held.cover_of(name)
        assert cover in kept
        assert covers(cover, name)
    for one in kept:
        assert held.cover_of(one) == one
        assert not any(covers(one, other) for other in kept if other != one)


@given(st.lists(names, max_size=40), st.integers(2, 8), st.lists(names, max_size=10))
@EXAMPLES
def test_whatever_was_added_stays_covered(added: list[str], covers_max: int, asked: list[str]) -> None:
    held = CoverSet(covers_max)
    for position, name in enumerate(added):
        before = list(held)
        cover = held.add(name)
        if cover is None:
            assert list(held) == before
        else:
            assert not any(covers(one, name) for one in before)
            assert covers(cover, name)
            assert cover in list(held)
        check(held, added[: position + 1])
    topics_of_covers = set().union(*(matched(cover) for cover in held))
    assert all(matched(name) <= topics_of_covers for name in added)
    for name in asked:
        assert (name in held) == (name in list(held))
        assert (held.cover_of(name) is not None) == any(covers(cover, name) for cover in held)


@given(st.lists(wide_names, max_size=120), st.sampled_from([2, 5, COVERS_MAX]))
@settings(max_examples=60, deadline=None, print_blob=True)
def test_wide_sets_stay_within_their_bounds(added: list[str], covers_max: int) -> None:
    held = CoverSet(covers_max)
    for name in added:
        held.add(name)
    check(held, added)
    split = [cover.split("/") for cover in held]
    for levels in split:
        for depth in range(len(levels)):
            beside = {other[depth] for other in split if other[:depth] == levels[:depth] and len(other) > depth} - {"#"}
            hidden = {level for level in beside if level[:1] == "$"} if depth == 0 else set()
            assert len(beside - hidden) <= (SIBLINGS_MAX if depth else FIRST_LEVELS_MAX)
            assert len(hidden) <= FIRST_LEVELS_MAX
    again = CoverSet(covers_max)
    for name in added:
        again.add(name)
    assert list(again) == list(held)


@given(st.one_of(names, st.just(HIDDEN)), st.one_of(names, st.just(HIDDEN)))
@EXAMPLES
def test_of_covers_that_overlap_one_prefix_begins_with_the_other(one: str, other: str) -> None:
    ours, theirs = literal_prefix(one), literal_prefix(other)
    shared = min(len(ours), len(theirs))
    assert not overlaps(one, other) or ours[:shared] == theirs[:shared]


@pytest.mark.parametrize(
    ("cover", "prefix"),
    [
        ("dev/+/telemetry", ("dev",)),
        ("cmd/#", ("cmd",)),
        ("a/b", ("a", "b")),
        ("#", ()),
        ("+/a", ()),
        (HIDDEN, ()),
        ("/a/+", ("", "a")),
    ],
)
def test_literal_prefixes(cover: str, prefix: tuple[str, ...]) -> None:
    assert literal_prefix(cover) == prefix


def covers_of(*added: str, covers_max: int = COVERS_MAX) -> list[str]:
    held = CoverSet(covers_max)
    for name in added:
        held.add(name)
    return list(held)


def test_a_fleet_has_a_cover_for_each_kind_of_topic() -> None:
    assert covers_of(*(f"cmd/{number}/#" for number in range(10_000))) == ["cmd/+/#"]
    assert covers_of(*(f"dev/{number}/telemetry" for number in range(100_000))) == ["dev/+/telemetry"]
    kinds = [f"dev/{number}/{kind}" for number in range(100) for kind in ("telemetry", "state")]
    assert covers_of(*kinds) == ["dev/+/telemetry", "dev/+/state"]


def test_few_names_are_their_own_covers() -> None:
    few = [f"dev/{number}/state" for number in range(SIBLINGS_MAX)]
    assert covers_of(*few) == few
    assert covers_of("a/b", "a/+", "a/b", "a/#") == ["a/#"]
    assert covers_of("a/#", "a", "a/b/c") == ["a/#"]


def test_add_says_what_covers_a_name_now() -> None:
    held = CoverSet()
    for number in range(SIBLINGS_MAX):
        assert held.add(f"dev/{number}/state") == f"dev/{number}/state"
        assert held.add(f"dev/{number}/state") is None
    assert held.add("dev/another/state") == "dev/+/state"
    assert held.add("dev/one more/state") is None
    assert held.add("dev/one more/telemetry") == "dev/one more/telemetry"
    assert held.cover_of("dev/+/state") == "dev/+/state"
    assert held.cover_of("dev/#") is None


def test_a_wild_first_level_is_the_last_resort_and_never_covers_what_begins_with_a_dollar() -> None:
    assert covers_of("a/b/c", "a/c", "b/x/y", "b/z", "c", covers_max=3) == ["a/+/#", "b/+/#", "c"]
    assert covers_of("a/b", "$SYS/b", "c/b", covers_max=2) == ["+/b", "$SYS/b"]
    assert covers_of("a/b", "$SYS/b", "c/d/e", "$a", covers_max=2) == ["+/+/#", HIDDEN]
    devices = [f"d{number}/state" for number in range(1000)]
    assert covers_of("$SYS/x", *devices, "$a/state") == ["$SYS/x", "+/state", "$a/state"]
    assert covers_of(*(f"${number}/x" for number in range(1000)), "a/x") == [HIDDEN, "a/x"]
    assert covers_of("#", "$SYS/x", "+/y") == ["#", "$SYS/x"]


def test_a_rebuilt_set_has_the_covers_of_what_is_left() -> None:
    held = CoverSet(5)
    for number in range(100):
        held.add(f"dev/{number}/state")
    fresh = held.rebuilt(["dev/1/state", "dev/2/state"])
    assert list(fresh) == ["dev/1/state", "dev/2/state"]
    assert list(held) == ["dev/+/state"]
    assert fresh.covers_max == 5


def test_covers_are_neither_deep_nor_long() -> None:
    deep = "/".join(["a"] * 20_000)
    held = CoverSet()
    cover = held.add(deep)
    assert cover is not None
    assert cover.count("/") + 1 == COVER_LEVELS_MAX
    assert covers(cover, deep)
    assert held.cover_of(deep) == cover
    just = "/".join(["a"] * COVER_LEVELS_MAX)
    assert covers_of(just) == [just]
    long = "x" * COVER_LENGTH_MAX
    assert covers_of(f"a/{long}/b") == ["a/#"]
    assert covers_of(long) == ["#"]
    assert covers_of(f"${long}") == [f"${long}"]
    assert covers_of(f"${long}/a/b") == [f"${long}/#"]


def test_a_set_has_room_for_all_names() -> None:
    with pytest.raises(ValueError, match="room for 2 covers"):
        CoverSet(1)
