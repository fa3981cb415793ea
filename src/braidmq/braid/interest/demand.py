"""Demand, as clients can see it: `$demand/<topic>` is `1` while anybody anywhere subscribes to the topic, and else `0`.

Each broker has such topics of its own and keeps nothing of them: what a new subscription is sent as retained is looked
up, and changes are published to the clients here that subscribe. There is one for every topic that is published here,
and for every topic that a client here asks about by its name; then the broker watches the topic as if it were
published. Topics that begin with `$` have none.
"""

from __future__ import annotations

from braidmq.braid.transfer.outbound import OutboundTopics
from braidmq.broker.broker import Broker
from braidmq.broker.local_topics import DEMAND_PREFIX
from braidmq.broker.message import Message
from braidmq.broker.session import Session
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt.topics import has_wildcard, matches
from braidmq.mqtt.trees import FilterTree, NameTree
from braidmq.mqtt.wire import string

WATCHES_MAX = 10_000
"""Topics that clients here may ask about by name at a time: each is watched as if it were published."""


class DemandTopics:
    def __init__(self, broker: Broker, outbound: OutboundTopics) -> None:
        self._broker = broker
        self._outbound = outbound
        self._asked: FilterTree[str] = FilterTree()
        """What clients here ask about: the filters of their subscriptions, without `$demand/`."""
        self._watched: dict[str, None] = {}
        self._said: dict[str, bool | None] = {}
        """By topic that is published or watched here and that clients ask about: what they were last told."""
        self._names: NameTree[str] = NameTree()
        """These topics, so that those are found which a filter matches."""
        self._owed: dict[str, dict[Session, Subscribed]] = {}
        """New subscriptions to topics of which nothing is known yet."""

    def on_filter(self, topic_filter: str, wanted: bool) -> None:
        """A filter has its first subscription here, or has lost its last."""
        if topic_filter.startswith(DEMAND_PREFIX):
            about = topic_filter.removeprefix(DEMAND_PREFIX)
            if about and about[:1] != "$":
                self._ask(about) if wanted else self._ask_no_more(about)
        else:
            self.on_wants(topic_filter)

    def on_wants(self, topic_filter: str) -> None:
        """It may have changed whether topics are wanted that a filter matches."""
        for topic in self._matching(topic_filter):
            self.on_change(topic)

    def has_room(self, topic_filter: str) -> bool:
        """Whether one more subscription to demand may be made."""
        about = topic_filter.removeprefix(DEMAND_PREFIX)
        return has_wildcard(about) or about in self._watched or len(self._watched) < WATCHES_MAX

    def retained(self, session: Session, topic_filter: str, subscribed: Subscribed) -> list[Message]:
        """What a new subscription is to be sent; if that is not known yet, it is sent as soon as it is."""
        about = topic_filter.removeprefix(DEMAND_PREFIX)
        if about in self._watched and self._said.get(about) is None:
            self._owed.setdefault(about, {})[session] = subscribed
        told = [(topic, self._said[topic]) for topic in self._matching(about)]
        return [_message(topic, wanted) for topic, wanted in told if wanted is not None]

    def is_wanted(self, topic: str) -> bool | None:
        """Whether anybody anywhere subscribes to a topic; None if that is not known."""
        if self._broker.router.has_receivers(topic):
            return True
        outbound_topic = self._outbound.get(topic)
        if outbound_topic is None or not (outbound_topic.is_settled or outbound_topic.wanted):
            return None
        return bool(outbound_topic.wanted)

    # What clients here ask about

    def _ask(self, about: str) -> None:
        self._asked.set(about, about)
        if not has_wildcard(about):
            self._watched[about] = None
            self._outbound.watch(about)
        for topic in self._topics(about):
            self._note(topic)
            if self._said[topic] is None:
                self._said[topic] = self.is_wanted(topic)

    def _ask_no_more(self, about: str) -> None:
        self._asked.remove(about)
        concerned = self._matching(about)
        if not has_wildcard(about):
            self._owed.pop(about, None)
            del self._watched[about]
            self._outbound.unwatch(about)
        for topic in concerned:
            if not self._asked.match(topic):
                self._forget(topic)

    def _topics(self, topic_filter: str) -> list[str]:
        """The topics that are published or watched here, and that a filter matches."""
        if has_wildcard(topic_filter):
            begin = topic_filter.partition("+")[0].partition("#")[0].removesuffix("/")
            topics = [one.topic for one in self._outbound if one.topic.startswith(begin)]
            return [topic for topic in topics if matches(topic_filter, topic)]
        return [topic_filter] if self._outbound.get(topic_filter) is not None else []

    def _matching(self, topic_filter: str) -> list[str]:
        """Those of them that clients ask about."""
        if has_wildcard(topic_filter):
            return list(self._names.match(topic_filter))
        return [topic_filter] if topic_filter in self._said else []

    def _note(self, topic: str) -> None:
        """Clients ask about a topic that is published or watched."""
        if topic not in self._said:
            self._said[topic] = None
            self._names.set(topic, topic)

    def _forget(self, topic: str) -> None:
        if topic in self._said:
            del self._said[topic]
            self._names.remove(topic)

    # Changes

    def on_change(self, topic: str) -> None:
        """Something about a topic may have changed: tells the clients that ask about it."""
        if not len(self._asked) or topic[:1] == "$" or not self._asked.match(topic):
            return
        if self._outbound.get(topic) is None:
            self._forget(topic)
            return
        self._note(topic)
        wanted = self.is_wanted(topic)
        if wanted is None or self._said[topic] == wanted:
            return
        self._said[topic] = wanted
        self._tell(topic, _message(topic, wanted))

    def _tell(self, topic: str, message: Message) -> None:
        owed = self._owed.pop(topic, {})
        for session, subscribed in owed.items():
            if session.connection is not None and message.topic in session.subscriptions:
                session.deliver_retained([(message, subscribed)])
        to = self._broker.router.route(message.topic).receivers
        self._broker.deliver(message, [one for one in to.targets if one.session not in owed], to.groups)
        self._broker.request_flush()


class DemandQuery:
    """What a new subscription to demand is sent as retained."""

    __slots__ = ("_demand", "_session", "_subscribed", "_topic_filter")

    def __init__(self, demand: DemandTopics, session: Session, topic_filter: str, subscribed: Subscribed) -> None:
        self._demand = demand
        self._session = session
        self._topic_filter = topic_filter
        self._subscribed = subscribed

    def go(self) -> None:
        messages = self._demand.retained(self._session, self._topic_filter, self._subscribed)
        if messages and self._topic_filter in self._session.subscriptions:
            self._session.deliver_retained([(message, self._subscribed) for message in messages])

    def end(self) -> None:
        """Nothing was begun."""


def _message(topic: str, wanted: bool) -> Message:
    name = DEMAND_PREFIX + topic
    return Message(name, string(name), b"1" if wanted else b"0", 1, True)
