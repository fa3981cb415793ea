"""Flexible routing tables: the order, and a filter that agrees with it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.keys import Role, key_of
from braidmq.overlay import Peer
from braidmq.overlay.flexible import Contact, FlexibleTable, is_better, subscribers_of
from braidmq.overlay.vectors import DIGITS_MAX

LOW, HIGH = b"40", b"60"
"""Keys in between stand for subscribers of the own topic."""

ME = b"45"
DIGITS = 5


def contact(key: bytes, digits: int, incarnation: int = 0) -> Contact:
    return Contact(Peer(key, int(key), incarnation), digits << DIGITS_MAX - DIGITS)


def table(size: int, contacts: list[Contact], sticky: tuple[bytes, ...] = ()) -> FlexibleTable:
    """A table of a node at 45 with a vector of zeros."""
    made = FlexibleTable(ME, 0, size, size)
    made.subscribers = (LOW, HIGH)
    made.sticky = sticky
    made.learn(contacts)
    return made


def of_level(key: bytes, level: int) -> Contact:
    return contact(key, 1 << DIGITS - 1 - level)


def brute_force(owner: FlexibleTable, contacts: list[Contact], may_go: Callable[[bytes], bool]) -> bytes | None:
    """The key that the order says is to be dropped, of those that may go: no other one leaves a better table."""
    best: tuple[bytes, list[Contact]] | None = None
    for out in contacts:
        rest = [other for other in contacts if other is not out]
        if out.peer.key not in owner.sticky and may_go(out.peer.key):
            if best is None or is_better(owner, rest, best[1]):
                best = (out.peer.key, rest)
    return best[0] if best else None


def anybody(_key: bytes) -> bool:
    return True


def kept(owner: FlexibleTable, contacts: list[Contact]) -> list[Contact]:
    """What the order and the bounds leave of contacts."""
    left = sorted(contacts, key=lambda c: c.peer.key)

    def is_other(key: bytes) -> bool:
        return not owner.is_subscriber(key)

    while len(left) > owner.size and (key := brute_force(owner, left, anybody)) is not None:
        left = [other for other in left if other.peer.key != key]
    while sum(is_other(one.peer.key) for one in left) > owner.others_max:
        key = brute_force(owner, left, is_other)
        rest = [other for other in left if other.peer.key != key]
        if key is None or set(map(owner.level_of, rest)) != set(map(owner.level_of, left)):
            break
        left = rest
    return left


@st.composite
def crowds(draw: st.DrawFn) -> tuple[FlexibleTable, list[Contact]]:
    keys = draw(st.lists(st.integers(10, 99).filter(lambda n: n != 45), min_size=1, max_size=16, unique=True))
    skewed = st.one_of(st.integers(1, 2**DIGITS - 1), st.integers(2 ** (DIGITS - 1), 2**DIGITS - 1))
    contacts = sorted([contact(b"%d" % key, draw(skewed)) for key in keys], key=lambda c: c.peer.key)
    owner = table(0, [])
    owner.sticky = tuple(b"%d" % key for key in keys[: draw(st.integers(0, 2))])
    return owner, contacts


@settings(max_examples=600, deadline=None)
@given(crowds())
def test_the_filter_drops_what_the_order_says(crowd: tuple[FlexibleTable, list[Contact]]) -> None:
    owner, contacts = crowd
    expected, left = [], contacts
    while (key := brute_force(owner, left, anybody)) is not None:
        expected.append(key)
        left = [other for other in left if other.peer.key != key]
    assert owner.filter(contacts, len(contacts)) == expected


@settings(max_examples=400, deadline=None)
@given(crowds(), st.integers(2, 12), st.integers(1, 12), st.integers(1, 15))
def test_newcomers_are_judged_as_the_order_says(
    crowd: tuple[FlexibleTable, list[Contact]], size: int, others_max: int, first: int
) -> None:
    owner, contacts = crowd
    owner.size, owner.others_max = size, others_max
    Random(size).shuffle(contacts)
    owner.learn(contacts[:first])
    assert list(owner.contacts) == kept(owner, contacts[:first])
    for newcomer in contacts[first:]:
        expected = kept(owner, [*owner.contacts, newcomer])
        assert owner.preview([newcomer]) == [one for one in expected if one is newcomer]
    late = contacts[first:]
    expected = kept(owner, [*owner.contacts, *late])
    assert owner.preview(late) == [one for one in expected if owner.get(one.peer.key) is None]
    owner.learn(late)
    assert list(owner.contacts) == expected
    owner.others_max //= 2
    assert owner.trim() == (expected != kept(owner, expected))
    assert list(owner.contacts) == kept(owner, expected)


@settings(max_examples=200, deadline=None)
@given(crowds())
def test_the_order_is_total(crowd: tuple[FlexibleTable, list[Contact]]) -> None:
    owner, contacts = crowd
    chance = Random(len(contacts))
    sets = [[c for c in contacts if chance.random() < 0.7] for _ in range(3)]
    for one in sets:
        for other in sets:
            assert is_better(owner, one, other) + is_better(owner, other, one) == (one != other)
            for third in sets:
                if is_better(owner, one, other) and is_better(owner, other, third):
                    assert is_better(owner, one, third)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        pytest.param([(b"99", 4)], [(b"46", 3), (b"47", 2), (b"48", 1)], id="the top level is higher"),
        pytest.param([(b"99", 4), (b"98", 1)], [(b"46", 4), (b"47", 4), (b"48", 4)], id="fewer levels are empty"),
        pytest.param([(b"59", 0), (b"58", 0)], [(b"46", 0), (b"61", 0), (b"62", 0)], id="more subscribers"),
        pytest.param([(b"70", 0), (b"90", 1)], [(b"70", 0), (b"71", 0), (b"72", 1)], id="a smaller fullest level"),
        pytest.param(
            [(b"70", 0), (b"71", 0), (b"90", 1)], [(b"70", 0), (b"71", 0), (b"72", 1), (b"73", 1)], id="fewer full"
        ),
        pytest.param(
            [(b"70", 0), (b"90", 1), (b"91", 1)], [(b"70", 0), (b"71", 0), (b"72", 1)], id="the fullest is higher"
        ),
        pytest.param([(b"70", 0), (b"72", 0)], [(b"71", 0), (b"72", 0)], id="nearer on the right"),
        pytest.param([(b"70", 0), (b"10", 0)], [(b"71", 0), (b"39", 0)], id="the right before the left"),
        pytest.param([(b"70", 0), (b"39", 0)], [(b"70", 0), (b"38", 0)], id="nearer on the left"),
    ],
)
def test_what_makes_a_table_better(better: list[tuple[bytes, int]], worse: list[tuple[bytes, int]]) -> None:
    owner = table(0, [])
    one, other = [of_level(*item) for item in better], [of_level(*item) for item in worse]
    assert is_better(owner, one, other)
    assert not is_better(owner, other, one)


def test_a_table_keeps_to_its_size_and_its_sticky_entries() -> None:
    far, near = of_level(b"10", 0), [of_level(b"%d" % key, 0) for key in range(46, 56)]
    small = table(3, [far, *near], sticky=(b"10",))
    assert [c.peer.key for c in small.contacts] == [b"10", b"46", b"47"]
    assert small.preview([of_level(b"48", 0), of_level(b"70", 1)]) == [of_level(b"70", 1)]
    assert len(small) == 3
    assert small.drop(b"10")
    assert not small.drop(b"10")
    assert small.get(b"10") is None
    assert small.get(b"46") == of_level(b"46", 0)


def test_the_later_incarnation_of_a_node_replaces_the_earlier() -> None:
    mine = table(3, [contact(b"50", 3, incarnation=1)])
    assert not mine.learn([contact(b"50", 4, incarnation=0)])
    assert mine.learn([contact(b"50", 5, incarnation=2)])
    assert mine.contacts == (contact(b"50", 5, incarnation=2),)


def test_siblings_are_no_entries() -> None:
    assert not table(3, []).learn([contact(b"50", 0)])


def test_subscribers_of_the_own_topic_are_found_by_the_key() -> None:
    publisher = key_of("a/b", Role.PUBLISHER, "", "p")
    low, high = subscribers_of(publisher)
    assert low <= key_of("a/b", Role.SUBSCRIBER, "x", "s") < high
    assert not low <= publisher < high
    assert not low <= key_of("a/b/c", Role.SUBSCRIBER, "x", "s") < high
    assert subscribers_of(b"plain")[0] > b"plain"
