"""Who publishes and subscribes what in a trial: the patterns of the papers, and any other by its numbers.

| pattern | publishers and subscribers a topic | from |
|---|---|---|
| alpha … gamma | 10 and 990, 500 and 500, 990 and 10 | Banno et al. 2015, Table 2 |
| delta … zeta | 1 and 9, 5 and 5, 9 and 1 | the same |
| subs10 … subs5120 | 1 and so many, one topic among others, five a broker | Banno and Shudo 2019, §4 |
| PxSxT | P and S, T topics | |
| zipf | 1 and fewer and fewer: the topic of rank r has 1/r of the first one's subscribers | |
| lookups | none: every node looks up a key | |
| fleet, fleetTxF | T devices a broker that publish, F that wait for commands (`fleet_plan`) | |

A pattern deals the roles out to brokers by chance; a broker is a number from 0 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, Protocol, TypeVar

import msgspec

NODES_DEFAULT: Final = 1_000
NODES_MAX: Final = 1_000_000
KEYS_MAX: Final = 5_000_000
"""Roles that are dealt out: more than a machine's memory holds."""

DEVICES_MAX: Final = 40_000_000
"""Topics and filters of a fleet: more than a machine's memory holds."""

FLEET_BROKERS_MIN: Final = 8
FLEET_DEVICES: Final = 10_000
"""Brokers of a fleet at least; topics and filters that each has if nothing is said."""

DELIVERIES_MAX: Final = 1_000_000
"""If the publications of all publishers meant more deliveries, some of them are drawn, unless told how many."""

TOPICS_A_BROKER: Final = 5
"""How many topics a broker is in, on average, where topics differ in size (Banno and Shudo 2019, §4)."""

TOPIC_SIZES: Final = (2, 1_000)
"""The sizes of the topics around the one that is measured: between these, each order of magnitude as likely."""

TABLE_2: Final = {
    "alpha": (10, 990),
    "beta": (500, 500),
    "gamma": (990, 10),
    "delta": (1, 9),
    "epsilon": (5, 5),
    "zeta": (9, 1),
}
GREEK: Final = dict(zip("αβγδεζ", TABLE_2, strict=True))

CHOICES: Final = (
    f"{', '.join(TABLE_2)}, subs10 … subs5120, zipf, lookups, fleet, fleet100x50 (topics and filters a broker), "
    "or PUBLISHERSxSUBSCRIBERSxTOPICS as in 1x9x100"
)


P = TypeVar("P")


class PatternError(ValueError):
    """A pattern that is none, or that these nodes cannot play; it says what is possible."""


class Topic(msgspec.Struct, frozen=True):
    name: str
    publishers: tuple[int, ...]
    subscribers: tuple[int, ...]
    measured: bool = True
    """Whether its publications are."""


class RoleAssignment(msgspec.Struct, frozen=True):
    """All roles in a network of so many brokers; `note` is what the reader should know about it."""

    brokers: int
    topics: tuple[Topic, ...]
    note: str = ""

    def subscriptions(self) -> list[list[str]]:
        """The topics that each broker subscribes to."""
        found: list[list[str]] = [[] for _ in range(self.brokers)]
        for topic in self.topics:
            for broker in topic.subscribers:
                found[broker].append(topic.name)
        return found

    def adverts(self) -> list[list[str]]:
        """The topics that each broker publishes. Whether they are wanted is for its method to find out."""
        found: list[list[str]] = [[] for _ in range(self.brokers)]
        for topic in self.topics:
            for broker in topic.publishers:
                found[broker].append(topic.name)
        return found

    def roles(self) -> Iterator[tuple[list[str], list[str]]]:
        """The topics that each broker subscribes to, and those that it publishes."""
        return zip(self.subscriptions(), self.adverts(), strict=True)

    def publications(self) -> list[tuple[Topic, int]]:
        """One of each publisher of each measured topic."""
        return [(topic, broker) for topic in self.topics if topic.measured for broker in topic.publishers]


