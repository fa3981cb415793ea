"""Publish/subscribe that crosses into each cluster once: PIQT's delegates, over any ordered overlay.

The method is that of PIQT (Ishihara et al. 2021, §3.1).

A subscriber's key is (topic, role, cluster, broker), so the subscribers of a cluster are neighbours. A publisher knows
which clusters have subscribers (`delegates`), and hands a publication to one broker in each: the delegate, which brings
it to the other subscribers there by range delivery, and to each cluster below its own by another delegate. So of all
links between two clusters, whichever they are, a publication takes one, and only on the way in.

A publisher has a key for its topic, too, before the subscribers: so the first subscriber of a cluster can make itself
known to all publishers, and to the subscribers of its own tree of clusters, which may be delegates. `subscribe` returns
when it is proven that all know it (`effect`). There is no rendezvous point that could signal: that there is no demand
any more, a publisher learns by its check of each CHECK_S.

Areas do not overlap, so no broker is in two of them. A delegate says whether it accepts a message: one that subscribes
no longer says no, one that has crashed says nothing, and the sender looks again and hands it to another. What so comes
twice is dropped by (origin, number).

`publish` is as sure as that, and no more: within a cluster nobody answers. `publish_surely` proves (`proofs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Event, Host, Message, Reply, Service, Task, ask, handles
from braidmq.keys import Key, Role, key_of, segment
from braidmq.overlay import Acquaintances, Overlay, Peer
from braidmq.overlay.key_ranges import KeyRange, without
from braidmq.overlay.ranges import Cut, OnOutcome, Outcome, RangeArrival, RangeDelivery
from braidmq.overlay.ring import CALL_TIMEOUT_S
from braidmq.pubsub.effect import Effect
from braidmq.pubsub.locality.delegates import CHECK_S, ClusterArea, ClusterDirectories, ClusterDirectory
from braidmq.pubsub.locality.proofs import Proofs, Proven, RoutedPublication
from braidmq.pubsub.method import OnDemand, OnMessage, OnQuestion, Publication, ignore, no_answer
from braidmq.pubsub.seen import Seen

HAND_TRIES = 7
"""How often a delegate is looked for, until a cluster is given up: long enough for the ring to mend a crash."""

HAND_WAIT_S = 1.0
"""The pause before the third try; it doubles with each one after it."""

HAND_REPEATS = 2
"""How often one delegate is asked before it counts as silent."""

HANDING_MAX = 8192
"""Messages that a broker is handing over at a time."""

HANDED_OVER_MAX = 4096
"""Messages that a delegate tells from new ones when they are handed to it again."""

QUESTION, SUBSCRIBED = b"q", b"s"
"""The first byte of a question, and of what a new subscriber says; a publication begins as every packed array does."""

EFFECTIVE, UNSURE = b"e", b"?"
"""What a node says to a new right neighbour: a subscriber of which all know, with its cluster; or any other."""

AGAIN_S = 0.05
"""The pause before a change of a key that did not succeed is tried again."""


class HandOver(Message, frozen=True, array_like=True, gc=False):
    """Bring this to all in [low, high), where you are: an area, or if it must be sure what is up to the next one.

    If `sure_s` is not 0, prove it in that time, and say so (`Proven`).
    """

    topic: str
    area: str
    alone: bool
    low: Key
    high: Key
    carried: RoutedPublication
    sure_s: float


class HandOverAccepted(Message, tag="Undertaken", frozen=True, array_like=True, gc=False):
    """The delegate sees to it."""


class HandOverDeclined(Message, tag="NotHere", frozen=True, array_like=True, gc=False):
    """The delegate is none: it does not subscribe there."""


_HandedOver = tuple[Address, int, Key, Key, bool, bool]
"""What was handed over: (origin, number, low, high, alone, sure)."""


class _Advert(msgspec.Struct):
    """A topic that clients here publish."""

    directory: ClusterDirectory
    check: Task | None = None
    wanted: bool = False


class Locality(Service):
    """One broker's part: publisher, subscriber and delegate."""

    def __init__(self, overlay: Overlay, name: str, cluster: str = "", check_s: float = CHECK_S) -> None:
        if not name or any(character <= "\x02" for character in name + cluster):
            raise ValueError(f"broker {name!r} in cluster {cluster!r}: a name, without U+0000 to U+0002, is needed")
        self.overlay = overlay
        self.host: Host = overlay.host
        self.name = name
        self.cluster = cluster
        self.check_s = check_s
        self.on_message: OnMessage = ignore
        self.on_demand: OnDemand = ignore
        self.on_question: OnQuestion = no_answer
        self.given_up = 0
        """Publications that some cluster may have missed, as none there accepted them or there was no room to wait."""
        self.ranges = RangeDelivery(overlay, self._on_delivery, one_each=True)
        self.directories = ClusterDirectories(overlay, cluster)
        self.directories.on_learnt = self._update_demand
        self._proofs = Proofs(overlay, self.ranges, self.directories, self._hand)
        self._effect = Effect(overlay, self.ranges)
        self._effective: dict[Key, None] = {}
        """The keys of own subscriptions that all know."""
        self._number = self.host.chance.getrandbits(40)  # so that a host made anew does not repeat earlier ones
        self._subscribed: dict[Key, str] = {}
        """The topics that clients here want, by their keys, which are in the overlay or will soon be."""
        self._adverts: dict[str, _Advert] = {}
        self._published: dict[Key, str] = {}
        """The topics that are advertised, by their keys, which are in the overlay or will soon be."""
        self._changing: dict[Key, Event] = {}
        """The keys that are being inserted or removed, and the end of that."""
        self._seen = Seen()
        self._silent = Acquaintances()
        self._handing = 0
        self._handed_over: BoundedDict[_HandedOver, bool] = BoundedDict(HANDED_OVER_MAX)
        """What was handed to this broker, and whether it is proven."""
        overlay.ring.note = self._note_for_right
        self.host.serve(self)

    # What the broker asks for

    async def subscribe(self, topic: str) -> None:
        key = self._key(topic)
        if topic not in self._adverts:
            self.directories.forget(topic)
        self._subscribed[key] = topic
        note = await self._update_key(key, lambda: key in self._subscribed)
        if key not in self._effective:
            await self._take_effect(topic, key, note)
        self._learn_again(topic)

    async def unsubscribe(self, topic: str) -> None:
        key = self._key(topic)
        self._subscribed.pop(key, None)
        self._effective.pop(key, None)
        await self._update_key(key, lambda: key in self._subscribed)
        self._learn_again(topic)

    async def advertise(self, topic: str) -> None:
        if topic in self._adverts:
            return
        key = key_of(topic, Role.PUBLISHER, self.cluster, self.name)
        if self._key(topic) not in self._subscribed:
            self.directories.forget(topic)
        advert = self._adverts[topic] = _Advert(self.directories.keep(topic))
        self._published[key] = topic
        await self._update_key(key, lambda: key in self._published)
        await self.directories.learn(advert.directory)
        if self._adverts.get(topic) is advert:
            advert.check = self.host.spawn(self._check_regularly(advert))

    async def withdraw(self, topic: str) -> None:
        advert = self._adverts.pop(topic, None)
        if advert is not None:
            self.directories.release(topic)
            if advert.check is not None:
                advert.check.cancel()
        key = key_of(topic, Role.PUBLISHER, self.cluster, self.name)
        self._published.pop(key, None)
        await self._update_key(key, lambda: key in self._published)

    def is_wanted(self, topic: str) -> bool:
        """Whether anyone subscribes to an advertised topic, as far as is known here."""
        advert = self._adverts.get(topic)
        return advert is not None and advert.wanted

    def publish(self, topic: str, body: bytes) -> bool:
        """To all subscribers. False if there are none: nothing is sent."""
        return self._publish(topic, body, None)

    def publish_within(self, topic: str, body: bytes, cluster: str) -> bool:
        """To the subscribers in a cluster and below it: this broker's or another."""
        return self._publish(topic, body, cluster)

    def publish_surely(
        self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome, cluster: str | None = None
    ) -> bool:
        """As `publish`, and says when every subscriber is proven to have it, or where one may be missing."""
        if not self.may_be_wanted(topic, cluster):
            return False
        if self._proofs.is_full:
            raise RuntimeError("too many publications are under way: wait for their outcomes before making more")
        directory = self.directories.of(topic, cluster)
        self._proofs.prove(
            directory,
            directory.range,
            self._new(body, directory),
            timeout_s,
            lambda gaps: on_outcome(Outcome(gaps, (), 0.0, {})),
        )
        return True

    def ask(self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None:
        """To all subscribers wherever they are, in one range delivery: questions are few."""
        self.ranges.deliver(*segment(topic, Role.SUBSCRIBER), QUESTION + body, timeout_s, on_outcome)

    def adopt(self, subscribed: Iterable[str]) -> None:
        """Takes over the topics of a laid-out network, in which the keys of this broker are in the overlay already."""
        self._subscribed.update({self._key(topic): topic for topic in subscribed})
        self._effective.update(dict.fromkeys(self._subscribed))

    def _publish(self, topic: str, body: bytes, scope: str | None) -> bool:
        if not self.may_be_wanted(topic, scope):
            return False
        directory = self.directories.of(topic, scope)
        self._spread_when_known(directory, directory.range, self._new(body, directory))
        return True

    def may_be_wanted(self, topic: str, cluster: str | None) -> bool:
        """False if it is known that nobody subscribes to an advertised topic, in a cluster or anywhere."""
        if topic not in self._adverts:
            raise ValueError(f"the topic {topic!r} is not advertised here: advertise it before publishing")
        known = (self._adverts[topic].directory, self.directories.of(topic, cluster))
        return not any(directory.is_fresh(self.host.now()) and not directory.delegates for directory in known)

    def _new(self, body: bytes, directory: ClusterDirectory) -> RoutedPublication:
        self._number += 1
        within = None if directory.scope is None else directory.range
        return RoutedPublication(self.host.address, self._number, 0, within, body)

    # Keys in the overlay

    def _key(self, topic: str) -> Key:
        return key_of(topic, Role.SUBSCRIBER, self.cluster, self.name)

    async def _update_key(self, key: Key, is_wanted: Callable[[], bool]) -> bytes:
        """Inserts or removes an own key, as it should be when this is through; what its left neighbour had to say."""
        note = b""
        while (under_way := self._changing.get(key)) is not None:
            await under_way.wait()
        self._changing[key] = self.host.event()
        try:
            while is_wanted() != (key in self.overlay.view.own):
                if not is_wanted():
                    await self.overlay.leave(key)
                elif self.overlay.view.own or self.overlay.introduce() is not None:
                    note = await self.overlay.join(key)
                else:
                    self.overlay.found(key)
                if is_wanted() != (key in self.overlay.view.own):
                    await self.host.sleep(AGAIN_S)
        finally:
            self._changing.pop(key).set()
        return note

    async def _take_effect(self, topic: str, key: Key, note: bytes) -> None:
        """Returns when every broker that must know of a subscriber knows that it has just been inserted.

        Behind a subscriber of its own cluster that all know, nobody has to: what reaches that one reaches it.
        """
        await self._effect.wait_for_right(key, segment(topic, Role.SUBSCRIBER))
        own = self.overlay.view.own.get(key)
        if own is None:
            return
        if note != EFFECTIVE + self.cluster.encode():
            publishers = segment(topic, Role.PUBLISHER)
            tree = segment(topic, Role.SUBSCRIBER, self.cluster.split("/")[0])
            told = [publishers] if publishers[0] <= own.left.key < key else []
            if any(tree[0] <= beside.key < tree[1] and beside.key != key for beside in (own.left, own.right)):
                told.append(tree)
            if not await self._effect.tell(SUBSCRIBED + msgspec.msgpack.encode(own.me), *told):
                return
        if key in self._subscribed:
            self._effective[key] = None

    def _note_for_right(self, key: Key) -> bytes:
        """Tells a node that is inserted on the right what is known here."""
        return EFFECTIVE + self.cluster.encode() if key in self._effective else UNSURE

    # Knowing the clusters

    def _learn_again(self, topic: str) -> None:
        """This broker's subscription has changed: a publisher need not wait for its next check."""
        if topic in self._adverts:
            self.host.spawn(self.directories.learn(self._adverts[topic].directory))

    async def _check_regularly(self, advert: _Advert) -> None:
        while True:
            await self.host.sleep(self.host.chance.uniform(0.8, 1.0) * self.check_s)
            await self.directories.learn(advert.directory)

    def _update_demand(self, directory: ClusterDirectory) -> None:
        advert = self._adverts.get(directory.topic)
        if advert is None or advert.directory is not directory or directory.learnt_at is None:
            return
        wanted = bool(directory.delegates)
        if wanted != advert.wanted:
            advert.wanted = wanted
            self.on_demand(directory.topic, wanted)

    # Spreading

    def _spread_when_known(self, directory: ClusterDirectory, part: KeyRange, carried: RoutedPublication) -> None:
        if not self.directories.when_known(directory, lambda known: self._spread(known, part, carried)):
            self.given_up += 1

    def _spread(self, directory: ClusterDirectory, whole: KeyRange, carried: RoutedPublication) -> None:
        """To this broker's cluster by range delivery, if it subscribes; to each other area by its delegate."""
        key = self._key(directory.topic)
        subscribes = key in self.overlay.view.own and whole[0] <= key < whole[1]
        parts = directory.split(*whole)
        if not parts and subscribes:
            self._deliver(whole, carried)
        elif not parts and directory.learnt_at is None:
            self.given_up += 1
        for delegate, part in parts:
            if subscribes and delegate.area == ClusterArea(self.cluster, True):
                self._deliver(part, carried)
            else:
                self._hand(directory, delegate.area, part, carried)

    def _deliver(self, part: KeyRange, carried: RoutedPublication) -> None:
        self.ranges.send(*part, msgspec.msgpack.encode(carried), Cut.SFB)

    def _hand(
        self,
        directory: ClusterDirectory,
        area: ClusterArea,
        part: KeyRange,
        carried: RoutedPublication,
        sure_s: float = 0.0,
    ) -> None:
        if self._handing >= HANDING_MAX:
            self.given_up += not sure_s
            return
        self._handing += 1
        onward = msgspec.structs.replace(carried, hops=carried.hops + 1)
        message = HandOver(directory.topic, area.path, area.alone, *part, onward, sure_s)
        self.host.spawn(self._hand_over(directory, area, message))

    async def _hand_over(self, directory: ClusterDirectory, area: ClusterArea, message: HandOver) -> None:
        """Finds a broker in the area that accepts a message; none need if none is there any more."""
        try:
            for attempt in range(HAND_TRIES):
                if attempt > 1:
                    await self.host.sleep(HAND_WAIT_S * 2 ** (attempt - 2))
                if attempt:
                    await self.directories.find_again(directory, area)
                delegate = directory.of(area)
                if delegate is None:
                    return
                for peer in delegate.candidates(self._silent, self.host.now()):
                    is_accepted = await self._offer(peer, message)
                    if is_accepted:
                        return
                    if is_accepted is not None:
                        break
                if message.sure_s and attempt:
                    return  # the proof will come back to the gap
            self.given_up += 1
        finally:
            self._handing -= 1

    async def _offer(self, peer: Peer, message: HandOver) -> bool | None:
        """None if it is silent."""
        answers = (HandOverAccepted, HandOverDeclined)
        answer = await ask(self.host, peer.address, message, answers, timeout_s=CALL_TIMEOUT_S, tries=HAND_REPEATS)
        if answer is None:
            self._silent.suspect(peer, self.host.now())
            return None
        self._silent.trust(peer)
        return isinstance(answer, HandOverAccepted)

    @handles(HandOver)
    def on_hand_over(self, sender: Address, told: HandOver) -> Reply:
        key = self._key(told.topic)
        if key not in self.overlay.view.own or not told.low <= key < told.high:
            return HandOverDeclined()
        carried = told.carried
        name = (carried.origin, carried.number, told.low, told.high, told.alone, told.sure_s > 0)
        if name in self._handed_over:
            if self._handed_over[name]:
                self.host.send(sender, Proven(carried.origin, carried.number, ((told.low, told.high),)))
            return HandOverAccepted()
        self._handed_over[name] = False
        part = (told.low, told.high)
        directory = None if told.alone else self.directories.of(told.topic, told.area)
        if told.sure_s > 0:
            self._proofs.prove(directory, part, carried, told.sure_s, lambda gaps: self._report(sender, name, gaps))
        elif directory is None:
            self._deliver(part, carried)
        else:
            self._spread_when_known(directory, part, carried)
        return HandOverAccepted()

    def _report(self, to: Address, name: _HandedOver, gaps: tuple[KeyRange, ...]) -> None:
        """Tells the sender of a publication what is proven; what is not may be handed over again."""
        origin, number, low, high, *_ = name
        if gaps:
            self._handed_over.pop(name, None)
        else:
            self._handed_over.renew(name, True)
        self.host.send(to, Proven(origin, number, without(((low, high),), gaps)))

    # Arriving

    def _on_delivery(self, delivery: RangeArrival) -> bytes | None:
        if delivery.body[:1] == QUESTION:
            topics = [self._subscribed[key] for key in delivery.keys if key in self._subscribed]
            return self.on_question(topics[0], delivery.body[1:]) if topics else None
        if delivery.body[:1] == SUBSCRIBED:
            subscriber = msgspec.msgpack.decode(delivery.body[1:], type=Peer)
            for key in delivery.keys:
                topic = self._published.get(key, self._subscribed.get(key))
                if topic is not None:
                    self.directories.hear(topic, subscriber)
            return None
        carried = msgspec.msgpack.decode(delivery.body, type=RoutedPublication)
        for key in delivery.keys:
            topic = self._subscribed.get(key)
            if topic is not None and self._seen.is_new(carried.origin, carried.number):
                hops = carried.hops + delivery.hops
                self.on_message(Publication(topic, carried.body, carried.origin, carried.number, hops))
        return None
