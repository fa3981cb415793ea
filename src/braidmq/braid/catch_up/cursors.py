"""How far this broker has followed the histories of other brokers.

For each origin: up to `floor` everything that clients here wanted has been handled; behind it, `seen` has what was. It
is written to the store in the same commit as what came of it, so that after a crash nothing is missing and nothing
comes twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.broker.store import Store
from braidmq.host import Address

SEEN_MAX = 10_000
"""Offsets behind the floor that are remembered one by one; what is missing below is given up if there are more."""

SEEN_MANY = 1000
"""With so many it is time to ask the origin, so that the floor can rise."""

SAVE_S = 1.0
"""How often cursors are written if nothing else is."""

ORIGINS_MAX = 4096
"""Brokers whose histories are followed; the one that was heard of least recently goes."""


class Cursor(msgspec.Struct):
    address: Address
    floor: int = 0
    head: int = 0
    """The last offset that the origin is known to have."""
    since: float = 0.0
    """Publications from before this time are not missed: nobody here wanted them yet."""
    seen: dict[int, None] = msgspec.field(default_factory=dict)
    asked_at: float = 0.0
    retry_s: float = 0.0
    """After how long it is asked again if it did not answer."""

    def seen_ranges(self) -> list[tuple[int, int]]:
        """`seen` as ranges, both ends included."""
        ranges: list[tuple[int, int]] = []
        for offset in sorted(self.seen):
            if ranges and ranges[-1][1] == offset - 1:
                ranges[-1] = (ranges[-1][0], offset)
            else:
                ranges.append((offset, offset))
        return ranges

    def raise_floor(self, floor: int) -> None:
        if floor > self.floor:
            self.floor = floor
            self.seen = {offset: None for offset in self.seen if offset > floor}


class SavedCursor(msgspec.Struct, frozen=True, array_like=True):
    address: Address
    floor: int
    since: float
    seen: list[tuple[int, int]]


class Cursors:
    def __init__(self, store: Store, saved: Iterable[tuple[str, bytes]]) -> None:
        self._store = store
        self._by_origin: BoundedDict[str, Cursor] = BoundedDict(
            ORIGINS_MAX, lambda one, _cursor: store.drop_cursor(one)
        )
        self._changed: dict[str, None] = {}
        self._saved_at = 0.0
        for origin, row in saved:
            one = msgspec.msgpack.decode(row, type=SavedCursor)
            seen = dict.fromkeys(offset for low, high in one.seen for offset in range(low, high + 1))
            self._by_origin[origin] = Cursor(one.address, one.floor, one.floor, one.since, seen)

    def __iter__(self) -> Iterator[tuple[str, Cursor]]:
        return iter(list(self._by_origin.items()))

    def get(self, origin: str) -> Cursor | None:
        return self._by_origin.get(origin)

    def of(self, origin: str, address: Address, since: float) -> Cursor:
        """The cursor for an origin; if it is new, for what is published from `since` on."""
        cursor = self._by_origin.get(origin)
        if cursor is None:
            cursor = self._by_origin[origin] = Cursor(address, since=since)
            self._changed[origin] = None
        cursor.address = address
        return cursor

    def mark_handled(self, origin: str, cursor: Cursor, offset: int) -> bool:
        """Notes that a publication is handled now; False if it was before."""
        if offset <= cursor.floor or offset in cursor.seen:
            return False
        cursor.seen[offset] = None
        cursor.head = max(cursor.head, offset)
        self._changed[origin] = None
        while cursor.floor + 1 in cursor.seen:
            cursor.floor += 1
            del cursor.seen[cursor.floor]
        if len(cursor.seen) > SEEN_MAX:  # what is missing below is given up
            cursor.raise_floor(min(cursor.seen))
        return True

    def mark_run_handled(self, origin: str, cursor: Cursor, first: int, count: int) -> bool:
        """Notes that publications that follow one another are handled now; False, and nothing, if some were before."""
        if first == cursor.floor + 1 and not cursor.seen:
            cursor.floor += count
            cursor.head = max(cursor.head, cursor.floor)
            self._changed[origin] = None
            return True
        offsets = range(first, first + count)
        if first <= cursor.floor or any(one in cursor.seen for one in offsets):
            return False
        for offset in offsets:
            self.mark_handled(origin, cursor, offset)
        return True

    def is_next(self, origin: str, offset: int) -> bool:
        """Whether everything before an offset is handled."""
        cursor = self._by_origin.get(origin)
        return cursor is not None and offset == cursor.floor + 1

    def is_handled(self, origin: str, offset: int) -> bool:
        cursor = self._by_origin.get(origin)
        return cursor is not None and (offset <= cursor.floor or offset in cursor.seen)

    def note(self, origin: str) -> None:
        """The cursor of an origin has changed."""
        self._changed[origin] = None

    @property
    def is_changed(self) -> bool:
        return bool(self._changed)

    def save_if_due(self, now: float) -> None:
        """Writes what has changed with the commit that follows, if there is one or the last was long ago."""
        if self._store.dirty or now - self._saved_at > SAVE_S:
            self._saved_at = now
            self._save()

    def _save(self) -> None:
        for origin in self._changed:
            cursor = self._by_origin.get(origin)
            if cursor is not None:
                saved = SavedCursor(cursor.address, cursor.floor, cursor.since, cursor.seen_ranges())
                self._store.save_cursor(origin, msgspec.msgpack.encode(saved))
        self._changed.clear()
