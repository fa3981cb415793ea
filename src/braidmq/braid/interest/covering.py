"""What the clients of this broker want, said with the fewest filters.

A filter that another one of the same broker covers (`a/b` beside `a/#`) needs no key in the overlay: whatever matches
it comes anyway. The broker announces the filters that are left.
"""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.braid.interest.shapes import Shape, shape_of
from braidmq.mqtt.topics import covers, has_wildcard, matches
from braidmq.mqtt.trees import FilterTree


class CoveringFilters:
    """The filters of all subscriptions here, and those among them that the broker announces."""

    def __init__(self) -> None:
        self.filters: dict[str, float] = {}
        """By filter: since when it is wanted (Unix time)."""
        self._announced: FilterTree[str] = FilterTree()

    @property
    def announced(self) -> Iterable[str]:
        return self._announced.values()

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of all filters with wildcards."""
        return [shape for one in self.filters if (shape := shape_of(one))]

    def announced_for(self, topic_filter: str) -> str | None:
        """The announced filter that brings what a filter matches: itself or a broader one; None if there is none."""
        return next((one for one in self._announced.match(topic_filter) if covers(one, topic_filter)), None)

    def wanted(self, topic: str, at: float) -> bool:
        """Whether a client here wanted a topic at a time."""
        return any(since <= at and matches(one, topic) for one, since in self.filters.items())

    def add(self, topic_filter: str, since: float) -> None:
        self.filters[topic_filter] = since
        if self.announced_for(topic_filter) is None:
            for narrower in [one for one in self._announced.values() if covers(topic_filter, one)]:
                self._announced.remove(narrower)
            self._announced.set(topic_filter, topic_filter)

    def discard(self, topic_filter: str) -> None:
        self.filters.pop(topic_filter, None)
        if self._announced.remove(topic_filter) is not None and has_wildcard(topic_filter):
            for narrower in [one for one in self.filters if covers(topic_filter, one)]:
                self.add(narrower, self.filters[narrower])
