"""Ranges of packet ids, beside a plain list of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.broker.packet_ids import PACKET_ID_MAX, IdRange, following, ids_of

FIRSTS = st.one_of(st.integers(1, 5), st.integers(PACKET_ID_MAX - 5, PACKET_ID_MAX), st.integers(1, PACKET_ID_MAX))


def plain(first: int, count: int) -> list[int]:
    ids = [first]
    for _ in range(count - 1):
        ids.append(following(ids[-1]))
    return ids[:count]


def split(ids: list[int]) -> tuple[bytes, bytes]:
    return bytes(one >> 8 for one in ids), bytes(one & 255 for one in ids)


@given(FIRSTS, st.integers(0, 40))
def test_it_holds_the_ids_that_follow_one_another(first: int, count: int) -> None:
    ids = IdRange(first, count)
    expected = plain(first, count)
    assert list(ids) == expected
    assert ids.bytes == split(expected)
    assert ids_of(*ids.bytes) == tuple(expected)
    assert 0 not in expected
    if count:
        assert ids.last == expected[-1]
    near = [*plain(first, count + 2), PACKET_ID_MAX, 1, max(1, first - 1)]
    assert [one in ids for one in near] == [one in expected for one in near]


@given(FIRSTS, st.integers(0, 20), FIRSTS, st.integers(1, 20))
def test_overlaps_as_sets_do(first: int, count: int, other: int, others: int) -> None:
    expected = bool({*plain(first, count)} & {*plain(other, others)})
    assert IdRange(first, count).overlaps(IdRange(other, others)) == expected


@settings(max_examples=200)
@given(FIRSTS, st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=30))
def test_what_is_added_and_answered_in_order_leaves_what_a_queue_leaves(
    first: int, steps: list[tuple[bool, int]]
) -> None:
    ids = IdRange()
    queue: list[int] = []
    last = first
    for is_added, count in steps:
        if is_added:
            new = IdRange(following(last), count)
            assert ids.is_followed_by(new)
            ids.add(new)
            queue += plain(following(last), count)
            last = new.last
        else:
            answered = queue[:count]
            assert ids.begins_with(*split(answered))
            assert len(queue) < count or not ids.begins_with(*split([*answered[:-1], following(answered[-1])]))
            ids.advance(len(answered))
            del queue[:count]
        assert list(ids) == queue
