"""OutboundTopics: where publications of this broker's clients leave for the other brokers.

A topic that is published here has an outbound_topic. It knows which filters in use could match the topic (`shapes`), and which
of them somebody subscribes to. While nobody does, the topic's route leads past it and nothing is sent. Before that is
known for the first time it holds what comes, within bounds. What comes during a tick leaves as one batch at its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from braidmq.braid.catch_up.history import GENERATIONS_MAX, HISTORY_S, History
from braidmq.braid.interest.shapes import shape_of
from braidmq.braid.task_limiter import TaskLimiter
from braidmq.braid.transfer.batch import Batch, BatchItem, Skip
from braidmq.keys import is_within
from braidmq.mqtt.packets import V5

if TYPE_CHECKING:
    from braidmq.braid.interest.shapes import Shape, Shapes
    from braidmq.braid.transfer.cut_through import CutThroughSender
    from braidmq.host import Host

HELD_BYTES_MAX = 1 << 20
"""Bytes that a topic may hold before it is known whether anybody wants it; QoS 0 beyond that is dropped."""

OUTBOUND_MAX = 100_000
"""Topics that this broker's clients may publish at a time; the one that was unused for longest goes."""

AFTER_START_S = 120.0
"""How long after its start a broker keeps all of QoS 1 and 2, since it does not know yet what was wanted before."""

SKIPS_MAX = 64
"""Stretches of publications for clusters that others are told of; who is not told of one waits for it in vain."""

WAITING_MAX = 1024
"""Acknowledgements that wait for what is found out about a topic; more of them are told nothing."""

REST_S = 10.0
"""How long nobody waits to be told about demand, once it has taken too long to find out."""

IDLE_S = 600.0
"""How long a topic that nobody publishes any more stays advertised."""


_Piece = tuple[int, int, int, bytes, BatchItem | None, str | None]
"""What waits to be sent: version, number, count, plain publications or a item, and its scope."""


