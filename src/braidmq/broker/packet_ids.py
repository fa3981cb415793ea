"""Packet identifiers that follow one another, handled many at a time.

What a client is sent at QoS 1 or 2 gets consecutive identifiers, and it acknowledges in the order in which it was sent
[MQTT-4.6.0-2]. So what is under way is a range, and a run of acknowledgements is compared with its beginning at once:
the high and the low bytes of the identifiers are two slices of a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import unpack

PACKET_ID_MAX = 65_535

_IDS = [number % PACKET_ID_MAX + 1 for number in range(2 * PACKET_ID_MAX)]
HIGH_BYTES = bytes([one >> 8 for one in _IDS])
LOW_BYTES = bytes([one & 0xFF for one in _IDS])
"""Of all identifiers twice, from 1 on: a range that goes on behind the last one with the first is one slice, too."""


def following(packet_id: int) -> int:
    """The identifier behind another; behind the last one comes the first."""
    return packet_id % PACKET_ID_MAX + 1


def ids_of(high: bytes, low: bytes) -> tuple[int, ...]:
    """Identifiers, by their high and their low bytes."""
    both = bytearray(2 * len(high))
    both[::2] = high
    both[1::2] = low
    return unpack(f">{len(high)}H", both)


class IdRange:
    """Identifiers that wait for the same answer, the oldest first."""

    __slots__ = ("count", "first")

    def __init__(self, first: int = 1, count: int = 0) -> None:
        self.first = first
        self.count = count

    @property
    def last(self) -> int:
        return (self.first + self.count - 2) % PACKET_ID_MAX + 1

    def __iter__(self) -> Iterator[int]:
        return iter(_IDS[self.first - 1 : self.first - 1 + self.count])

    def __contains__(self, packet_id: int) -> bool:
        return (packet_id - self.first) % PACKET_ID_MAX < self.count

    def overlaps(self, other: IdRange) -> bool:
        distance = (other.first - self.first) % PACKET_ID_MAX
        return distance < self.count or (self.count > 0 and PACKET_ID_MAX - distance < other.count)

    def begins_with(self, high: bytes, low: bytes) -> bool:
        """Whether these are the oldest, in their order."""
        begin = self.first - 1
        return len(high) <= self.count and HIGH_BYTES.startswith(high, begin) and LOW_BYTES.startswith(low, begin)

    def is_followed_by(self, other: IdRange) -> bool:
        return not self.count or following(self.last) == other.first

    def add(self, other: IdRange) -> None:
        """Adds identifiers that follow."""
        if not self.count:
            self.first = other.first
        self.count += other.count

    def advance(self, count: int) -> None:
        """The oldest have their answer."""
        self.first = (self.first + count - 1) % PACKET_ID_MAX + 1
        self.count -= count

    @property
    def bytes(self) -> tuple[bytes, bytes]:
        """The high and the low bytes of all."""
        begin = self.first - 1
        return HIGH_BYTES[begin : begin + self.count], LOW_BYTES[begin : begin + self.count]
