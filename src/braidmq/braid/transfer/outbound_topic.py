"""One topic that is published here, on its way to the other brokers: what waits to leave, and whether anybody wants it.

Before that is known for the first time it holds what comes, within bounds. What comes during a tick leaves as one batch
at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from braidmq.braid.catch_up.history import HISTORY_S, History
from braidmq.braid.transfer.batch import BatchItem, PublicationBatch, Skip
from braidmq.broker.federation import OutboundShortcut
from braidmq.host import Host
from braidmq.keys import is_within
from braidmq.mqtt.packets import V5

HELD_BYTES_MAX = 1 << 20
"""Bytes that a topic may hold before it is known whether anybody wants it; QoS 0 beyond that is dropped."""

SKIPS_MAX = 64
"""Stretches of publications for clusters that other brokers are told of; one that is not told waits in vain."""

WAITING_MAX = 1024
"""Acknowledgements that wait for what is found out about a topic; more of them are told nothing."""

_Piece = tuple[int, int, int, bytes, BatchItem | None, str | None]
"""What waits to be sent: version, number, count, plain publications or an item, and its scope."""


class LastingPath(OutboundShortcut, Protocol):
    """The short way for a publication that comes alone, which holds for a while (`cut_through`)."""

    def holds(self, version: int, size: int, now: float) -> bool: ...


class SendQueue:
    """What all outbound topics of a broker share: its name, its history, and the topics with something to send."""

    def __init__(self, origin: str, host: Host, history: History) -> None:
        self.origin = origin
        self.now = host.now
        self.history = history
        self.dropped = 0
        """Publications that were held, and then had no room."""
        self.on_touched: Callable[[], None] = _nothing
        """Called when something waits for the end of the tick."""
        self._touched: list[OutboundTopic] = []

    def touch(self, outbound_topic: OutboundTopic) -> None:
        if not self._touched:
            self.on_touched()
        self._touched.append(outbound_topic)

    def touch_again(self) -> None:
        """A topic that may have held something back holds nothing any more."""
        if self._touched:
            self.on_touched()

    def take_ready(self) -> list[OutboundTopic]:
        """The topics that have something to send now; the rest go on waiting."""
        ready = [one for one in self._touched if one.is_settled]
        self._touched = [one for one in self._touched if not one.is_settled]
        return ready

    @property
    def has_ready(self) -> bool:
        return any(one.is_settled for one in self._touched)


class OutboundTopic:
    __slots__ = (
        "_pieces",
        "_queue",
        "_scoped",
        "_size",
        "_waiting",
        "cut_through",
        "filters",
        "incarnation",
        "is_settled",
        "is_watched",
        "lone",
        "number",
        "topic",
        "used_at",
        "wanted",
        "wanted_at",
    )

    def __init__(self, queue: SendQueue, topic: str, incarnation: int, wanted_at: float) -> None:
        self._queue = queue
        self.topic = topic
        self.incarnation = incarnation
        """Of its stream: a topic that comes again begins to count anew, and must not be taken for the old one."""
        self.filters: dict[str, None] = {}
        """Every filter in use that could match the topic."""
        self.wanted: dict[str, None] = {}
        """Those that anybody subscribes to."""
        self.is_settled = False
        """Whether the demand for the filters it began with is known."""
        self.is_watched = False
        """Whether a client here asks about the demand for the topic, published or not."""
        self.number = 0
        """Of the last publication that was taken."""
        self.used_at = 0.0
        self.wanted_at = wanted_at
        """When anybody was last known to want it."""
        self.cut_through: LastingPath | None = None
        """The short way for a publication that comes alone, while it holds."""
        self.lone = (0, 0, 0.0)
        """Version, size and time of the last one that did, and took the long way."""
        self._pieces: list[_Piece] = []
        self._size = 0
        self._scoped: tuple[Skip, ...] = ()
        """Publications for clusters, since the last one for all."""
        self._waiting: list[Callable[[], None]] | None = None
        """What is to be done when it is known whether anybody wants the topic."""

    @property
    def is_open(self) -> bool:
        """Whether publications may have to leave here."""
        return bool(self.wanted) or not self.is_settled

    @property
    def is_known(self) -> bool:
        """Whether it is known whether anybody wants the topic."""
        return self.is_settled or bool(self.wanted)

    def when_known(self, action: Callable[[], None]) -> None:
        """Calls when it is known whether anybody wants the topic; never, if too much waits for that."""
        if self._waiting is None:
            self._waiting = []
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(action)

    def tell_known(self) -> None:
        """It is known now, or nobody will find out any more."""
        waiting, self._waiting = self._waiting, None
        for action in waiting or ():
            action()

    @property
    def is_holding(self) -> bool:
        """Whether something waits to leave, or must be said with the next that does."""
        return bool(self._pieces or self._scoped)

    def was_recently_wanted(self, now: float) -> bool:
        """Whether a broker that cannot be reached now may still want it: then QoS 1 and 2 are kept for it."""
        return self.is_open or now - self.wanted_at < HISTORY_S

    def send_run(self, version: int, run: bytes, count: int) -> None:
        """Plain QoS 0 publications, as they came."""
        if not self.is_open:
            return
        if self._size > HELD_BYTES_MAX and not self.is_settled:
            self._queue.dropped += count
        else:
            self._add(version, count, run, None)

    def send_item(self, item: BatchItem, now: float, scope: str | None = None) -> None:
        """Any other publication; of QoS 1 and 2 it is kept, and leaves if anybody can be reached."""
        if item.qos:
            item = self._queue.history.append(self.topic, self.incarnation, self.number + 1, item, now)
        leaves = self.is_open and (self.is_settled or self._size <= HELD_BYTES_MAX)
        if scope is not None and (leaves or item.qos):
            self._note_scoped(self.number + 1, scope)
        if leaves:
            self._add(V5, 1, b"", item, scope)
        elif item.qos:  # brokers that want it will see that it is missing, and ask for it
            self.number += 1

    def _add(self, version: int, count: int, run: bytes, item: BatchItem | None, scope: str | None = None) -> None:
        if not self._pieces:
            self._queue.touch(self)
        self._pieces.append((version, self.number + 1, count, run, item, scope))
        self.number += count
        self._size += len(run) if item is None else len(item.payload)

    def batches(self) -> list[PublicationBatch]:
        """Takes out what waits, in its order: what is alike together."""
        found: list[PublicationBatch] = []
        self.used_at = self._queue.now()
        pieces, self._pieces, self._size = self._pieces, [], 0
        while pieces:
            version, first, _, _, _, scope = pieces[0]
            kind = _kind(pieces[0]) if len(pieces) > 1 else None
            alike = 1
            while alike < len(pieces) and _kind(pieces[alike]) == kind:
                alike += 1
            some, pieces = pieces[:alike], pieces[alike:]
            items = tuple([one[4] for one in some if one[4] is not None])
            run = some[0][3] if alike == 1 else b"".join([one[3] for one in some])
            count = sum(one[2] for one in some)
            skips = self._skips(first, scope) if self._scoped else ()
            origin = self._queue.origin
            found.append(
                PublicationBatch(origin, self.incarnation, self.topic, first, count, version, run, items, skips)
            )
        return found

    def _note_scoped(self, number: int, scope: str) -> None:
        *before, (first, count, cluster) = self._scoped or ((0, 0, ""),)
        if cluster == scope and first + count == number:
            self._scoped = (*before, (first, count + 1, scope))
        else:
            self._scoped = (*self._scoped, (number, 1, scope))[-SKIPS_MAX:]

    def _skips(self, first: int, scope: str | None) -> tuple[Skip, ...]:
        """What the receivers of a batch may not have got, since the last one that was for all of them."""
        before = tuple([one for one in self._scoped if one[0] < first])
        if scope is None:
            self._scoped = self._scoped[len(before) :]
            return before
        for end in range(len(before), 0, -1):
            if is_within(scope, before[end - 1][2]):
                return before[end:]
        return before


def _kind(piece: _Piece) -> tuple[int, bool, bool, str | None]:
    version, _, _, _, item, scope = piece
    return version, item is None, item is not None and item.qos > 0, scope


def _nothing() -> None:
    """Nobody waits for it."""
