from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from braidmq.placement.errors import PlacementError
from braidmq.placement.field import FieldSettings, grid, scattered
from braidmq.placement.social import PAPER_SHAPE, GraphShape, clients_of, from_rows, grown_shape, made_up


@pytest.mark.parametrize("seed", range(5))
def test_a_graph_of_the_shape_of_the_paper(seed: int) -> None:
    topics = made_up(PAPER_SHAPE, np.random.default_rng(seed))
    assert len(topics) == 64
    assert all(10 <= len(members) <= 21 and len(set(members)) == len(members) for members in topics)
    assert 913 <= len(clients_of(topics)) <= 940
    topics_of = Counter(member for members in topics for member in members)
    assert Counter(topics_of.values()) == {1: len(topics_of) - 24, 2: 23, 3: 1}


def test_the_same_seed_gives_the_same_graph() -> None:
    first, second, other = (made_up(PAPER_SHAPE, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == second != other


def test_a_graph_can_be_larger() -> None:
    topics = made_up(grown_shape(1000, 100), np.random.default_rng(0))
    assert len(topics) == 100
    assert 990 <= len(clients_of(topics)) <= 1010
    with pytest.raises(PlacementError, match="not from 10"):
        grown_shape(10, 100)
    with pytest.raises(PlacementError, match="do not have"):
        made_up(GraphShape(10, 3, 4, 0, 0, 100, 120), np.random.default_rng(0))


def test_followers_become_topics() -> None:
    lines = ["1\t2\n", "1\t3\n", "4\t5\n", "6\t1\n", "6\t7\n", "\n", "6\t1\n", "8\t9\n", "8\t1\n", "8\t2\n", "8\t3\n"]
    assert from_rows(lines, GraphShape(2, 3, 4)) == (("1", "2", "3"), ("6", "1", "7"))
    with pytest.raises(PlacementError, match="3 followers with 2 to 3 followees are wanted, and there are 2"):
        from_rows(lines, GraphShape(3, 3, 4))
    with pytest.raises(PlacementError, match="line 2"):
        from_rows(["1\t2\n", "1,2\n"])
    with pytest.raises(PlacementError, match="line 3: follower 1 again"):
        from_rows(["1\t2\n", "3\t2\n", "1\t4\n"])


def test_no_more_of_the_file_is_read_than_it_takes() -> None:
    lines = iter(["1\t2\n", "1\t3\n", "4\t5\n", "the rest\n", "is not\n"])
    assert from_rows(lines, GraphShape(1, 3, 4)) == (("1", "2", "3"),)
    assert next(lines) == "the rest\n"


def test_members_are_scattered_around_their_topic_inside_the_field() -> None:
    topics = made_up(PAPER_SHAPE, np.random.default_rng(0))
    near, far = (scattered(topics, FieldSettings(scatter), np.random.default_rng(0)) for scatter in (1.0, 20.0))
    for field in (near, far):
        assert field.clients_km.min() >= 0
        assert field.clients_km.max() <= 25
    number = {name: at for at, name in enumerate(near.problem.clients)}
    mine = [number[member] for member in topics[0] if member in number]
    assert near.clients_km[mine].std(axis=0).max() < 3 < far.clients_km[mine].std(axis=0).min()


def test_servers_stand_in_a_grid() -> None:
    assert sorted(set(grid(16, 25)[:, 0])) == [5, 10, 15, 20]
    assert len(grid(8, 25)) == 8
    assert len({tuple(place) for place in grid(7, 25)}) == 7
    with pytest.raises(PlacementError, match="0 servers"):
        grid(0, 25)
