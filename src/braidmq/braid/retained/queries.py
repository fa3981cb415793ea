"""New subscriptions ask the other brokers for retained messages (MQTT §3.3.1.3), once they have taken effect.

The newest of each topic counts, whichever broker keeps it, this one included. Replicas tell what they have in the order
of topics, a page at a time: up to the topic where the first of them has more to tell, it is known which is the newest,
and that much is delivered before more is fetched, no faster than the client reads.

What the client is sent live in the meantime is noted: an older retained message does not come behind it. For that, the
session takes nothing past `Broker.deliver` while it waits. And what is found right after it was published may be under
way as a publication, too: it is remembered for a while, so that it comes once.

Where devices subscribe by the thousand, questions that go the same way wait for the one before and go as one.

If a replica cannot be reached, what the rest say is delivered, and the question is put again a few times; a topic that
was delivered comes again only if it is newer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from functools import partial

from braidmq.bounded import BoundedDict
from braidmq.braid.retained.messages import AskReplicaPage, ReplicaPage, message_of
from braidmq.braid.retained.replication import RetainedReplication, answers_of
from braidmq.broker.broker import Broker
from braidmq.broker.message import Message
from braidmq.broker.router import Target
from braidmq.broker.session import Session
from braidmq.broker.subscription import Subscribed
from braidmq.host import Address, Host, ask
from braidmq.mqtt.topics import matches
from braidmq.overlay.ranges import Outcome

QUERIES_MAX = 64
"""Questions of this broker under way at a time; more of them wait their turn."""

BATCH_MAX, BATCH_BYTES_MAX = 256, 64 << 10
"""Filters in one question, and how long they may be; one filter may be longer."""

ALIKE_MAX = 2
"""Questions under way at a time that go to the same replicas, where others can go with the next one."""

ASK_S = (2.0, 6.0, 6.0, 6.0)
"""How long the answers to a question, put for the first time, the second …, may take; what has come is delivered."""

AGAIN_S = (1.0, 5.0, 15.0)
"""The waits before the question is put again, where not every replica could be reached."""

ENTER_WAIT_S = 60.0
"""How long a subscription made before this broker has entered the braid waits for that."""

PAGE_TIMEOUT_S = 3.0
PAGE_TRIES = 3

FEED_MAX = 1000
"""Retained messages that may wait for a client before more of them are asked for, fetched or given."""

TOLD_MAX = 100_000
"""Topics that a question remembers as delivered; the oldest goes."""

GIVEN_S = 120.0
"""How long a message that was published just before it was given as retained may be under way as a publication."""

GIVEN_MAX = 10_000
"""Such messages that are remembered; the oldest goes."""

_log = logging.getLogger("braidmq.braid")


class QueryBatch:
    """New subscriptions that are asked for in one question."""

    __slots__ = ("later", "missing", "queries", "topics")

    def __init__(self, topics: tuple[str, ...], queries: list[ReplicaQuery]) -> None:
        self.topics = topics
        """The internal topics on which it is asked."""
        self.queries = queries
        self.missing = len(topics)
        """Outcomes that are not known yet."""
        self.later: dict[ReplicaQuery, None] = {}
        """Those that have to be asked for once more."""


class ReplicaQuery:
    """One new subscription that waits for retained messages."""

    __slots__ = ("_queries", "is_alone", "is_giving", "pages", "session", "told", "topic_filter", "tries", "unproven")

    def __init__(self, queries: RetainedQueries, session: Session, topic_filter: str) -> None:
        self._queries = queries
        self.session = session
        self.topic_filter = topic_filter
        self.told: BoundedDict[str, float] = BoundedDict(TOLD_MAX)
        """The time of the newest message of each topic that the client was given meanwhile."""
        self.is_giving = False
        """Whether the client is being given what has been found."""
        self.is_alone = False
        """Whether it is to be put in a question of its own."""
        self.pages: list[ReplicaPage] = []
        self.unproven = False
        """Whether a replica may not have been reached."""
        self.tries = 0

    def go(self) -> None:
        """The SUBACK is sent: asks."""
        self._queries.start(self)

    def end(self) -> None:
        """Nobody waits for it any more."""
        self._queries.end(self)

    @property
    def subscribed(self) -> Subscribed | None:
        return self.session.subscriptions.get(self.topic_filter)

    def note(self, topic: str, at: float) -> None:
        self.told.renew(topic, max(at, self.told.get(topic, 0.0)))


class ReplicaSource:
    """What one broker keeps, as far as it is here."""

    __slots__ = ("_at", "_messages", "address", "last", "more", "origin")

    def __init__(self, origin: str, address: Address, messages: list[Message], more: bool) -> None:
        self.origin = origin
        self.address = address
        self.refill(messages, more)

    def refill(self, messages: list[Message], more: bool) -> None:
        self._messages = messages
        self._at = 0
        self.more = more and bool(messages)
        self.last = messages[-1].topic if messages else ""

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._messages)

    def read_up_to(self, up_to: str | None) -> Iterable[Message]:
        while self._at < len(self._messages):
            message = self._messages[self._at]
            if up_to is not None and message.topic > up_to:
                break
            self._at += 1
            yield message


class RetainedQueries:
    def __init__(self, broker: Broker, host: Host, replication: RetainedReplication, name: str) -> None:
        self._broker = broker
        self._host = host
        self._replication = replication
        self._name = name
        self._waiting: dict[tuple[str, ...], deque[ReplicaQuery]] = {}
        """By the internal topics to ask on."""
        self._turns: deque[tuple[str, ...]] = deque()
        """The order in which they are taken; each is in it once, or waits for a question that goes the same way."""
        self._alike: dict[tuple[str, ...], int] = {}
        """How many questions are under way to each."""
        self._under_way = 0
        self._batch_max = BATCH_MAX if replication.asks_many else 1
        self._alike_max = ALIKE_MAX if replication.asks_many else QUERIES_MAX
        self._by_session: dict[Session, list[ReplicaQuery]] = {}
        self._given: dict[tuple[str, str], tuple[float, int]] = {}
        """By client id and topic: time and QoS of a young message that was given as retained."""

    # From the subscription on

    def begin(self, session: Session, topic_filter: str) -> ReplicaQuery | None:
        """A subscription that is about to be made will ask: notes from now on what its client is sent.

        None if the same question is under way for the same session: its answer will serve for both.
        """
        if any(one.topic_filter == topic_filter and not one.is_giving for one in self._by_session.get(session, ())):
            return None
        connection = session.connection
        assert connection is not None
        query = ReplicaQuery(self, session, topic_filter)
        self._by_session.setdefault(session, []).append(query)
        connection.takes_plain = False
        self._broker.on_delivery = self._on_delivery
        return query

    def _on_delivery(self, message: Message, targets: Iterable[Target]) -> None:
        for target in targets:
            queries = self._by_session.get(target.session)
            if queries is None or (target.no_local and not target.own and target.session.client_id == message.sender):
                continue
            for query in queries:
                if matches(query.topic_filter, message.topic):
                    query.note(message.topic, message.at or self._broker.now())

    def without_given(self, message: Message, targets: list[Target]) -> list[Target]:
        """Those that have not got a publication of another broker already, as retained."""
        return [one for one in targets if not self._has_given(one, message)] if self._given else targets

    def _has_given(self, target: Target, message: Message) -> bool:
        at, qos = self._given.get((target.session.client_id, message.topic), (0.0, 0))
        return at == message.at and qos >= min(target.qos, message.qos)

    def end(self, query: ReplicaQuery) -> None:
        queries = self._by_session[query.session]
        queries.remove(query)
        if queries:
            return
        del self._by_session[query.session]
        connection = query.session.connection
        if connection is not None:
            connection.reset_plain()
            self._broker.sessions.forget_routes(query.session)
        if not self._by_session:
            self._broker.on_delivery = None

    def start(self, query: ReplicaQuery) -> None:
        """Asks, or waits until that is possible."""
        if self._replication.is_in:
            self._put(query)
        else:
            self._give(query, self._own(query).read_up_to(None))
            self._host.spawn(self._go_later(query))

    async def _go_later(self, query: ReplicaQuery) -> None:
        if await self._replication.entered.wait(ENTER_WAIT_S):
            self._put(query)
        else:
            self.end(query)

    # Question and answers

    def _put(self, query: ReplicaQuery) -> None:
        topics = self._replication.asked_about(query.topic_filter)
        waiting = self._waiting.get(topics)
        if waiting is not None:
            waiting.append(query)
        else:
            self._waiting[topics] = deque([query])
            if self._alike.get(topics, 0) < self._alike_max:
                self._turns.append(topics)
        self._next()

    def _next(self) -> None:
        while self._turns and self._under_way < QUERIES_MAX:
            topics = self._turns.popleft()
            queries = self._take(topics)
            if queries:
                self._under_way += 1
                self._alike[topics] = self._alike.get(topics, 0) + 1
            if topics in self._waiting and self._alike.get(topics, 0) < self._alike_max:
                self._turns.append(topics)
            if queries:
                self._ask(QueryBatch(topics, queries))

    def _take(self, topics: tuple[str, ...]) -> list[ReplicaQuery]:
        """The next that can be asked for in one question."""
        waiting = self._waiting[topics]
        queries: list[ReplicaQuery] = []
        size = 0
        while waiting and len(queries) < self._batch_max and size < BATCH_BYTES_MAX:
            if waiting[0].is_alone and queries:
                break
            query = waiting.popleft()
            if not self._is_wanted(query):
                self.end(query)
            elif _is_behind(query.session):
                self._host.spawn(self._put_later(query))
            else:
                queries.append(query)
                size += len(query.topic_filter)
                if query.is_alone:
                    break
        if not waiting:
            del self._waiting[topics]
        return queries

    def _ask(self, batch: QueryBatch) -> None:
        for query in batch.queries:
            query.pages, query.unproven = [], False
            query.tries += 1
        body = self._replication.question_about([one.topic_filter for one in batch.queries])
        timeout_s = ASK_S[max(one.tries for one in batch.queries) - 1]
        for topic in batch.topics:
            self._replication.ask(topic, body, timeout_s, partial(self._on_outcome, batch))

    async def _put_later(self, query: ReplicaQuery) -> None:
        await _until_read(self._host, query.session)
        self._put(query)

    def _on_outcome(self, batch: QueryBatch, outcome: Outcome) -> None:
        queries = batch.queries
        for answer in answers_of(outcome, len(queries)):
            for position, page in answer.pages:
                if position < len(queries):
                    queries[position].pages.append(page)
            batch.later.update(dict.fromkeys([queries[one] for one in answer.later if one < len(queries)]))
        if not outcome.complete:
            for query in queries:
                query.unproven = True
        batch.missing -= 1
        if not batch.missing:
            self._on_answered(batch)

    def _on_answered(self, batch: QueryBatch) -> None:
        self._under_way -= 1
        self._alike[batch.topics] -= 1
        if self._alike[batch.topics] == self._alike_max - 1 and batch.topics in self._waiting:
            self._turns.append(batch.topics)
        if not self._alike[batch.topics]:
            del self._alike[batch.topics]
        for query in batch.queries:
            if query in batch.later:
                query.is_alone = True
                query.tries -= 1
                self._put(query)
            else:
                self._host.spawn(self._deliver(query))
        self._next()

    def _is_wanted(self, query: ReplicaQuery) -> bool:
        session = query.session
        is_there = self._broker.sessions.get(session.client_id) is session and query.subscribed is not None
        return is_there and (session.connection is not None or session.durable)

    def _own(self, query: ReplicaQuery) -> ReplicaSource:
        entries = self._broker.retained.entries(query.topic_filter)
        return ReplicaSource(self._name, self._host.address, sorted(entries, key=lambda one: one.topic), False)

    async def _deliver(self, query: ReplicaQuery) -> None:
        """Delivers the newest of each topic, page by page."""
        query.is_giving = True
        now = self._broker.now()
        sources = [self._own(query)]
        for page in {page.origin: page for page in query.pages}.values():
            messages = [message_of(replica, now) for replica in page.replicas]
            sources.append(ReplicaSource(page.origin, page.address, messages, page.more))
        query.pages = []
        while sources and self._is_wanted(query):
            await _until_read(self._host, query.session)
            up_to = min((source.last for source in sources if source.more), default=None)
            newest: dict[str, tuple[float, str, Message]] = {}
            for source in sources:
                for message in source.read_up_to(up_to):
                    last = newest.get(message.topic)
                    if last is None or last[:2] < (message.at, source.origin):
                        newest[message.topic] = (message.at, source.origin, message)
            self._give(query, (message for _, _, message in newest.values()))
            for source in sources:
                if source.is_empty and source.more:
                    await self._fetch(query, source)
            sources = [source for source in sources if not source.is_empty]
        if query.unproven and query.tries <= len(AGAIN_S) and self._is_wanted(query):
            query.is_giving = False
            await self._host.sleep(AGAIN_S[query.tries - 1])
            self._put(query)
        else:
            if query.unproven:
                _log.warning("not all brokers could be asked for what is retained for %r", query.topic_filter)
            self.end(query)

    async def _fetch(self, query: ReplicaQuery, source: ReplicaSource) -> None:
        """The next page, when the client has read most of those before."""
        await _until_read(self._host, query.session)
        asked = AskReplicaPage(query.topic_filter, source.last)
        page = await ask(self._host, source.address, asked, ReplicaPage, timeout_s=PAGE_TIMEOUT_S, tries=PAGE_TRIES)
        if page is None:
            source.refill([], False)
            query.unproven = True
        else:
            now = self._broker.now()
            source.refill([message_of(replica, now) for replica in page.replicas], page.more)

    # Giving

    def _give(self, query: ReplicaQuery, messages: Iterable[Message]) -> None:
        """Gives the client what is newer than what it was given of the topic; tombstones are none."""
        subscribed = query.subscribed
        if subscribed is None or not self._is_wanted(query):
            return
        now = self._broker.now()
        given: list[Message] = []
        for message in messages:
            if message.payload and not message.expired(now) and message.at > query.told.get(message.topic, -1.0):
                query.note(message.topic, message.at)
                given.append(message)
                if message.at > now - GIVEN_S:
                    self._remember(query.session.client_id, message, subscribed.qos, now)
        if not given:
            return
        session = query.session
        if session.connection is not None:
            session.deliver_retained([(message, subscribed) for message in given])
        else:
            ids = (subscribed.identifier,) if subscribed.identifier else ()
            for message in given:
                session.deliver(message, min(message.qos, subscribed.qos), True, ids)
        self._broker.request_flush()

    def _remember(self, client_id: str, message: Message, qos: int, now: float) -> None:
        self._given[client_id, message.topic] = (message.at, min(qos, message.qos))
        while self._given:
            name, (at, _) = next(iter(self._given.items()))
            if at > now - GIVEN_S and len(self._given) <= GIVEN_MAX:
                break
            del self._given[name]


def _is_behind(session: Session) -> bool:
    return session.connection is not None and session.bulk_count > FEED_MAX


async def _until_read(host: Host, session: Session) -> None:
    """Waits until the client has read most of what waits for it, or is gone."""
    while _is_behind(session) and session.backlog is not None:
        read = host.event()
        session.backlog.when_sparse(FEED_MAX, read.set)
        await read.wait()
