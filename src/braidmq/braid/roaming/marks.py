"""Marks: how a publication is known that reaches a session on two ways while it moves between brokers.

A publication of QoS 1 or 2 has a mark: its origin and its offset in the origin's history. While a session moves, both
brokers stand for its filters, so that nothing is missed; the marks tell what is the same. The giver says how far it has
followed the histories when it took the session's state (`Horizon`): whatever lies within is in that state or was
acknowledged before. The taker drops that, and everything whose mark it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from braidmq.braid.transfer.predecessors import ByTopic
from braidmq.broker.message import Delivery, Message

Mark = tuple[str, int]
"""An origin, and an offset in its history."""

Ranges = tuple[tuple[int, int], ...]

Row = tuple[str, int, Ranges]
"""Of an origin's history: everything up to an offset, and ranges behind it."""


class Horizon:
    """How far the histories were followed."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)
        self._by_origin: dict[str, list[tuple[int, Ranges]]] = {}
        for origin, floor, ranges in self.rows:
            self._by_origin.setdefault(origin, []).append((floor, ranges))

    def floor_of(self, origin: str) -> int:
        """Up to where all of an origin's history was followed."""
        return max([floor for floor, _ in self._by_origin.get(origin, ())], default=0)

    def covers(self, mark: Mark) -> bool:
        for floor, ranges in self._by_origin.get(mark[0], ()):
            if mark[1] <= floor or any(low <= mark[1] <= high for low, high in ranges):
                return True
        return False

    def covers_all(self, rows: Iterable[Row]) -> bool:
        """Whether nothing of other rows is missing."""
        own = {origin: (floor, ranges) for origin, floor, ranges in merged(self.rows)}
        for origin, floor, ranges in rows:
            own_floor, own_ranges = own.get(origin, (0, ()))
            for low, high in ((1, floor), *ranges):
                begin = max(low, own_floor + 1)
                if begin <= high and not any(first <= begin and high <= last for first, last in own_ranges):
                    return False
        return True


def merged(rows: Iterable[Row]) -> list[Row]:
    """The same with one row for each origin."""
    floors: dict[str, int] = {}
    found: dict[str, list[tuple[int, int]]] = {}
    for origin, floor, ranges in rows:
        floors[origin] = max(floor, floors.get(origin, 0))
        found.setdefault(origin, []).extend(ranges)
    return [_merged_row(origin, floor, sorted(found[origin])) for origin, floor in floors.items()]


def _merged_row(origin: str, floor: int, ranges: list[tuple[int, int]]) -> Row:
    kept: list[tuple[int, int]] = []
    for low, high in ranges:
        if low <= floor + 1:
            floor = max(floor, high)
        elif kept and low <= kept[-1][1] + 1:
            kept[-1] = (kept[-1][0], max(high, kept[-1][1]))
        else:
            kept.append((low, high))
    return origin, floor, tuple(kept)


class SavedMove(msgspec.Struct, frozen=True, array_like=True):
    """What is kept in the store of a session that has come, while it checks marks."""

    giver: str
    horizon: tuple[Row, ...]
    published: ByTopic = ()
    """What its client has published last elsewhere, on topics on which it has not published since."""


def rows_of(marks: Iterable[Mark]) -> list[Row]:
    """Single marks, as ranges."""
    found: dict[str, list[tuple[int, int]]] = {}
    for origin, offset in sorted(marks):
        ranges = found.setdefault(origin, [])
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1] = (ranges[-1][0], offset)
        else:
            ranges.append((offset, offset))
    return [(origin, 0, tuple(ranges)) for origin, ranges in found.items()]


class Marks:
    """Tells a session which mark the publication has that it is being given."""

    def __init__(self) -> None:
        self.current: Mark | None = None
        """Of the publication of another broker that is being delivered now."""
        self.follows: Mark | None = None
        """What its publisher has published elsewhere just before."""
        self._unmarked: list[tuple[Message, Callable[[Mark], None]]] = []

    def when_marked(self, message: Message, note: Callable[[Mark], None]) -> None:
        """A publication from here gets its mark when it leaves for other brokers, right after its delivery here."""
        if self._unmarked and self._unmarked[-1][0] is not message:
            self._unmarked.clear()
        self._unmarked.append((message, note))

    def set(self, message: Message, mark: Mark) -> None:
        for one, note in self._unmarked:
            if one is message:
                note(mark)
        self._unmarked.clear()


class MarkedDelivery:
    """A publication that came while its session was under way; its mark may come later."""

    __slots__ = ("delivery", "follows", "mark")

    def __init__(self, delivery: Delivery, mark: Mark | None, follows: Mark | None = None) -> None:
        """`follows` what its publisher has published elsewhere just before."""
        self.delivery = delivery
        self.mark = mark
        self.follows = follows

    def note(self, mark: Mark) -> None:
        self.mark = mark

    @property
    def stream(self) -> tuple[str, str]:
        """Its publisher and topic: what has the same comes in its order, wherever it was published."""
        return self.delivery.message.sender, self.delivery.message.topic
