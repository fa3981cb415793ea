"""InboundStreams: what arrives from other brokers, once each and in its order.

An origin numbers the publications of a topic. What comes a second time is dropped; what has overtaken waits a moment
for what is before it. After that moment the missing is given up, though it is still taken if it comes later and was
acknowledged to its publisher (QoS 1 and 2): late is better than never. A stream that is met in its middle waits a
moment, too: what comes first may have overtaken others. At the first contact with each incarnation of an origin, what
it sends waits until what it had kept before, or what was missed here, was fetched. What an origin has published for
clusters that this broker is not in is not missing: a batch says what of that is before it. Where its publisher has
roamed, a batch also says what is before it of another origin, and waits for that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from braidmq.bounded import BoundedDict
from braidmq.braid.catch_up.history import GENERATIONS_MAX
from braidmq.braid.transfer.awaited_predecessors import AwaitedPredecessors
from braidmq.braid.transfer.batch import PublicationBatch
from braidmq.braid.transfer.resting_streams import RestingStreams
from braidmq.host import Host
from braidmq.keys import is_within

_Name = tuple[str, int, str]
"""Of a stream: its origin, its incarnation and its topic."""

REORDER_S = 0.2
"""How long a publication of QoS 0 waits for one that it has overtaken."""

FETCH_S = 20.0
"""How long one of QoS 1 or 2 does at most, until what is missing was fetched; its origin may be cut off for a while."""

OPEN_MAX = 8192
"""Streams that hold something back, or whose next publications may take a cut-through, at a time."""

OPEN_TRIED = 16
"""So many of the oldest are tried, whether they can come to rest, when there is no room for one more."""

SUPERSEDED_MAX = 4096
"""Streams of earlier incarnations that are remembered, in case that something of them comes late."""

ORIGINS_MET_MAX = 4096
"""Origins of which it is remembered which incarnation was met."""

HELD_MAX = 256
"""Batches of a stream that wait for what is before them."""


class InboundStream:
    """One stream: the publications of one topic from one incarnation of one broker."""

    __slots__ = ("held", "incarnation", "is_new", "is_pinned", "last", "origin", "topic")

    def __init__(self, origin: str, incarnation: int, topic: str, first: int, is_new: bool) -> None:
        self.origin = origin
        self.incarnation = incarnation
        self.topic = topic
        self.is_pinned = False
        """Whether a cut-through counts on, in this object."""
        self.is_new = is_new
        """Whether nothing was passed on yet, and something may be before what has come."""
        self.last = first - 1
        """The last one that was passed on, with everything before it passed on or given up."""
        self.held: dict[int, PublicationBatch] = {}

    @property
    def kept_at(self) -> int:
        """The offset of the first batch that is held; 0 if what is missing before it is in no history."""
        return self.held[min(self.held)].offset


class InboundStreams:
    def __init__(self, host: Host, cluster: str = "") -> None:
        """`cluster` is that of this broker."""
        self.deliver: Callable[[PublicationBatch], None]
        """Called with what has its turn. It may be given a publication of QoS 1 or 2 again, and knows it by its
        offset."""
        self.on_gap: Callable[[str], None]
        """Called with an origin of which such a publication may be missing; `on_fetched` says that it was fetched."""
        self.is_next: Callable[[str, int], bool]
        """Whether everything of an origin's history before an offset is here."""
        self.predecessors = AwaitedPredecessors()
        self._host = host
        self._cluster = cluster
        self._holding: dict[str, dict[InboundStream, None]] = {}
        """By origin: the streams that hold something back."""
        self._resting = RestingStreams()
        self._open: dict[_Name, InboundStream] = {}
        """Those that are not at rest."""
        self._superseded: BoundedDict[_Name, int] = BoundedDict(SUPERSEDED_MAX)
        """The last number of those at rest of which there is a later incarnation."""
        self._met: BoundedDict[str, int] = BoundedDict(ORIGINS_MET_MAX)
        """By origin: the incarnation whose history was asked for."""
        self.duplicates = 0
        self.given_up = 0

    def at_rest(self, batch: PublicationBatch) -> InboundStream | None:
        """The stream of a batch, if that was the last of it and nothing else is to come before the next."""
        name = (batch.origin, batch.incarnation, batch.topic)
        stream = self._open.get(name)
        if stream is None:
            last = self._resting.take(*name)
            if last is None:
                return None
            stream = self._open_stream(name, last + 1, is_new=False)
        if stream.is_new or stream.held or stream.last != batch.first + batch.count - 1:
            return None
        stream.is_pinned = True
        return stream

    def is_holding(self, origin: str) -> bool:
        return origin in self._holding

    def receive(self, batch: PublicationBatch) -> None:
        """Passes a batch on, now or in its turn; or not, if it has come before."""
        if batch.follows is not None and not self.predecessors.is_here(batch.follows):
            self._receive_early(batch)
            return
        if self._resting.advance(batch.origin, batch.incarnation, batch.topic, batch.first, batch.count):
            self.deliver(batch)
            return
        if batch.first == 1 and self._begins(batch):
            self.deliver(batch)
            return
        stream = self._stream(batch)
        follows = batch.first <= stream.last + 1 or self._start(batch) <= stream.last + 1
        if stream.is_new or not follows:
            self._hold(stream, batch)
        else:
            self._pass_on(stream, batch)
            self._pass_on_held(stream)

    def receive_fetched(self, batch: PublicationBatch) -> None:
        """One publication of QoS 1 or 2 that was missed. They come in their order: what is before it, of its origin,
        is here or lost."""
        stream = self._stream(batch)
        if stream.is_new:
            stream.is_new = False
            stream.last = min((batch.first, *stream.held)) - 1
        while stream.held and min(stream.held) < batch.first:
            first = min(stream.held)
            stream.last = max(stream.last, first - 1)
            if self._awaits(stream, stream.held[first]):
                self._hold(stream, batch)
                return
            self._pass_on(stream, stream.held.pop(first))
        stream.last = max(stream.last, batch.first - 1)
        if batch.first > stream.last and self._awaits(stream, batch):
            self._hold(stream, batch)
            return
        self._pass_on(stream, batch)
        self._pass_on_held(stream)

    def on_fetched(self, origin: str, floor: int) -> None:
        """All that an origin has kept up to an offset has been fetched: what is missing before it will not come."""
        streams = sorted(self._holding.get(origin, ()), key=lambda stream: stream.incarnation)
        for stream in streams:
            if 0 < stream.kept_at <= floor:
                self._meet(origin, stream.incarnation)
            while self._has_gap(stream) and 0 < stream.kept_at <= floor:
                self._give_up(stream)
        if self.predecessors:
            self.predecessors.on_fetched(origin, floor, partial(self._is_held, origin))

    def _meet(self, origin: str, incarnation: int) -> None:
        self._met.renew(origin, max(self._met.get(origin, 0), incarnation // GENERATIONS_MAX))

    def _begins(self, batch: PublicationBatch) -> bool:
        """Whether a stream begins with a batch, and has nothing to wait for: then it is at rest behind it."""
        name = (batch.origin, batch.incarnation, batch.topic)
        is_known = name in self._open or self._resting.has(*name) or name in self._superseded
        if is_known or not self._is_met(batch):
            return False
        self._put_to_rest(name, batch.count)
        return True

    def _stream(self, batch: PublicationBatch) -> InboundStream:
        name = (batch.origin, batch.incarnation, batch.topic)
        stream = self._open.get(name)
        if stream is not None:
            return stream
        last = self._resting.take(*name)
        if last is None:
            last = self._superseded.pop(name, None)
        if last is not None:
            return self._open_stream(name, last + 1, is_new=False)
        start = self._start(batch)
        return self._open_stream(name, start, is_new=start > 1 or not self._is_met(batch))

    def _open_stream(self, name: _Name, first: int, is_new: bool) -> InboundStream:
        if len(self._open) >= OPEN_MAX:
            self._make_room()
        stream = self._open[name] = InboundStream(*name, first, is_new)
        return stream

    def _make_room(self) -> None:
        """One of the oldest that hold nothing comes to rest; if there is none, the oldest is forgotten."""
        oldest = list(islice(self._open.items(), OPEN_TRIED))
        name, stream = next((one for one in oldest if not one[1].held), oldest[0])
        del self._open[name]
        if not stream.is_new and not stream.held:
            self._put_to_rest(name, stream.last)
        stream.is_new = True  # for a cut-through that still has it

    def _put_to_rest(self, name: _Name, last: int) -> None:
        origin, _, topic = name
        earlier = self._resting.put(*name, last)
        if earlier is not None:
            incarnation, last = earlier
            self._superseded.renew((origin, incarnation, topic), last)

    def _is_met(self, batch: PublicationBatch) -> bool:
        """Whether nothing of earlier streams can be missing before this batch."""
        offset = batch.offset
        if offset and self.is_next(batch.origin, offset):
            self._meet(batch.origin, batch.incarnation)
        return not offset or batch.incarnation // GENERATIONS_MAX <= self._met.get(batch.origin, -1)

    def _start(self, batch: PublicationBatch) -> int:
        """Where a batch begins, with what is directly before it and not for this broker."""
        start = batch.first
        for first, count, scope in reversed(batch.skips):
            if first + count == start and not is_within(self._cluster, scope):
                start = first
        return start

    def _pass_on(self, stream: InboundStream, batch: PublicationBatch) -> None:
        """A batch that begins directly behind the last one, or before."""
        if batch.first == stream.last + 1 or self._start(batch) <= stream.last + 1 < batch.first:
            stream.last = batch.first + batch.count - 1
            self.deliver(batch)
        else:
            self._receive_late(stream, batch)

    def _pass_on_held(self, stream: InboundStream) -> None:
        """What follows now without a gap."""
        while stream.held:
            first = min(stream.held)
            if self._start(stream.held[first]) > stream.last + 1 or self._awaits(stream, stream.held[first]):
                return
            self._pass_on(stream, stream.held.pop(first))
        holding = self._holding.get(stream.origin)
        if holding is not None:
            holding.pop(stream, None)
            if not holding:
                del self._holding[stream.origin]
        name = (stream.origin, stream.incarnation, stream.topic)
        if not stream.is_pinned and not stream.is_new and self._open.get(name) is stream:
            del self._open[name]
            self._put_to_rest(name, stream.last)

    # Publications of clients that have roamed

    def _receive_early(self, batch: PublicationBatch) -> None:
        """A batch whose publisher has published something before, elsewhere, that is not here."""
        stream = self._stream(batch)
        if batch.first <= stream.last and not stream.is_new:
            self._receive_late(stream, batch)
            return
        self._hold(stream, batch)
        if not stream.is_new:
            self._pass_on_held(stream)

    def _awaits(self, stream: InboundStream, batch: PublicationBatch) -> bool:
        """Whether a batch that has its turn in a stream waits for what its publisher has published elsewhere."""
        if batch.follows is None or self.predecessors.is_here(batch.follows):
            return False
        self.predecessors.wait(stream, batch.follows, partial(self._go_on, stream))
        return True

    def _go_on(self, stream: InboundStream) -> None:
        """What the first that is held has waited for is here."""
        self._pass_on_held(stream)
        if self._has_gap(stream) and stream.kept_at:  # what was fetched meanwhile has waited, too
            self.on_gap(stream.origin)

    def _has_gap(self, stream: InboundStream) -> bool:
        """Whether something is held for which something of its own stream is missing."""
        return bool(stream.held) and (stream.is_new or self._start(stream.held[min(stream.held)]) > stream.last + 1)

    def _is_held(self, origin: str, offset: int) -> bool:
        """Whether a publication of an origin is here, and waits for its turn."""
        held = [batch for stream in self._holding.get(origin, ()) for batch in stream.held.values()]
        return any(0 < batch.offset <= offset < batch.offset + batch.count for batch in held)

    def _hold(self, stream: InboundStream, batch: PublicationBatch) -> None:
        if batch.first in stream.held:
            self.duplicates += batch.count
            return
        was_empty = not stream.held
        stream.held[batch.first] = batch
        self._holding.setdefault(stream.origin, {})[stream] = None
        if stream.kept_at and self._has_gap(stream):
            self.on_gap(stream.origin)
        if len(stream.held) > HELD_MAX:
            self._give_up(stream)
        elif was_empty:
            self._host.spawn(self._wait(stream))

    async def _wait(self, stream: InboundStream) -> None:
        """Gives up what has not come in time, again and again while something is held."""
        while stream.held:
            oldest = min(stream.held)
            await self._host.sleep(FETCH_S if stream.kept_at else REORDER_S)
            if stream.held and min(stream.held) == oldest:
                self._give_up(stream)

    def _give_up(self, stream: InboundStream) -> None:
        """Goes on without what is missing before the first that is held."""
        first = min(stream.held)
        follows = stream.held[first].follows
        if follows is not None and not self._has_gap(stream):
            self.predecessors.give_up(follows)
            return
        if not stream.is_new:
            self.given_up += self._start(stream.held[first]) - stream.last - 1
        stream.is_new = False
        stream.last = first - 1
        self._pass_on_held(stream)

    def _receive_late(self, stream: InboundStream, batch: PublicationBatch) -> None:
        """What is before the last one: items of QoS 1 and 2 may have been missing, the rest is here already."""
        batch = batch.with_items()
        if not batch.items:
            self.duplicates += batch.count
            return
        for number, item in enumerate(batch.items, batch.first):
            if number > stream.last or item.offset:
                stream.last = max(stream.last, number)
                self.deliver(_only(batch, number))
            else:
                self.duplicates += 1


def _only(batch: PublicationBatch, number: int) -> PublicationBatch:
    """One item of a batch."""
    item = batch.items[number - batch.first]
    return PublicationBatch(batch.origin, batch.incarnation, batch.topic, number, 1, batch.version, b"", (item,))
