"""SG-TBPS: publish/subscribe without relays, that stops at the edge what nobody wants (Banno et al. 2015, §5.3).

A broker stands in the overlay once for each topic that it subscribes to or publishes. Keys sort the publishers of a
topic directly before its subscribers, so both are segments of the ring and neighbours of each other: nobody else is
ever bothered with a publication, which is one range delivery to the subscribers' segment.

    …  t/pub/a  t/pub/b  t/pub/c │ t/sub/d  t/sub/e  …
                           └ rendezvous point

The last publisher, the rendezvous point, has the first subscriber as its right neighbour, or sees that there is none.
When that changes it signals all publishers: suspend, or resume. Two things can go wrong with signals that are lost, and
both mend themselves: who goes on publishing though nobody listens meets the rendezvous point with its next message and
is told so; who is silent though somebody listens compares itself with its neighbour now and then, and reports a
difference to the rendezvous point, which signals again.

What is published after `subscribe` has returned arrives. For that, a first subscriber does not rest on the signal: it
tells the publishers itself, and returns when it is proven that all know (`effect`); who is inserted behind a subscriber
of which that is known need not. A publisher that is new asks the rendezvous point, once it stands, or believes a left
neighbour that knows. And who was told to resume a moment ago makes sure of a suspension: it may have been said before.

A broker that both publishes and subscribes to a topic stands among the subscribers only: there is demand as long as it
is there itself (footnote 2 of §5.3.5). Over a Skip Graph this is the paper's method, by MRF; over flexible routing
tables, by SFB, it is the adaptive method of Banno and Shudo (2019): an overlay whose tables follow their use is told of
each publication, and looks for the subscribers that it lacks (§3.5.4). Over Suzaku it goes by right links alone, which
also asks whoever stands before the first subscriber: that need not be a publisher, if all publishers subscribe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from braidmq.host import Address, CallError, Host, Reply, Service, handles
from braidmq.keys import SEPARATOR, Key, Role, key_of, segment
from braidmq.overlay import Overlay
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.ranges import Cut, OnOutcome, RangeArrival, RangeDelivery
from braidmq.pubsub.effect import Effect
from braidmq.pubsub.locality.within import Within
from braidmq.pubsub.method import OnDemand, OnMessage, OnQuestion, Publication, ignore, no_answer
from braidmq.pubsub.signals import (
    EFFECTIVE,
    MESSAGE,
    QUESTION,
    RESUME,
    SUSPEND,
    UNSURE,
    Advert,
    AskDemand,
    Demand,
    Report,
    Suspend,
)

CUTS: Final[Mapping[str, tuple[Cut, ...]]] = {
    "relayfree": (Cut.MRF, Cut.SFB),
    "adaptive": (Cut.SFB, Cut.MRF),
    "suzaku": (Cut.RIGHT,),
}
"""By method: how it can split ranges; the first is how it does, in both worlds.

