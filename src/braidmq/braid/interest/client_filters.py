"""The filters of all subscriptions here, as a set that may be large: what changes it costs the same at any size.

Which of them match a topic is found by their shapes (`shapes`): each gives the one filter of that shape that could, and
a look-up says whether it is in use. So there is no tree, and nothing to walk. The digest names the whole set, and what
has changed of late is remembered, so that a broker that was told the set need not be told all of it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from braidmq.braid.interest.shapes import Shape, apply_shape, shape_of
from braidmq.pubsub.covers.filter_pages import hash_of

_HASHES = 1 << 64

CHANGES_MAX = 20_000
"""Changes that are remembered; whoever was told the set before them is told all of it again."""


class Changes(NamedTuple):
    """From one version of the set to another: hashes of filters that came and that went."""

    added: list[int]
    removed: list[int]


class ClientFilters:
    """By filter: since when it is wanted (Unix time)."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._shapes: dict[Shape, int] = {}
        """Those of the filters with wildcards, and how many have each."""
        self._sum = 0
        self._changes: deque[tuple[int, bool]] = deque(maxlen=CHANGES_MAX)
        self.version = 0
        """Grows with each change."""
        self.added_version = 0
        """The version at which a filter was last added."""

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[str]:
        return iter(self._since)

    def __contains__(self, topic_filter: object) -> bool:
        return topic_filter in self._since

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of all filters with wildcards, each once."""
        return list(self._shapes)

    def add(self, topic_filter: str, since: float) -> None:
        if topic_filter in self._since:
            return
        self._since[topic_filter] = since
        self._count(topic_filter, 1)
        self._note(topic_filter, True)
        self.added_version = self.version

    def discard(self, topic_filter: str) -> None:
        if self._since.pop(topic_filter, None) is not None:
            self._count(topic_filter, -1)
            self._note(topic_filter, False)

    def _count(self, topic_filter: str, change: int) -> None:
        shape = shape_of(topic_filter)
        if shape is not None:
            count = self._shapes.pop(shape, 0) + change
            if count:
                self._shapes[shape] = count

    # Of a topic

    def matching(self, topic: str) -> Iterator[str]:
        """The filters that match a topic."""
        for topic_filter in candidates(self._shapes, topic):
            if topic_filter in self._since:
                yield topic_filter

    def wanted(self, topic: str, at: float) -> bool:
        """Whether a client here wanted a topic at a time."""
        return any(self._since[one] <= at for one in self.matching(topic))

    # As a whole

    @property
    def digest(self) -> bytes:
        """Names this very set of filters: another one has another digest."""
        return len(self._since).to_bytes(4) + self._sum.to_bytes(8)

    def changes_since(self, version: int) -> Changes | None:
        """What has changed since a version; None if that is not known any more."""
        count = self.version - version
        if count > len(self._changes):
            return None
        last: dict[int, bool] = {}
        first: dict[int, bool] = {}
        for hashed, is_added in islice(self._changes, len(self._changes) - count, None):
            first.setdefault(hashed, is_added)
            last[hashed] = is_added
        lasting = [hashed for hashed, is_added in last.items() if first[hashed] == is_added]
        return Changes([one for one in lasting if last[one]], [one for one in lasting if not last[one]])

    def _note(self, topic_filter: str, is_added: bool) -> None:
        hashed = hash_of(topic_filter)
        self._sum = (self._sum + (hashed if is_added else -hashed)) % _HASHES
        self._changes.append((hashed, is_added))
        self.version += 1


def candidates(shapes: dict[Shape, int] | list[Shape], topic: str) -> Iterator[str]:
    """The filters that match a topic, if they are in use: itself, and one for each shape that fits."""
    yield topic
    levels = topic.split("/")
    for shape in shapes:
        topic_filter = apply_shape(shape, levels)
        if topic_filter is not None:
            yield topic_filter