class OutboundTopic:
    """One topic."""

    __slots__ = (
        "_outbound",
        "_pieces",
        "_scoped",
        "_size",
        "_waiting",
        "cut_through",
        "filters",
        "incarnation",
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

    def __init__(self, outbound: OutboundTopics, topic: str, filters: Iterable[str]) -> None:
        self._outbound = outbound
        self.topic = topic
        self.incarnation = outbound.stream_incarnation
        """The incarnation of its stream: a topic that comes again begins to count anew, and must not be taken for the old."""
        self.filters = dict.fromkeys(filters)
        """Every filter in use that could match the topic."""
        self.wanted: dict[str, None] = {}
        """Those that somebody subscribes to."""
        self.is_settled = False
        """Whether the demand for the filters it began with is known."""
        self.is_watched = False
        """Whether somebody here asks about the demand for the topic, published or not."""
        self.number = 0
        """Of the last publication that was taken."""
        self.used_at = 0.0
        self.wanted_at = outbound.assumed_wanted_at
        """When somebody was last known to want it."""
        self.cut_through: CutThroughSender | None = None
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
        """Does something when it is known whether anybody wants the topic; never, if too much waits for that."""
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
        """Whether somebody who cannot be reached now may still want it: then QoS 1 and 2 are kept for them."""
        return self.is_open or now - self.wanted_at < HISTORY_S

    def send_run(self, version: int, run: bytes, count: int) -> None:
        """Plain QoS 0 publications, as they came."""
        if not self.is_open:
            return
        if self._size > HELD_BYTES_MAX and not self.is_settled:
            self._outbound.dropped += count
        else:
            self._take(version, count, run, None)

    def add_item(self, item: BatchItem, now: float, scope: str | None = None) -> None:
        """Any other publication; of QoS 1 and 2 it is kept, and leaves if somebody can be reached."""
        if item.qos:
            item = self._outbound.keep(self, self.number + 1, item, now)
        leaves = self.is_open and (self.is_settled or self._size <= HELD_BYTES_MAX)
        if scope is not None and (leaves or item.qos):
            self._note_scoped(self.number + 1, scope)
        if leaves:
            self._take(V5, 1, b"", item, scope)
        elif item.qos:  # who wants it will see that it is missing, and ask for it
            self.number += 1

    def _take(self, version: int, count: int, run: bytes, item: BatchItem | None, scope: str | None = None) -> None:
        if not self._pieces:
            self._outbound.touch(self)
        self._pieces.append((version, self.number + 1, count, run, item, scope))
        self.number += count
        self._size += len(run) if item is None else len(item.payload)

    def batches(self) -> list[Batch]:
        """Takes out what waits, in its order: what is alike together."""
        found: list[Batch] = []
        self.used_at = self._outbound.now()
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
            found.append(
                Batch(self._outbound.origin, self.incarnation, self.topic, first, count, version, run, items, skips)
            )
        return found

    def _note_scoped(self, number: int, scope: str) -> None:
        *before, (first, count, cluster) = self._scoped or ((0, 0, ""),)
        if cluster == scope and first + count == number:
            self._scoped = (*before, (first, count + 1, scope))
        else:
            self._scoped = (*self._scoped, (number, 1, scope))[-SKIPS_MAX:]

    def _skips(self, first: int, scope: str | None) -> tuple[Skip, ...]:
        """What those whom a batch is for may not have got, since the last one that was for all of them."""
        before = tuple([one for one in self._scoped if one[0] < first])
        if scope is None:
            self._scoped = self._scoped[len(before) :]
            return before
        for place in range(len(before), 0, -1):
            if is_within(scope, before[place - 1][2]):
                return before[place:]
        return before


def _kind(piece: _Piece) -> tuple[int, bool, bool, str | None]:
    version, _, _, _, item, scope = piece
    return version, item is None, item is not None and item.qos > 0, scope


class OutboundTopics:
    """All topics that are published here."""

    def __init__(
        self, origin: str, incarnation: int, shapes: Shapes, host: Host, history: History, limiter: TaskLimiter
    ) -> None:
        self.origin = origin
        self._incarnation = incarnation
        self._generation = 0
        self.assumed_wanted_at = host.now() + AFTER_START_S - HISTORY_S
        self._history = history
        self.dropped = 0
        """Publications that were held, and then had no room."""
        self.advertise: Callable[[str], Awaitable[None]]
        self.withdraw: Callable[[str], Awaitable[None]]
        self.on_touched: Callable[[], None] = _nothing
        """Called when something waits for the end of the tick."""
        self.on_open: Callable[[str], None] = _ignore
        """Called with a topic whose outbound_topic has opened or closed: routes must lead through it, or past it."""
        self.on_demand: Callable[[str], None] = _ignore
        """Called with a topic of which it may have changed, or become known, whether anybody wants it."""
        self._shapes = shapes
        self._host = host
        self._limiter = limiter
        self._touched: list[OutboundTopic] = []
        self._by_topic: dict[str, OutboundTopic] = {}
        self._by_filter: dict[str, dict[OutboundTopic, None]] = {}
        self._rests_until = 0.0
        self._known: dict[str, bool] = {}
        """The demand for each filter that is advertised, once it is known."""
        self._taking_up: dict[str, None] = {}
        """Filters of new shapes of which that is not known, while a topic that fits is settled and so holds nothing."""

    def __len__(self) -> int:
        return len(self._by_topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self._by_topic

    def __iter__(self) -> Iterator[OutboundTopic]:
        return iter(self._by_topic.values())

    @property
    def filters(self) -> list[str]:
        """All that are advertised."""
        return list(self._by_filter)

    def now(self) -> float:
        return self._host.now()

    def open_for(self, topic: str) -> OutboundTopic | None:
        """The outbound_topic of a topic, if it is published here and somebody may want it."""
        outbound_topic = self._by_topic.get(topic)
        return (
            outbound_topic
            if outbound_topic is not None and outbound_topic.was_recently_wanted(self._host.now())
            else None
        )

    def get(self, topic: str) -> OutboundTopic | None:
        return self._by_topic.get(topic)

    def watch(self, topic: str) -> None:
        """Finds out whether a topic is wanted, and stays informed, as if it were published."""
        outbound_topic = self._by_topic.get(topic) or self._make(topic)
        outbound_topic.is_watched = True

    def unwatch(self, topic: str) -> None:
        outbound_topic = self._by_topic.get(topic)
        if outbound_topic is not None:
            outbound_topic.is_watched = False
            if not outbound_topic.used_at:
                self._drop(outbound_topic)

    def for_publication(self, topic: str) -> OutboundTopic:
        """The outbound_topic of a topic that is published now."""
        outbound_topic = self._by_topic.get(topic)
        if outbound_topic is None:
            outbound_topic = self._make(topic)
        outbound_topic.used_at = self._host.now()
        return outbound_topic

    @property
    def stream_incarnation(self) -> int:
        """The incarnation of a stream that begins now."""
        return self._incarnation * GENERATIONS_MAX + self._generation

    def keep(self, outbound_topic: OutboundTopic, number: int, item: BatchItem, now: float) -> BatchItem:
        return self._history.append(outbound_topic.topic, outbound_topic.incarnation, number, item, now)

    def touch(self, outbound_topic: OutboundTopic) -> None:
        if not self._touched:
            self.on_touched()
        self._touched.append(outbound_topic)

    def take_ready(self) -> list[OutboundTopic]:
        """The outbound that have something to send now; others go on waiting."""
        ready = [outbound_topic for outbound_topic in self._touched if outbound_topic.is_settled]
        self._touched = [outbound_topic for outbound_topic in self._touched if not outbound_topic.is_settled]
        return ready

    @property
    def has_ready(self) -> bool:
        return any(outbound_topic.is_settled for outbound_topic in self._touched)

    # Demand

    def set_demand(self, topic_filter: str, wanted: bool) -> None:
        """Somebody begins to want what a filter matches, or nobody does any more."""
        if topic_filter not in self._by_filter:
            return
        self._known[topic_filter] = wanted
        self._taking_up.pop(topic_filter, None)
        for outbound_topic in list(self._by_filter[topic_filter]):
            self._update(outbound_topic, topic_filter, wanted)

    def _update(self, outbound_topic: OutboundTopic, topic_filter: str, wanted: bool) -> None:
        was_open = outbound_topic.is_open
        outbound_topic.cut_through = None
        if was_open:
            outbound_topic.wanted_at = self._host.now()
        if wanted:
            outbound_topic.wanted[topic_filter] = None
        else:
            outbound_topic.wanted.pop(topic_filter, None)
        self._settle(outbound_topic)
        if outbound_topic.is_open != was_open:
            self.on_open(outbound_topic.topic)
        self.on_demand(outbound_topic.topic)
        if outbound_topic.is_known:
            outbound_topic.tell_known()

    def rest(self) -> None:
        """It has taken too long to find out about demand."""
        self._rests_until = self._host.now() + REST_S

    @property
    def is_resting(self) -> bool:
        return self._host.now() < self._rests_until

    def _settle(self, outbound_topic: OutboundTopic) -> None:
        if not outbound_topic.is_settled and all(one in self._known for one in outbound_topic.filters):
            outbound_topic.is_settled = True
            if self._touched:
                self.on_touched()

    def learn_shape(self, shape: Shape) -> None:
        """A new shape is in use: every topic has one more filter that could match, if it fits."""
        for outbound_topic in list(self._by_topic.values()):
            was_open = outbound_topic.is_open
            for topic_filter in self._shapes.filters_for(outbound_topic.topic):
                if topic_filter not in outbound_topic.filters:
                    self._add_filter(outbound_topic, topic_filter)
            if outbound_topic.is_open != was_open:
                self.on_open(outbound_topic.topic)
                self.on_demand(outbound_topic.topic)

    def is_taking_up(self, shape: Shape) -> bool:
        """Whether a topic that fits a shape would be published, and not yet be sent to those who use it."""
        return any(shape_of(one) == shape for one in self._taking_up)

    def sweep(self) -> None:
        """Withdraws what nobody publishes any more."""
        now = self._host.now()
        for outbound_topic in [one for one in self._by_topic.values() if now - one.used_at > IDLE_S]:
            if not outbound_topic.is_watched:
                self._drop(outbound_topic)

    # Topics that come and go

    def _make(self, topic: str) -> OutboundTopic:
        if len(self._by_topic) >= OUTBOUND_MAX:
            self._drop(min(self._by_topic.values(), key=lambda one: (one.is_watched, one.used_at)))
        outbound_topic = self._by_topic[topic] = OutboundTopic(self, topic, ())
        for topic_filter in self._shapes.filters_for(topic):
            self._add_filter(outbound_topic, topic_filter)
        self._settle(outbound_topic)
        self.on_open(topic)
        self.on_demand(topic)
        return outbound_topic

    def _add_filter(self, outbound_topic: OutboundTopic, topic_filter: str) -> None:
        outbound_topic.filters[topic_filter] = None
        outbound_topic.cut_through = None
        if outbound_topic.is_settled and topic_filter not in self._known:
            self._taking_up[topic_filter] = None
        others = self._by_filter.get(topic_filter)
        if others is None:
            self._by_filter[topic_filter] = {outbound_topic: None}
            self._limiter.submit(partial(self._begin, topic_filter))
        else:
            others[outbound_topic] = None
            if self._known.get(topic_filter):
                outbound_topic.wanted[topic_filter] = None

    async def _begin(self, topic_filter: str) -> None:
        await self.advertise(topic_filter)
        if topic_filter in self._by_filter:
            self.set_demand(topic_filter, self._known.get(topic_filter, False))

    def _drop(self, outbound_topic: OutboundTopic) -> None:
        del self._by_topic[outbound_topic.topic]
        outbound_topic.cut_through = None
        self._generation = (self._generation + 1) % GENERATIONS_MAX
        for topic_filter in outbound_topic.filters:
            others = self._by_filter[topic_filter]
            del others[outbound_topic]
            if not others:
                del self._by_filter[topic_filter]
                self._known.pop(topic_filter, None)
                self._taking_up.pop(topic_filter, None)
                self._limiter.submit(partial(self._end, topic_filter))
        self.on_open(outbound_topic.topic)
        self.on_demand(outbound_topic.topic)
        outbound_topic.tell_known()

    async def _end(self, topic_filter: str) -> None:
        if topic_filter not in self._by_filter:
            await self.withdraw(topic_filter)


def _nothing() -> None:
    """Nobody waits for it."""


def _ignore(_topic: str) -> None:
    """Nobody wants to know."""
