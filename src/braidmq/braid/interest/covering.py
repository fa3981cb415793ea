"""What this broker's clients want, said with the fewest filters.

A filter that another one of the same broker covers (`a/b` beside `a/#`) needs no key in the overlay: whatever matches
it comes anyway. The broker stands for the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.mqtt.topics import has_wildcard, matches
from braidmq.mqtt.trees import FilterTree


def covers(broad: str, narrow: str) -> bool:
    """Whether every topic that `narrow` matches is matched by `broad` as well."""
    if narrow[:1] == "$" and broad[:1] in ("+", "#"):
        return False
    given = narrow.split("/")
    wanted = broad.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(given) or given[place] == "#" or level not in ("+", given[place]):
            return False
    return len(wanted) == len(given)


class CoveringFilters:
    """The filters of all subscriptions here, and those among them that the broker stands for."""

    def __init__(self) -> None:
        self.filters: dict[str, float] = {}
        """By filter: since when it is wanted (Unix time)."""
        self._standing: FilterTree[str] = FilterTree()

    @property
    def standing(self) -> Iterable[str]:
        return self._standing.values()

    def stands_for(self, topic_filter: str) -> str | None:
        """The standing filter that brings what a filter matches: itself or a broader one; None if there is none."""
        return next((one for one in self._standing.match(topic_filter) if covers(one, topic_filter)), None)

    def wanted(self, topic: str, at: float) -> bool:
        """Whether somebody here wanted a topic at a time."""
        return any(since <= at and matches(one, topic) for one, since in self.filters.items())

    def add(self, topic_filter: str, since: float) -> None:
        self.filters[topic_filter] = since
        if self.stands_for(topic_filter) is None:
            for narrower in [one for one in self._standing.values() if covers(topic_filter, one)]:
                self._standing.remove(narrower)
            self._standing.set(topic_filter, topic_filter)

    def discard(self, topic_filter: str) -> None:
        self.filters.pop(topic_filter, None)
        if self._standing.remove(topic_filter) is not None and has_wildcard(topic_filter):
            for narrower in [one for one in self.filters if covers(topic_filter, one)]:
                self.add(narrower, self.filters[narrower])
