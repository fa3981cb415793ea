"""What the clients of this broker want, said with the fewest filters.

A filter that another one of the same broker covers (`a/b` beside `a/#`) needs no key in the overlay: whatever matches
it comes anyway. The broker announces the filters that are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from braidmq.mqtt.topics import has_wildcard
from braidmq.mqtt.trees import FilterTree


class AnnouncedChange(NamedTuple):
    """What has changed of the filters that are announced."""

    begun: list[str]
    ended: list[str]


class CoveringFilters:
    """Which of the filters of all subscriptions here the broker announces."""

    def __init__(self) -> None:
        self._filters: FilterTree[str] = FilterTree()
        self._announced: FilterTree[str] = FilterTree()

    @property
    def announced(self) -> Iterator[str]:
        return self._announced.values()

    def announced_for(self, topic_filter: str) -> str | None:
        """The announced filter that brings what a filter matches: itself or a broader one; None if there is none."""
        return next(iter(self._announced.covering(topic_filter)), None)

    def add(self, topic_filter: str) -> AnnouncedChange:
        self._filters.set(topic_filter, topic_filter)
        if self.announced_for(topic_filter) is not None:
            return AnnouncedChange([], [])
        narrower = list(self._announced.covered(topic_filter))
        for one in narrower:
            self._announced.remove(one)
        self._announced.set(topic_filter, topic_filter)
        return AnnouncedChange([topic_filter], narrower)

    def discard(self, topic_filter: str) -> AnnouncedChange:
        self._filters.remove(topic_filter)
        if self._announced.remove(topic_filter) is None:
            return AnnouncedChange([], [])
        begun: dict[str, None] = {}
        if has_wildcard(topic_filter):
            for narrower in list(self._filters.covered(topic_filter)):
                new, covered = self.add(narrower)
                begun.update(dict.fromkeys(new))
                for one in covered:
                    del begun[one]
        return AnnouncedChange(list(begun), [topic_filter])
