"""Streams at rest: one number each, and still what a plain dictionary would know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.braid.transfer import resting_streams
from braidmq.braid.transfer.resting_streams import NUMBER_BITS, RestingStreams

INCARNATION = 4_000_000_000 << 20

names = st.tuples(st.sampled_from("ab"), st.integers(-2, 2).map(lambda one: INCARNATION + one), st.sampled_from("xyz"))
numbers = st.one_of(st.integers(0, 300), st.integers(0, (1 << NUMBER_BITS) - 1))


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "advance"]), names, numbers, st.integers(1, 5))))
def test_it_knows_what_a_dictionary_would(steps: list[tuple[str, tuple[str, int, str], int, int]]) -> None:
    streams = RestingStreams()
    known: dict[tuple[str, str], tuple[int, int]] = {}
    for what, (origin, incarnation, topic), number, count in steps:
        key = (origin, topic)
        if what == "put":
            earlier = known.get(key)
            if earlier is not None and earlier[0] > incarnation:
                assert streams.put(origin, incarnation, topic, number) == (incarnation, number)
            else:
                assert streams.put(origin, incarnation, topic, number) == earlier
                known[key] = (incarnation, number)
        elif what == "take":
            is_known = key in known and known[key][0] == incarnation
            assert streams.take(origin, incarnation, topic) == (known.pop(key)[1] if is_known else None)
        else:
            first = known[key][1] + 1 if key in known and number % 2 else number
            follows = known.get(key) == (incarnation, first - 1) and first > 0
            if first > 0:
                assert streams.advance(origin, incarnation, topic, first, count) == follows
            if follows:
                known[key] = (incarnation, first - 1 + count)
        assert len(streams) == len(known)


def test_there_is_a_bound_and_those_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting_streams, "STREAMS_MAX", 100)
    monkeypatch.setattr(resting_streams, "FORGOTTEN_AT_ONCE", 10)
    monkeypatch.setattr(resting_streams, "FORGETTING_SAMPLE", 40)
    streams = RestingStreams()
    streams.put("small", 1, "t", 1)
    last = dict.fromkeys([f"busy/{number}" for number in range(5)], 1)
    for topic in last:
        streams.put("large", 1, topic, 1)
    for number in range(1000):
        streams.put("large", 1, f"once/{number}", 1)
        assert len(streams) <= 100
        for topic in last:
            assert streams.advance("large", 1, topic, last[topic] + 1, 1), "it was used all the time"
            last[topic] += 1
    assert streams.take("small", 1, "t") == 1
