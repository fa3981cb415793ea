"""Who follows whom, as topics and their members: read from KDD Cup 2012's `user_sns.txt`, or made up in its shape.

The paper makes a topic of each follower, with the follower and all followees as its members, and takes 64 of them
(Tanaka et al. 2021, §7). The file may not be passed on, so those who do not have it get a seeded graph of the same
shape: as many topics, members a topic, and clients with more than one topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from braidmq.placement.errors import PlacementError

Topics = tuple[tuple[str, ...], ...]
"""The members of each topic; the first one is the follower."""

TRIES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class GraphShape:
    """Topics with `members_min` to `members_max` members; so many clients have two of them, so many three.

    The number of clients then comes out between `clients_min` and `clients_max`.
    """

    topics: int = 64
    members_min: int = 10
    members_max: int = 21
    in_two: int = 23
    in_three: int = 1
    clients_min: int = 913
    clients_max: int = 940

    @property
    def members_mean(self) -> float:
        clients = (self.clients_min + self.clients_max) / 2
        return (clients + self.in_two + 2 * self.in_three) / self.topics


PAPER_SHAPE: Final = GraphShape()


def grown_shape(clients: int, topics: int, shape: GraphShape = PAPER_SHAPE) -> GraphShape:
    """Topics of the same sizes, but so many of them, and so many clients, some of which have two topics."""
    more = round(shape.members_mean * topics) - clients
    if not 0 <= more <= clients:
        raise PlacementError(
            f"{topics:,} topics of {shape.members_mean:.1f} members are made from {-(-more - clients) // 2:,} to "
            f"{more + clients:,} clients, not from {clients:,}"
        )
    slack = max(1, clients // 100)
    return GraphShape(topics, shape.members_min, shape.members_max, more, 0, max(1, clients - slack), clients + slack)


def made_up(shape: GraphShape, chance: np.random.Generator) -> Topics:
    """A graph of this shape, the same for the same state of `chance`."""
    sizes = _sizes(shape, chance)
    slots = np.repeat(np.arange(shape.topics), sizes)
    chance.shuffle(slots)
    topics: list[list[str]] = [[] for _ in range(shape.topics)]
    at = 0
    number = 0
    for count, clients in ((3, shape.in_three), (2, shape.in_two)):
        for _ in range(clients):
            _separate(slots, at, count)
            for topic in slots[at : at + count].tolist():
                topics[topic].append(f"c{number}")
            at += count
            number += 1
    for topic in slots[at:].tolist():
        topics[topic].append(f"c{number}")
        number += 1
    for members in topics:
        chance.shuffle(members)
    return tuple(tuple(members) for members in topics)


def _sizes(shape: GraphShape, chance: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Small topics are more frequent than large ones, so much that the mean is right."""
    sizes = np.arange(shape.members_min, shape.members_max + 1)
    if not sizes.size or not sizes[0] <= shape.members_mean <= sizes[-1]:
        raise PlacementError(
            f"topics of {shape.members_min} to {shape.members_max} members "
            f"do not have {shape.members_mean:.1f} on average"
        )
    low, high = -5.0, 5.0
    for _ in range(60):
        tilt = (low + high) / 2
        weight = np.exp(tilt * (sizes - sizes.mean()))
        weight /= weight.sum()
        low, high = (tilt, high) if weight @ sizes < shape.members_mean else (low, tilt)
    for _ in range(TRIES_MAX):
        drawn = chance.choice(sizes, shape.topics, p=weight)
        if shape.clients_min <= drawn.sum() - shape.in_two - 2 * shape.in_three <= shape.clients_max:
            return np.asarray(drawn, np.int64)
    raise PlacementError(
        f"no {shape.topics:,} topics with {shape.clients_min:,} to {shape.clients_max:,} clients found"
    )


def _separate(slots: np.ndarray[tuple[int], np.dtype[np.int64]], at: int, count: int) -> None:
    """Exchanges what follows so that the next slots are of different topics."""
    for here in range(at + 1, at + count):
        there = here
        while slots[there] in slots[at:here]:
            there += 1
            if there == slots.size:
                raise PlacementError("there are too few topics for clients that have several")
        slots[here], slots[there] = slots[there], slots[here]


def from_rows(lines: Iterable[str], shape: GraphShape = PAPER_SHAPE) -> Topics:
    """The first topics of the right size in a file of two columns, follower and followee. The rows of a follower stand
    together, as they do in `user_sns.txt`, so no more of the file is read than it takes."""
    found: list[tuple[str, ...]] = []
    for members in _followers(lines):
        if shape.members_min <= len(members) <= shape.members_max:
            found.append(members)
        if len(found) == shape.topics:
            return tuple(found)
    raise PlacementError(
        f"{shape.topics:,} followers with {shape.members_min - 1} to {shape.members_max - 1} followees are wanted, and "
        f"there are {len(found):,}"
    )


def _followers(lines: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Each follower with all followees."""
    seen: set[str] = set()
    members: dict[str, None] = {}
    follower = ""
    for number, line in enumerate(lines, 1):
        columns = line.split()
        if not columns:
            continue
        if len(columns) != 2:
            raise PlacementError(f"line {number}: a follower and a followee are wanted, not {line.strip()[:60]!r}")
        if columns[0] != follower:
            if members:
                yield tuple(members)
            follower = columns[0]
            if follower in seen:
                raise PlacementError(f"line {number}: follower {follower} again: sort the file first")
            seen.add(follower)
            members = {follower: None}
        members[columns[1]] = None
    if members:
        yield tuple(members)


def clients_of(topics: Sequence[Sequence[str]]) -> list[str]:
    """Everybody, in the order of their first topics."""
    return list(dict.fromkeys(member for members in topics for member in members))
