"""The order of messages in a spool that several brokers have: by time, broker and number, the same at all of them.

The time is the one at which a message came to the broker of its publisher. What comes late is put in its place, what is
there already is left out, and so is what is older than all of a full spool. So a spool holds the last messages of all
that it was ever given, in whatever order it was given them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

Order = tuple[float, str, int]
"""The time, the broker, and the number there."""
T = TypeVar("T")

NO_PLACE: Final = -1


def place_of(kept: deque[T], order: Order, order_of: Callable[[T], Order], size: int) -> int:
    """Where a message goes in a spool of this size, as it is now; NO_PLACE if it is there already, or too old."""
    if not kept or order_of(kept[-1]) < order:  # nearly always
        return len(kept)
    index = bisect_left(kept, order, key=order_of)
    is_there = order_of(kept[index]) == order
    is_too_old = not index and len(kept) >= size
    return NO_PLACE if is_there or is_too_old else index