def drawn(publications: Sequence[P], deliveries: Sequence[int], count: int | None, chance: Random) -> list[P]:
    """So many of the publications, in their order; without a number, as many as are measured in reasonable time.

    `deliveries` is how many each of them means.
    """
    if count is None:
        count = len(publications) * DELIVERIES_MAX // max(sum(deliveries), DELIVERIES_MAX)
    if count >= len(publications):
        return list(publications)
    return [publications[position] for position in sorted(chance.sample(range(len(publications)), max(count, 1)))]


class Pattern(Protocol):
    @property
    def nodes_default(self) -> int: ...

    def deal(self, nodes: int, chance: Random) -> RoleAssignment: ...


class Even(msgspec.Struct, frozen=True):
    """Topics of the same size; without a number of topics, as many as there are brokers for, each in one of them.

    Brokers that are left over subscribe to a topic of their own each.
    """

    publishers: int
    subscribers: int
    topics: int | None = None

    @property
    def size(self) -> int:
        return self.publishers + self.subscribers

    @property
    def nodes_default(self) -> int:
        return NODES_DEFAULT if self.topics is None else min(self.size * self.topics, NODES_MAX)

    def deal(self, nodes: int, chance: Random) -> RoleAssignment:
        _check(nodes, self.size, f"{self.publishers} publishers and {self.subscribers} subscribers a topic")
        note = ""
        topics = nodes // self.size if self.topics is None else self.topics
        roles = self.size * topics
        if roles > KEYS_MAX:
            raise PatternError(f"{roles:,} publishers and subscribers: at most {KEYS_MAX:,} fit")
        dealer = _Dealer(nodes, chance)
        dealt = [
            Topic(_name(number), dealer.deal(self.publishers), dealer.deal(self.subscribers))
            for number in range(topics)
        ]
        if nodes > roles:
            left = nodes - roles
            note = f"{left:,} node{'s take' if left > 1 else ' takes'} no part: each subscribes to a topic of its own"
            dealt += [
                Topic(_name(topics + position), (), (broker,), measured=False)
                for position, broker in enumerate(dealer.left_over())
            ]
        elif nodes < roles:
            note = f"{nodes:,} nodes are in {roles / nodes:.1f} topics each, on average"
        return RoleAssignment(nodes, tuple(dealt), note)


class Around(msgspec.Struct, frozen=True):
    """One topic with one publisher is measured; the other roles of five topics a broker are in others, of all sizes."""

    subscribers: int
    nodes_default: int = 10_000

    def deal(self, nodes: int, chance: Random) -> RoleAssignment:
        _check(nodes, 1 + self.subscribers, f"1 publisher and {self.subscribers} subscribers")
        sizes = []
        left = max(0, TOPICS_A_BROKER * nodes - 1 - self.subscribers)
        least, most = TOPIC_SIZES
        while left:
            size = min(int(least * (most / least) ** chance.random()), nodes, left)
            sizes.append(size)
            left -= size
        measured = chance.randrange(len(sizes) + 1)
        sizes.insert(measured, 1 + self.subscribers)
        brokers = range(nodes)
        dealt = []
        for number, size in enumerate(sizes):
            members = chance.sample(brokers, size)
            dealt.append(Topic(_name(number), (members[0],), tuple(members[1:]), measured=number == measured))
        return RoleAssignment(
            nodes, tuple(dealt), f"{len(sizes) - 1:,} other topics, {TOPICS_A_BROKER} a node on average"
        )


