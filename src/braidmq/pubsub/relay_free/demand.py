"""Demand: whether anybody subscribes to what a broker advertises (Banno et al. 2015, §5.3.4 to §5.3.6).

The last publisher of a topic in the order of keys, its rendezvous point, has the first subscriber as its right
neighbour, or sees that there is none. When that changes it signals all publishers: suspend, or resume. A publisher that
is new believes a left neighbour that knows, or asks the rendezvous point.

Two things can go wrong with signals that are lost, and both mend themselves. A broker that goes on publishing though
nobody listens meets the rendezvous point with its next message, and is told so. One that is silent though there is a
listener compares itself with its neighbour now and then, and reports a difference to the rendezvous point, which
signals again. A publisher that was told to resume a moment ago makes sure of a suspension: it may be older.
"""

from __future__ import annotations

from braidmq.host import Address, Host, Reply, Service, ask, handles
from braidmq.keys import SEPARATOR, Key, Role, segment
from braidmq.overlay import Overlay
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.ranges import Cut, RangeDelivery
from braidmq.pubsub.method import OnDemand
from braidmq.pubsub.relay_free.own_keys import OwnKeys
from braidmq.pubsub.relay_free.signals import (
    MESSAGE,
    RESUME,
    SUSPEND,
    UNSURE,
    AskDemand,
    DemandDisagreement,
    KnownDemand,
    Suspend,
)

SIGNAL_S = 5.0
"""How much later than a signal an earlier one may arrive: within it, a suspension is not believed but looked after."""

FIND_TRIES = 3
FIND_PAUSE_S = 0.1
"""How often, and after which pause, the rendezvous point is asked, if nobody answers for it."""

CALL_TIMEOUT_S = 2.0


