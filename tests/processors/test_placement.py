"""Which topics fit an edge, against the definitions and the example of the paper (Tanaka et al. 2021, §5.1);
and where a message is processed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.processors.placement import (
    INTERVALS_MAX,
    RECALL_SHARE,
    Capacity,
    EdgeLoad,
    Interval,
    Intervals,
    TopicLoad,
    allocate,
    edge_load,
    has_room,
    is_over,
    local_share,
    location_at,
    ranges_of,
    recalled,
    surplus,
    with_interval,
)

loads = st.lists(st.builds(TopicLoad, st.integers(1, 50), st.integers(0, 9)), max_size=12).map(
    lambda some: dict(enumerate(some))
)
capacities = st.builds(Capacity, st.integers(0, 200), st.integers(0, 500))


def test_the_example_of_the_paper() -> None:
    """Figure 5: u_1 = 8 and u_2 = 6; at s_1 two publishers of t_1, at s_2 one of each; A = 10, B = 20."""
    capacity = Capacity(10, 20)
    at_s1 = edge_load([TopicLoad(8, 2)])
    at_s2 = edge_load([TopicLoad(8, 1), TopicLoad(6, 1)])
    assert at_s1 == EdgeLoad(8, 16)
    assert at_s2 == EdgeLoad(14, 14)
    assert not is_over(capacity, at_s1)
    assert is_over(capacity, at_s2)
    assert local_share(capacity, at_s1) == 1
    assert local_share(capacity, at_s2) == pytest.approx(10 / 14)
    assert allocate(capacity, {"t1": TopicLoad(8, 1), "t2": TopicLoad(6, 1)}) == (["t1"], ["t2"])


@given(capacities, loads)
@settings(deadline=None)
def test_the_equations(capacity: Capacity, topics: dict[int, TopicLoad]) -> None:
    load = edge_load(topics.values())
    assert load.storage == sum(topic.spool for topic in topics.values())
    assert load.compute == sum(topic.publishers * topic.spool for topic in topics.values())  # Eq. 1
    share = local_share(capacity, load)
    ratios = [1.0]
    ratios += [capacity.storage / load.storage] if load.storage else []
    ratios += [capacity.compute / load.compute] if load.compute else []
    assert share == min(ratios)  # Eq. 2
    assert is_over(capacity, load) == (share < 1)


@given(capacities, loads)
@settings(deadline=None)
def test_who_comes_first_stays(capacity: Capacity, topics: dict[int, TopicLoad]) -> None:
    edge, delegated = allocate(capacity, topics)
    assert sorted(edge + delegated) == list(topics)
    assert local_share(capacity, edge_load(topics[one] for one in edge)) == 1
    for one in delegated:  # there was no room left by those before it
        before = edge_load(topics[other] for other in edge if other < one)
        assert not has_room(capacity, before, topics[one])
    fewer = dict(list(topics.items())[:-1])
    assert allocate(capacity, fewer)[0] == [one for one in edge if one in fewer]


@given(capacities, loads)
@settings(deadline=None)
def test_a_surplus_is_no_more_than_it_must_be(capacity: Capacity, topics: dict[int, TopicLoad]) -> None:
    leaving = surplus(capacity, topics)
    staying = {one: load for one, load in topics.items() if one not in leaving}
    assert list(staying) == list(topics)[: len(staying)]  # the latest leave
    assert not is_over(capacity, edge_load(staying.values()))
    if leaving:
        assert is_over(capacity, edge_load(staying.values()).plus(topics[leaving[-1]]))


@given(capacities, loads, loads)
@settings(deadline=None)
def test_what_is_taken_back_leaves_room_for_newcomers(
    capacity: Capacity, edge: dict[int, TopicLoad], delegated: dict[int, TopicLoad]
) -> None:
    load = edge_load(edge.values())
    returning = recalled(capacity, load, delegated)
    after = edge_load([*edge.values(), *(delegated[one] for one in returning)])
    if returning:
        assert after.storage <= RECALL_SHARE * capacity.storage
        assert after.compute <= RECALL_SHARE * capacity.compute


def test_bytes_instead_of_messages() -> None:
    assert edge_load([TopicLoad(20, 3, 2000.0), TopicLoad(5, 1, 100.0)]) == EdgeLoad(2100, 65)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["edge", "spark"])), max_size=20))
@settings(deadline=None)
def test_each_message_has_one_location(changes: list[tuple[int, str]]) -> None:
    intervals: Intervals = ()
    at = 0
    owner: dict[int, str] = {}
    for step, location in changes:
        at += step
        for offset in range(at, 200):
            owner[offset] = location
        intervals = with_interval(intervals, Interval(at, location))  # type: ignore[arg-type]
    assert all(location_at(intervals, offset) == owner.get(offset) for offset in range(200))
    for location in ("edge", "spark"):
        ranges = ranges_of(intervals, location)  # type: ignore[arg-type]
        inside = {offset for first, end in ranges for offset in range(first, 200 if end is None else end)}
        assert inside == {offset for offset, one in owner.items() if one == location}
    assert all(one.location != other.location and one.first <= other.first for one, other in pairwise(intervals))


def test_intervals_do_not_go_back() -> None:
    with pytest.raises(ValueError, match="offset 3 on, behind one from 5"):
        with_interval((Interval(5, "edge"),), Interval(3, "spark"))


def test_turns_of_long_ago_are_forgotten() -> None:
    intervals: Intervals = ()
    for number in range(3 * INTERVALS_MAX):
        intervals = with_interval(intervals, Interval(number, "edge" if number % 2 else "spark"))
    assert len(intervals) == INTERVALS_MAX
    assert location_at(intervals, 0) is None
    assert location_at(intervals, 3 * INTERVALS_MAX) == "edge"
