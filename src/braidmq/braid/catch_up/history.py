"""What was published here at QoS 1 or 2, kept for brokers that could not be reached.

A publication that was acknowledged must reach every broker that stayed subscribed, also one that was down or cut off
when it was sent. So it is kept, numbered by its offset, in the store of the broker where it was published, for a
bounded time and size. A broker that comes back asks for what it has missed (`reconcile`). What came as a run is kept as
a run, and told apart only for a broker that asks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from math import inf
from operator import attrgetter
from typing import NamedTuple

import msgspec

from braidmq.braid.transfer.batch import BatchItem, KeptRun, Predecessor, items_of, run_of
from braidmq.broker.acknowledged_run import AcknowledgedRun
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


VOID_TOPIC = "$\0"
"""Nobody can subscribe to it: of what is left out, so that its offset is not used again."""

TRIMMED_AT_ONCE = 4096
"""Rows that were forgotten are taken off the list of all when there are so many, and a half of it."""

_NO_RANGE = (1 << 63, 1 << 63)
"""A range behind all offsets."""


class Sent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A publication of QoS 1 or 2, with its offset in the history and its number in the topic's stream; or a run of
    them, with those of the first."""

    offset: int
    topic: str
    incarnation: int
    number: int
    stored_at: float
    item: BatchItem | None
    """None for a run."""
    count: int = 1
    version: int = 0
    """Of the packets of a run."""
    run: bytes = b""
    sender: str = ""
    """Of a run."""
    follows: Predecessor | None = None
    """What the publisher of the first one published elsewhere just before."""

    @property
    def last(self) -> int:
        """The offset of the last one."""
        return self.offset + self.count - 1

    @property
    def size(self) -> int:
        """What it takes up, as the bound counts it."""
        held = len(self.run) if self.item is None else len(self.item.payload) + len(self.item.forward)
        return OVERHEAD_BYTES + held

    def singly(self) -> list[Sent]:
        """Each publication for itself."""
        if self.item is not None:
            return [self]
        items = items_of(run_of(self.topic, self.run, self.count, self.version), KeptRun(self.offset, self.sender))
        singly = [
            Sent(item.offset, self.topic, self.incarnation, number, self.stored_at, item)
            for number, item in enumerate(items, self.number)
        ]
        if self.follows is not None:
            singly[0] = msgspec.structs.replace(singly[0], follows=self.follows)
        return singly


_GONE = Sent(0, "", 0, 0, 0.0, None)
"""Stands where one was that is forgotten."""

