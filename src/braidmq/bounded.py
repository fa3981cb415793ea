"""Mappings with a bound: what is remembered must not grow with all that was ever heard.

A broker remembers peers, answers and publications to know them again. None of these memories may fill the machine, so
each has a bound, and gives up its oldest entry when a new one finds no room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V], Generic[K, V]):
    """A dict of at most `length_max` entries: one more, and the oldest goes.

    An entry is as old as its first assignment, as the order of a dict has it; `renew` makes it the youngest. So
    `d[k] = v` forgets what came first, and `d.renew(k, v)` what was not renewed for longest. `on_drop` is told which
    entry went to make room; it is not told of what is deleted.
    """

    __slots__ = ("length_max", "on_drop")

    def __init__(self, length_max: int, on_drop: Callable[[K, V], object] | None = None) -> None:
        if length_max < 1:
            raise ValueError(f"a bounded dict has room for one entry or more, not for {length_max}")
        super().__init__()
        self.length_max = length_max
        self.on_drop = on_drop

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self.length_max:
            self._drop_oldest()

    def setdefault(self, key: K, default: V) -> V:
        if key not in self:
            self[key] = default
        return self[key]

    def renew(self, key: K, value: V) -> None:
        """Puts an entry in as the youngest, whether or not it was there."""
        self.pop(key, None)
        self[key] = value

    def add(self: BoundedDict[K, None], key: K) -> bool:
        """Whether this key is new; it is in now. For dicts that are used as sets: their values are None."""
        if key in self:
            return False
        self[key] = None
        return True

    def update(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not offered: dict's own would go past the bound."""
        raise TypeError("a bounded dict is filled entry by entry")

    __ior__ = update

    def _drop_oldest(self) -> None:
        oldest = next(iter(self))
        value = self.pop(oldest)
        if self.on_drop is not None:
            self.on_drop(oldest, value)