class DemandTracker(Service):
    """One broker's part: as a publisher that is told, and as a rendezvous point that signals."""

    __slots__ = (
        "_compare_s",
        "_cut",
        "_host",
        "_is_checking",
        "_is_comparing",
        "_keys",
        "_on_demand",
        "_overlay",
        "_ranges",
    )

    def __init__(
        self,
        overlay: Overlay,
        ranges: RangeDelivery,
        keys: OwnKeys,
        cut: Cut,
        on_demand: OnDemand,
        compare_s: float | None,
    ) -> None:
        """`compare_s` is how often a suspended publisher compares itself with its neighbour; None is never."""
        self._overlay = overlay
        self._host: Host = overlay.host
        self._ranges = ranges
        self._keys = keys
        self._cut = cut
        self._on_demand = on_demand
        self._compare_s = compare_s
        self._is_checking = False
        self._is_comparing = False
        self._host.serve(self)

    def is_wanted(self, topic: str) -> bool:
        """Whether anyone subscribes to an advertised topic, as far as is known here."""
        advert = self._keys.adverts.get(topic)
        return advert is not None and advert.wanted

    def set_wanted(self, topic: str, wanted: bool) -> None:
        """What is known from now on; a topic that this broker subscribes to itself stays wanted."""
        advert = self._keys.adverts.get(topic)
        if advert is not None and wanted:
            advert.wanted_at = self._host.now()
        if advert is None or advert.wanted == wanted or (topic in self._keys.subscribed and not wanted):
            return
        advert.wanted = wanted
        self._on_demand(topic, wanted)

    # A publisher that is new

    async def learn(self, topic: str, key: Key, note: bytes, resumes: int) -> None:
        """Whether a topic is wanted, when its publisher has just been inserted (§5.3.5, Fig. 8).

        `note` is what its left neighbour said, `resumes` how many signals to resume had come before that.
        """
        advert = self._keys.adverts[topic]
        advert.learnt = False
        await self._learn(topic, key, note, resumes)
        advert.learnt = True
        self.on_links_changed()
        self._keep_comparing()

    async def _learn(self, topic: str, key: Key, note: bytes, resumes: int) -> None:
        own = self._overlay.view.own.get(key)
        if own is None:
            return
        left_is_one = own.left.key < key and _is_in(own.left.key, segment(topic, Role.PUBLISHER))
        left_knows = left_is_one and note in (SUSPEND, RESUME)
        if self.sees_subscriber(topic, key) is not None:
            self._keys.adverts[topic].right = own.right.key
            self._check(topic, key, left_knows, note == RESUME)
        elif left_knows:
            self._believe(topic, note == RESUME, resumes)
        else:
            await self._ask_rendezvous_point(topic)

    async def _ask_rendezvous_point(self, topic: str) -> None:
        """What it sees is how it is."""
        keys = segment(topic, Role.SUBSCRIBER)
        for _ in range(FIND_TRIES):
            advert = self._keys.adverts.get(topic)
            if advert is None:
                return
            resumes = advert.resumes
            found = await self._overlay.lookup(keys[0])
            if found is not None:
                self._believe(topic, _is_in(found.right.key, keys), resumes)
                return
            await self._host.sleep(FIND_PAUSE_S)

    def _believe(self, topic: str, wanted: bool, resumes: int) -> None:
        """Accepts what others have said; that nobody wants a topic only if no signal to resume has come since."""
        advert = self._keys.adverts.get(topic)
        if advert is not None and (wanted or advert.resumes == resumes):
            self.set_wanted(topic, wanted)

    def note_for_right(self, topic: str) -> bytes:
        """What a publisher here tells a node that is inserted on its right (§5.3.5: piggy-backed)."""
        advert = self._keys.adverts.get(topic)
        if advert is None or not advert.learnt:
            return UNSURE
        return RESUME if advert.wanted else SUSPEND

    # The rendezvous point

    def sees_subscriber(self, topic: str, key: Key) -> bool | None:
        """What the rendezvous point sees on its right; None if this is not the rendezvous point."""
        own = self._overlay.view.own.get(key)
        if own is None or (_is_in(own.right.key, segment(topic, Role.PUBLISHER)) and own.right.key > key):
            return None
        return _is_in(own.right.key, segment(topic, Role.SUBSCRIBER))

    def _check(self, topic: str, key: Key, others_know: bool, others_wanted: bool) -> None:
        """Sees as the rendezvous point whether there are subscribers, and signals if others think differently."""
        wanted = self.sees_subscriber(topic, key)
        if wanted is None:
            return
        self.set_wanted(topic, wanted)
        if others_know and others_wanted != wanted:
            self.signal(topic, wanted)

    def signal(self, topic: str, wanted: bool) -> None:
        """Tells all publishers of a topic."""
        self._ranges.send(*segment(topic, Role.PUBLISHER), RESUME if wanted else SUSPEND, self._cut)

    def on_links_changed(self) -> None:
        """A link has changed: checks all publishers here, once what happens now is through."""
        if not self._is_checking and self._keys.adverts:
            self._is_checking = True
            self._host.spawn(self._check_all())

    async def _check_all(self) -> None:
        self._is_checking = False
        nodes = self._overlay.view.own
        for key, (topic, role) in list(self._keys.inserted.items()):
            if role is not Role.PUBLISHER:
                continue
            own, advert = nodes.get(key), self._keys.adverts.get(topic)
            if own is None or advert is None or not advert.learnt:
                continue
            if own.right.key == advert.right:
                continue
            advert.right = own.right.key
            self._check(topic, key, True, advert.wanted)

    # Signals that arrive

    def on_signal(self, topic: str, wanted: bool) -> None:
        """The rendezvous point has spoken."""
        if not wanted:
            self._on_unwanted(topic)
            return
        advert = self._keys.adverts.get(topic)
        if advert is not None:
            advert.resumes += 1
        self.set_wanted(topic, True)

    def _on_unwanted(self, topic: str) -> None:
        """It was said that nobody wants a topic; if it was wanted a moment ago, that may be older."""
        advert = self._keys.adverts.get(topic)
        if advert is None or not advert.learnt or not advert.wanted:
            return
        if self._host.now() - advert.wanted_at < SIGNAL_S:
            self._host.spawn(self._ask_rendezvous_point(topic))
        else:
            self.set_wanted(topic, False)

    # Both inconsistencies (§5.3.6)

    def on_nobody(self, root: Address, body: bytes, ranges: tuple[KeyRange, ...]) -> None:
        """(i) A broker publishes though nobody subscribes: its message has ended at the rendezvous point."""
        if body[:1] != MESSAGE:
            return
        for low, _ in ranges:
            topic = low.split(SEPARATOR, 1)[0].decode()
            key = self._keys.key(topic, Role.PUBLISHER)
            if key not in self._keys.inserted or self.sees_subscriber(topic, key) is not False:
                continue
            if root == self._host.address:
                self.set_wanted(topic, False)
            else:
                self._host.send(root, Suspend(topic))

    @handles(Suspend)
    def on_suspend(self, _origin: Address, told: Suspend) -> Reply:
        self._on_unwanted(told.topic)
        return None

    def _keep_comparing(self) -> None:
        if not self._is_comparing and self._compare_s is not None:
            self._is_comparing = True
            self._host.spawn(self._compare_regularly(self._compare_s))

    async def _compare_regularly(self, period_s: float) -> None:
        while self._keys.adverts:
            await self._host.sleep(self._host.chance.uniform(0.5, 1.0) * period_s)
            for key, (topic, role) in list(self._keys.inserted.items()):
                if role is Role.PUBLISHER and not self.is_wanted(topic):
                    await self._compare(topic, key)
        self._is_comparing = False

    async def _compare(self, topic: str, key: Key) -> None:
        """(ii) This publisher is suspended: is its neighbour, too?"""
        own = self._overlay.view.own.get(key)
        if own is None:
            return
        seen = self.sees_subscriber(topic, key)
        if seen is not None:
            self._check(topic, key, True, self.is_wanted(topic))
            return
        asked = AskDemand(own.right.key)
        told = await ask(self._host, own.right.address, asked, KnownDemand, timeout_s=CALL_TIMEOUT_S)
        if told is None or not told.known or told.wanted == self.is_wanted(topic):
            return
        found = await self._overlay.lookup(segment(topic, Role.SUBSCRIBER)[0])
        if found is not None:
            self._host.send(found.owner.address, DemandDisagreement(topic))

    @handles(AskDemand)
    def on_ask_demand(self, _origin: Address, asked: AskDemand) -> Reply:
        topic, role = self._keys.inserted.get(asked.key, ("", Role.SUBSCRIBER))
        advert = self._keys.adverts.get(topic)
        return KnownDemand(role is Role.PUBLISHER and advert is not None and advert.learnt, self.is_wanted(topic))

    @handles(DemandDisagreement)
    def on_disagreement(self, _origin: Address, told: DemandDisagreement) -> Reply:
        key = self._keys.key(told.topic, Role.PUBLISHER)
        wanted = self.sees_subscriber(told.topic, key) if key in self._keys.inserted else None
        if wanted is not None:
            self.set_wanted(told.topic, wanted)
            self.signal(told.topic, wanted)
        return None


def _is_in(key: Key, keys: KeyRange) -> bool:
    return keys[0] <= key < keys[1]
