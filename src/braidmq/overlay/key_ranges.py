"""Ranges of keys: half open, never wrapping; and what is left of them when parts are taken away."""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.keys import Key

KeyRange = tuple[Key, Key]
"""[low, high) of the keys."""

JUST_AFTER = b"\0"
"""key + JUST_AFTER is the first key behind a key."""


def without(wholes: Iterable[KeyRange], taken: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """What is left of some ranges when others are taken from them."""
    left = [whole for whole in wholes if whole[0] < whole[1]]
    for start, end in taken:
        if start >= end:
            continue
        rest: list[KeyRange] = []
        for low, high in left:
            if end <= low or high <= start:
                rest.append((low, high))
                continue
            if low < start:
                rest.append((low, start))
            if end < high:
                rest.append((end, high))
        left = rest
    return tuple(left)
