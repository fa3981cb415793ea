"""The two trees of topic levels against brute force over `matches`."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from braidmq.mqtt.topics import covers, matches
from braidmq.mqtt.trees import FilterTree, NameTree

EXAMPLES = settings(max_examples=200, deadline=None, print_blob=True)

levels = st.sampled_from(["", "a", "b", "c", "$a"])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.one_of(levels, st.just("+")), max_size=4), st.booleans())
    .map(lambda drawn: "/".join([*drawn[0], "#"] if drawn[1] else drawn[0]))
    .filter(bool)
)


def is_empty(tree: FilterTree[str] | NameTree[str]) -> bool:
    """Not even a branch is left."""
    return not tree._root.children and tree._root.value is None and len(tree) == 0 and not list(tree.values())


@given(st.lists(filters, max_size=25), st.lists(topics, min_size=1, max_size=10))
@EXAMPLES
def test_a_topic_finds_the_filters_that_match_it_each_once(held: list[str], asked: list[str]) -> None:
    tree: FilterTree[str] = FilterTree()
    for topic_filter in held:
        tree.set(topic_filter, topic_filter)
    assert len(tree) == len(set(held))
    for topic in asked:
        assert sorted(tree.match(topic)) == sorted(one for one in set(held) if matches(one, topic))
    for topic_filter in held:
        tree.remove(topic_filter)
    assert is_empty(tree)


@given(st.lists(topics, max_size=25), st.lists(filters, min_size=1, max_size=10))
@EXAMPLES
def test_a_filter_finds_the_topics_that_it_matches_each_once(held: list[str], asked: list[str]) -> None:
    tree: NameTree[str] = NameTree()
    for topic in held:
        tree.set(topic, topic)
    assert len(tree) == len(set(held))
    for topic_filter in asked:
        assert sorted(tree.match(topic_filter)) == sorted(one for one in set(held) if matches(topic_filter, one))
    for topic in held:
        tree.remove(topic)
    assert is_empty(tree)


@given(st.lists(filters, max_size=25), st.lists(filters, min_size=1, max_size=10))
@EXAMPLES
def test_a_filter_finds_those_that_cover_it_and_those_that_it_covers(held: list[str], asked: list[str]) -> None:
    tree: FilterTree[str] = FilterTree()
    for topic_filter in held:
        tree.set(topic_filter, topic_filter)
    for topic_filter in [*asked, *held]:
        assert sorted(tree.covering(topic_filter)) == sorted(one for one in set(held) if covers(one, topic_filter))
        assert sorted(tree.covered(topic_filter)) == sorted(one for one in set(held) if covers(topic_filter, one))


def test_a_filter_of_many_wildcards_is_found_at_once() -> None:
    tree: FilterTree[str] = FilterTree()
    deep = "/".join(["+"] * 100)
    tree.set(deep, deep)
    assert tree.covering(deep) == list(tree.covered(deep)) == [deep]


class Trees(RuleBasedStateMachine):
    """A tree is a dict that can also be asked with a topic."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: FilterTree[int] = FilterTree()
        self.held: dict[str, int] = {}

    @rule(topic_filter=filters, value=st.integers(0, 9))
    def set(self, topic_filter: str, value: int) -> None:
        self.tree.set(topic_filter, value)
        self.held[topic_filter] = value

    @rule(topic_filter=filters)
    def remove(self, topic_filter: str) -> None:
        assert self.tree.remove(topic_filter) == self.held.pop(topic_filter, None)

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: Any) -> None:
        if self.held:
            self.remove(data.draw(st.sampled_from(sorted(self.held))))

    @rule(topic_filter=filters)
    def get(self, topic_filter: str) -> None:
        assert self.tree.get(topic_filter) == self.held.get(topic_filter)

    @rule(topic=topics)
    def match(self, topic: str) -> None:
        assert sorted(self.tree.match(topic)) == sorted(
            value for topic_filter, value in self.held.items() if matches(topic_filter, topic)
        )

    @invariant()
    def the_same_entries(self) -> None:
        assert len(self.tree) == len(self.held)
        assert sorted(self.tree.values()) == sorted(self.held.values())

    @invariant()
    def no_branch_without_a_value(self) -> None:
        stack = [self.tree._root]
        while stack:
            node = stack.pop()
            for child in node.children.values():
                assert child.children or child.value is not None
                stack.append(child)


TestTrees = Trees.TestCase
TestTrees.settings = settings(max_examples=30, stateful_step_count=30, deadline=None, print_blob=True)


def test_dollar_topics_are_found_only_by_their_first_level() -> None:
    by_filter: FilterTree[str] = FilterTree()
    by_name: NameTree[str] = NameTree()
    for topic_filter in ("#", "+/x", "+/#", "$SYS/#", "$SYS/x", "$SYS/+", "a/#"):
        by_filter.set(topic_filter, topic_filter)
    for topic in ("$SYS/x", "$SYS", "$a", "a/$x", "a"):
        by_name.set(topic, topic)
    assert sorted(by_filter.match("$SYS/x")) == ["$SYS/#", "$SYS/+", "$SYS/x"]
    assert sorted(by_filter.match("a/$x")) == ["#", "+/#", "a/#"]
    assert sorted(by_name.match("#")) == ["a", "a/$x"]
    assert list(by_name.match("+")) == ["a"]
    assert list(by_name.match("+/+")) == ["a/$x"]
    assert sorted(by_name.match("$SYS/#")) == ["$SYS", "$SYS/x"]


def test_a_deep_topic_needs_no_deep_stack() -> None:
    deep = "/".join(["a"] * 20_000)
    names: NameTree[str] = NameTree()
    names.set(deep, deep)
    assert list(names.match("#")) == [deep]
    assert list(names.match("a/#")) == [deep]
    names.remove(deep)
    assert is_empty(names)
    wanted: FilterTree[str] = FilterTree()
    wanted.set("/".join(["+"] * 20_000), "plus")
    assert wanted.match(deep) == ["plus"]
