"""Patterns: who publishes and subscribes what."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from braidmq.sim.trials.patterns import TABLE_2, Fleet, PatternError, RoleAssignment, drawn, parse


def deal(pattern: str, nodes: int | None = None, seed: int = 1) -> RoleAssignment:
    found = parse(pattern)
    return found.deal(found.nodes_default if nodes is None else nodes, Random(seed))


def topics_of_brokers(cast: RoleAssignment) -> Counter[int]:
    return Counter(broker for topic in cast.topics for broker in (*topic.publishers, *topic.subscribers))


@pytest.mark.parametrize(("name", "numbers"), TABLE_2.items())
def test_the_papers_patterns_give_each_broker_one_topic(name: str, numbers: tuple[int, int]) -> None:
    cast = deal(name, 3000)
    assert cast.brokers == 3000
    assert len(cast.topics) == 3000 // sum(numbers)
    assert {(len(topic.publishers), len(topic.subscribers)) for topic in cast.topics} == {numbers}
    assert topics_of_brokers(cast) == dict.fromkeys(range(3000), 1)
    assert cast.note == ""


def test_greek_letters_are_names_too() -> None:
    assert parse("δ") == parse("delta")
    assert parse("ζ") == parse("zeta")


@pytest.mark.parametrize(("nodes", "words"), [(64, "4 nodes take no part"), (61, "1 node takes no part")])
def test_nodes_that_are_left_over_are_there_and_that_is_said(nodes: int, words: str) -> None:
    cast = deal("delta", nodes)
    assert cast.brokers == nodes
    assert [len(topic.publishers) for topic in cast.topics] == [1] * 6 + [0] * (nodes - 60)
    assert topics_of_brokers(cast) == dict.fromkeys(range(nodes), 1)
    assert len(cast.publications()) == 6
    assert words in cast.note


def test_explicit_numbers_leave_the_others_a_topic_of_their_own() -> None:
    cast = deal("2x3x4", 25)
    assert [(len(t.publishers), len(t.subscribers)) for t in cast.topics] == [(2, 3)] * 4 + [(0, 1)] * 5
    assert topics_of_brokers(cast) == dict.fromkeys(range(25), 1)
    assert len(cast.publications()) == 8
    assert "5 nodes" in cast.note


def test_explicit_numbers_with_few_nodes_share_them_evenly() -> None:
    cast = deal("2x3x4", 7)
    assert set(topics_of_brokers(cast).values()) <= {2, 3}
    for topic in cast.topics:
        members = (*topic.publishers, *topic.subscribers)
        assert len(set(members)) == len(members)


def test_without_subscribers_everybody_publishes() -> None:
    cast = deal("1x0x100")
    assert cast.brokers == 100
    assert sorted(cast.adverts()) == [[topic.name] for topic in cast.topics]
    assert cast.subscriptions() == [[]] * 100


def test_one_topic_is_measured_among_others_of_all_sizes() -> None:
    cast = deal("subs80", 1000)
    measured = [topic for topic in cast.topics if topic.measured]
    assert [(len(topic.publishers), len(topic.subscribers)) for topic in measured] == [(1, 80)]
    assert sum(topics_of_brokers(cast).values()) == 5000
    sizes = sorted(1 + len(topic.subscribers) for topic in cast.topics)
    assert sizes[0] < 10
    assert sizes[-1] > 100


def test_zipf_has_few_large_topics_and_many_small_ones() -> None:
    sizes = [len(topic.subscribers) for topic in deal("zipf").topics]
    assert len(sizes) == 100
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 20 * sizes[-1]


def test_a_fleet_is_of_any_size() -> None:
    assert parse("fleet") == Fleet(10_000, 10_000)
    assert parse("fleet100x50") == Fleet(100, 50)
    assert deal("fleet100x50", 20).brokers == 20
    assert "100 topics and 50 command filters" in deal("fleet100x50", 20).note


def test_the_same_seed_deals_the_same() -> None:
    assert deal("subs20", 200, 7) == deal("subs20", 200, 7)
    assert deal("delta", 200, 7) == deal("delta", 200, 7) != deal("delta", 200, 8)


@pytest.mark.parametrize(
    ("pattern", "nodes", "words"),
    [
        ("omega", 10, "alpha, beta"),
        ("1x2", 10, "PUBLISHERSxSUBSCRIBERSxTOPICS"),
        ("0x5x5", 50, "publishes nothing"),
        ("5x5x0", 50, "publishes nothing"),
        ("delta", 9, "at least 10"),
        ("subs100", 100, "at least 101"),
        ("5000000x0x5000000", 1_000_000, "too few"),
        ("500000x500000x9999999", 1_000_000, "at most"),
        ("delta", 2_000_000, "too many"),
        ("lookups", 1, "too few"),
        ("fleet", 7, "too few for a fleet"),
        ("fleet", 100_000, "topics and .* filters: at most"),
        ("fleet0x10", 10, "has no devices"),
        ("fleet10", 10, "fleet100x50"),
    ],
)
def test_what_cannot_be_played_is_told(pattern: str, nodes: int, words: str) -> None:
    with pytest.raises(PatternError, match=words):
        deal(pattern, nodes)


def test_publications_are_drawn_when_there_are_too_many() -> None:
    publications = deal("beta", 10_000).publications()
    deliveries = [len(topic.subscribers) for topic, _ in publications]
    assert len(publications) == 5000
    some = drawn(publications, deliveries, None, Random(1))
    assert len(some) == 2000
    assert some == drawn(publications, deliveries, None, Random(1))
    assert [one for one in publications if one in some] == some
    assert len(drawn(publications, deliveries, 7, Random(1))) == 7
    assert drawn(publications, deliveries, 9999, Random(1)) == publications
