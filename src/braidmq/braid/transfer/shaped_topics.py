"""Outbound topics of methods with a key a topic: each knows the filters in use that could match it (`shapes`).

Which of them anybody subscribes to is told by the method, filter by filter. While nobody does, the topic's route leads
past it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from braidmq.braid.catch_up.history import HISTORY_S, History
from braidmq.braid.interest.shapes import Shape, Shapes, shape_of
from braidmq.braid.task_limiter import TaskLimiter
from braidmq.braid.transfer.outbound import AFTER_START_S, OutboundTopics
from braidmq.braid.transfer.outbound_topic import LastingPath, OutboundTopic, SendQueue
from braidmq.host import Host


class ShapedTopic(OutboundTopic):
    __slots__ = ("cut_through", "filters", "wanted", "wanted_at")

    def __init__(self, queue: SendQueue, topic: str, incarnation: int, wanted_at: float) -> None:
        super().__init__(queue, topic, incarnation)
        self.filters: dict[str, None] = {}
        self.wanted: dict[str, None] = {}
        self.wanted_at = wanted_at
        """When anybody was last known to want it."""
        self.cut_through: LastingPath | None = None

    def was_recently_wanted(self, now: float) -> bool:
        return self.is_open or now - self.wanted_at < HISTORY_S


class ShapedTopics(OutboundTopics):
    def __init__(
        self, origin: str, incarnation: int, shapes: Shapes, host: Host, history: History, limiter: TaskLimiter
    ) -> None:
        super().__init__(SendQueue(origin, host, history), incarnation, host)
        self._assumed_wanted_at = host.now() + AFTER_START_S - HISTORY_S
        self._shapes = shapes
        self._limiter = limiter
        self._by_filter: dict[str, dict[ShapedTopic, None]] = {}
        self._known: dict[str, bool] = {}
        """The demand for each filter that is advertised, once it is known."""
        self._taking_up: dict[str, None] = {}
        """Filters of new shapes of which that is not known, while a topic that fits is settled and so holds nothing."""

    @property
    def filters(self) -> list[str]:
        return list(self._by_filter)

    def published(self, topic: str) -> OutboundTopic | None:
        outbound_topic = self.for_publication(topic)
        return outbound_topic if outbound_topic.was_recently_wanted(self._host.now()) else None

    # Demand

    def set_demand(self, topic_filter: str, wanted: bool) -> None:
        """Anybody begins to want what a filter matches, or nobody does any more."""
        if topic_filter not in self._by_filter:
            return
        self._known[topic_filter] = wanted
        self._taking_up.pop(topic_filter, None)
        for outbound_topic in list(self._by_filter[topic_filter]):
            self._update(outbound_topic, topic_filter, wanted)

    def _update(self, outbound_topic: ShapedTopic, topic_filter: str, wanted: bool) -> None:
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
            self.queue.tell_known(outbound_topic)

    def _settle_demand(self, outbound_topic: ShapedTopic) -> None:
        if not outbound_topic.is_settled and all(one in self._known for one in outbound_topic.filters):
            self._settle(outbound_topic)

    def learn_shape(self, shape: Shape) -> None:
        """A new shape is in use: every topic has one more filter that could match, if it fits."""
        for outbound_topic in [one for one in self if isinstance(one, ShapedTopic)]:
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

    # Topics that come and go

    def _begin(self, topic: str, incarnation: int) -> ShapedTopic:
        outbound_topic = ShapedTopic(self.queue, topic, incarnation, self._assumed_wanted_at)
        self._by_topic[topic] = outbound_topic
        for topic_filter in self._shapes.filters_for(topic):
            self._add_filter(outbound_topic, topic_filter)
        self._settle_demand(outbound_topic)
        return outbound_topic

    def _add_filter(self, outbound_topic: ShapedTopic, topic_filter: str) -> None:
        outbound_topic.filters[topic_filter] = None
        outbound_topic.cut_through = None
        if outbound_topic.is_settled and topic_filter not in self._known:
            self._taking_up[topic_filter] = None
        others = self._by_filter.get(topic_filter)
        if others is None:
            self._by_filter[topic_filter] = {outbound_topic: None}
            self._limiter.submit(partial(self._begin_filter, topic_filter))
        else:
            others[outbound_topic] = None
            if self._known.get(topic_filter):
                outbound_topic.wanted[topic_filter] = None

    async def _begin_filter(self, topic_filter: str) -> None:
        await self.advertise(topic_filter)
        if topic_filter in self._by_filter:
            self.set_demand(topic_filter, self._known.get(topic_filter, False))

    def _keep(self, outbound_topics: Iterable[OutboundTopic]) -> None:
        """Their keys stand in the overlay until they are withdrawn."""

    def _end(self, outbound_topic: OutboundTopic) -> None:
        assert isinstance(outbound_topic, ShapedTopic)
        for topic_filter in outbound_topic.filters:
            others = self._by_filter[topic_filter]
            del others[outbound_topic]
            if not others:
                del self._by_filter[topic_filter]
                self._known.pop(topic_filter, None)
                self._taking_up.pop(topic_filter, None)
                self._limiter.submit(partial(self._end_filter, topic_filter))

    async def _end_filter(self, topic_filter: str) -> None:
        if topic_filter not in self._by_filter:
            await self.withdraw(topic_filter)
