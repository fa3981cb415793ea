"""What operations add up to.

Rows of a group stay in the order in which they were put first, whatever happens to their values; one that is deleted
and put again is last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from braidmq.journal.operation import DELETE, DELETE_GROUP, DELETE_UP_TO, EPOCH, PUT, Operation, Part

Row = TypeVar("Row")


class Group(dict[Part, Row]):
    """The rows of a group."""

    __slots__ = ("is_ascending", "last", "order")

    def __init__(self) -> None:
        self.last: Part | None = None
        self.is_ascending = True
        """Whether each key was put behind all lower ones: then those up to a key are the first ones."""
        self.order: deque[Part] | None = None
        """The keys as they were put, since the first ones were deleted, with some that are gone: to look for the first
        key of a dictionary takes as long as many before it were deleted."""


class KeyedTables(Generic[Row]):
    """A row is what the caller makes of a value: the value itself, or where it stands."""

    def __init__(self) -> None:
        self._groups: dict[int, dict[Part, Group[Row]]] = {}
        self.epoch = 0

    def apply(self, operation: Operation, row: Row) -> None:
        """Raises TypeError or ValueError if it makes no sense. The row counts if this is a PUT."""
        code = operation.code
        if code == PUT:
            self._put(operation.table, operation.group, operation.key, row)
        elif code == EPOCH:
            self.epoch = operation.table
        elif code == DELETE:
            group = self._groups.get(operation.table, {}).get(operation.group)
            if group is not None:
                group.pop(operation.key, None)
        elif code == DELETE_GROUP:
            self._groups.get(operation.table, {}).pop(operation.group, None)
        elif code == DELETE_UP_TO:
            self._delete_up_to(operation)
        else:
            raise ValueError(f"an operation {code}")

    def _put(self, table: int, of: Part, key: Part, row: Row) -> None:
        groups = self._groups.get(table)
        if groups is None:
            groups = self._groups[table] = {}
        group = groups.get(of)
        if group is None:
            group = groups[of] = Group()
        if group.is_ascending and key not in group:
            if group.last is not None and not group.last < key:  # type: ignore[operator]
                group.is_ascending = False
                group.order = None
            elif group.order is not None:
                group.order.append(key)
            group.last = key
        group[key] = row

    def _delete_up_to(self, operation: Operation) -> None:
        group = self._groups.get(operation.table, {}).get(operation.group)
        if group is None:
            return
        if not group.is_ascending:
            for key in [key for key in group if key <= operation.key]:  # type: ignore[operator]
                del group[key]
            return
        if group.order is None:
            group.order = deque(group)
        order = group.order
        while order and order[0] <= operation.key:  # type: ignore[operator]
            group.pop(order.popleft(), None)

    def group(self, table: int, group: Part = 0) -> dict[Part, Row]:
        """The rows of one group, in their order."""
        return self._groups.get(table, {}).get(group, {})

    def groups(self, table: int) -> dict[Part, Group[Row]]:
        """All groups of a table; one may be empty."""
        return self._groups.get(table, {})

    def rows(self) -> Iterator[Row]:
        """All there are; those of a group in their order."""
        for groups in self._groups.values():
            for group in groups.values():
                yield from group.values()
