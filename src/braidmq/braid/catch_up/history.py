"""What was published here at QoS 1 or 2, kept for brokers that could not be reached.

A publication that was acknowledged must reach every broker that stayed subscribed, also one that was down or cut off
when it was sent. So it is kept, numbered by its offset, in the store of the broker where it was published, for a
bounded time and size. A broker that comes back asks for what it has missed (`reconcile`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from math import inf
from typing import NamedTuple

import msgspec

from braidmq.braid.transfer.batch import BatchItem
from braidmq.broker.store import Store

HISTORY_S = 3600.0
"""How long a broker may be away and still get all that it has missed."""

HISTORY_BYTES_MAX = 64 << 20
HISTORY_MESSAGES_MAX = 200_000
"""What is over these bounds is forgotten, oldest first, and counted if that is before its time."""

GENERATIONS_MAX = 1 << 20
"""A topic that was forgotten and comes again is another stream: another generation of an incarnation, which
has so many of them."""

OVERHEAD_BYTES = 200
"""What keeping a publication costs beside its payload."""


_NO_RANGE = (1 << 63, 1 << 63)
"""A range behind all offsets."""


class Sent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A publication of QoS 1 or 2, with its offset in the history and its number in the topic's stream."""

    offset: int
    topic: str
    incarnation: int
    number: int
    stored_at: float
    item: BatchItem


class MissedPage(NamedTuple):
    """Publications that a broker has missed."""

    sent: list[Sent]
    floor: int
    """Up to this offset that is all."""
    settled: int
    """Up to this one, everything was stored before the time that was asked about."""


class History:
    def __init__(self, store: Store, saved: Iterable[Sent]) -> None:
        self._store = store
        self._sent: deque[Sent] = deque(saved)
        self._bytes = sum(_size(one) for one in self._sent)
        self.head = self._sent[-1].offset if self._sent else 0
        """The offset of the last one; offsets are never used twice."""
        self.kept = self.head
        """The last one that is written; brokers may be told of those behind it only when they are, too."""
        self.forgotten = 0
        """How many had to go before their time."""

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def bytes(self) -> int:
        """How much is kept, as the bound counts it."""
        return self._bytes

    def append(self, topic: str, incarnation: int, number: int, item: BatchItem, now: float) -> BatchItem:
        """Keeps a publication; the item as it is sent, with its offset."""
        self.head += 1
        item = msgspec.structs.replace(item, offset=self.head)
        sent = Sent(self.head, topic, incarnation, number, now, item)
        self._sent.append(sent)
        self._bytes += _size(sent)
        self._store.save_sent(self.head, msgspec.msgpack.encode(sent))
        self.trim(now)
        return item

    def written(self) -> None:
        """All that was appended is in the store."""
        self.kept = self.head

    def trim(self, now: float) -> None:
        """Forgets what is too old or too much."""
        last = 0
        while len(self._sent) > 1:  # the newest one stays, for its offset
            oldest = self._sent[0]
            is_old = now - oldest.stored_at > HISTORY_S
            if not is_old and self._bytes <= HISTORY_BYTES_MAX and len(self._sent) <= HISTORY_MESSAGES_MAX:
                break
            self.forgotten += not is_old
            self._sent.popleft()
            self._bytes -= _size(oldest)
            last = oldest.offset
        if last:
            self._store.drop_sent(last)

    def missed(
        self,
        floor: int,
        since: float,
        seen: Iterable[tuple[int, int]],
        wants: Callable[[Sent], bool],
        bytes_max: int,
        until: float = inf,
        looked_max: int = HISTORY_MESSAGES_MAX,
    ) -> MissedPage:
        """What is behind `floor`, not older than `since`, not in the ranges `seen` (in their order), and wanted.

        Not more than so many bytes, but at least one, and no more than so many are looked at.
        """
        found: list[Sent] = []
        size = 0
        ranges = iter(seen)
        low, high = next(ranges, _NO_RANGE)
        first = self._sent[0].offset if self._sent else self.head + 1
        begin = max(0, floor + 1 - first)
        last = min(self.kept, first + begin + looked_max - 1)
        settled = last
        for sent in islice(self._sent, begin, max(begin, last + 1 - first)):
            if sent.stored_at >= until:
                settled = min(settled, sent.offset - 1)
            while high < sent.offset:
                low, high = next(ranges, _NO_RANGE)
            if low <= sent.offset or sent.stored_at < since or not wants(sent):
                continue
            size += _size(sent)
            if found and size > bytes_max:
                last = sent.offset - 1
                break
            found.append(sent)
        return MissedPage(found, last, min(settled, last))


def _size(sent: Sent) -> int:
    return OVERHEAD_BYTES + len(sent.item.payload) + len(sent.item.forward)
