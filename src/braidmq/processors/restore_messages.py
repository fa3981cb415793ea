"""What a broker that starts after a crash says to the process that makes spools from its log (see `restorer`)."""

from __future__ import annotations

import msgspec


class SpoolQuery(msgspec.Struct, frozen=True):
    """The spools of one processor."""

    topic: str
    spool: int


class RestoreRequest(msgspec.Struct, frozen=True):
    """Which spools to make, from the last `rows_max` rows of a log, of topics with a message `since` (Unix time).

    Of each processor at most `bytes_max`: those that came last.
    """

    folder: str
    queries: list[SpoolQuery]
    rows_max: int
    bytes_max: int
    since: float


class RestoredSpool(msgspec.Struct, frozen=True, array_like=True):
    """A spool, its messages encoded as workers get them."""

    topic: str
    last: int
    messages: tuple[bytes, ...]
    used_at: float
