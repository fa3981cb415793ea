"""Which topics fit an edge, against the definitions and the example of seed 003 §5.1; and whose turn a message is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.processors.placement import (
    RECALL_SHARE,
    TURNS_MAX,
    Capacity,
    Need,
    Turn,
    Turns,
    Use,
    allocate,
    has_room,
    is_over,
    local_share,
    ranges_of,
    recalled,
    surplus,
    turn_at,
    use_of,
    with_turn,
)

needs = st.lists(st.builds(Need, st.integers(1, 50), st.integers(0, 9)), max_size=12).map(
    lambda some: dict(enumerate(some))
)
capacities = st.builds(Capacity, st.integers(0, 200), st.integers(0, 500))


def test_the_example_of_the_paper() -> None:
    """Figure 5: u_1 = 8 and u_2 = 6; at s_1 two publishers of t_1, at s_2 one of each; A = 10, B = 20."""
    capacity = Capacity(10, 20)
    at_s1 = use_of([Need(8, 2)])
    at_s2 = use_of([Need(8, 1), Need(6, 1)])
    assert at_s1 == Use(8, 16)
    assert at_s2 == Use(14, 14)
    assert not is_over(capacity, at_s1)
    assert is_over(capacity, at_s2)
    assert local_share(capacity, at_s1) == 1
    assert local_share(capacity, at_s2) == pytest.approx(10 / 14)
    assert allocate(capacity, {"t1": Need(8, 1), "t2": Need(6, 1)}) == (["t1"], ["t2"])


@given(capacities, needs)
@settings(deadline=None)
def test_the_equations(capacity: Capacity, topics: dict[int, Need]) -> None:
    use = use_of(topics.values())
    assert use.storage == sum(need.spool for need in topics.values())
    assert use.compute == sum(need.publishers * need.spool for need in topics.values())  # Eq. 1
    share = local_share(capacity, use)
    ratios = [1.0]
    ratios += [capacity.storage / use.storage] if use.storage else []
    ratios += [capacity.compute / use.compute] if use.compute else []
    assert share == min(ratios)  # Eq. 2
    assert is_over(capacity, use) == (share < 1)


@given(capacities, needs)
@settings(deadline=None)
def test_who_comes_first_stays(capacity: Capacity, topics: dict[int, Need]) -> None:
    edge, delegated = allocate(capacity, topics)
    assert sorted(edge + delegated) == list(topics)
    assert local_share(capacity, use_of(topics[one] for one in edge)) == 1
    for one in delegated:  # there was no room left by those before it
        before = use_of(topics[other] for other in edge if other < one)
        assert not has_room(capacity, before, topics[one])
    fewer = dict(list(topics.items())[:-1])
    assert allocate(capacity, fewer)[0] == [one for one in edge if one in fewer]


@given(capacities, needs)
@settings(deadline=None)
def test_a_surplus_is_no_more_than_it_must_be(capacity: Capacity, topics: dict[int, Need]) -> None:
    leaving = surplus(capacity, topics)
    staying = {one: need for one, need in topics.items() if one not in leaving}
    assert list(staying) == list(topics)[: len(staying)]  # the latest leave
    assert not is_over(capacity, use_of(staying.values()))
    if leaving:
        assert is_over(capacity, use_of(staying.values()).plus(topics[leaving[-1]]))


@given(capacities, needs, needs)
@settings(deadline=None)
def test_what_is_taken_back_leaves_room_for_newcomers(
    capacity: Capacity, edge: dict[int, Need], delegated: dict[int, Need]
) -> None:
    use = use_of(edge.values())
    returning = recalled(capacity, use, delegated)
    after = use_of([*edge.values(), *(delegated[one] for one in returning)])
    if returning:
        assert after.storage <= RECALL_SHARE * capacity.storage
        assert after.compute <= RECALL_SHARE * capacity.compute


def test_bytes_instead_of_messages() -> None:
    assert use_of([Need(20, 3, 2000.0), Need(5, 1, 100.0)]) == Use(2100, 65)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["edge", "spark"])), max_size=20))
@settings(deadline=None)
def test_each_message_has_one_turn(changes: list[tuple[int, str]]) -> None:
    turns: Turns = ()
    at = 0
    owner: dict[int, str] = {}
    for step, place in changes:
        at += step
        for offset in range(at, 200):
            owner[offset] = place
        turns = with_turn(turns, Turn(at, place))  # type: ignore[arg-type]
    assert all(turn_at(turns, offset) == owner.get(offset) for offset in range(200))
    for place in ("edge", "spark"):
        ranges = ranges_of(turns, place)  # type: ignore[arg-type]
        inside = {offset for first, end in ranges for offset in range(first, 200 if end is None else end)}
        assert inside == {offset for offset, one in owner.items() if one == place}
    assert all(one.place != other.place and one.first <= other.first for one, other in pairwise(turns))


def test_turns_do_not_go_back() -> None:
    with pytest.raises(ValueError, match="offset 3 on, behind one from 5"):
        with_turn((Turn(5, "edge"),), Turn(3, "spark"))


def test_turns_of_long_ago_are_forgotten() -> None:
    turns: Turns = ()
    for number in range(3 * TURNS_MAX):
        turns = with_turn(turns, Turn(number, "edge" if number % 2 else "spark"))
    assert len(turns) == TURNS_MAX
    assert turn_at(turns, 0) is None
    assert turn_at(turns, 3 * TURNS_MAX) == "edge"
