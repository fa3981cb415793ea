"""Outbound topics of a method that knows all wants (`WildcardMethod`): each looks up whether it is wanted.

A topic that the method knows about is settled when it is made, and costs no message and no task. Another one waits for
the method to find out, and most others that wait are then known with it: so a few workers take one after the other.

When the wants of another broker change, no topic is touched. Changes are counted, and the last of them noted. A topic
that is used after one that concerns it looks up again whether it is wanted, and gives up its short way, which may lead
to others than it should.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from braidmq.braid.catch_up.history import History
from braidmq.braid.transfer.outbound import AFTER_START_S, OUTBOUND_MAX, OutboundTopics
from braidmq.braid.transfer.outbound_topic import LastingPath, OutboundTopic, SendQueue
from braidmq.host import Host
from braidmq.mqtt.topics import matches
from braidmq.pubsub.method import WildcardMethod, ignore

FINDERS_MAX = 4
"""Topics about which the method is asked at a time."""

FOUND_AT_ONCE = 256
"""Topics that are settled, one after the other, before others have their turn."""

EVERYTHING = "#"
"""Said by the method in place of many filters that have changed at a time, those of `$` topics included."""

RECENT_MAX = 64
"""Changes of wants that are noted. A topic that was not used for more of them looks up whether it is wanted in any
case."""

_NOT_HEARD, _NOBODY, _SILENT, _SOMEBODY = range(4)
"""Who wants a topic: nobody that can be reached; nobody at all; perhaps a broker that has fallen silent; a broker that
can be reached. The first is all that QoS 0 needs."""


class WantsQueue(SendQueue):
    """What such topics share: also what the method knows of wants."""

    def __init__(self, origin: str, host: Host, history: History, method: WildcardMethod) -> None:
        super().__init__(origin, host, history)
        self.version = 0
        """How often the wants of other brokers have changed."""
        self.keeps_all_until = host.now() + AFTER_START_S
        """Until then QoS 1 and 2 is kept, whoever wants it."""
        self.is_wanted = method.is_wanted
        self.was_wanted = method.was_wanted
        self._recent: deque[tuple[str, str]] = deque(maxlen=RECENT_MAX)
        """The filters of the last changes, each behind what all topics begin with that it matches."""

    def note_change(self, topic_filter: str) -> None:
        self.version += 1
        begin = topic_filter.partition("+")[0].partition("#")[0]
        self._recent.append((begin.removesuffix("/"), topic_filter))

    def is_concerned(self, topic: str, since: int) -> bool:
        """Whether a topic may be wanted by others than it was some changes before."""
        count = self.version - since
        if since < 0 or count > len(self._recent):
            return True
        for begin, topic_filter in islice(reversed(self._recent), count):
            if topic.startswith(begin) and (topic_filter == EVERYTHING or matches(topic_filter, topic)):
                return True
        return False


class WildcardTopic(OutboundTopic):
    __slots__ = ("_cut_through", "_demand", "_version")
    _queue: WantsQueue

    def __init__(self, queue: WantsQueue, topic: str, incarnation: int) -> None:
        super().__init__(queue, topic, incarnation)
        self._version = -1
        """How often wants had changed when the demand was looked up."""
        self._demand = _NOT_HEARD
        self._cut_through: LastingPath | None = None

    def look_up(self) -> None:
        """Finds out who wants it, if that may have changed since it was last done."""
        since, self._version = self._version, self._queue.version
        if not self._queue.is_concerned(self.topic, since):
            return
        self._demand = _SOMEBODY if self._queue.is_wanted(self.topic) else _NOT_HEARD
        self._cut_through = None

    def forget_demand(self) -> None:
        """It is to be looked up anew."""
        self._version = -1

    @property
    def filters(self) -> tuple[str]:
        return (self.topic,)

    @property
    def wanted(self) -> tuple[str, ...]:
        if self._version != self._queue.version:
            self.look_up()
        return (self.topic,) if self._demand == _SOMEBODY else ()

    @property
    def is_open(self) -> bool:
        if self._version != self._queue.version:
            self.look_up()
        return self._demand == _SOMEBODY or not self.is_settled

    @property
    def cut_through(self) -> LastingPath | None:
        if self._version != self._queue.version:
            self.look_up()
        return self._cut_through

    @cut_through.setter
    def cut_through(self, path: LastingPath | None) -> None:
        self._cut_through = path

    @property
    def is_kept(self) -> bool:
        return self.is_open or self.was_recently_wanted(self._queue.now())

    def was_recently_wanted(self, now: float) -> bool:
        return self.is_open or now < self._queue.keeps_all_until or self.is_missed

    @property
    def is_missed(self) -> bool:
        if self.is_open:
            return False
        if self._demand == _NOT_HEARD:
            self._demand = _SILENT if self._queue.was_wanted(self.topic) else _NOBODY
        return self._demand == _SILENT


class WildcardTopics(OutboundTopics):
    def __init__(self, origin: str, incarnation: int, method: WildcardMethod, host: Host, history: History) -> None:
        self._wants = WantsQueue(origin, host, history, method)
        super().__init__(self._wants, incarnation, host)
        self.on_changed: Callable[[str], None] = ignore
        """Called with a filter when it may have changed which of the topics that it matches are wanted."""
        self._method = method
        self._unknown: deque[str] = deque()
        """Topics about which the method is to be asked: twice as many as may be published, at the most."""
        self._finders = 0

    @property
    def filters(self) -> list[str]:
        return []

    def published(self, topic: str) -> OutboundTopic:
        return self.for_publication(topic)

    def for_publication(self, topic: str) -> OutboundTopic:
        outbound_topic = self._by_topic.get(topic) or self._make(topic)
        outbound_topic.used_at = self.queue.stamp()
        if not outbound_topic.is_settled and self._method.knows(topic):
            self._settle(outbound_topic)
        return outbound_topic

    # Demand

    def on_wants(self, topic_filter: str) -> None:
        """Another broker begins or ceases to want what a filter matches."""
        self._wants.note_change(topic_filter)
        self.on_changed(topic_filter)

    async def _find_out(self) -> None:
        """Asks about one topic after the other, as long as there are any that are not known."""
        count = 0
        try:
            while self._unknown:
                topic = self._unknown.popleft()
                if topic in self._by_topic and not self._method.knows(topic):
                    await self.advertise(topic)
                outbound_topic = self._by_topic.get(topic)
                if outbound_topic is not None:
                    self._settle(outbound_topic)
                count += 1
                if count % FOUND_AT_ONCE == 0:
                    await self._host.sleep(0.0)
        finally:
            self._finders -= 1

    def _settle(self, outbound_topic: OutboundTopic) -> None:
        assert isinstance(outbound_topic, WildcardTopic)
        if not outbound_topic.is_settled:
            outbound_topic.forget_demand()
            super()._settle(outbound_topic)
            self.on_demand(outbound_topic.topic)
            self.queue.tell_known(outbound_topic)

    # Topics that come and go

    def _begin(self, topic: str, incarnation: int) -> WildcardTopic:
        outbound_topic = self._by_topic[topic] = WildcardTopic(self._wants, topic, incarnation)
        outbound_topic.is_settled = self._method.knows(topic)
        if not outbound_topic.is_settled:
            self._ask_about(topic)
        return outbound_topic

    def _ask_about(self, topic: str) -> None:
        self._unknown.append(topic)
        if len(self._unknown) > 2 * OUTBOUND_MAX:  # many of them were dropped
            self._unknown = deque(one.topic for one in self if not one.is_settled)
        if self._finders < FINDERS_MAX:
            self._finders += 1
            self._host.spawn(self._find_out())

    def _keep(self, outbound_topics: Iterable[OutboundTopic]) -> None:
        """Asks the method about them, so that it goes on to know: it forgets what it is not asked about for long."""
        for outbound_topic in outbound_topics:
            if not self._method.knows(outbound_topic.topic) and outbound_topic.is_settled:
                outbound_topic.is_settled = False
                self._ask_about(outbound_topic.topic)

    def _end(self, outbound_topic: OutboundTopic) -> None:
        """The method keeps nothing of it."""
