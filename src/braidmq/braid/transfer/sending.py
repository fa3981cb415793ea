"""The way of a publication of a client here to the other brokers: taken at once, sent at the end of the tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from braidmq.braid.catch_up.history import History
from braidmq.braid.interest.scope import scope_of
from braidmq.braid.membership.presence import Presence
from braidmq.braid.roaming.marks import Marks
from braidmq.braid.transfer.batch import PublicationBatch, item_of, pack
from braidmq.braid.transfer.outbound import OutboundTopics
from braidmq.braid.transfer.outbound_topic import OutboundTopic
from braidmq.broker.broker import Broker
from braidmq.broker.local_topics import LOCAL_PREFIXES
from braidmq.broker.message import Message, Reached
from braidmq.host import Host
from braidmq.overlay.ranges import Outcome
from braidmq.pubsub.method import Method, ProvenMethod, ScopedMethod, WildcardMethod

PROOF_S = 30.0
"""How long a publication of QoS 1 or 2 is repeated to brokers that have not answered for it."""


FEW_TOPICS = 16
"""With more topics in a tick nothing comes alone: then nothing is learnt for cut-throughs."""


Ready = tuple[OutboundTopic, list[PublicationBatch]]
"""A topic, and what is to leave of it."""


class BatchPublisher(Protocol):
    def publish(self, outbound_topic: OutboundTopic, batch: PublicationBatch) -> None: ...

    def publish_alone(self, outbound_topic: OutboundTopic, batch: PublicationBatch) -> bool:
        """Sends the only batch of a tick a short way, if there is one for it."""
        ...


class PublicationSender:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        method: Method,
        presence: Presence,
        outbound: OutboundTopics,
        history: History,
        origin: str,
        marks: Marks,
    ) -> None:
        """`origin` names this broker's history."""
        self._broker = broker
        self._host = host
        self._method = method
        self._proven = method if isinstance(method, ProvenMethod) else None
        """The method, if it can prove which brokers have a publication."""
        self._scoped = method if isinstance(method, ScopedMethod) else None
        """The method, if it can keep a publication inside a cluster."""
        self._wildcard = method if isinstance(method, WildcardMethod) else None
        """The method, if it knows who wants what, and can bring together what is for the same brokers."""
        self._presence = presence
        self._outbound = outbound
        self._history = history
        self._origin = origin
        self._marks = marks
        self.cork: Callable[[], bool] = lambda: False
        self.uncork: Callable[[], None] = lambda: None
        """Hold back what the host is to send, so that it leaves in one piece and at once."""
        self.publisher: BatchPublisher = self
        """Gives batches to the method: this one, or a cut-through that learns from it."""
        self.unproven = 0
        """Publications of QoS 1 or 2 of which no proof came in time."""

    # Taken

    def send(self, message: Message) -> Reached:
        """Takes a publication of a client here for other brokers; whether anybody there is known to want it."""
        if message.topic.startswith(LOCAL_PREFIXES):
            return Reached.NOBODY
        scope = scope_of(message.forward) if message.forward else None
        if scope is not None and self._scoped is None:
            return Reached.NOBODY
        outbound_topic = self._outbound.for_publication(message.topic)
        now = self._broker.now()
        is_open = outbound_topic.is_open
        if is_open or (message.qos and outbound_topic.was_recently_wanted(self._host.now())):
            outbound_topic.send_item(item_of(message, now), now, scope)
            if message.qos:
                self._marks.set(message, (self._origin, self._history.head))
        if is_open and not outbound_topic.is_known and self._presence.is_in and self._proven is not None:
            return Reached.UNKNOWN  # a method that cannot prove cannot tell
        return Reached.SOMEBODY if self._is_wanted(outbound_topic, scope) else Reached.NOBODY

    def send_late(self, message: Message) -> None:
        """What nobody elsewhere wanted when it was published leaves now, if anybody does."""
        outbound_topic = self._outbound.get(message.topic)
        if outbound_topic is not None and outbound_topic.is_open:
            self.send(message)

    def when_known(self, message: Message, action: Callable[[bool], None]) -> None:
        """Calls when it is known whether anybody elsewhere wants a publication that was just sent."""
        outbound_topic = self._outbound.for_publication(message.topic)
        scope = scope_of(message.forward) if message.forward else None
        outbound_topic.when_known(lambda: action(self._is_wanted(outbound_topic, scope)))

    def _is_wanted(self, outbound_topic: OutboundTopic, scope: str | None) -> bool:
        """Whether it may be: also by a broker that cannot be reached, for that is no reason to say that nobody does."""
        if outbound_topic.is_open:
            return scope is None or self._may_be_wanted(outbound_topic, scope)
        return outbound_topic.is_missed

    def _may_be_wanted(self, outbound_topic: OutboundTopic, scope: str) -> bool:
        """Whether a broker in a cluster may want a topic that some broker may want."""
        known = self._scoped if outbound_topic.is_settled else None
        return known is None or any(known.may_be_wanted(one, scope) for one in list(outbound_topic.wanted))

    # Sent

    def flush(self) -> None:
        """The end of a tick: what was collected leaves."""
        if not self._broker.store.dirty:
            self._history.written()
        ready = self._outbound.queue.take_ready()
        if ready:
            self._send_all([(outbound_topic, outbound_topic.batches()) for outbound_topic in ready])

    def take(self) -> Callable[[], None]:
        """The end of a tick: what was collected leaves when this is called, and is not told to others before."""
        written = self._history.kept if self._broker.store.dirty else self._history.head
        ready = [(one, one.batches()) for one in self._outbound.queue.take_ready()]

        def send() -> None:
            self._history.written(written)
            if ready:
                self._send_all(ready)

        return send

    def _send_all(self, ready: list[Ready]) -> None:
        outbound_topic, batches = ready[0]
        if len(ready) == 1 and len(batches) == 1 and self.publisher.publish_alone(outbound_topic, batches[0]):
            return
        is_corked = self.cork()
        if len(ready) > FEW_TOPICS and self._wildcard is not None:
            self._publish_many(self._wildcard, ready)
        else:
            publish = self.publisher.publish if len(ready) <= FEW_TOPICS else self.publish
            for outbound_topic, batches in ready:
                for batch in batches:
                    publish(outbound_topic, batch)
        if is_corked:
            self.uncork()

    def _publish_many(self, method: WildcardMethod, ready: list[Ready]) -> None:
        """Gives batches of many topics to the method at once, so that those for the same brokers go together.

        Of one topic, what is to be proven and what is not must not overtake each other: so only topics with one batch
        go that way.
        """
        told: list[tuple[str, bytes]] = []
        proven: list[tuple[str, bytes]] = []
        for outbound_topic, batches in ready:
            if len(batches) != 1 or any(item.forward for item in batches[0].items):
                for batch in batches:
                    self.publish(outbound_topic, batch)
            else:
                some = proven if batches[0].offset else told
                some.append((outbound_topic.topic, pack(batches[0])))
        if told:
            method.publish_many(told)
        if proven:
            method.publish_many_surely(proven, PROOF_S, self._on_outcome)

    def publish_alone(self, outbound_topic: OutboundTopic, batch: PublicationBatch) -> bool:
        """It knows no short way."""
        return False

    def publish(self, outbound_topic: OutboundTopic, batch: PublicationBatch) -> None:
        """Gives a batch to the method, for each filter that wants it."""
        body = pack(batch)
        if not batch.items and batch.kept is None:
            for topic_filter in list(outbound_topic.wanted):
                self._method.publish(topic_filter, body)
            return
        proven = self._proven if batch.offset else None
        scope = scope_of(batch.items[0].forward) if batch.items else None
        for topic_filter in list(outbound_topic.wanted):  # to publish may show that nobody wants it any more
            if scope is not None:
                self._publish_within(topic_filter, body, scope, proven is not None)
            elif proven is not None:
                proven.publish_surely(topic_filter, body, PROOF_S, self._on_outcome)
            else:
                self._method.publish(topic_filter, body)

    def _publish_within(self, topic_filter: str, body: bytes, scope: str, surely: bool) -> None:
        assert self._scoped is not None
        if surely:
            self._scoped.publish_surely(topic_filter, body, PROOF_S, self._on_outcome, scope)
        else:
            self._scoped.publish_within(topic_filter, body, scope)

    def _on_outcome(self, outcome: Outcome) -> None:
        self.unproven += not outcome.complete
