"""What other brokers want of what is published here: known, not found out, for every topic under a cover in effect.

Brokers that were met tell this one which filters of their clients can match what it publishes (`TellWants`), first all
of them and then each change, numbered and acknowledged. So whom a publication is for is looked up here, also for a
topic that nobody has published before.

A broker that has not been heard from for a while counts as silent: nothing is sent to it and it makes no demand. What
it wants is remembered, since it may come back and ask for what it has missed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import reduce
from operator import xor

import msgspec

from braidmq.host import Address, Host, Message, Reply, Service, handles
from braidmq.pubsub.covers.effective_covers import EffectiveCovers
from braidmq.pubsub.covers.filter_pages import filters_in, hash_of
from braidmq.pubsub.covers.messages import (
    PUBLISHER_MET,
    NotPublishing,
    NotWanting,
    PublishedNow,
    PublishesNoMore,
    PublishingBroker,
    TellAllWants,
    TellWants,
    WantsTaken,
)
from braidmq.pubsub.covers.multicast import Receiver
from braidmq.pubsub.covers.rendezvous import Prefix, Rendezvous
from braidmq.pubsub.covers.want_index import WantIndex

SILENT_S = 15.0
SILENT_PERIODS = 3
"""A broker that was not heard from for so long, and so many of its heartbeats, is silent."""

REMEMBERED_S = 3600.0
"""How long it is remembered what a silent broker wants."""

TOLD_S = 3.0
"""How long a broker that was just met may take to tell what its clients want."""

IDLE_S = 1800.0
"""How long a cover stays under which no topic is published any more."""

WANTS_MAX = 4_000_000
"""Filters of other brokers that are known here; a broker that tells of more is not heard."""

EVERYTHING = "#"
"""Said in place of many filters that have changed at a time."""

ONE_BY_ONE_MAX = 64

_log = logging.getLogger("braidmq.braid")


class Subscriber:
    """A broker that has told what its clients want."""

    __slots__ = (
        "coming",
        "digest",
        "epoch",
        "fresh",
        "heard_at",
        "is_silent",
        "number",
        "page",
        "period_s",
        "receiver",
        "version",
    )

    def __init__(self, receiver: Receiver, epoch: int, now: float) -> None:
        self.receiver = receiver
        self.epoch = epoch
        self.number = 0
        """Up to which change it is known what it wants."""
        self.version = 0
        """Of the covers here of which it has told all."""
        self.digest = 0
        self.coming = self.page = 0
        """The change that is being told, and the next page of it."""
        self.fresh: dict[str, None] | None = None
        """While it tells all: what it has told of that."""
        self.heard_at = now
        self.period_s = 0.0
        """How often it says that it is there."""
        self.is_silent = False


class KnownWants(Service):
    def __init__(
        self, host: Host, rendezvous: Rendezvous, name: str, epoch: int, on_wants: Callable[[str], None]
    ) -> None:
        self.covers = EffectiveCovers(host, rendezvous, self._meet)
        """Of what is published here."""
        self._host = host
        self._rendezvous = rendezvous
        self._name = name
        self._epoch = epoch
        self._on_wants = on_wants
        self._index: WantIndex[Subscriber] = WantIndex()
        self._subscribers: dict[str, Subscriber] = {}
        self._used_at: dict[str, float] = {}
        """By cover: when a topic under it was last asked about."""
        self._waiting: dict[str, Callable[[], None]] = {}
        """By broker that has just been met: what is done when it has told what it wants."""
        host.serve(self)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def subscribers(self) -> list[Subscriber]:
        return list(self._subscribers.values())

    # Topics

    def knows(self, topic: str) -> bool:
        """Whether it is known who wants a topic."""
        cover = self.covers.effective_for(topic)
        if cover is None:
            return False
        self._used_at[cover] = self._host.now()
        return True

    def receivers(self, topic: str) -> list[Receiver]:
        """The brokers that want a topic, as far as is known."""
        return [one.receiver for one in self._index.brokers(topic) if not one.is_silent]

    def filters(self, topic: str) -> list[str]:
        """The filters by which other brokers want a topic, silent ones included."""
        return self._index.filters(topic)

    def is_wanted(self, topic: str) -> bool:
        return any(not one.is_silent for one in self._index.brokers(topic))

    def was_wanted(self, topic: str) -> bool:
        """Whether a broker wants a topic that is silent now."""
        return any(one.is_silent for one in self._index.brokers(topic))

    # Meeting

    @property
    def described(self) -> PublishingBroker:
        return PublishingBroker(self._name, self._host.address, self._epoch, self.covers.version, self.covers.all)

    async def _meet(self, prefixes: list[Prefix]) -> bool:
        """Introduces this broker to all that may want what it publishes; returns when they have told what that is."""
        version = self.covers.version
        answers, complete = await self._rendezvous.ask(prefixes, PUBLISHER_MET + _encode(self.described))
        names = dict.fromkeys(answer.decode() for answer in answers)
        names.pop(self._name, None)
        ends_at = self._host.now() + TOLD_S
        for name in names:
            while not self._has_told(name, version):
                left_s = ends_at - self._host.now()
                if left_s <= 0:
                    return False
                told = self._host.event()
                self._waiting[name] = told.set
                await told.wait(left_s)
                self._waiting.pop(name, None)
        return complete

    def _has_told(self, name: str, version: int) -> bool:
        subscriber = self._subscribers.get(name)
        return subscriber is not None and subscriber.version >= version and subscriber.fresh is None

    # Being told

    @handles(TellWants)
    def on_tell_wants(self, origin: Address, told: TellWants) -> Reply:
        if told.to_epoch != self._epoch or not len(self.covers):
            return NotPublishing()
        subscriber = self._subscribers.get(told.name)
        if subscriber is None or told.epoch > subscriber.epoch:
            if told.since or told.page:
                return TellAllWants()
            subscriber = self._begin(subscriber, origin, told)
        elif told.epoch < subscriber.epoch:
            return NotPublishing()
        self._hear(subscriber, origin)
        subscriber.period_s = told.period_s or subscriber.period_s
        answer = self._take(subscriber, told)
        if isinstance(answer, WantsTaken) and not told.more:
            subscriber.version = told.version
            waiting = self._waiting.get(told.name)
            if waiting is not None:
                waiting()
            if told.version < self.covers.version:
                return PublishedNow(self.described)
        return answer

    def _begin(self, known: Subscriber | None, origin: Address, told: TellWants) -> Subscriber:
        """A broker tells for the first time, or after a restart: what it told before holds until it has told all."""
        if known is None:
            receiver = Receiver(told.name, origin, told.cluster)
            known = self._subscribers[told.name] = Subscriber(receiver, told.epoch, self._host.now())
        known.epoch = told.epoch
        known.number = known.version = known.coming = known.page = 0
        known.fresh = None
        return known

    def _hear(self, subscriber: Subscriber, origin: Address) -> None:
        subscriber.heard_at = self._host.now()
        if subscriber.receiver.address != origin:
            subscriber.receiver = subscriber.receiver._replace(address=origin)
            self._on_wants(EVERYTHING)
        if subscriber.is_silent:
            subscriber.is_silent = False
            self._on_wants(EVERYTHING)

    def _take(self, subscriber: Subscriber, told: TellWants) -> Message:
        if told.since == told.number:  # nothing has changed
            is_same = (told.number, told.digest) == (subscriber.number, subscriber.digest) and subscriber.fresh is None
            return WantsTaken(told.number) if is_same else TellAllWants()
        is_begun = told.number == subscriber.coming
        if told.number <= subscriber.number or (is_begun and told.page < subscriber.page):
            return WantsTaken(told.number)  # it was told before
        if told.page == 0:
            if told.since and (told.since != subscriber.number or subscriber.fresh is not None):
                return TellAllWants()
            subscriber.coming, subscriber.page = told.number, 0
            subscriber.fresh = None if told.since else {}
        elif not is_begun or told.page != subscriber.page:
            return TellAllWants()
        try:
            added, removed = _filters_in(told.added), _filters_in(told.removed)
        except ValueError as error:
            _log.warning("%s told what it wants in a way that cannot be read: %s", told.name, error)
            return TellAllWants()
        if len(self._index) + len(added) > WANTS_MAX:
            _log.error("%s wants more than can be known here: %d filters of other brokers", told.name, WANTS_MAX)
            return NotPublishing()
        self._change(subscriber, added, removed)
        subscriber.page += 1
        if not told.more:
            self._end_change(subscriber, told)
        return WantsTaken(told.number)

    def _change(self, subscriber: Subscriber, added: Iterable[str], removed: Iterable[str]) -> None:
        changed = []
        for one in added:
            if subscriber.fresh is not None:
                subscriber.fresh[one] = None
            if self._index.add(one, subscriber):
                subscriber.digest ^= hash_of(one)
                changed.append(one)
        changed += self._discard(subscriber, removed)
        self._tell(changed)

    def _discard(self, subscriber: Subscriber, filters: Iterable[str]) -> list[str]:
        gone = [one for one in filters if self._index.discard(one, subscriber)]
        for one in gone:
            subscriber.digest ^= hash_of(one)
        return gone

    def _end_change(self, subscriber: Subscriber, told: TellWants) -> None:
        subscriber.number, subscriber.page = told.number, 0
        if subscriber.fresh is not None:
            fresh, subscriber.fresh = subscriber.fresh, None
            old = [one for one in self._index.filters_of(subscriber) if one not in fresh]
            self._tell(self._discard(subscriber, old))
            subscriber.digest = reduce(xor, map(hash_of, fresh), 0)

    def _tell(self, changed: list[str]) -> None:
        if len(changed) > ONE_BY_ONE_MAX:
            self._on_wants(EVERYTHING)
        else:
            for one in changed:
                self._on_wants(one)

    @handles(NotWanting)
    def on_not_wanting(self, _origin: Address, told: NotWanting) -> Reply:
        subscriber = self._subscribers.get(told.name)
        if subscriber is not None and subscriber.epoch < told.epoch:
            self._forget(told.name, subscriber)
        return None

    async def leave(self) -> None:
        """Nothing is published here any more: all that tell what they want need not, and this broker stands nowhere."""
        for subscriber in self._subscribers.values():
            self._host.send(subscriber.receiver.address, PublishesNoMore(self._name, self._epoch))
        await self.covers.leave()

    # From time to time

    def sweep(self) -> None:
        """Notes which brokers have fallen silent, and forgets what nobody publishes or wants any more."""
        now = self._host.now()
        for name, subscriber in list(self._subscribers.items()):
            if now - subscriber.heard_at > REMEMBERED_S:
                self._forget(name, subscriber)
            elif not subscriber.is_silent:
                silent_s = max(SILENT_S, SILENT_PERIODS * subscriber.period_s)
                if now - subscriber.heard_at > silent_s:
                    subscriber.is_silent = True
                    self._on_wants(EVERYTHING)
        covers = self.covers.all
        used = [one for one in covers if now - self._used_at.setdefault(one, now) < IDLE_S]
        self._used_at = {one: self._used_at[one] for one in covers}
        if len(used) < len(covers):
            self.covers.replace(used)

    def _forget(self, name: str, subscriber: Subscriber) -> None:
        del self._subscribers[name]
        self._index.drop(subscriber)
        self._on_wants(EVERYTHING)


def _filters_in(page: bytes) -> list[str]:
    return filters_in(page) if page else []


_encode = msgspec.msgpack.Encoder().encode
