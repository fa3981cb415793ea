"""Which publications a broker has had: the guard against a second copy."""

from __future__ import annotations

from braidmq.host import Address

SEEN_MAX = 1024
"""Publications that a broker tells from new ones. A copy that comes after so many others counts as new."""


class Seen:
    """The last publications, oldest first; empty, it weighs little."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[Address, int], None] | None = None

    def is_new(self, origin: Address, number: int) -> bool:
        """True the first time."""
        seen = self._seen = self._seen or {}
        if (origin, number) in seen:
            return False
        seen[origin, number] = None
        if len(seen) > SEEN_MAX:
            del seen[next(iter(seen))]
        return True
