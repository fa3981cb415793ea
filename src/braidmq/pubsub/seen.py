"""Which publications a broker has had: the guard against a second copy."""

from __future__ import annotations

from braidmq.bounded import BoundedDict
from braidmq.host import Address

SEEN_MAX = 1024
"""Publications that a broker tells from new ones. A copy that comes after so many others counts as new."""


class Seen:
    """The last publications, oldest first; empty, it weighs little."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: BoundedDict[tuple[Address, int], None] | None = None

    def is_new(self, origin: Address, number: int) -> bool:
        """True the first time."""
        if self._seen is None:
            self._seen = BoundedDict(SEEN_MAX)
        return self._seen.add((origin, number))
