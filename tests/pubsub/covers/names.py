"""Names for tests of covers: topics and filters over few levels, and all topics that tell filters over them apart."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

from braidmq.mqtt.topics import HIDDEN, matches

LEVELS = ("", "a", "b", "$x")
FRESH = ("other", "$other")
"""Levels that no filter here spells: what only a wildcard matches."""

levels = st.sampled_from(LEVELS)
topics = st.lists(levels, min_size=1, max_size=3).map("/".join).filter(bool)
filters = (
    st.tuples(st.lists(st.one_of(levels, st.just("+")), max_size=3), st.booleans())
    .map(lambda drawn: "/".join([*drawn[0], "#"] if drawn[1] else drawn[0]))
    .filter(bool)
)
names = st.one_of(topics, filters)

ALL_TOPICS = tuple("/".join(parts) for depth in range(1, 5) for parts in product((*LEVELS, *FRESH), repeat=depth))
"""One level deeper than the filters: two of them overlap if and only if both match one of these."""


def matched(name: str) -> set[str]:
    """The topics that a topic, a filter or HIDDEN matches."""
    if name == HIDDEN:
        return {topic for topic in ALL_TOPICS if topic[:1] == "$"}
    return {topic for topic in ALL_TOPICS if matches(name, topic)}