When a node is told that it is in, the right link to it is set, and the left link a moment later: by right links alone
it gets all that is sent from then on; by those of both sides it can miss what is sent in that moment.
"""

COMPARE_S = 30.0
"""How often a publisher that is suspended compares itself with its neighbour: the longest that a lost signal lasts."""

SIGNAL_S = 5.0
"""How much later than a signal an earlier one may arrive: within it, a suspension is not believed but looked after."""

FIND_TRIES = 3
FIND_PAUSE_S = 0.1
"""How often, and after which pause, the rendezvous point is asked, if nobody answers for it."""

CALL_TIMEOUT_S = 2.0
SETTLE_POLL_S = 0.05
"""How often a change of a topic looks whether an earlier one of the same topic is through."""


class RelayFree(Service):
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
        self.compare_s = compare_s
        self.on_message: OnMessage = ignore
        self.on_demand: OnDemand = ignore
        self.on_question: OnQuestion = no_answer
        self._explore: Callable[[Key], None] = getattr(overlay, "explore", ignore)
        """An overlay whose tables follow their use is told who publishes, and looks for what it lacks."""
        self.ranges = RangeDelivery(overlay, self._on_delivery, one_each=True, on_nobody=self._on_nobody)
        self.within = Within(overlay, self.ranges, cut)
        self._effect = Effect(overlay, self.ranges)
        self._effective: dict[Key, None] = {}
        """The own subscribers of which all publishers know."""
        self._subscribed: dict[str, None] = {}
        self._adverts: dict[str, Advert] = {}
        self._standing: dict[Key, tuple[str, Role]] = {}
        """The own keys, and what each stands for."""
        self._settling: dict[str, None] = {}
        self._is_looking = False
        self._is_comparing = False
        overlay.on_change = self._on_change
        overlay.ring.note = self._note
        self.host.serve(self)

    # What the broker asks for

    async def subscribe(self, topic: str) -> None:
        self._subscribed[topic] = None
        await self._settle(topic)

    async def unsubscribe(self, topic: str) -> None:
        self._subscribed.pop(topic, None)
        await self._settle(topic)

    async def advertise(self, topic: str) -> None:
        self._adverts.setdefault(topic, Advert())
        await self._settle(topic)

    async def withdraw(self, topic: str) -> None:
        self._adverts.pop(topic, None)
        await self._settle(topic)

    def is_wanted(self, topic: str) -> bool:
        """Whether somebody subscribes to an advertised topic, as far as is known here."""
        advert = self._adverts.get(topic)
        return advert is not None and advert.wanted

    def publish(self, topic: str, body: bytes) -> bool:
        if not self._has_demand(topic):
            return False
        self._explore(self._own_key(topic))
        self.ranges.send(*segment(topic, Role.SUBSCRIBER), MESSAGE + body, self.cut)
        return True

    def publish_within(self, topic: str, body: bytes, cluster: str) -> bool:
        """To the subscribers in a cluster and below it; nobody else sees it."""
        if not self._has_demand(topic):
            return False
        self._explore(self._own_key(topic))
        self.within.send(segment(topic, Role.SUBSCRIBER, cluster), MESSAGE + body)
        return True

    def publish_surely(
        self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome, cluster: str | None = None
    ) -> bool:
        """As `publish`, and says when every subscriber is proven to have it, or who may be missing."""
        if not self._has_demand(topic):
            return False
        self._explore(self._own_key(topic))
        keys = segment(topic, Role.SUBSCRIBER, cluster)
        if cluster is None:
            self.ranges.deliver(*keys, MESSAGE + body, timeout_s, on_outcome)
        else:
            self.within.deliver(keys, MESSAGE + body, timeout_s, on_outcome)
        return True

    def may_be_wanted(self, topic: str, cluster: str) -> bool:
        """Whether a cluster may have subscribers of an advertised topic, as far as is known here."""
        return self._has_demand(topic) and not self.within.is_empty(segment(topic, Role.SUBSCRIBER, cluster))

    def ask(self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None:
        self.ranges.deliver(*segment(topic, Role.SUBSCRIBER), QUESTION + body, timeout_s, on_outcome)

    def _has_demand(self, topic: str) -> bool:
        advert = self._adverts.get(topic)
        if advert is None:
            raise ValueError(f"the topic {topic!r} is not advertised here: advertise it before publishing")
        return advert.wanted

    def adopt(self, subscribed: Iterable[str], adverts: Iterable[str]) -> None:
        """Takes over the topics of a laid-out network, whose keys stand.

        Nobody knows yet what is wanted: the rendezvous points see it when the overlay says that links have changed.
        """
        self._subscribed.update(dict.fromkeys(subscribed))
        self._adverts.update({topic: Advert(learnt=True) for topic in adverts})
        for topic in (*self._subscribed, *self._adverts):
            role = self._role(topic)
            if role is not None:
                self._standing[self._key(topic, role)] = (topic, role)
            if role is Role.SUBSCRIBER:
                self._effective[self._key(topic, role)] = None

    # Standing in the overlay

    def _role(self, topic: str) -> Role | None:
        """What this broker should stand for a topic as."""
        if topic in self._subscribed:
            return Role.SUBSCRIBER
        return Role.PUBLISHER if topic in self._adverts else None

    def _key(self, topic: str, role: Role) -> Key:
        return key_of(topic, role, self.cluster, self.name)

    def _own_key(self, topic: str) -> Key:
        """The key that this broker stands at for a topic that it publishes."""
        return self._key(topic, Role.SUBSCRIBER if topic in self._subscribed else Role.PUBLISHER)

    async def _settle(self, topic: str) -> None:
        """Makes the keys of a topic what they should be; the new one comes before the old one goes.

        Returns when a new key stands; an old one then leaves by itself.
        """
        await self._begin_change(topic)
        try:
            while (role := self._role(topic)) is not None and self._key(topic, role) not in self._standing:
                await self._stand(topic, role)
            if role is Role.SUBSCRIBER:
                self._set_wanted(topic, True)
        finally:
            del self._settling[topic]
        if role is None:
            await self._clear(topic)
        elif self._wrong_keys(topic):
            self.host.spawn(self._clear(topic))

    async def _clear(self, topic: str) -> None:
        """Takes the keys of a topic away that this broker should not stand at."""
        await self._begin_change(topic)
        try:
            while wrong := self._wrong_keys(topic):
                del self._standing[wrong[0]]
                self._effective.pop(wrong[0], None)
                await self.overlay.leave(wrong[0])
        finally:
            del self._settling[topic]

    async def _begin_change(self, topic: str) -> None:
        """One change of a topic's keys at a time."""
        while topic in self._settling:
            await self.host.sleep(SETTLE_POLL_S)
        self._settling[topic] = None

    def _wrong_keys(self, topic: str) -> list[Key]:
        role = self._role(topic)
        return [key for key, (of, what) in self._standing.items() if of == topic and what is not role]

    async def _stand(self, topic: str, role: Role) -> None:
        key = self._key(topic, role)
        self._standing[key] = (topic, role)
        note = b""
        advert = self._adverts.get(topic)
        resumes = 0 if advert is None else advert.resumes
        if self.overlay.view.own or self.overlay.introduce() is not None:
            note = await self.overlay.join(key)
        else:
            self.overlay.found(key)
        advert = self._adverts.get(topic)
        if role is Role.SUBSCRIBER:
            await self._take_effect(topic, key, note)
        elif advert is not None:
            advert.learnt = False
            await self._learn_demand(topic, key, note, resumes)
            advert.learnt = True
            self._on_change()
            self._keep_comparing()

    async def _take_effect(self, topic: str, key: Key, note: bytes) -> None:
        """Returns when all whom it takes know of a subscriber that has just been inserted.

        If nobody of the topic is on its left, there are no publishers: who comes later sees the subscriber.
        """
        await self._effect.wait_for_right(key, segment(topic, Role.SUBSCRIBER))
        own, publishers = self.overlay.view.own.get(key), segment(topic, Role.PUBLISHER)
        is_alone = own is None or not publishers[0] <= own.left.key < key
        if not is_alone and note != EFFECTIVE and not await self._effect.tell(RESUME, publishers):
            return
        if key in self._standing:
            self._effective[key] = None

    # Demand

    async def _learn_demand(self, topic: str, key: Key, note: bytes, resumes: int) -> None:
        """Whether a topic is wanted, when its publisher has just been inserted (§5.3.5, Fig. 8)."""
        own = self.overlay.view.own.get(key)
        if own is None:
            return
        left_is_one = own.left.key < key and _is_in(own.left.key, segment(topic, Role.PUBLISHER))
        left_knows = left_is_one and note in (SUSPEND, RESUME)
        if self._sees_subscriber(topic, key) is not None:
            self._adverts[topic].right = own.right.key
            self._look(topic, key, left_knows, note == RESUME)
        elif left_knows:
            self._believe(topic, note == RESUME, resumes)
        else:
            await self._find_out(topic)

    async def _find_out(self, topic: str) -> None:
        """Asks the rendezvous point: what it sees is how it is."""
        keys = segment(topic, Role.SUBSCRIBER)
        for _ in range(FIND_TRIES):
            advert = self._adverts.get(topic)
            if advert is None:
                return
            resumes = advert.resumes
            found = await self.overlay.lookup(keys[0])
            if found is not None:
                self._believe(topic, _is_in(found.right.key, keys), resumes)
                return
            await self.host.sleep(FIND_PAUSE_S)

    def _believe(self, topic: str, wanted: bool, resumes: int) -> None:
        """Takes over what others have said; that nobody wants a topic only if no signal to resume has come since."""
        advert = self._adverts.get(topic)
        if advert is not None and (wanted or advert.resumes == resumes):
            self._set_wanted(topic, wanted)

    def _suspend(self, topic: str) -> None:
        """Somebody has said that nobody wants a topic; if it was wanted a moment ago, that may be older."""
        advert = self._adverts.get(topic)
        if advert is None or not advert.learnt or not advert.wanted:
            return
        if self.host.now() - advert.wanted_at < SIGNAL_S:
            self.host.spawn(self._find_out(topic))
        else:
            self._set_wanted(topic, False)

    async def _ask(self, address: Address, key: Key) -> Demand | None:
        try:
            told = await self.host.call(address, AskDemand(key), CALL_TIMEOUT_S)
        except CallError:
            return None
        return told if isinstance(told, Demand) and told.known else None

    def _look(self, topic: str, key: Key, others_know: bool, others_wanted: bool) -> None:
        """Sees as the rendezvous point whether there are subscribers, and signals if others think differently."""
        wanted = self._sees_subscriber(topic, key)
        if wanted is None:
            return
        self._set_wanted(topic, wanted)
        if others_know and others_wanted != wanted:
            self._signal(topic, wanted)

    def _sees_subscriber(self, topic: str, key: Key) -> bool | None:
        """What the rendezvous point sees on its right; None if this is not the rendezvous point."""
        own = self.overlay.view.own.get(key)
        if own is None or (_is_in(own.right.key, segment(topic, Role.PUBLISHER)) and own.right.key > key):
            return None
        return _is_in(own.right.key, segment(topic, Role.SUBSCRIBER))

    def _signal(self, topic: str, wanted: bool) -> None:
        self.ranges.send(*segment(topic, Role.PUBLISHER), RESUME if wanted else SUSPEND, self.cut)

    def _set_wanted(self, topic: str, wanted: bool) -> None:
        advert = self._adverts.get(topic)
        if advert is not None and wanted:
            advert.wanted_at = self.host.now()
        if advert is None or advert.wanted == wanted or (topic in self._subscribed and not wanted):
            return
        advert.wanted = wanted
        self.on_demand(topic, wanted)

    def _on_change(self) -> None:
        """A link has changed: looks at all of them once what happens now is through."""
        if not self._is_looking and self._adverts:
            self._is_looking = True
            self.host.spawn(self._look_around())

    async def _look_around(self) -> None:
        self._is_looking = False
        nodes = self.overlay.view.own
        for key, (topic, role) in list(self._standing.items()):
            if role is not Role.PUBLISHER:
                continue
            own, advert = nodes.get(key), self._adverts.get(topic)
            if own is None or advert is None or not advert.learnt:
                continue
            if own.right.key == advert.right:
                continue
            advert.right = own.right.key
            self._look(topic, key, True, advert.wanted)

    def _note(self, key: Key) -> bytes:
        """Tells a node that is inserted on the right what is known here (§5.3.5: piggy-backed)."""
        topic, role = self._standing.get(key, ("", None))
        if role is Role.SUBSCRIBER:
            return EFFECTIVE if key in self._effective else UNSURE
        advert = self._adverts.get(topic) if role is Role.PUBLISHER else None
        if advert is None or not advert.learnt:
            return UNSURE if role is Role.PUBLISHER else b""
        return RESUME if advert.wanted else SUSPEND

    # Both inconsistencies (§5.3.6)

    def _on_nobody(self, root: Address, body: bytes, ranges: tuple[KeyRange, ...]) -> None:
        """(i) Somebody publishes though nobody subscribes: the message has ended at the rendezvous point."""
        if body[:1] != MESSAGE:
            return
        for low, _ in ranges:
            topic = low.split(SEPARATOR, 1)[0].decode()
            key = self._key(topic, Role.PUBLISHER)
            if key not in self._standing or self._sees_subscriber(topic, key) is not False:
                continue
            if root == self.host.address:
                self._set_wanted(topic, False)
            else:
                self.host.send(root, Suspend(topic))

    @handles(Suspend)
    def on_suspend(self, _origin: Address, told: Suspend) -> Reply:
        self._suspend(told.topic)
        return None

    def _keep_comparing(self) -> None:
        if not self._is_comparing and self.compare_s is not None:
            self._is_comparing = True
            self.host.spawn(self._compare_regularly(self.compare_s))

    async def _compare_regularly(self, period_s: float) -> None:
        while self._adverts:
            await self.host.sleep(self.host.chance.uniform(0.5, 1.0) * period_s)
            for key, (topic, role) in list(self._standing.items()):
                if role is Role.PUBLISHER and not self.is_wanted(topic):
                    await self._compare(topic, key)
        self._is_comparing = False

    async def _compare(self, topic: str, key: Key) -> None:
        """(ii) This publisher is suspended: is its neighbour, too?"""
        own = self.overlay.view.own.get(key)
        if own is None:
            return
        seen = self._sees_subscriber(topic, key)
        if seen is not None:
            self._look(topic, key, True, self.is_wanted(topic))
            return
        told = await self._ask(own.right.address, own.right.key)
        if told is None or told.wanted == self.is_wanted(topic):
            return
        found = await self.overlay.lookup(segment(topic, Role.SUBSCRIBER)[0])
        if found is not None:
            self.host.send(found.owner.address, Report(topic))

    @handles(AskDemand)
    def on_ask_demand(self, _origin: Address, asked: AskDemand) -> Reply:
        topic, role = self._standing.get(asked.key, ("", Role.SUBSCRIBER))
        advert = self._adverts.get(topic)
        return Demand(role is Role.PUBLISHER and advert is not None and advert.learnt, self.is_wanted(topic))

    @handles(Report)
    def on_report(self, _origin: Address, told: Report) -> Reply:
        key = self._key(told.topic, Role.PUBLISHER)
        wanted = self._sees_subscriber(told.topic, key) if key in self._standing else None
        if wanted is not None:
            self._set_wanted(told.topic, wanted)
            self._signal(told.topic, wanted)
        return None

    # Arriving

    def _on_delivery(self, delivery: RangeArrival) -> bytes | None:
        kind = delivery.body[:1]
        answer: bytes | None = None
        for key in delivery.keys:
            topic, role = self._standing.get(key, ("", None))
            if role is Role.SUBSCRIBER and kind == MESSAGE:
                body = delivery.body[1:]
                self.on_message(Publication(topic, body, delivery.root, delivery.number, delivery.hops))
            elif role is Role.SUBSCRIBER and kind == QUESTION:
                answer = self.on_question(topic, delivery.body[1:])
            elif role is Role.PUBLISHER and kind == RESUME:
                if topic in self._adverts:
                    self._adverts[topic].resumes += 1
                self._set_wanted(topic, True)
            elif role is Role.PUBLISHER and kind == SUSPEND:
                self._suspend(topic)
        return answer


def _is_in(key: Key, keys: KeyRange) -> bool:
    return keys[0] <= key < keys[1]
