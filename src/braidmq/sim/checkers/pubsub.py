"""What must hold of publish/subscribe once a network is quiet. A checker returns what is wrong, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

NAMES_MAX = 5
"""Brokers that a complaint names."""


def each_got_it_once(what: str, subscribers: Iterable[int], got: Sequence[int]) -> list[str]:
    """Each live subscriber got a publication exactly once, and the application of no other broker did."""
    expected = dict.fromkeys(subscribers)
    if len(got) == len(expected) and all(broker in expected for broker in got) and len(set(got)) == len(got):
        return []
    times = Counter(got)
    wrong = []
    for how, brokers in (
        ("did not reach", [broker for broker in expected if broker not in times]),
        ("came more than once to", [broker for broker, count in times.items() if count > 1]),
        ("was handed to the clients of", [broker for broker in times if broker not in expected]),
    ):
        if brokers:
            wrong.append(f"{what} {how} {_some(brokers)}")
    return wrong


def nobody_got_it_twice(what: str, got: Sequence[int]) -> list[str]:
    """No broker was handed a publication a second time."""
    if len(set(got)) == len(got):
        return []
    return [f"{what} came more than once to {_some([broker for broker, count in Counter(got).items() if count > 1])}"]


def nobody_else_was_bothered(what: str, members: Iterable[int], reached: Iterable[int]) -> list[str]:
    """Only brokers that publish or subscribe to its topic have seen a publication."""
    known = dict.fromkeys(members)
    others = [broker for broker in dict.fromkeys(reached) if broker not in known]
    return [f"{what} bothered {_some(others)}"] if others else []


def suspended_only_without_subscribers(topic: str, is_wanted: Mapping[int, bool], has_subscribers: bool) -> list[str]:
    """Every publisher knows that a topic is wanted when, and only when, it has subscribers."""
    wrong = [broker for broker, wanted in is_wanted.items() if wanted != has_subscribers]
    if not wrong:
        return []
    fact = "has subscribers" if has_subscribers else "has no subscribers"
    belief = "suspended" if has_subscribers else "publishing"
    return [f"topic {topic} {fact}, but {belief}: {_some(wrong)}"]


def _some(brokers: Sequence[int]) -> str:
    names = ", ".join(map(str, sorted(brokers)[:NAMES_MAX]))
    more = f" and {len(brokers) - NAMES_MAX} more" if len(brokers) > NAMES_MAX else ""
    return f"broker {names}" if len(brokers) == 1 else f"brokers {names}{more}"
