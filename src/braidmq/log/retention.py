"""Retention: which segments a log removes to stay below its size and age.

Whole segments are removed, the oldest first, over all partitions alike: what is left is what was published last, in any
topic. The segment that is written to stays; the log begins a new one in time (see `segment_bytes_max`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SEGMENTS_BELOW_BOUND: Final = 4
"""A partition's share of `retain_bytes` has room for so many segments: removing one leaves the rest."""


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that is complete."""

    path: Path
    first: int
    last: int
    time_us: int
    """When its latest row was received."""
    bytes: int
    rows: int
    is_parquet: bool = False


def segment_bytes_max(segment_bytes: int, retain_bytes: int, partitions: int) -> int:
    """How large a segment may grow: as it was asked for, but not so that retention could not keep its bound."""
    if not retain_bytes:
        return segment_bytes
    return max(1, min(segment_bytes, retain_bytes // (SEGMENTS_BELOW_BOUND * partitions)))


def surplus(
    closed: Iterable[ClosedSegment], open_bytes: int, retain_bytes: int, oldest_us: int | None
) -> list[ClosedSegment]:
    """The segments to remove, oldest first; 0 is no bound on the size, None none on the age."""
    in_order = sorted(closed, key=lambda one: one.last)
    total = open_bytes + sum(one.bytes for one in in_order)
    gone = []
    for one in in_order:
        too_old = oldest_us is not None and one.time_us < oldest_us
        if not too_old and not (retain_bytes and total > retain_bytes):
            break
        gone.append(one)
        total -= one.bytes
    return gone
