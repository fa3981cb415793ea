"""What a broker that starts after a crash says to the process that makes spools from its log (see `restorer`)."""

from __future__ import annotations

import msgspec


class Wanted(msgspec.Struct, frozen=True):
    """The spools of one processor."""

    topic: str
    spool: int


class Order(msgspec.Struct, frozen=True):
    """Whose spools are wanted, from the last `rows_max` rows of a log, as far as something came `since` (Unix time).

    Of each processor, no more than `bytes_max`: those that came last.
    """

    folder: str
    wanted: list[Wanted]
    rows_max: int
    bytes_max: int
    since: float


class Found(msgspec.Struct, frozen=True, array_like=True):
    """A spool, its messages as workers get them."""

    topic: str
    last: int
    messages: tuple[bytes, ...]
    used_at: float