class Zipf(msgspec.Struct, frozen=True):
    """Few topics that many want, and many that few want; one publisher each, a topic for every ten brokers."""

    nodes_default: int = NODES_DEFAULT

    def deal(self, nodes: int, chance: Random) -> RoleAssignment:
        _check(nodes, 10, "a topic for every ten nodes")
        topics = nodes // 10
        ranks = range(1, topics + 1)
        share = (TOPICS_A_BROKER * nodes - topics) / sum(1 / rank for rank in ranks)
        brokers = range(nodes)
        dealt = []
        for rank in ranks:
            members = chance.sample(brokers, 1 + max(1, min(nodes - 1, round(share / rank))))
            dealt.append(Topic(_name(rank - 1), (members[0],), tuple(members[1:])))
        return RoleAssignment(nodes, tuple(dealt), f"{topics:,} topics")


class Lookups(msgspec.Struct, frozen=True):
    """No topics at all: every node looks up a key."""

    nodes_default: int = NODES_DEFAULT

    def deal(self, nodes: int, chance: Random) -> RoleAssignment:
        _check(nodes, 2, "a lookup")
        return RoleAssignment(nodes, ())


class Fleet(msgspec.Struct, frozen=True):
    """A site with many devices at each broker; who publishes and wants what is in `fleet_plan`."""

    topics: int = FLEET_DEVICES
    filters: int = FLEET_DEVICES
    nodes_default: int = NODES_DEFAULT

    def deal(self, nodes: int, chance: Random) -> RoleAssignment:
        _check(nodes, FLEET_BROKERS_MIN, "a fleet")
        if nodes * (self.topics + self.filters) > DEVICES_MAX:
            many = f"{nodes * self.topics:,} topics and {nodes * self.filters:,} filters"
            raise PatternError(f"{many}: at most {DEVICES_MAX:,} of both fit")
        note = f"{self.topics:,} topics and {self.filters:,} command filters of devices at each broker"
        return RoleAssignment(nodes, (), note)


def parse(text: str) -> Pattern:
    """The pattern of this name."""
    name = GREEK.get(text, text)
    if name in TABLE_2:
        return Even(*TABLE_2[name])
    if name == "zipf":
        return Zipf()
    if name == "lookups":
        return Lookups()
    if re.fullmatch("subs[0-9]{1,7}", name):
        return Around(int(name[4:]))
    sizes = re.fullmatch("fleet(?:([0-9]{1,7})[x×]([0-9]{1,7}))?", name)
    if sizes is not None:
        topics, filters = (FLEET_DEVICES if size is None else int(size) for size in sizes.groups())
        if not topics or not filters:
            raise PatternError(f"the pattern {text} has no devices: it needs a topic and a filter a broker, at least")
        return Fleet(topics, filters)
    numbers = re.fullmatch("([0-9]{1,7})[x×]([0-9]{1,7})[x×]([0-9]{1,7})", name)
    if numbers is None:
        raise PatternError(f"there is no pattern {text!r}; there are {CHOICES}")
    publishers, subscribers, topics = map(int, numbers.groups())
    if not publishers or not topics:
        raise PatternError(f"the pattern {text} publishes nothing: it needs a publisher and a topic, at least")
    return Even(publishers, subscribers, topics)


def _check(nodes: int, least: int, why: str) -> None:
    if nodes > NODES_MAX:
        raise PatternError(f"{nodes:,} nodes are too many: at most {NODES_MAX:,}")
    if nodes < least:
        raise PatternError(f"{nodes:,} nodes are too few for {why}: at least {least:,}")


def _name(number: int) -> str:
    return f"t/{number:07d}"


class _Dealer:
    """Deals brokers out like cards: all before one comes a second time, and never twice within a topic."""

    def __init__(self, brokers: int, chance: Random) -> None:
        self._deck = list(range(brokers))
        chance.shuffle(self._deck)
        self._next = 0

    def deal(self, count: int) -> tuple[int, ...]:
        return tuple(self._cards(count))

    def _cards(self, count: int) -> Iterator[int]:
        for _ in range(count):
            yield self._deck[self._next % len(self._deck)]
            self._next += 1

    def left_over(self) -> list[int]:
        """Those that were not dealt out yet."""
        return self._deck[self._next :]
