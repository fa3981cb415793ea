"""What clients here want, told to the brokers that publish something of it.

A broker that publishes was met, and is a watcher from then on: it is told which filters here can match what it
publishes, all of them first and then each change. A subscription has taken effect when all watchers that it concerns
have acknowledged it. While one change is under way those behind it gather, so that thousands of subscriptions at a time
are few messages.

Every watcher hears now and then that this broker is here, with a digest of what it was told; if it knows something
else, it is told all anew. A watcher that does not answer is not waited for, and tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from braidmq.host import Address, Event, Host, Message, ask
from braidmq.mqtt.topics import covers, overlaps
from braidmq.pubsub.covers.effective_covers import EffectiveCovers
from braidmq.pubsub.covers.filter_pages import hash_of, pages_of
from braidmq.pubsub.covers.messages import (
    SUBSCRIBER_MET,
    NotPublishing,
    PublishedNow,
    PublishingBroker,
    TellAllWants,
    TellWants,
    WantingBroker,
    WantsTaken,
)
from braidmq.pubsub.covers.rendezvous import Prefix, Rendezvous
from braidmq.pubsub.covers.want_index import FilterSet

CALL_S = 2.0
SILENT_AFTER = 4
AGAIN_S = 0.5
"""Calls without an answer after which a watcher is not waited for any more, and the pause between two."""

FORGOTTEN_S = 3600.0
"""How long a watcher that does not answer is tried again."""

PAGE_BYTES_MAX = 32 << 10

SPLIT_BELOW = 4
"""A wide cover with so few filters under it is given up for those; it came about with twice as many, at least."""


class WatchingBroker:
    """A broker that publishes, and what it was told."""

    __slots__ = (
        "broker",
        "changed",
        "covers",
        "digest",
        "failures",
        "gathering",
        "heard_at",
        "is_current",
        "is_telling",
        "number",
        "version",
    )

    def __init__(self, broker: PublishingBroker, gathering: Event, now: float) -> None:
        self.broker = broker
        self.covers: tuple[str, ...] = ()
        """Of what it publishes, those of which it was told all."""
        self.version = -1
        self.number = 0
        self.digest = 0
        self.is_current = False
        """Whether it knows what it was told; if not, it is told all."""
        self.changed: dict[str, bool] = {}
        """Filters that it is to be told of next, and whether they are wanted."""
        self.gathering = gathering
        """Happens when it has taken what gathers now, or is not waited for."""
        self.is_telling = False
        self.failures = 0
        self.heard_at = now

    @property
    def is_silent(self) -> bool:
        return self.failures >= SILENT_AFTER


class ToldWants:
    def __init__(self, host: Host, rendezvous: Rendezvous, name: str, cluster: str, epoch: int) -> None:
        self.covers = EffectiveCovers(host, rendezvous, self._meet)
        """Of what clients here want."""
        self.filters = FilterSet()
        self._host = host
        self._rendezvous = rendezvous
        self._name = name
        self._cluster = cluster
        self._epoch = epoch
        self.period_s = 0.0
        """How often watchers are greeted that publish something that is wanted here."""
        self._number = 0
        """Of the last change that any watcher was told of: it grows, also where a watcher is met anew."""
        self._watchers: dict[str, WatchingBroker] = {}
        self._addresses: dict[Address, str] = {}
        self._by_cover: dict[str, dict[str, WatchingBroker]] = {}
        """By what is published: the watchers that publish it."""
        self._published = FilterSet()
        """All of that."""

    @property
    def watchers(self) -> list[WatchingBroker]:
        return list(self._watchers.values())

    def is_watched_by(self, address: Address) -> bool:
        return address in self._addresses

    def is_known_to(self, address: Address) -> bool:
        """Whether the broker there has taken all that it was told: what clients here want, and nothing from before."""
        watcher = self._watchers.get(self._addresses.get(address, ""))
        return watcher is not None and watcher.is_current

    # What clients want

    async def subscribe(self, topic_filter: str) -> None:
        """Returns when all brokers know that publish something that the filter matches."""
        if topic_filter not in self.filters:
            self.filters.add(topic_filter)
            told = self._note(topic_filter, True)
        else:
            told = [one.gathering for one in self._watching(topic_filter) if topic_filter in one.changed]
        if self.covers.effective_for(topic_filter) is None:
            await self.covers.until_effective(topic_filter)
        for event in told:
            await event.wait()

    def unsubscribe(self, topic_filter: str) -> None:
        """Brokers that publish hear of it at once, and are not waited for."""
        if topic_filter in self.filters:
            self.filters.discard(topic_filter)
            self._note(topic_filter, False)

    def _watching(self, topic_filter: str) -> list[WatchingBroker]:
        """The watchers that a filter concerns."""
        found: dict[WatchingBroker, None] = {}
        for cover in self._published.overlapping([topic_filter]):
            found.update(dict.fromkeys(self._by_cover[cover].values()))
        return list(found)

    def _note(self, topic_filter: str, wanted: bool) -> list[Event]:
        """A filter has come or gone; what happens when those that it concerns know."""
        told = []
        for watcher in self._watching(topic_filter):
            if watcher.changed.get(topic_filter, wanted) != wanted:
                del watcher.changed[topic_filter]  # it has not been told of the opposite
            else:
                watcher.changed[topic_filter] = wanted
                self._begin_telling(watcher)
            if not watcher.is_silent:
                told.append(watcher.gathering)
        return told

    # Meeting

    async def _meet(self, prefixes: list[Prefix]) -> bool:
        """Finds all brokers that may publish what clients here want, and returns when they know what it is."""
        body = SUBSCRIBER_MET + _encode(WantingBroker(self._name, self._epoch))
        answers, complete = await self._rendezvous.ask(prefixes, body)
        told = [self.meet(_decode(answer)) for answer in dict.fromkeys(answers)]
        for event in told:
            if event is not None:
                await event.wait()
        return complete

    def meet(self, broker: PublishingBroker) -> Event | None:
        """A broker that publishes was met, or publishes something else now; what happens when it knows of all here.

        None if it knows already.
        """
        if broker.name == self._name:
            return None
        known = self._watchers.get(broker.name)
        if known is None or broker.epoch > known.broker.epoch:
            if known is not None:
                self._drop(known)
            known = self._watchers[broker.name] = WatchingBroker(broker, self._host.event(), self._host.now())
        elif broker.epoch < known.broker.epoch or broker.version < known.broker.version:
            return known.gathering if self._owes(known) else None
        self._unlist(known)
        known.broker = broker
        self._addresses[broker.address] = broker.name
        for cover in broker.covers:
            self._published.add(cover)
            self._by_cover.setdefault(cover, {})[broker.name] = known
        if not self._owes(known):
            return None
        known.failures = 0
        self._begin_telling(known)
        return known.gathering

    def _owes(self, watcher: WatchingBroker) -> bool:
        """Whether a watcher does not know all that it should."""
        return not watcher.is_current or watcher.version != watcher.broker.version or bool(watcher.changed)

    def _unlist(self, watcher: WatchingBroker) -> None:
        broker = watcher.broker
        if self._addresses.get(broker.address) == broker.name:
            del self._addresses[broker.address]
        for cover in broker.covers:
            publishing = self._by_cover.get(cover)
            if publishing is not None:
                publishing.pop(broker.name, None)
                if not publishing:
                    del self._by_cover[cover]
                    self._published.discard(cover)

    def forget(self, name: str, epoch: int) -> None:
        """A broker publishes nothing any more."""
        watcher = self._watchers.get(name)
        if watcher is not None and watcher.broker.epoch == epoch:
            self._drop(watcher)

    def _drop(self, watcher: WatchingBroker) -> None:
        if self._watchers.get(watcher.broker.name) is watcher:
            del self._watchers[watcher.broker.name]
        self._unlist(watcher)
        watcher.gathering.set()

    # Telling

    def _begin_telling(self, watcher: WatchingBroker) -> None:
        if not watcher.is_telling:
            watcher.is_telling = True
            self._host.spawn(self._tell(watcher))

    async def _tell(self, watcher: WatchingBroker, greeting: TellWants | None = None) -> None:
        """Greets a watcher, if it is to be greeted, and tells it what it does not know, until it knows all or does not
        answer."""
        waiting: list[Event] = []
        try:
            if greeting is not None:
                await self._call(watcher, watcher.broker, greeting)
                if watcher.is_silent:
                    return
            while self._owes(watcher) and self._is_there(watcher):
                waiting.append(watcher.gathering)
                watcher.gathering = self._host.event()
                if await self._tell_change(watcher):
                    _set_all(waiting)
                elif watcher.is_silent:
                    break
        finally:
            watcher.is_telling = False
            waiting.append(watcher.gathering)
            watcher.gathering = self._host.event()
            _set_all(waiting)

    def _is_there(self, watcher: WatchingBroker) -> bool:
        return self._watchers.get(watcher.broker.name) is watcher

    async def _tell_change(self, watcher: WatchingBroker) -> bool:
        """Tells all, what has changed, or what another version of its covers lets through; whether that was taken."""
        broker = watcher.broker
        changed, watcher.changed = watcher.changed, {}
        is_same = watcher.version == broker.version
        if not watcher.is_current or not (is_same or _are_within(watcher.covers, broker.covers)):
            since = watcher.digest = 0
            added, removed = self.filters.overlapping(broker.covers), []
        else:
            since, before = watcher.number, watcher.covers
            added = [one for one, wanted in changed.items() if wanted]
            removed = [one for one, wanted in changed.items() if not wanted]
            if not is_same:
                removed = [one for one in removed if _overlaps_any(before, one)]
                found = self.filters.overlapping([one for one in broker.covers if one not in before])
                added += [one for one in found if one not in changed and not _overlaps_any(before, one)]
        self._number += 1
        watcher.number = self._number
        for one in (*added, *removed):
            watcher.digest ^= hash_of(one)
        watcher.is_current = False  # until it is taken
        if not await self._tell_pages(watcher, broker, since, added, removed):
            return False
        watcher.is_current = True
        watcher.version, watcher.covers = broker.version, broker.covers
        return True

    async def _tell_pages(
        self, watcher: WatchingBroker, broker: PublishingBroker, since: int, added: list[str], removed: list[str]
    ) -> bool:
        more = list(pages_of(added, PAGE_BYTES_MAX)) or [b""]
        gone = list(pages_of(removed, PAGE_BYTES_MAX))
        pages = [(page, b"") for page in more] + [(b"", page) for page in gone]
        change = self._change_of(watcher, broker, broker.version, since)
        for number, (page, other) in enumerate(pages):
            told = msgspec.structs.replace(change, page=number, more=number < len(pages) - 1, added=page, removed=other)
            if not await self._call(watcher, broker, told):
                return False
        return True

    def _change_of(self, watcher: WatchingBroker, broker: PublishingBroker, version: int, since: int) -> TellWants:
        """What is said of a change up to now, without its filters."""
        change = (self._name, self._cluster, self._epoch, broker.epoch, version, since, watcher.number, watcher.digest)
        return TellWants(*change, period_s=self.period_s)

    async def _call(self, watcher: WatchingBroker, broker: PublishingBroker, told: TellWants) -> bool:
        """Whether a watcher has taken what it is told; if not, what it says instead is seen to."""
        while not watcher.is_silent:
            answer = await ask(self._host, broker.address, told, Message, timeout_s=CALL_S)
            if answer is not None:
                return self._on_answer(watcher, broker, told, answer)
            watcher.failures += 1
            if not watcher.is_silent:
                await self._host.sleep(AGAIN_S)
        return False

    def _on_answer(self, watcher: WatchingBroker, broker: PublishingBroker, told: TellWants, answer: Message) -> bool:
        if isinstance(answer, TellAllWants) and not told.since:  # it was told all, and could make nothing of it
            watcher.failures += 1
            return False
        watcher.failures = 0
        watcher.heard_at = self._host.now()
        if isinstance(answer, WantsTaken):
            return True
        if isinstance(answer, NotPublishing):
            if watcher.broker.epoch == broker.epoch:
                self._drop(watcher)
            return False
        if isinstance(answer, PublishedNow):
            self.meet(answer.broker)
            return True
        watcher.is_current = False
        return False

    # From time to time

    async def greet(self, watcher: WatchingBroker, period_s: float) -> None:
        """Says that this broker is here, and hears whether the watcher knows what it was told; each so many seconds."""
        if watcher.is_telling or not self._is_there(watcher):
            return
        now = self._host.now()
        if watcher.is_silent:
            if now - watcher.heard_at > FORGOTTEN_S:
                self._drop(watcher)
                return
            watcher.failures = SILENT_AFTER - 1  # one more try
        if self._owes(watcher):
            self._begin_telling(watcher)
            return
        watcher.is_telling = True
        unchanged = self._change_of(watcher, watcher.broker, watcher.version, watcher.number)
        await self._tell(watcher, msgspec.structs.replace(unchanged, period_s=period_s))

    def on_reached(self, address: Address) -> None:
        """A watcher that could not be reached can be: it hears at once that this broker is here, and then the rest."""
        watcher = self._watchers.get(self._addresses.get(address, ""))
        if watcher is not None:
            watcher.failures = 0
            self._host.send(address, self._change_of(watcher, watcher.broker, watcher.version, watcher.number))
            if self._owes(watcher):
                self._begin_telling(watcher)

    def sweep(self) -> None:
        """Gives up covers under which nothing is wanted any more, and wide ones under which little is."""
        wanted: dict[str, None] = {}
        is_changed = False
        for cover in self.covers.all:
            if cover in self.filters:
                wanted[cover] = None
                continue
            wanting = (one for one in self.filters.overlapping([cover]) if covers(cover, one))
            under = list(islice(wanting, SPLIT_BELOW + 1))  # there may be a great many
            is_changed = is_changed or len(under) <= SPLIT_BELOW
            wanted.update(dict.fromkeys(under if len(under) <= SPLIT_BELOW else [cover]))
        if is_changed:
            self.covers.replace(wanted)

    async def leave(self) -> None:
        """Nobody here wants anything any more: tells all watchers that this is all, and stands nowhere."""
        self.filters = FilterSet()
        for watcher in self.watchers:
            if watcher.digest or self._owes(watcher):
                watcher.is_current = False
                self._begin_telling(watcher)
        ends_at = self._host.now() + CALL_S
        for watcher in self.watchers:
            if watcher.is_telling or self._owes(watcher):
                await watcher.gathering.wait(max(0.0, ends_at - self._host.now()))
        await self.covers.leave()


def _are_within(narrow: Sequence[str], broad: Iterable[str]) -> bool:
    """Whether all that some covers cover is covered by others."""
    return all(any(covers(wide, one) for wide in broad) for one in narrow)


def _overlaps_any(some: Iterable[str], topic_filter: str) -> bool:
    return any(overlaps(one, topic_filter) for one in some)


def _set_all(events: list[Event]) -> None:
    for event in events:
        event.set()
    events.clear()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PublishingBroker).decode
