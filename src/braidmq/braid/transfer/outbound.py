"""OutboundTopics: where publications of this broker's clients leave for the other brokers.

A topic that is published here is an outbound topic. While nobody elsewhere wants it, nothing of it is sent. How that is
found out depends on the method: by the filters in use that could match it (`shaped_topics`), or by what the method
knows of all wants (`wildcard_topics`). Here is what both have in common: topics that come, and go when they are not
used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from heapq import nsmallest
from itertools import islice

from braidmq.braid.catch_up.history import GENERATIONS_MAX
from braidmq.braid.transfer.outbound_topic import OutboundTopic, SendQueue
from braidmq.host import Event, Host
from braidmq.mqtt.topics import matches

OUTBOUND_MAX = 1_000_000
"""Topics that this broker's clients may publish at a time, of 400 bytes each; those that were not used for long go."""

EVICTED_AT_ONCE = 256
"""Topics that go when there is no room for one more: of the oldest `EVICTION_SAMPLE`, those unused for longest."""

EVICTION_SAMPLE = 1024

SWEEP_SLICE = 1024
"""Topics that are looked at before others have their turn, when those are looked for that nobody publishes."""

AFTER_START_S = 120.0
"""How long after its start a broker keeps all of QoS 1 and 2, since it does not know yet what was wanted before."""

REST_S = 10.0
"""How long nobody waits to be told about demand, once it has taken too long to find out."""

ON_ITS_WAY_S = 0.1
"""How long what a topic held is on its way to other brokers, once it has left."""

IDLE_S = 600.0
"""How long a topic that nobody publishes any more stays advertised."""


class OutboundTopics(ABC):
    """All topics that are published here, or watched as if they were."""

    def __init__(self, queue: SendQueue, incarnation: int, host: Host) -> None:
        self.queue = queue
        """Those with something to send."""
        self.advertise: Callable[[str], Awaitable[None]]
        self.withdraw: Callable[[str], Awaitable[None]]
        self.on_open: Callable[[str], None] = _ignore
        """Called with a topic whose route may be another now: it was dropped, or has begun or ceased to be wanted."""
        self.on_demand: Callable[[str], None] = _ignore
        """Called with a topic of which it may have changed, or become known, whether anybody wants it."""
        self._host = host
        self._incarnation = incarnation * GENERATIONS_MAX
        """Of the streams of topics that are made now."""
        self._generation = 0
        self._by_topic: dict[str, OutboundTopic] = {}
        self._watched: dict[str, None] = {}
        """Those that a client here asks about, published or not."""
        self._rests_until = 0.0
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
    @abstractmethod
    def filters(self) -> list[str]:
        """All that are advertised one by one."""

    @abstractmethod
    def published(self, topic: str) -> OutboundTopic | None:
        """The outbound topic of what is published now, if the topic's route must lead through it."""

    def get(self, topic: str) -> OutboundTopic | None:
        return self._by_topic.get(topic)

    def watch(self, topic: str) -> None:
        """Finds out whether a topic is wanted, and stays informed, as if it were published."""
        self._watched[topic] = None
        if topic not in self._by_topic:
            self._make(topic)

    def unwatch(self, topic: str) -> None:
        self._watched.pop(topic, None)
        outbound_topic = self._by_topic.get(topic)
        if outbound_topic is not None and not outbound_topic.used_at:
            self._drop([outbound_topic])

    def for_publication(self, topic: str) -> OutboundTopic:
        """The outbound topic of what is published now."""
        outbound_topic = self._by_topic.get(topic)
        if outbound_topic is None:
            outbound_topic = self._make(topic)
        outbound_topic.used_at = self.queue.stamp()
        return outbound_topic

    # Demand

    def rest(self) -> None:
        """It has taken too long to find out about demand."""
        self._rests_until = self._host.now() + REST_S

    @property
    def is_resting(self) -> bool:
        return self._host.now() < self._rests_until

    async def until_settled(self, outbound_topic: OutboundTopic, timeout_s: float) -> None:
        """Waits until it is known who wants a topic, but not longer than so long."""
        if not outbound_topic.is_settled:
            settled = self._settled.setdefault(outbound_topic, self._host.event())
            await settled.wait(timeout_s)

    async def until_left(self, filters: list[str], timeout_s: float) -> None:
        """Waits until what topics hold that these filters match has left and, most likely, arrived."""
        ends_at = self._host.now() + timeout_s
        held = [one for one in self.queue.holding if any(matches(each, one.topic) for each in filters)]
        for outbound_topic in held:
            await self.until_settled(outbound_topic, max(0.0, ends_at - self._host.now()))
        if held:
            await self._host.sleep(max(0.0, min(ON_ITS_WAY_S, ends_at - self._host.now())))

    def _settle(self, outbound_topic: OutboundTopic) -> None:
        """It is known, for the first time, who wants a topic."""
        outbound_topic.is_settled = True
        self.queue.release(outbound_topic)
        settled = self._settled.pop(outbound_topic, None)
        if settled is not None:
            settled.set()

    # Topics that come and go

    @abstractmethod
    def _begin(self, topic: str, incarnation: int) -> OutboundTopic:
        """A topic that is new; to find out who wants it begins."""

    @abstractmethod
    def _keep(self, outbound_topics: Iterable[OutboundTopic]) -> None:
        """Some are still used: said now and then."""

    @abstractmethod
    def _end(self, outbound_topic: OutboundTopic) -> None:
        """A topic that is dropped need not be known any more."""

    def _make(self, topic: str) -> OutboundTopic:
        if len(self._by_topic) >= OUTBOUND_MAX:
            self._evict()
        outbound_topic = self._begin(topic, self._incarnation)
        self.on_demand(topic)
        return outbound_topic

    def _evict(self) -> None:
        """Makes room: a few of those that came first are looked at; what is not dropped counts as new again."""
        oldest = list(islice(self._by_topic.values(), EVICTION_SAMPLE))
        for outbound_topic in oldest:
            self._by_topic[outbound_topic.topic] = self._by_topic.pop(outbound_topic.topic)
        self._drop(nsmallest(EVICTED_AT_ONCE, oldest, key=lambda one: (one.topic in self._watched, one.used_at)))

    async def sweep(self) -> None:
        """Drops what nobody publishes any more, a slice at a time."""
        topics = list(self._by_topic.values())
        for begin in range(0, len(topics), SWEEP_SLICE):
            now = self._host.now()
            some = topics[begin : begin + SWEEP_SLICE]
            self._drop(one for one in some if now - one.used_at > IDLE_S and one.topic not in self._watched)
            self._keep(one for one in some if self._by_topic.get(one.topic) is one)
            await self._host.sleep(0.0)

    def _drop(self, outbound_topics: Iterable[OutboundTopic]) -> None:
        """Some go. A topic of these that comes again is of another generation, and so another stream."""
        dropped = [one for one in outbound_topics if self._by_topic.get(one.topic) is one]
        if dropped:
            self._generation = (self._generation + 1) % GENERATIONS_MAX
            self._incarnation = self._incarnation // GENERATIONS_MAX * GENERATIONS_MAX + self._generation
        for outbound_topic in dropped:
            del self._by_topic[outbound_topic.topic]
            outbound_topic.cut_through = None
            self._settled.pop(outbound_topic, None)
            self._end(outbound_topic)
            self.on_open(outbound_topic.topic)
            self.on_demand(outbound_topic.topic)
            self.queue.give_up(outbound_topic)


def _ignore(_topic: str) -> None:
    """Nobody wants to know."""
