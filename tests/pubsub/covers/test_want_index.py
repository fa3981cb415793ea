"""Wants by filter, and a broker's own filters, against a plain oracle."""

from __future__ import annotations

import tracemalloc
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from braidmq.mqtt.topics import HIDDEN, matches, overlaps
from braidmq.pubsub.covers import want_index
from braidmq.pubsub.covers.want_index import FilterSet, WantIndex
from tests.pubsub.covers.names import filters, topics


class Peer(NamedTuple):
    """Brokers may be tuples."""

    name: str
    address: int


PEERS = [Peer("one", 1), Peer("two", 2), Peer("three", 3)]
peers = st.sampled_from(PEERS)


class Wants(RuleBasedStateMachine):
    """Pairs of filter and broker; few shapes fit, so that the tree has its part as well."""

    def __init__(self) -> None:
        super().__init__()
        self.index: WantIndex[Peer] = WantIndex()
        self.pairs: dict[tuple[str, Peer], None] = {}

    @rule(topic_filter=filters, broker=peers)
    def add(self, topic_filter: str, broker: Peer) -> None:
        assert self.index.add(topic_filter, broker) == ((topic_filter, broker) not in self.pairs)
        self.pairs.setdefault((topic_filter, broker))

    @rule(topic_filter=filters, broker=peers)
    def discard(self, topic_filter: str, broker: Peer) -> None:
        assert self.index.discard(topic_filter, broker) == ((topic_filter, broker) in self.pairs)
        self.pairs.pop((topic_filter, broker), None)

    @rule(data=st.data())
    def discard_one_that_is_there(self, data: Any) -> None:
        if self.pairs:
            self.discard(*data.draw(st.sampled_from(list(self.pairs))))

    @rule(broker=peers)
    def drop(self, broker: Peer) -> None:
        gone = [pair for pair in self.pairs if pair[1] == broker]
        assert self.index.drop(broker) == [topic_filter for topic_filter, _ in gone]
        for pair in gone:
            del self.pairs[pair]

    @rule(topic=topics)
    def brokers(self, topic: str) -> None:
        found = self.index.brokers(topic)
        assert len(found) == len(set(found))
        assert set(found) == {broker for topic_filter, broker in self.pairs if matches(topic_filter, topic)}
        wanted = {topic_filter for topic_filter, _ in self.pairs if matches(topic_filter, topic)}
        assert sorted(self.index.filters(topic)) == sorted(wanted)

    @invariant()
    def the_same_pairs(self) -> None:
        assert len(self.index) == len({topic_filter for topic_filter, _ in self.pairs})
        for broker in PEERS:
            assert list(self.index.filters_of(broker)) == [one for one, wanting in self.pairs if wanting == broker]

    @invariant()
    def nothing_is_left_behind(self) -> None:
        assert len(self.index._shapes) <= want_index.SHAPES_MAX
        if not self.pairs:
            assert not self.index._shapes
            assert not len(self.index._tree)
            assert not self.index._filters


class WantsOfManyShapes(Wants):
    """Only two shapes are compared one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(want_index, "SHAPES_MAX", 2)

    def teardown(self) -> None:
        self.patch.undo()


TestWants = Wants.TestCase
TestWants.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, print_blob=True)
TestWantsOfManyShapes = WantsOfManyShapes.TestCase
TestWantsOfManyShapes.settings = TestWants.settings


def test_brokers_come_in_the_order_in_which_they_were_added() -> None:
    index: WantIndex[str] = WantIndex()
    for broker in ("c", "a", "b"):
        index.add("x/+", broker)
    index.add("x/y", "b")
    assert index.brokers("x/z") == ["c", "a", "b"]
    assert index.brokers("x/y") == ["b", "c", "a"]
    assert index.brokers("y") == []


def test_filters_can_be_taken_away_while_they_are_walked() -> None:
    index: WantIndex[str] = WantIndex()
    for number in range(10):
        index.add(f"a/{number}", "b")
    assert [index.discard(one, "b") for one in index.filters_of("b")] == [True] * 10
    assert list(index.filters_of("b")) == []


BYTES_A_FILTER_MAX = 130


@pytest.mark.parametrize("count", [1_000, 44_000])
def test_a_filter_takes_little_memory(count: int) -> None:
    """The second is a number at which dicts have just grown."""
    texts = [f"cmd/device{number}/#" for number in range(count)]
    index: WantIndex[str] = WantIndex()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for text in texts:
            index.add(text, "broker")
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / count <= BYTES_A_FILTER_MAX


@given(
    st.lists(st.tuples(st.booleans(), st.one_of(filters, topics, st.just(HIDDEN))), max_size=60),
    st.lists(st.one_of(filters, topics, st.just(HIDDEN)), max_size=4),
)
@settings(max_examples=300, deadline=None, print_blob=True)
def test_own_filters_that_overlap_covers(changes: list[tuple[bool, str]], covers: list[str]) -> None:
    own = FilterSet()
    plain: dict[str, None] = {}
    for position, (added, topic_filter) in enumerate(changes):
        if added:
            assert own.add(topic_filter) == (topic_filter not in plain)
            plain.setdefault(topic_filter)
        else:
            assert own.discard(topic_filter) == (topic_filter in plain)
            plain.pop(topic_filter, None)
        assert topic_filter not in own or topic_filter in plain
        if position % 7 == 0:  # sorted at times, changed in between
            assert sorted(own.overlapping(["a/+"])) == sorted(one for one in plain if overlaps(one, "a/+"))
    assert list(own) == list(plain)
    assert len(own) == len(plain)
    assert sorted(own.overlapping(covers)) == sorted(
        one for one in plain if any(overlaps(one, cover) for cover in covers)
    )


def test_a_large_set_is_walked_only_where_it_can_overlap() -> None:
    own = FilterSet()
    for number in range(5_000):
        own.add(f"cmd/{number}/#")
        own.add(f"dev/{number}/state")
    own.add("dev/+/telemetry")
    own.add("$SYS/#")
    assert len(own.overlapping(["cmd/+/reboot"])) == 5_000
    assert own.overlapping(["cmd/17/reboot", "cmd/17/#"]) == ["cmd/17/#"]
    assert own.overlapping(["dev/+/telemetry"]) == ["dev/+/telemetry"]
    assert len(own.overlapping(["+/+/state", "dev/#"])) == 10_001
    assert own.overlapping([HIDDEN]) == ["$SYS/#"]
    assert own.overlapping([]) == []
