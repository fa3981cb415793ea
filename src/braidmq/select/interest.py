"""Which aggregates a broker wants of others: those of groups that somebody asks about, and no others.

A search at a node makes its group's label wanted there; a node that is asked for a label wants it itself, for a while.
So it spreads from the delegate along the fingers, and dies away when nobody searches (Ishihara et al. 2021, §4.7, §6).
A label is wanted of ranges that begin within its group: that leaves out the levels above ⌈log2 N_r⌉.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.bounded import BoundedDict
from braidmq.keys import Key
from braidmq.select.group import ComponentGroup, group_at

INTEREST_S = 1_800.0
"""How long a label is wanted after it was asked for: some rounds through the tables."""

GROUPS_MAX = 10_000
"""Groups whose labels are wanted at a time."""


class Interest:
    """The labels that nodes of this broker want."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: BoundedDict[str, float] = BoundedDict(GROUPS_MAX)
        self._groups: BoundedDict[Key, ComponentGroup | None] = BoundedDict(GROUPS_MAX)

    def note(self, label: str) -> None:
        """Somebody asks for it."""
        self._until.renew(label, self._now() + INTEREST_S)

    def asked(self, _key: Key, labels: tuple[str, ...]) -> None:
        for label in labels:
            self.note(label)

    def labels(self, mine: Key, theirs: Key) -> tuple[str, ...]:
        """Of a range that begins at another key: those of the own group that are wanted."""
        group = self._group(mine)
        if group is None or not group.keys[0] <= theirs < group.keys[1]:
            return ()
        label = group.label
        return (label,) if self._until.get(label, 0.0) > self._now() else ()

    def _group(self, key: Key) -> ComponentGroup | None:
        if key not in self._groups:
            self._groups[key] = group_at(key)
        return self._groups[key]