_last_offset = attrgetter("last")
_encode = msgspec.msgpack.Encoder().encode


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
        self._sent: list[Sent] = list(saved)
        self._begin = 0
        """How many of them are forgotten."""
        self._count = sum(one.count for one in self._sent)
        self._bytes = sum(one.size for one in self._sent)
        self.head = self._sent[-1].last if self._sent else 0
        """The offset of the last one; offsets are never used twice."""
        self.kept = self.head
        """The last one that is written; brokers may be told of those behind it only when they are, too."""
        self.forgotten = 0
        """How many had to go before their time."""

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """How much is kept, as the bound counts it."""
        return self._bytes

    @property
    def newest_at(self) -> float | None:
        """When the last one was stored."""
        return self._sent[-1].stored_at if self._sent else None

    def pages(self, bytes_max: int) -> Iterator[list[Sent]]:
        """All that is written, in order, so many bytes at a time, but at least one."""
        page: list[Sent] = []
        size = 0
        for sent in self._sent[self._begin :]:
            if sent.last > self.kept:
                break
            size += sent.size
            if page and size > bytes_max:
                yield page
                page, size = [], sent.size
            page.append(sent)
        if page:
            yield page

    def behind(self, offset: int) -> Iterator[Sent]:
        """All that is kept behind an offset."""
        begin = bisect_right(self._sent, offset, lo=self._begin, key=_last_offset)
        return islice(self._sent, begin, None)

    def append(
        self,
        topic: str,
        incarnation: int,
        number: int,
        item: BatchItem,
        now: float,
        follows: Predecessor | None = None,
    ) -> BatchItem:
        """Keeps a publication; the item as it is sent, with its offset."""
        item = msgspec.structs.replace(item, offset=self.head + 1)
        self._append(Sent(self.head + 1, topic, incarnation, number, now, item, follows=follows))
        return item

    def append_run(
        self,
        topic: str,
        incarnation: int,
        number: int,
        run: AcknowledgedRun,
        sender: str,
        now: float,
        follows: Predecessor | None = None,
    ) -> KeptRun:
        """Keeps a run."""
        kept = KeptRun(self.head + 1, sender)
        about = (kept.offset, topic, incarnation, number, now, None, run.count, run.version, run.packets, sender)
        self._append(Sent(*about, follows))
        return kept

    def _append(self, sent: Sent) -> None:
        self.head = last = sent.last
        self._sent.append(sent)
        self._count += sent.count
        self._bytes += sent.size
        self._store.save_sent(last, _encode(sent))
        self.trim(sent.stored_at)

    def void(self, senders: Container[str], behind: int) -> int:
        """Takes out what publishers have published at QoS 2 behind an offset; how much that was. Its offsets stay."""
        count = 0
        for at in range(bisect_right(self._sent, behind, lo=self._begin, key=_last_offset), len(self._sent)):
            sent = self._sent[at]
            is_once = (sent.run[0] >> 1 & 3 if sent.item is None else sent.item.qos) == 2
            if is_once and (sent.sender if sent.item is None else sent.item.sender) in senders:
                nothing = BatchItem(b"", 1, False, "", b"", None, offset=sent.last)
                void = Sent(sent.last, VOID_TOPIC, 0, 0, sent.stored_at, nothing)
                self._count -= sent.count - 1
                self._bytes -= sent.size - void.size
                self._sent[at] = void
                self._store.save_sent(void.last, msgspec.msgpack.encode(void))
                count += sent.count
        return count

    def written(self, up_to: int | None = None) -> None:
        """All that was appended is in the store and its copies, or what was appended up to an offset."""
        self.kept = self.head if up_to is None else max(self.kept, up_to)

    def trim(self, now: float) -> None:
        """Forgets what is too old or too much."""
        last = 0
        while self._begin < len(self._sent) - 1:  # the newest one stays, for its offset
            oldest = self._sent[self._begin]
            is_old = now - oldest.stored_at > HISTORY_S
            if not is_old and self._bytes <= HISTORY_BYTES_MAX and self._count <= HISTORY_MESSAGES_MAX:
                break
            self.forgotten += 0 if is_old else oldest.count
            self._sent[self._begin] = _GONE
            self._begin += 1
            self._count -= oldest.count
            self._bytes -= oldest.size
            last = oldest.last
        if last:
            self._store.drop_sent(last)
            if self._begin >= TRIMMED_AT_ONCE and self._begin > len(self._sent) // 2:
                del self._sent[: self._begin]
                self._begin = 0

    def missed(
        self,
        floor: int,
        since: float,
        seen: Iterable[tuple[int, int]],
        wants: Callable[[Sent], bool],
        bytes_max: int,
        until: float = inf,
        looked_max: int = HISTORY_MESSAGES_MAX,
        is_own: bool = False,
    ) -> MissedPage:
        """What is behind `floor`, not older than `since`, not in the ranges `seen` (in their order), and wanted.

        Not more than so many bytes, but at least one, and no more than so many are looked at. What is not written yet
        is only for clients of this broker (`is_own`): what they get waits for the same commit.
        """
        found: list[Sent] = []
        size = 0
        last = settled = end = self.head if is_own else self.kept
        begin = bisect_right(self._sent, floor, lo=self._begin, key=_last_offset)
        ranges = _Ranges(seen)
        for at in range(begin, len(self._sent)):
            row = self._sent[at]
            if row.last > end:
                break
            looked_max -= row.count
            if looked_max < 0 and at > begin:
                last = row.offset - 1
                break
            if row.stored_at >= until:
                settled = min(settled, row.offset - 1)
            if row.stored_at < since or not wants(row):
                continue
            for sent in row.singly():
                if sent.offset <= floor or ranges.have(sent.offset):
                    continue
                size += sent.size
                if found and size > bytes_max:
                    last = sent.offset - 1
                    return MissedPage(found, last, min(settled, last))
                found.append(sent)
        return MissedPage(found, last, min(settled, last))


class _Ranges:
    """Ranges of offsets in their order, asked about in their order."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._rest = iter(ranges)
        self._low, self._high = next(self._rest, _NO_RANGE)

    def have(self, offset: int) -> bool:
        while self._high < offset:
            self._low, self._high = next(self._rest, _NO_RANGE)
        return self._low <= offset
