"""Retained messages across brokers: each is kept where it was published, and told to brokers that ask.

A broker that keeps retained messages, a replica, stands for `$braid/keep`, and for `$braid/keep/<level>` for each first
level of their topics, so that a question about `a/#` reaches only replicas that keep something below `a`. If its first
levels are too many, it stands for `$braid/keep-many` instead of them, where every question goes too. Of several copies
the newest counts, by (time, origin); a deletion leaves a tombstone, which takes part like a message.

So an older copy never wins over a newer one that can be reached. It should not come back either when the newer one is
out of reach for a while: a broker that retains a topic of which it kept nothing before, or deletes one, tells the
replicas of its first level, and those with an older copy drop it. A topic that is retained here again and again is told
of once: from then on no other broker has a copy, and one where it is published next tells this broker. What is told
can miss a replica that is down; it compares all it has with the rest when it comes back. Until then, what it keeps
cannot be had: a client that subscribes meanwhile is sent the rest, and gets what it missed with its next subscription.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.braid.retained.messages import (
    AskManyReplicas,
    AskReplicaPage,
    AskReplicas,
    CompareReplicas,
    NewerReplicas,
    ReplicaPage,
    ReplicaPages,
    RetainedReplica,
    replica_of,
)
from braidmq.broker.broker import Broker
from braidmq.broker.local_topics import is_local
from braidmq.broker.message import Message as Publication
from braidmq.host import Address, Event, Host, Reply, Service, handles
from braidmq.overlay.ranges import OnOutcome, Outcome
from braidmq.pubsub.method import Method, ProvenMethod, WildcardMethod

KEEP = "$braid/keep"
KEEP_MANY = "$braid/keep-many"

KEEP_LEVELS_MAX = 32
"""First levels that a replica stands for one by one: each is a key in the overlay."""

ANSWER_BYTES_MAX = 256 << 10
"""What a replica says at a time; the rest is fetched page by page. One message may be larger."""

ENTRY_BYTES = 48
"""What a message costs in an answer beside its topic, payload and properties."""

LISTS_MAX = 64
"""Questions with more than one page whose topics are remembered, so that the next page need not look for them."""

TELL_S = 0.02
"""How long a topic that is new here waits for more of them, so that they are told together."""

TELL_TIMEOUT_S = 30.0

TOLD_BYTES_MAX = 64 << 10
"""How much other replicas are told in one message: that is a thousand topics or so. One topic may be longer."""

TELL_PAUSE_S = 1.0
"""How long the next of many such messages waits for the one before: a replica that is silent must not hold up all."""

_log = logging.getLogger("braidmq.braid")


_encode = msgspec.msgpack.Encoder().encode
_decode_question = msgspec.msgpack.Decoder(AskReplicas | AskManyReplicas | CompareReplicas).decode
_decode_newer = msgspec.msgpack.Decoder(NewerReplicas).decode
_decode_page = msgspec.msgpack.Decoder(ReplicaPage).decode
_decode_pages = msgspec.msgpack.Decoder(ReplicaPages).decode


class RetainedReplication(Service):
    """One broker's part as a replica, and its way to the other replicas."""

    def __init__(self, broker: Broker, host: Host, method: Method, name: str) -> None:
        self._broker = broker
        self._host = host
        self._method = method
        self._name = name
        self.is_on = isinstance(method, ProvenMethod)
        """Whether the method can ask; if not, retained messages are known where they were published only."""
        self.asks_many = isinstance(method, WildcardMethod)
        """Whether all brokers understand a question about many filters: those that have such a method do."""
        self.is_in = False
        self.entered = host.event()
        """Happens when this broker has entered the braid, and its questions are answered."""
        self.send_late: Callable[[Publication], None] = _nobody
        """Publishes to other brokers what was retained when nobody there wanted it."""
        self._is_many = False
        self._announced: dict[str, bool] = {}
        """The internal topics that this broker stands for, and whether that has taken effect."""
        self._to_tell: dict[str, None] = {}
        self._early: dict[str, dict[str, float]] = {}
        """By first level: topics retained when nobody could ask for them here yet; those that nobody elsewhere wanted,
        with times."""
        self._is_giving = False
        """Whether what is kept here is given to other brokers, one by one: then others are told by these."""
        self.given: dict[str, float] = {}
        """Topics that another broker is just asked to keep, with the times of what it is given."""
        self._lists: BoundedDict[str, list[str]] = BoundedDict(LISTS_MAX)
        if self.is_on:
            broker.retained.on_level = self._announce
            host.serve(self)
        else:
            _log.warning("this delivery method cannot ask: retained messages stay at the broker they are published at")

    # Internal topics

    def enter(self) -> None:
        """The braid is entered: stands for what is kept here, and then compares it with what other replicas keep."""
        if self.is_on:
            self.is_in = True
            self.entered.set()
            for entry in self._broker.retained.values():
                if not is_local(entry.topic):
                    self._early.setdefault(_level_of(entry.topic), {})[entry.topic] = 0.0
            self._announce()

    def leave(self) -> list[str]:
        """Answers no longer; what is not to be stood for any more."""
        self.is_in = False
        self.entered = self._host.event()
        return list(self._announced)

    def _should(self) -> list[str]:
        levels = self._broker.retained.levels
        if len(levels) > KEEP_LEVELS_MAX:
            self._is_many = True
        elif len(levels) <= KEEP_LEVELS_MAX // 2:
            self._is_many = False
        if not levels:
            return []
        return [KEEP, KEEP_MANY] if self._is_many else [KEEP, *(f"{KEEP}/{level}" for level in levels)]

    def _announce(self) -> None:
        if self.is_in:
            should = self._should()
            new = [topic for topic in should if topic not in self._announced]
            if new:
                self._announced.update(dict.fromkeys(new, False))
                self._host.spawn(self._begin(new))
            self._tidy(should)

    async def _begin(self, topics: list[str]) -> None:
        """One after the other: they are neighbours in the overlay, and would be in each other's way."""
        for topic in topics:
            if topic in self._announced:
                await self._method.subscribe(topic)
            if topic in self._announced:
                self._announced[topic] = True
                self._tidy(self._should())
                self._catch_up()

    def _tidy(self, should: list[str]) -> None:
        """Stands no longer for what it need not, once it can be found by what it should stand for."""
        if self.is_in and all(self._announced.get(topic) for topic in should):
            for topic in [one for one in self._announced if one not in should]:
                del self._announced[topic]
                self._host.spawn(self._end(topic))

    async def _end(self, topic: str) -> None:
        if topic not in self._announced:
            await self._method.unsubscribe(topic)

    def is_found(self, level: str) -> bool:
        """Whether a question about topics of a first level reaches this broker."""
        known = self._announced.get(KEEP_MANY) or self._announced.get(f"{KEEP}/{level}")
        return bool(known and self._announced.get(KEEP))

    # What happens here

    def on_retained(self, message: Publication, is_new: bool, has_left: bool) -> None:
        """A client here has published a retained message, or deleted one.

        `is_new` if none of its topic was kept here; `has_left` if it was sent to other brokers.
        """
        topic = message.topic
        if not self.is_on or is_local(topic):
            return
        if is_new or not message.payload:
            self._tell([topic])
        level = _level_of(topic)
        if self.is_in and not self.is_found(level):
            self._early.setdefault(level, {})[topic] = 0.0 if has_left else message.at

    def adopt(self, messages: Iterable[Publication]) -> None:
        """Keeps those of another broker that is gone, or goes; where there are newer ones, these count."""
        for message in messages:
            if self._broker.adopt_retained(message):
                self.on_retained(message, is_new=True, has_left=True)
        self._broker.request_flush()

    def begin_giving(self) -> None:
        """From now on this broker gives what it keeps to others, which tell of it."""
        self._is_giving = True

    def end_giving(self) -> None:
        """What is still here stays: others may not have been told of it."""
        if self._is_giving:
            self._is_giving = False
            self._tell([entry.topic for entry in self._broker.retained.values() if not is_local(entry.topic)])

    def heard(self, topic: str, at: float) -> None:
        """A retained message of this topic was published, or deleted, at another broker at this time."""
        mine = self._broker.retained.get(topic)
        if self.is_on and mine is not None and mine.at < at:
            self._drop(topic)

    def _drop(self, topic: str) -> None:
        self._broker.drop_retained(topic)
        self._broker.request_flush()

    def _catch_up(self) -> None:
        """This broker can be asked now.

        Another one may have retained the same topic in the meantime, and neither has heard of the other: tells again.
        And a client that subscribed in the meantime may not have found the message: it gets it as a publication.
        """
        for level in [one for one in self._early if self.is_found(one)]:
            topics = self._early.pop(level)
            self._tell(topics)
            for topic, at in topics.items():
                message = self._broker.retained.get(topic) if at else None
                if message is not None and message.payload and message.at == at:
                    self.send_late(message)

    # Telling other replicas

    def _tell(self, topics: Iterable[str]) -> None:
        if self.is_in:
            if not self._to_tell:
                self._host.spawn(self._tell_soon())
            self._to_tell.update(dict.fromkeys(topics))

    async def _tell_soon(self) -> None:
        await self._host.sleep(TELL_S)
        topics, self._to_tell = self._to_tell, {}
        by_level: dict[str, list[str]] = {}
        for topic in topics:
            by_level.setdefault(_level_of(topic), []).append(topic)
        for level, some in by_level.items():
            self._host.spawn(self._tell_pages(level, some))

    async def _tell_pages(self, level: str, topics: list[str]) -> None:
        """Each when the one before has been compared, or that takes too long: there may be a great many."""
        for page in self._pages(topics):
            if self._is_giving:
                return
            await self._tell_page(level, page).wait(TELL_PAUSE_S)

    def _pages(self, topics: list[str]) -> Iterable[tuple[tuple[str, float], ...]]:
        page: list[tuple[str, float]] = []
        size = 0
        for topic in topics:
            entry = self._broker.retained.get(topic)
            if entry is not None:
                page.append((topic, entry.at))
                size += len(topic) + ENTRY_BYTES
                if size > TOLD_BYTES_MAX:
                    yield tuple(page)
                    page, size = [], 0
        if page:
            yield tuple(page)

    def _tell_page(self, level: str, page: tuple[tuple[str, float], ...]) -> Event:
        """Tells replicas what is kept here of some topics; happens when all of them have compared it."""
        compared = self._host.event()
        body = _encode(CompareReplicas(self._name, page))
        asked = (f"{KEEP}/{level}", KEEP_MANY)
        left = len(asked)

        def on_outcome(outcome: Outcome) -> None:
            nonlocal left
            left -= 1
            if not left:
                compared.set()
            self._on_compared(outcome)

        for topic in asked:
            self.ask(topic, body, TELL_TIMEOUT_S, on_outcome)
        return compared

    def ask(self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None:
        assert isinstance(self._method, ProvenMethod)
        self._method.ask(topic, body, timeout_s, on_outcome)

    def _on_compared(self, outcome: Outcome) -> None:
        for answer in outcome.answers.values():
            try:
                newer = _decode_newer(answer)
            except msgspec.MsgspecError as error:
                _log.warning("a replica compared something that cannot be read: %s", error)
                continue
            for topic, at in newer.topics:
                mine = self._broker.retained.get(topic)
                is_older = mine is not None and (mine.at, self._name) < (at, newer.origin)
                if is_older and self.given.get(topic) != at:
                    self._drop(topic)

    # Being asked

    def on_question(self, _topic: str, body: bytes) -> bytes | None:
        try:
            question = _decode_question(body)
        except msgspec.MsgspecError as error:
            _log.warning("another broker asked replicas what cannot be read: %s", error)
            return None
        if question.origin == self._name:
            return None
        if isinstance(question, CompareReplicas):
            return self._compare(question)
        if isinstance(question, AskManyReplicas):
            return self._answer_many(question)
        page = self._page(question.topic_filter, "")
        return _encode(page) if page.replicas else None

    def _answer_many(self, asked: AskManyReplicas) -> bytes | None:
        pages: list[tuple[int, ReplicaPage]] = []
        later: list[int] = []
        room = ANSWER_BYTES_MAX
        for position, topic_filter in enumerate(asked.filters):
            if room <= 0:
                if self._broker.retained.entries(topic_filter):
                    later.append(position)
                continue
            page = self._page(topic_filter, "")
            if page.replicas:
                pages.append((position, page))
                room -= sum(ENTRY_BYTES + len(one.topic) + len(one.payload) for one in page.replicas)
        return _encode(ReplicaPages(tuple(pages), tuple(later))) if pages else None

    def _compare(self, told: CompareReplicas) -> bytes | None:
        newer: list[tuple[str, float]] = []
        for topic, at in told.topics:
            mine = self._broker.retained.get(topic)
            if mine is None or mine.at == at == self.given.get(topic):
                continue  # the one that it was given to says when it can be had there
            if (mine.at, self._name) > (at, told.origin):
                newer.append((topic, mine.at))
            else:
                self._drop(topic)
        return _encode(NewerReplicas(self._name, tuple(newer))) if newer else None

    @handles(AskReplicaPage)
    def on_ask_page(self, _origin: Address, asked: AskReplicaPage) -> Reply:
        return self._page(asked.topic_filter, asked.after)

    def _page(self, topic_filter: str, after: str) -> ReplicaPage:
        retained = self._broker.retained
        topics = self._lists.pop(topic_filter, None) if after else None
        if topics is None:
            topics = sorted([entry.topic for entry in retained.entries(topic_filter) if not is_local(entry.topic)])
        now = self._broker.now()
        replicas: list[RetainedReplica] = []
        size = 0
        for index in range(bisect_right(topics, after) if after else 0, len(topics)):
            entry = retained.get(topics[index])
            if entry is None:
                continue
            size += ENTRY_BYTES + entry.size
            if replicas and size > ANSWER_BYTES_MAX:
                self._lists[topic_filter] = topics
                return ReplicaPage(self._name, self._host.address, tuple(replicas), True)
            replicas.append(replica_of(entry, now))
        return ReplicaPage(self._name, self._host.address, tuple(replicas), False)

    # Asking

    @staticmethod
    def asked_about(topic_filter: str) -> tuple[str, ...]:
        """The internal topics to ask on for all that replicas keep and a filter matches."""
        level = _level_of(topic_filter)
        return (KEEP,) if level in ("+", "#") else (f"{KEEP}/{level}", KEEP_MANY)

    def question_about(self, filters: Sequence[str]) -> bytes:
        if len(filters) == 1:
            return _encode(AskReplicas(self._name, filters[0]))
        return _encode(AskManyReplicas(self._name, tuple(filters)))


def _level_of(topic: str) -> str:
    return topic.partition("/")[0]


def answers_of(outcome: Outcome, count: int) -> Iterator[ReplicaPages]:
    """What replicas have answered to a question about so many filters."""
    for answer in outcome.answers.values():
        try:
            yield ReplicaPages(((0, _decode_page(answer)),), ()) if count == 1 else _decode_pages(answer)
        except msgspec.MsgspecError as error:
            _log.warning("a replica answered what cannot be read: %s", error)


def _nobody(_message: Publication) -> None:
    """There are no other brokers."""
