"""OutboundTopics: where publications of this broker's clients leave for the other brokers.

A topic that is published here is an outbound topic. It knows which filters in use could match it (`shapes`), and which
of them anybody subscribes to. While nobody does, the topic's route leads past it and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from braidmq.braid.catch_up.history import GENERATIONS_MAX, HISTORY_S, History
from braidmq.braid.interest.shapes import Shape, Shapes, shape_of
from braidmq.braid.task_limiter import TaskLimiter
from braidmq.braid.transfer.outbound_topic import OutboundTopic, SendQueue
from braidmq.host import Event, Host

OUTBOUND_MAX = 100_000
"""Topics that this broker's clients may publish at a time; the one that was unused for longest goes."""

AFTER_START_S = 120.0
"""How long after its start a broker keeps all of QoS 1 and 2, since it does not know yet what was wanted before."""

REST_S = 10.0
"""How long nobody waits to be told about demand, once it has taken too long to find out."""

IDLE_S = 600.0
"""How long a topic that nobody publishes any more stays advertised."""


class OutboundTopics:
    """All topics that are published here."""

    def __init__(
        self, origin: str, incarnation: int, shapes: Shapes, host: Host, history: History, limiter: TaskLimiter
    ) -> None:
        self.queue = SendQueue(origin, host, history)
        """Those with something to send."""
        self.advertise: Callable[[str], Awaitable[None]]
        self.withdraw: Callable[[str], Awaitable[None]]
        self.on_open: Callable[[str], None] = _ignore
        """Called with a topic that has begun or ceased to be wanted: its route must lead through here, or past it."""
        self.on_demand: Callable[[str], None] = _ignore
        """Called with a topic of which it may have changed, or become known, whether anybody wants it."""
        self._incarnation = incarnation
        self._generation = 0
        self._assumed_wanted_at = host.now() + AFTER_START_S - HISTORY_S
        self._shapes = shapes
        self._host = host
        self._limiter = limiter
        self._by_topic: dict[str, OutboundTopic] = {}
        self._by_filter: dict[str, dict[OutboundTopic, None]] = {}
        self._rests_until = 0.0
        self._known: dict[str, bool] = {}
        """The demand for each filter that is advertised, once it is known."""
        self._taking_up: dict[str, None] = {}
        """Filters of new shapes of which that is not known, while a topic that fits is settled and so holds nothing."""
        self._settled: dict[OutboundTopic, Event] = {}
        """By topic that is not settled: happens when it is."""

    def __len__(self) -> int:
        return len(self._by_topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self._by_topic

    def __iter__(self) -> Iterator[OutboundTopic]:
        return iter(self._by_topic.values())

    @property
    def dropped(self) -> int:
        """Publications that were held, and then had no room."""
        return self.queue.dropped

    @property
    def filters(self) -> list[str]:
        """All that are advertised."""
        return list(self._by_filter)

    def open_for(self, topic: str) -> OutboundTopic | None:
        """The outbound topic, if it is published here and anybody may want it."""
        outbound_topic = self._by_topic.get(topic)
        if outbound_topic is None or not outbound_topic.was_recently_wanted(self._host.now()):
            return None
        return outbound_topic

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
        """The outbound topic of what is published now."""
        outbound_topic = self._by_topic.get(topic)
        if outbound_topic is None:
            outbound_topic = self._make(topic)
        outbound_topic.used_at = self._host.now()
        return outbound_topic

    # Demand

    def set_demand(self, topic_filter: str, wanted: bool) -> None:
        """Anybody begins to want what a filter matches, or nobody does any more."""
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
        self._settle_demand(outbound_topic)
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

    async def until_settled(self, outbound_topic: OutboundTopic, timeout_s: float) -> None:
        """Waits until the demand for all filters of a topic is known, but not longer than so long."""
        if not outbound_topic.is_settled:
            settled = self._settled.setdefault(outbound_topic, self._host.event())
            await settled.wait(timeout_s)

    def _settle_demand(self, outbound_topic: OutboundTopic) -> None:
        if not outbound_topic.is_settled and all(one in self._known for one in outbound_topic.filters):
            outbound_topic.is_settled = True
            self.queue.touch_again()
            if outbound_topic in self._settled:
                self._settled.pop(outbound_topic).set()

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
        """Whether a topic that fits a shape would be published, and not yet be sent to brokers that use it."""
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
        incarnation = self._incarnation * GENERATIONS_MAX + self._generation
        outbound_topic = OutboundTopic(self.queue, topic, incarnation, self._assumed_wanted_at)
        self._by_topic[topic] = outbound_topic
        for topic_filter in self._shapes.filters_for(topic):
            self._add_filter(outbound_topic, topic_filter)
        self._settle_demand(outbound_topic)
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
        self._settled.pop(outbound_topic, None)
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


def _ignore(_topic: str) -> None:
    """Nobody wants to know."""
