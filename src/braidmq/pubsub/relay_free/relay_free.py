"""SG-TBPS: publish/subscribe without relays, that stops at the edge what nobody wants (Banno et al. 2015, §5.3).

A broker is in the overlay once for each topic that it subscribes to or publishes. Keys sort the publishers of a topic
directly before its subscribers, so both are segments of the ring and neighbours of each other: no other broker ever
handles a publication, which is one range delivery to the subscribers' segment.

    …  t/pub/a  t/pub/b  t/pub/c │ t/sub/d  t/sub/e  …
                           └ rendezvous point

The last publisher, the rendezvous point, has the first subscriber as its right neighbour, or sees that there is none:
so publishers learn whether they are wanted (`demand`).

What is published after `subscribe` has returned arrives. For that, a first subscriber does not rest on the signal: it
tells the publishers itself, and returns when it is proven that all know (`effect`); a node that is inserted behind a
subscriber of which that is known need not.

A broker that both publishes and subscribes to a topic is among the subscribers only: there is demand as long as it is
there itself (footnote 2 of §5.3.5). Over a Skip Graph this is the paper's method, by MRF; over flexible routing tables,
by SFB, it is the adaptive method of Banno and Shudo (2019): an overlay whose tables follow their use is told of each
publication, and looks for the subscribers that it lacks (§3.5.4). Over Suzaku it goes by right links alone, which also
asks the node before the first subscriber: that need not be a publisher, if all publishers subscribe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from braidmq.host import Address, Event, Host
from braidmq.keys import Key, Role, segment
from braidmq.overlay import Overlay
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.leaving import leave_all
from braidmq.overlay.ranges import Cut, OnDelivery, OnOutcome, RangeArrival, RangeDelivery
from braidmq.pubsub.effect import Effect
from braidmq.pubsub.method import OnDemand, OnMessage, OnQuestion, Publication, ignore, no_answer
from braidmq.pubsub.relay_free.demand import DemandTracker
from braidmq.pubsub.relay_free.own_keys import Advert, OwnKeys
from braidmq.pubsub.relay_free.scoped_delivery import ScopedDelivery
from braidmq.pubsub.relay_free.signals import EFFECTIVE, MESSAGE, QUESTION, RESUME, SUSPEND, UNSURE

COMPARE_S = 30.0
"""How often a publisher that is suspended compares itself with its neighbour: the longest that a lost signal lasts."""


class RelayFree:
    """One broker's part. It answers for the demand of what it advertises."""

    def __init__(
        self, overlay: Overlay, name: str, cluster: str = "", cut: Cut = Cut.MRF, compare_s: float | None = COMPARE_S
    ) -> None:
        """`compare_s` None is for laid-out networks in which no signal is lost."""
        self.overlay = overlay
        self.host: Host = overlay.host
        self.name = name
        self.cluster = cluster
        self.cut = cut
        self.on_message: OnMessage = ignore
        self.on_demand: OnDemand = ignore
        self.on_question: OnQuestion = no_answer
        self.on_other_delivery: OnDelivery = no_answer
        """Called with what is delivered to keys that are not those of a topic here."""
        self._explore: Callable[[Key], None] = getattr(overlay, "explore", ignore)
        """An overlay whose tables follow their use is told who publishes, and looks for what it lacks."""
        self.ranges = RangeDelivery(overlay, self._on_delivery, one_each=True, on_nobody=self._on_nobody)
        self.scoped = ScopedDelivery(overlay, self.ranges, cut)
        self._effect = Effect(overlay, self.ranges)
        self._effective: dict[Key, None] = {}
        """The own subscribers of which all publishers know."""
        self._keys = OwnKeys(name, cluster)
        self._adverts = self._keys.adverts
        self._inserted = self._keys.inserted
        self._changing: dict[str, Event] = {}
        """The topics whose keys are being changed, and the end of that."""
        self._demand = DemandTracker(overlay, self.ranges, self._keys, cut, self._tell_demand, compare_s)
        self.on_links_changed: Callable[[], None] = self._demand.on_links_changed
        """To be called when a link of the overlay has changed."""
        overlay.on_change = self.on_links_changed
        overlay.ring.note = self._note_for_right

    # What the broker asks for

    async def subscribe(self, topic: str) -> None:
        self._keys.subscribed[topic] = None
        await self._update_keys(topic)

    async def unsubscribe(self, topic: str) -> None:
        self._keys.subscribed.pop(topic, None)
        await self._update_keys(topic)

    async def advertise(self, topic: str) -> None:
        self._adverts.setdefault(topic, Advert())
        await self._update_keys(topic)

    async def withdraw(self, topic: str) -> None:
        self._adverts.pop(topic, None)
        await self._update_keys(topic)

    async def leave(self) -> None:
        """Gives up all topics at once, as a broker does that ends, and then their keys, many beside each other."""
        self._keys.subscribed.clear()
        self._adverts.clear()
        for under_way in list(self._changing.values()):
            await under_way.wait()
        keys = list(self._inserted)
        self._inserted.clear()
        self._effective.clear()
        await leave_all(self.overlay, keys)

    def is_wanted(self, topic: str) -> bool:
        """Whether anyone subscribes to an advertised topic, as far as is known here."""
        return self._demand.is_wanted(topic)

    def publish(self, topic: str, body: bytes) -> bool:
        if not self._has_demand(topic):
            return False
        self._explore(self._keys.key_of_publisher(topic))
        self.ranges.send(*segment(topic, Role.SUBSCRIBER), MESSAGE + body, self.cut)
        return True

    def publish_within(self, topic: str, body: bytes, cluster: str) -> bool:
        """To the subscribers in a cluster and below it; no other broker sees it."""
        if not self._has_demand(topic):
            return False
        self._explore(self._keys.key_of_publisher(topic))
        self.scoped.send(segment(topic, Role.SUBSCRIBER, cluster), MESSAGE + body)
        return True

    def publish_surely(
        self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome, cluster: str | None = None
    ) -> bool:
        """As `publish`, and says when every subscriber is proven to have it, or who may be missing."""
        if not self._has_demand(topic):
            return False
        self._explore(self._keys.key_of_publisher(topic))
        keys = segment(topic, Role.SUBSCRIBER, cluster)
        if cluster is None:
            self.ranges.deliver(*keys, MESSAGE + body, timeout_s, on_outcome)
        else:
            self.scoped.deliver(keys, MESSAGE + body, timeout_s, on_outcome)
        return True

    def may_be_wanted(self, topic: str, cluster: str) -> bool:
        """Whether a cluster may have subscribers of an advertised topic, as far as is known here."""
        return self._has_demand(topic) and not self.scoped.is_empty(segment(topic, Role.SUBSCRIBER, cluster))

    def ask(self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None:
        self.ranges.deliver(*segment(topic, Role.SUBSCRIBER), QUESTION + body, timeout_s, on_outcome)

    def _has_demand(self, topic: str) -> bool:
        advert = self._adverts.get(topic)
        if advert is None:
            raise ValueError(f"the topic {topic!r} is not advertised here: advertise it before publishing")
        return advert.wanted

    def _tell_demand(self, topic: str, wanted: bool) -> None:
        self.on_demand(topic, wanted)

    def adopt(self, subscribed: Iterable[str], adverts: Iterable[str]) -> None:
        """Takes over the topics of a laid-out network, whose keys are in the overlay.

        No broker knows yet what is wanted: the rendezvous points see it when the overlay says that links have changed.
        """
        self._keys.adopt(subscribed, adverts)
        for key, (_, role) in self._inserted.items():
            if role is Role.SUBSCRIBER:
                self._effective[key] = None

    # Keys in the overlay

    async def _update_keys(self, topic: str) -> None:
        """Makes the keys of a topic what they should be; the new one comes before the old one goes.

        Returns when a new key is inserted; an old one then leaves by itself.
        """
        await self._begin_change(topic)
        try:
            while (role := self._keys.role_of(topic)) is not None:
                if self._keys.key(topic, role) in self._inserted:
                    break
                await self._insert(topic, role)
            if role is Role.SUBSCRIBER:
                self._demand.set_wanted(topic, True)
        finally:
            self._end_change(topic)
        if role is None:
            await self._remove_wrong_keys(topic)
        elif self._keys.wrong(topic):
            self.host.spawn(self._remove_wrong_keys(topic))

    async def _remove_wrong_keys(self, topic: str) -> None:
        await self._begin_change(topic)
        try:
            while wrong := self._keys.wrong(topic):
                del self._inserted[wrong[0]]
                self._effective.pop(wrong[0], None)
                await self.overlay.leave(wrong[0])
        finally:
            self._end_change(topic)

    async def _begin_change(self, topic: str) -> None:
        """One change of a topic's keys at a time."""
        while (under_way := self._changing.get(topic)) is not None:
            await under_way.wait()
        self._changing[topic] = self.host.event()

    def _end_change(self, topic: str) -> None:
        self._changing.pop(topic).set()

    async def _insert(self, topic: str, role: Role) -> None:
        key = self._keys.key(topic, role)
        self._inserted[key] = (topic, role)
        note = b""
        advert = self._adverts.get(topic)
        resumes = 0 if advert is None else advert.resumes
        if self.overlay.view.own or self.overlay.introduce() is not None:
            note = await self.overlay.join(key)
        else:
            self.overlay.found(key)
        if role is Role.SUBSCRIBER:
            await self._take_effect(topic, key, note)
        elif topic in self._adverts:
            await self._demand.learn(topic, key, note, resumes)

    async def _take_effect(self, topic: str, key: Key, note: bytes) -> None:
        """Returns when every broker that must know of a subscriber knows that it has just been inserted.

        If no node of the topic is on its left, there are no publishers: one that comes later sees the subscriber.
        """
        await self._effect.wait_for_right(key, segment(topic, Role.SUBSCRIBER))
        own, publishers = self.overlay.view.own.get(key), segment(topic, Role.PUBLISHER)
        is_alone = own is None or not publishers[0] <= own.left.key < key
        if not is_alone and note != EFFECTIVE and not await self._effect.tell(RESUME, publishers):
            return
        if key in self._inserted:
            self._effective[key] = None

    def _note_for_right(self, key: Key) -> bytes:
        """Tells a node that is inserted on the right of an own one what is known here (§5.3.5: piggy-backed)."""
        topic, role = self._inserted.get(key, ("", None))
        if role is Role.SUBSCRIBER:
            return EFFECTIVE if key in self._effective else UNSURE
        return self._demand.note_for_right(topic) if role is Role.PUBLISHER else b""

    # Arriving

    def _on_nobody(self, root: Address, body: bytes, ranges: tuple[KeyRange, ...]) -> None:
        self._demand.on_nobody(root, body, ranges)

    def _on_delivery(self, delivery: RangeArrival) -> bytes | None:
        kind = delivery.body[:1]
        answer: bytes | None = None
        for key in delivery.keys:
            topic, role = self._inserted.get(key, ("", None))
            if role is None:
                answer = self.on_other_delivery(delivery)
            elif role is Role.SUBSCRIBER and kind == MESSAGE:
                body = delivery.body[1:]
                self.on_message(Publication(topic, body, delivery.root, delivery.number, delivery.hops))
            elif role is Role.SUBSCRIBER and kind == QUESTION:
                answer = self.on_question(topic, delivery.body[1:])
            elif role is Role.PUBLISHER and kind in (RESUME, SUSPEND):
                self._demand.on_signal(topic, kind == RESUME)
        return answer
