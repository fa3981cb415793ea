"""OutboundTopics: where publications of this broker's clients leave for the other brokers.

A topic that is published here has an outlet. It knows which filters in use could match the topic (`shapes`), and which
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

OUTLETS_MAX = 100_000
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
"""What waits to be sent: version, number, count, plain publications or a letter, and its scope."""


class OutboundTopic:
    """One topic."""

    __slots__ = (
        "_outlets",
        "_pieces",
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

    def __init__(self, outlets: OutboundTopics, topic: str, filters: Iterable[str]) -> None:
        self._outlets = outlets
        self.topic = topic
        self.incarnation = outlets.stream_incarnation
        """The incarnation of its stream: a topic that comes again counts anew, and must not be taken for the old."""
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
        self.wanted_at = outlets.haunted_at
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

    def is_haunted(self, now: float) -> bool:
        """Whether somebody who cannot be reached now may still want it: then QoS 1 and 2 are kept for them."""
        return self.is_open or now - self.wanted_at < HISTORY_S

    def send_run(self, version: int, run: bytes, count: int) -> None:
        """Plain QoS 0 publications, as they came."""
        if not self.is_open:
            return
        if self._size > HELD_BYTES_MAX and not self.is_settled:
            self._outlets.dropped += count
        else:
            self._take(version, count, run, None)

    def take_letter(self, letter: BatchItem, now: float, scope: str | None = None) -> None:
        """Any other publication; of QoS 1 and 2 it is kept, and leaves if somebody can be reached."""
        if letter.qos:
            letter = self._outlets.keep(self, self.number + 1, letter, now)
        leaves = self.is_open and (self.is_settled or self._size <= HELD_BYTES_MAX)
        if scope is not None and (leaves or letter.qos):
            self._note_scoped(self.number + 1, scope)
        if leaves:
            self._take(V5, 1, b"", letter, scope)
        elif letter.qos:  # who wants it will see that it is missing, and ask for it
            self.number += 1

    def _take(self, version: int, count: int, run: bytes, letter: BatchItem | None, scope: str | None = None) -> None:
        if not self._pieces:
            self._outlets.touch(self)
        self._pieces.append((version, self.number + 1, count, run, letter, scope))
        self.number += count
        self._size += len(run) if letter is None else len(letter.payload)

    def batches(self) -> list[Batch]:
        """Takes out what waits, in its order: what is alike together."""
        found: list[Batch] = []
        self.used_at = self._outlets.now()
        pieces, self._pieces, self._size = self._pieces, [], 0
        while pieces:
            version, first, _, _, _, scope = pieces[0]
            kind = _kind(pieces[0]) if len(pieces) > 1 else None
            alike = 1
            while alike < len(pieces) and _kind(pieces[alike]) == kind:
                alike += 1
            some, pieces = pieces[:alike], pieces[alike:]
            letters = tuple([one[4] for one in some if one[4] is not None])
            run = some[0][3] if alike == 1 else b"".join([one[3] for one in some])
            count = sum(one[2] for one in some)
            skips = self._skips(first, scope) if self._scoped else ()
            found.append(
                Batch(self._outlets.origin, self.incarnation, self.topic, first, count, version, run, letters, skips)
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
    version, _, _, _, letter, scope = piece
    return version, letter is None, letter is not None and letter.qos > 0, scope


class OutboundTopics:
    """All topics that are published here."""

    def __init__(
        self, origin: str, incarnation: int, shapes: Shapes, host: Host, history: History, crew: TaskLimiter
    ) -> None:
        self.origin = origin
        self._incarnation = incarnation
        self._generation = 0
        self.haunted_at = host.now() + AFTER_START_S - HISTORY_S
        self._history = history
        self.dropped = 0
        """Publications that were held, and then had no room."""
        self.advertise: Callable[[str], Awaitable[None]]
        self.withdraw: Callable[[str], Awaitable[None]]
        self.on_touched: Callable[[], None] = _nothing
        """Called when something waits for the end of the tick."""
        self.on_open: Callable[[str], None] = _ignore
        """Called with a topic whose outlet has opened or closed: routes must lead through it, or past it."""
        self.on_demand: Callable[[str], None] = _ignore
        """Called with a topic of which it may have changed, or become known, whether anybody wants it."""
        self._shapes = shapes
        self._host = host
        self._crew = crew
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
        """The outlet of a topic, if it is published here and somebody may want it."""
        outlet = self._by_topic.get(topic)
        return outlet if outlet is not None and outlet.is_haunted(self._host.now()) else None

    def get(self, topic: str) -> OutboundTopic | None:
        return self._by_topic.get(topic)

    def watch(self, topic: str) -> None:
        """Finds out whether a topic is wanted, and stays informed, as if it were published."""
        outlet = self._by_topic.get(topic) or self._make(topic)
        outlet.is_watched = True

    def unwatch(self, topic: str) -> None:
        outlet = self._by_topic.get(topic)
        if outlet is not None:
            outlet.is_watched = False
            if not outlet.used_at:
                self._drop(outlet)

    def for_publication(self, topic: str) -> OutboundTopic:
        """The outlet of a topic that is published now."""
        outlet = self._by_topic.get(topic)
        if outlet is None:
            outlet = self._make(topic)
        outlet.used_at = self._host.now()
        return outlet

    @property
    def stream_incarnation(self) -> int:
        """The incarnation of a stream that begins now."""
        return self._incarnation * GENERATIONS_MAX + self._generation

    def keep(self, outlet: OutboundTopic, number: int, letter: BatchItem, now: float) -> BatchItem:
        return self._history.append(outlet.topic, outlet.incarnation, number, letter, now)

    def touch(self, outlet: OutboundTopic) -> None:
        if not self._touched:
            self.on_touched()
        self._touched.append(outlet)

    def take_ready(self) -> list[OutboundTopic]:
        """The outlets that have something to send now; others go on waiting."""
        ready = [outlet for outlet in self._touched if outlet.is_settled]
        self._touched = [outlet for outlet in self._touched if not outlet.is_settled]
        return ready

    @property
    def has_ready(self) -> bool:
        return any(outlet.is_settled for outlet in self._touched)

    # Demand

    def set_demand(self, topic_filter: str, wanted: bool) -> None:
        """Somebody begins to want what a filter matches, or nobody does any more."""
        if topic_filter not in self._by_filter:
            return
        self._known[topic_filter] = wanted
        self._taking_up.pop(topic_filter, None)
        for outlet in list(self._by_filter[topic_filter]):
            self._update(outlet, topic_filter, wanted)

    def _update(self, outlet: OutboundTopic, topic_filter: str, wanted: bool) -> None:
        was_open = outlet.is_open
        outlet.cut_through = None
        if was_open:
            outlet.wanted_at = self._host.now()
        if wanted:
            outlet.wanted[topic_filter] = None
        else:
            outlet.wanted.pop(topic_filter, None)
        self._settle(outlet)
        if outlet.is_open != was_open:
            self.on_open(outlet.topic)
        self.on_demand(outlet.topic)
        if outlet.is_known:
            outlet.tell_known()

    def rest(self) -> None:
        """It has taken too long to find out about demand."""
        self._rests_until = self._host.now() + REST_S

    @property
    def is_resting(self) -> bool:
        return self._host.now() < self._rests_until

    def _settle(self, outlet: OutboundTopic) -> None:
        if not outlet.is_settled and all(one in self._known for one in outlet.filters):
            outlet.is_settled = True
            if self._touched:
                self.on_touched()

    def learn_shape(self, shape: Shape) -> None:
        """A new shape is in use: every topic has one more filter that could match, if it fits."""
        for outlet in list(self._by_topic.values()):
            was_open = outlet.is_open
            for topic_filter in self._shapes.filters_for(outlet.topic):
                if topic_filter not in outlet.filters:
                    self._add_filter(outlet, topic_filter)
            if outlet.is_open != was_open:
                self.on_open(outlet.topic)
                self.on_demand(outlet.topic)

    def is_taking_up(self, shape: Shape) -> bool:
        """Whether a topic that fits a shape would be published, and not yet be sent to those who use it."""
        return any(shape_of(one) == shape for one in self._taking_up)

    def sweep(self) -> None:
        """Withdraws what nobody publishes any more."""
        now = self._host.now()
        for outlet in [one for one in self._by_topic.values() if now - one.used_at > IDLE_S]:
            if not outlet.is_watched:
                self._drop(outlet)

    # Topics that come and go

    def _make(self, topic: str) -> OutboundTopic:
        if len(self._by_topic) >= OUTLETS_MAX:
            self._drop(min(self._by_topic.values(), key=lambda one: (one.is_watched, one.used_at)))
        outlet = self._by_topic[topic] = OutboundTopic(self, topic, ())
        for topic_filter in self._shapes.filters_for(topic):
            self._add_filter(outlet, topic_filter)
        self._settle(outlet)
        self.on_open(topic)
        self.on_demand(topic)
        return outlet

    def _add_filter(self, outlet: OutboundTopic, topic_filter: str) -> None:
        outlet.filters[topic_filter] = None
        outlet.cut_through = None
        if outlet.is_settled and topic_filter not in self._known:
            self._taking_up[topic_filter] = None
        others = self._by_filter.get(topic_filter)
        if others is None:
            self._by_filter[topic_filter] = {outlet: None}
            self._crew.do(partial(self._begin, topic_filter))
        else:
            others[outlet] = None
            if self._known.get(topic_filter):
                outlet.wanted[topic_filter] = None

    async def _begin(self, topic_filter: str) -> None:
        await self.advertise(topic_filter)
        if topic_filter in self._by_filter:
            self.set_demand(topic_filter, self._known.get(topic_filter, False))

    def _drop(self, outlet: OutboundTopic) -> None:
        del self._by_topic[outlet.topic]
        outlet.cut_through = None
        self._generation = (self._generation + 1) % GENERATIONS_MAX
        for topic_filter in outlet.filters:
            others = self._by_filter[topic_filter]
            del others[outlet]
            if not others:
                del self._by_filter[topic_filter]
                self._known.pop(topic_filter, None)
                self._taking_up.pop(topic_filter, None)
                self._crew.do(partial(self._end, topic_filter))
        self.on_open(outlet.topic)
        self.on_demand(outlet.topic)
        outlet.tell_known()

    async def _end(self, topic_filter: str) -> None:
        if topic_filter not in self._by_filter:
            await self.withdraw(topic_filter)


def _nothing() -> None:
    """Nobody waits for it."""


def _ignore(_topic: str) -> None:
    """Nobody wants to know."""
