"""Where the messages of a topic are processed: at the edge while it has room, otherwise on Spark
(Tanaka et al. 2021, §5.1).

An edge server l has two limits: storage A_l, which bounds its spools, and compute B_l, which bounds

    v_l = Σ |C^P_{n,l}| · u_n  over the topics n that it manages,                                             (Eq. 1)

where u_n is the size of a topic's spool and C^P_{n,l} are the publishers of the topic that are at home there. What it
could hold itself of all that it manages is

    θ_l = min(A_l / Σ u_n, B_l / v_l, 1).                                                                     (Eq. 2)

It delegates when Σ u_n > A_l or v_l > B_l. Topics stay in the order in which they came: a new one
never pushes another out. Storage may
be counted in messages, as the paper does, or in bytes, as the broker does; the equations do not mind.

Which location processes which message is never open to doubt: it is a list of intervals of offsets.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar

import msgspec

Key = TypeVar("Key", bound=Hashable)

Location = Literal["edge", "spark"]

RECALL_SHARE: Final = 0.8
"""A topic is taken back if the edge is then at most so full: otherwise it would leave again with the next new topic."""


INTERVALS_MAX: Final = 64
"""Intervals of a topic that are remembered."""


class Capacity(msgspec.Struct, frozen=True):
    """What an edge has: storage A_l and compute B_l."""

    storage: float
    compute: float


class TopicLoad(msgspec.Struct, frozen=True):
    """What one topic takes of an edge: the size u_n of its spool, and the |C^P_{n,l}| clients that publish it there.

    `storage` is the spool's size in the unit of the capacity, if that is not messages.
    """

    spool: int
    publishers: int
    storage: float = -1.0

    @property
    def stored(self) -> float:
        return self.spool if self.storage < 0 else self.storage

    @property
    def computed(self) -> float:
        return self.publishers * self.spool


class EdgeLoad(msgspec.Struct, frozen=True):
    """What several topics take together: Σ u_n, and v_l (Eq. 1)."""

    storage: float = 0.0
    compute: float = 0.0

    def plus(self, topic: TopicLoad) -> EdgeLoad:
        return EdgeLoad(self.storage + topic.stored, self.compute + topic.computed)

    def minus(self, topic: TopicLoad) -> EdgeLoad:
        return EdgeLoad(self.storage - topic.stored, self.compute - topic.computed)


def edge_load(loads: Iterable[TopicLoad]) -> EdgeLoad:
    """Eq. 1, and beside it the storage."""
    listed = list(loads)
    return EdgeLoad(sum(load.stored for load in listed), sum(load.computed for load in listed))


def is_over(capacity: Capacity, load: EdgeLoad) -> bool:
    """Whether an edge must delegate: Σ u_n > A_l or v_l > B_l."""
    return load.storage > capacity.storage or load.compute > capacity.compute


def local_share(capacity: Capacity, load: EdgeLoad) -> float:
    """θ_l (Eq. 2): the share of what it manages that an edge can process itself."""
    share = 1.0
    if load.storage > 0:
        share = min(share, capacity.storage / load.storage)
    if load.compute > 0:
        share = min(share, capacity.compute / load.compute)
    return share


def has_room(capacity: Capacity, load: EdgeLoad, topic: TopicLoad, share: float = 1.0) -> bool:
    """Whether one more topic fits into this share of an edge that has this load already."""
    within = Capacity(capacity.storage * share, capacity.compute * share)
    return not is_over(within, load.plus(topic))


def allocate(capacity: Capacity, loads: Mapping[Key, TopicLoad]) -> tuple[list[Key], list[Key]]:
    """(topics at the edge, topics delegated) of topics in the order in which they came."""
    edge: list[Key] = []
    delegated: list[Key] = []
    load = EdgeLoad()
    for key, topic in loads.items():
        if has_room(capacity, load, topic):
            load = load.plus(topic)
            edge.append(key)
        else:
            delegated.append(key)
    return edge, delegated


def surplus(capacity: Capacity, edge: Mapping[Key, TopicLoad]) -> list[Key]:
    """The topics to delegate when those at the edge have come to need more than there is: the latest first."""
    load = edge_load(edge.values())
    leaving: list[Key] = []
    for key, topic in reversed(list(edge.items())):
        if not is_over(capacity, load):
            break
        load = load.minus(topic)
        leaving.append(key)
    return leaving


def recalled(capacity: Capacity, load: EdgeLoad, delegated: Mapping[Key, TopicLoad]) -> list[Key]:
    """The delegated topics that can be taken back, in their order."""
    returning: list[Key] = []
    for key, topic in delegated.items():
        if has_room(capacity, load, topic, RECALL_SHARE):
            load = load.plus(topic)
            returning.append(key)
    return returning


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """From offset `first` on, until the next interval begins, messages are processed at `location`."""

    first: int
    location: Location


Intervals = tuple[Interval, ...]


def location_at(intervals: Intervals, offset: int) -> Location | None:
    """Where a message is processed; None if it came before the first interval."""
    location: Location | None = None
    for interval in intervals:
        if interval.first > offset:
            break
        location = interval.location
    return location


def with_interval(intervals: Intervals, interval: Interval) -> Intervals:
    """One more interval at the end; the oldest are dropped. A ValueError if it would begin before the last one."""
    if intervals and interval.first < intervals[-1].first:
        raise ValueError(f"an interval from offset {interval.first} on, behind one from {intervals[-1].first} on")
    if intervals and interval.location == intervals[-1].location:
        return intervals
    return (*intervals, interval)[-INTERVALS_MAX:]


def ranges_of(intervals: Intervals, location: Location) -> list[tuple[int, int | None]]:
    """The offsets [first, end) that a location processes; an end of None is not known yet."""
    ends: Sequence[int | None] = [*(interval.first for interval in intervals[1:]), None]
    return [
        (interval.first, end) for interval, end in zip(intervals, ends, strict=False) if interval.location == location
    ]
