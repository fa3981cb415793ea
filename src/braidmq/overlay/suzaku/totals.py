"""What the nodes of a range add up to, and how little of that has to travel.

Updates are most of what an overlay sends, so a total is packed: values without their labels, which the one that asked
has named; the end of the range left out where the receiver knows it from the rest of the message, or as a checksum
where it should know it from its own tables. If it does not, the total is unknown to it, as any that does not meet its
neighbour.
"""

from __future__ import annotations

from math import ceil
from zlib import crc32

import msgspec

from braidmq.keys import Key
from braidmq.overlay.aggregates import Aggregate, Value

Labels = tuple[str, ...] | None


class RangeTotal(msgspec.Struct, frozen=True, gc=False):
    """What the nodes from a finger up to, not including, `until` add up to; the oldest part of it is so old."""

    aggregate: Aggregate
    until: Key
    age_s: float


class PackedTotal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """As it travels. `until` is a key, the checksum of one, or None for the one that the message implies."""

    values: tuple[Value | None, ...] | Aggregate
    until: Key | int | None
    age_s: int


def packed(total: RangeTotal | None, labels: Labels, implied: Key | None, is_known: bool = False) -> PackedTotal | None:
    """For one that has asked for these labels. `is_known`: the receiver should know the range's end by itself."""
    if total is None:
        return None
    aggregate = total.aggregate
    values = aggregate if labels is None else tuple(aggregate.get(label) for label in labels)
    until: Key | int | None = crc32(total.until) if is_known else total.until
    return PackedTotal(values, None if total.until == implied else until, ceil(total.age_s))


def unpacked(total: PackedTotal | None, labels: Labels, implied: Key | None) -> RangeTotal | None:
    """None if it cannot be told how far the total reaches, or what its values are."""
    if total is None:
        return None
    until = total.until
    if not isinstance(until, bytes):
        if implied is None or (until is not None and until != crc32(implied)):
            return None
        until = implied
    values = total.values
    if isinstance(values, dict):
        return RangeTotal(values, until, total.age_s)
    if labels is None or len(labels) != len(values):
        return None
    known = {label: value for label, value in zip(labels, values, strict=True) if value is not None}
    return RangeTotal(known, until, total.age_s)
