"""One topic that is published here, on its way to the other brokers: what waits to leave, and whether anybody wants it.

Before that is known for the first time it holds what comes, within bounds. What comes during a tick leaves as one batch
at its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from braidmq.bounded import BoundedDict
from braidmq.braid.catch_up.history import History
from braidmq.braid.catch_up.last_sent import LastSent
from braidmq.braid.transfer.batch import BatchItem, KeptRun, Predecessor, PublicationBatch, Skip
from braidmq.braid.transfer.predecessors import Predecessors
from braidmq.broker.acknowledged_run import AcknowledgedRun
from braidmq.broker.federation import OutboundShortcut
from braidmq.host import Host
from braidmq.keys import is_within
from braidmq.mqtt.packets import V5

HELD_BYTES_MAX = 1 << 20
"""Bytes that a topic may hold before it is known whether anybody wants it; QoS 0 beyond that is dropped."""

HELD_BYTES_ALL_MAX = 64 << 20
"""Bytes that all topics together may hold so."""

SKIPS_MAX = 64
"""Stretches of publications for clusters that other brokers are told of; one that is not told waits in vain."""

WAITING_MAX = 1024
"""Acknowledgements that wait for what is found out about a topic; more of them are told nothing."""

LONE_MAX = 4096
"""Topics of which it is remembered when the last publication came alone."""

STAMP_S = 1.0
"""How exactly it is known when a topic was last used: many share one note of the time."""

_Piece = tuple[int, int, int, bytes, BatchItem | KeptRun | None, str | None, Predecessor | None]
"""What waits to be sent: version, number, count, plain publications, an item or what is to be known of those of QoS 1
and 2, its scope, and what it follows."""

_Lone = tuple[int, int, float]
"""Version, size and time of a publication that came alone."""


class LastingPath(OutboundShortcut, Protocol):
    """The short way for a publication that comes alone, which holds for a while (`cut_through`)."""

    def holds(self, version: int, size: int, now: float) -> bool: ...


class SendQueue:
    """What all outbound topics of a broker share: its name, its history, and the topics with something to send.

    A topic is small, since a fleet has many. What only few of them have at a time is kept here.
    """

    def __init__(self, origin: str, host: Host, history: History) -> None:
        self.origin = origin
        self.now = host.now
        self.history = history
        self.dropped = 0
        """Publications that were held, and then had no room."""
        self.on_touched: Callable[[], None] = _nothing
        """Called when something waits for the end of the tick."""
        self.lone: BoundedDict[OutboundTopic, _Lone] = BoundedDict(LONE_MAX)
        """By topic: the last publication that came alone, and took the long way."""
        self.scoped: dict[OutboundTopic, tuple[Skip, ...]] = {}
        """By topic: publications for clusters, since the last one for all."""
        self.predecessors = Predecessors(host, origin, LastSent(history))
        """What clients that have come here published last elsewhere."""
        self._ready: list[OutboundTopic] = []
        self._held: dict[OutboundTopic, int] = {}
        """Those that are not settled: the bytes that each of them holds."""
        self._held_bytes = 0
        self._waiting: dict[OutboundTopic, list[Callable[[], None]]] = {}
        """What is to be done when it is known whether anybody wants a topic."""
        self._stamp = host.now()

    def stamp(self) -> float:
        """The time, to `STAMP_S`: the same object for all that ask soon after each other."""
        now = self.now()
        if now - self._stamp > STAMP_S:
            self._stamp = now
        return self._stamp

    # What waits to leave

    def touch(self, outbound_topic: OutboundTopic) -> None:
        """A settled topic has something to send."""
        if not self._ready:
            self.on_touched()
        self._ready.append(outbound_topic)

    def has_room(self, outbound_topic: OutboundTopic) -> bool:
        """Whether a topic that is not settled may hold more."""
        return self._held.get(outbound_topic, 0) <= HELD_BYTES_MAX and self._held_bytes <= HELD_BYTES_ALL_MAX

    def hold(self, outbound_topic: OutboundTopic, size: int) -> None:
        """A topic that is not settled holds so many more bytes."""
        self._held[outbound_topic] = self._held.get(outbound_topic, 0) + size
        self._held_bytes += size

    @property
    def holding(self) -> list[OutboundTopic]:
        """Topics that hold something, since they are not settled."""
        return list(self._held)

    def release(self, outbound_topic: OutboundTopic) -> None:
        """A topic is settled: what it holds may leave."""
        if self._let_go(outbound_topic):
            self.touch(outbound_topic)

    def give_up(self, outbound_topic: OutboundTopic) -> None:
        """A topic is dropped: what it holds does not leave any more."""
        if self._let_go(outbound_topic):
            self.dropped += outbound_topic.waiting_count
        self.lone.pop(outbound_topic, None)
        self.scoped.pop(outbound_topic, None)
        self.tell_known(outbound_topic)

    def _let_go(self, outbound_topic: OutboundTopic) -> bool:
        size = self._held.pop(outbound_topic, None)
        self._held_bytes -= size or 0
        return size is not None

    def take_ready(self) -> list[OutboundTopic]:
        """The topics that have something to send now; the rest go on waiting."""
        ready, self._ready = self._ready, []
        return ready

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    # Who waits to know

    def when_known(self, outbound_topic: OutboundTopic, action: Callable[[], None]) -> None:
        waiting = self._waiting.setdefault(outbound_topic, [])
        if len(waiting) < WAITING_MAX:
            waiting.append(action)

    def tell_known(self, outbound_topic: OutboundTopic) -> None:
        """It is known now whether anybody wants a topic, or nobody will find out any more."""
        for action in self._waiting.pop(outbound_topic, ()):
            action()


class OutboundTopic(ABC):
    """What waits to leave, and how it was numbered; a method's kind of it knows who wants it."""

    __slots__ = ("_pieces", "_queue", "incarnation", "is_settled", "number", "topic", "used_at")

    def __init__(self, queue: SendQueue, topic: str, incarnation: int) -> None:
        self._queue = queue
        self.topic = topic
        self.incarnation = incarnation
        """Of its stream: a topic that comes again begins to count anew, and must not be taken for the old one."""
        self.is_settled = False
        """Whether it is known, for the first time, who wants it."""
        self.number = 0
        """Of the last publication that was taken."""
        self.used_at = 0.0
        self._pieces: list[_Piece] | None = None

    # Who wants it

    @property
    @abstractmethod
    def filters(self) -> Iterable[str]:
        """Every filter in use that could match the topic, as far as the method has to be told of them."""

    @property
    @abstractmethod
    def wanted(self) -> Sequence[str] | dict[str, None]:
        """Those that anybody elsewhere subscribes to: what the method is told to publish to."""

    @property
    @abstractmethod
    def cut_through(self) -> LastingPath | None:
        """The short way for a publication that comes alone, while it holds."""

    @cut_through.setter
    @abstractmethod
    def cut_through(self, path: LastingPath | None) -> None: ...

    @abstractmethod
    def was_recently_wanted(self, now: float) -> bool:
        """Whether a broker that cannot be reached now may still want it: then QoS 1 and 2 are kept for it."""

    @property
    def is_missed(self) -> bool:
        """Whether it is known that a broker wants it that cannot be reached now."""
        return False

    @property
    def is_open(self) -> bool:
        """Whether publications may have to leave here."""
        return not self.is_settled or bool(self.wanted)

    @property
    def is_kept(self) -> bool:
        """Whether publications of QoS 1 and 2 may have to be kept or to leave."""
        return self.was_recently_wanted(self._queue.now())

    @property
    def is_known(self) -> bool:
        """Whether it is known whether anybody wants the topic."""
        return self.is_settled or bool(self.wanted)

    def when_known(self, action: Callable[[], None]) -> None:
        """Calls when it is known whether anybody wants the topic; never, if too much waits for that."""
        self._queue.when_known(self, action)

    # What waits to leave

    @property
    def lone(self) -> _Lone:
        """Version, size and time of the last publication that came alone, and took the long way."""
        return self._queue.lone.get(self, _NEVER)

    @lone.setter
    def lone(self, lone: _Lone) -> None:
        self._queue.lone.renew(self, lone)

    @property
    def is_holding(self) -> bool:
        """Whether something waits to leave, or must be said with the next that does."""
        return bool(self._pieces) or self in self._queue.scoped

    @property
    def waiting_count(self) -> int:
        """How many publications wait to leave."""
        return sum(piece[2] for piece in self._pieces or ())

    def send_run(self, version: int, run: bytes, count: int) -> None:
        """Plain QoS 0 publications, as they came."""
        if self.is_open:
            if self.is_settled or self._queue.has_room(self):
                self._add(version, count, run, None)
            else:
                self._queue.dropped += count

    def send_item(self, item: BatchItem, now: float, scope: str | None = None) -> None:
        """Any other publication; of QoS 1 and 2 it is kept, and leaves if anybody can be reached."""
        follows = None
        if item.qos:
            follows = self._follows(item.sender)
            item = self._queue.history.append(self.topic, self.incarnation, self.number + 1, item, now, follows)
        leaves = self.is_open and (self.is_settled or self._queue.has_room(self))
        if scope is not None and (leaves or item.qos):
            self._note_scoped(self.number + 1, scope)
        if leaves:
            self._add(V5, 1, b"", item, scope, follows)
        elif item.qos:  # brokers that want it will see that it is missing, and ask for it
            self.number += 1

    def send_acknowledged_run(self, run: AcknowledgedRun, sender: str, now: float) -> bool:
        """Plain publications of QoS 1 or 2, as they came: kept, and sent if anybody wants them. Whether anybody does,
        in reach or not."""
        follows = self._follows(sender)
        kept = self._queue.history.append_run(self.topic, self.incarnation, self.number + 1, run, sender, now, follows)
        if self.wanted:
            self._add(run.version, run.count, run.packets, kept, None, follows)
            return True
        self.number += run.count  # brokers that want it will see that it is missing, and ask for it
        return self.is_missed

    def _follows(self, sender: str) -> Predecessor | None:
        """What a publication of a client follows that has roamed."""
        predecessors = self._queue.predecessors
        return predecessors.take(sender, self.topic) if predecessors else None

    def _add(
        self,
        version: int,
        count: int,
        run: bytes,
        item: BatchItem | KeptRun | None,
        scope: str | None = None,
        follows: Predecessor | None = None,
    ) -> None:
        piece = (version, self.number + 1, count, run, item, scope, follows)
        if not self.is_settled:
            self._queue.hold(self, len(item.payload) if isinstance(item, BatchItem) else len(run))
        elif self._pieces is None:
            self._queue.touch(self)
        if self._pieces is None:
            self._pieces = [piece]
        else:
            self._pieces.append(piece)
        self.number += count

    def batches(self) -> list[PublicationBatch]:
        """Takes out what waits, in its order: what is alike together."""
        self.used_at = self._queue.stamp()
        pieces, self._pieces = self._pieces or [], None
        if len(pieces) == 1:
            return [self._batch(pieces)]
        return self._joined(pieces)

    def _joined(self, pieces: list[_Piece]) -> list[PublicationBatch]:
        found: list[PublicationBatch] = []
        while pieces:
            kind = _kind(pieces[0])
            alike = 1
            while alike < len(pieces) and _kind(pieces[alike]) == kind:
                alike += 1
            some, pieces = pieces[:alike], pieces[alike:]
            found.append(self._batch(some))
        return found

    def _batch(self, alike: list[_Piece]) -> PublicationBatch:
        """Pieces of one kind, as one batch."""
        version, first, count, run, item, scope, follows = alike[0]
        kept = item if isinstance(item, KeptRun) else None
        items: tuple[BatchItem, ...] = (item,) if isinstance(item, BatchItem) else ()
        if len(alike) > 1:
            items = tuple([one[4] for one in alike if isinstance(one[4], BatchItem)])
            run = b"".join([one[3] for one in alike])
            count = sum(one[2] for one in alike)
        skips = self._skips(first, scope) if self in self._queue.scoped else ()
        about = (self._queue.origin, self.incarnation, self.topic, first, count, version)
        return PublicationBatch(*about, run, items, skips, kept, follows)

    def _note_scoped(self, number: int, scope: str) -> None:
        scoped = self._queue.scoped.get(self, ())
        *before, (first, count, cluster) = scoped or ((0, 0, ""),)
        if cluster == scope and first + count == number:
            self._queue.scoped[self] = (*before, (first, count + 1, scope))
        else:
            self._queue.scoped[self] = (*scoped, (number, 1, scope))[-SKIPS_MAX:]

    def _skips(self, first: int, scope: str | None) -> tuple[Skip, ...]:
        """What the receivers of a batch may not have got, since the last one that was for all of them."""
        scoped = self._queue.scoped.pop(self)
        before = tuple([one for one in scoped if one[0] < first])
        kept = scoped[len(before) :] if scope is None else scoped
        if kept:
            self._queue.scoped[self] = kept
        if scope is not None:
            for end in range(len(before), 0, -1):
                if is_within(scope, before[end - 1][2]):
                    return before[end:]
        return before


_NEVER: _Lone = (0, 0, 0.0)


def _kind(piece: _Piece) -> tuple[int, int, str | None]:
    """What is equal in pieces that travel as one batch; a run of QoS 1 or 2, or what follows one, is like no other."""
    version, number, _, _, item, scope, follows = piece
    if isinstance(item, KeptRun) or follows is not None:
        return version, -number, scope
    return version, 0 if item is None else 1 + (item.qos > 0), scope


def _nothing() -> None:
    """Nobody waits for it."""
