"""What Scribe and Bayeux have in common: a topic's root, found by hashing its name, from which a tree leads down.

The owner of the topic's ID in the DHT on the Skip Graph is the root. A publisher finds it once (`Announce` walks to it)
and sends everything there, which is one hop; from there publications go down the tree (`TreeDelivery`). How the tree
comes about is what the two methods differ in.

Publishers cannot know whether anybody listens (Banno et al. 2015, §3.2.1): `publish` always sends, and an advertised
topic counts as wanted from the beginning, so `on_demand(topic, True)` is called once and never taken back.

All state is soft. Every `refresh_s` a broker makes sure of each of its topics: subscribers join again, publishers ask
whether the root still is one, and a root looks its own ID up. A root that finds another owner resigns: it hands over
what it has, passes on what still comes to it, and tells the publishers (`NotRoot`), which then look again. What is not
renewed for `LEASE_REFRESHES` periods is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Generic, TypeVar

from braidmq.host import Address, Forward, Message, Reply, Service, ask, handles
from braidmq.overlay import Peer
from braidmq.overlay.lookup import FIND_TIMEOUT_S, outcome
from braidmq.overlay.skip_graph import IdRouter, LostId, Walk, id_of
from braidmq.overlay.vectors import Vector
from braidmq.pubsub.method import OnDemand, OnMessage, Publication
from braidmq.pubsub.seen import Seen

REFRESH_S = 30.0
"""How often a broker makes sure of each of its topics, at least."""

LEASE_REFRESHES = 2.5
"""Periods after which what was not renewed is forgotten."""

RETRY_S = 2.0
"""The longest pause before something that failed is tried again."""

TOPICS_MAX = 100_000
"""Topics that a broker serves; a broker that asks for one more is turned away."""

SUBMIT_HOPS_MAX = 4
"""How often a publication is passed on from root to root before it has to be in the tree."""

NUMBER_BITS = 40
"""Numbers begin anywhere below this, so that a broker that has restarted does not repeat them."""


class Announce(Message, frozen=True, array_like=True, gc=False):
    """A publisher asks for the root; without a walk, whether the receiver still is it."""

    topic: str
    walk: Walk | None


class Announced(Message, frozen=True, array_like=True, gc=False):
    root: Address


class NotRoot(Message, tag="Astray", frozen=True, array_like=True, gc=False):
    """The sender is not the root, as the receiver thought."""

    topic: str


class Submit(Message, frozen=True, array_like=True, gc=False):
    """A publication on its way to the root."""

    topic: str
    origin: Address
    number: int
    hops: int
    body: bytes


class TreeDelivery(Message, tag="Down", frozen=True, array_like=True, gc=False):
    """A publication on its way down the tree."""

    topic: str
    origin: Address
    number: int
    hops: int
    body: bytes


class Joined(Message, frozen=True, array_like=True, gc=False):
    """The way from the root to the broker that asked is there."""


class AtCapacity(Message, tag="NoRoom", frozen=True, array_like=True, gc=False):
    """The broker serves as many topics as it can."""


class Branch:
    """What a broker has of one topic's tree."""

    __slots__ = ("id", "is_renewing", "is_root", "published_until", "root", "subscribed")

    def __init__(self, topic: str) -> None:
        self.id: Vector = id_of(topic)
        self.subscribed = False
        self.is_root = False
        self.is_renewing = False
        self.published_until = 0.0
        """A root stays, even of an empty tree, while anyone publishes."""
        self.root: Address | None = None
        """The root now, if this broker was it before."""


B = TypeVar("B", bound=Branch)


class RendezvousTree(Service, Generic[B]):
    """A broker's part. `refresh_s` None: nothing is renewed and nothing expires, for networks that are laid out."""

    def __init__(
        self, router: IdRouter, on_message: OnMessage, on_demand: OnDemand, refresh_s: float | None = REFRESH_S
    ) -> None:
        self.router = router
        self.host = router.host
        self.on_message: OnMessage = on_message
        self.on_demand: OnDemand = on_demand
        self.topics: dict[str, B] = {}
        self.roots: dict[str, Address | None] = {}
        """The topics that this broker advertises, and their roots; None while that is looked for."""
        self._announcing: set[str] = set()
        self._lease_s = inf if refresh_s is None else LEASE_REFRESHES * refresh_s
        self._number = self.host.chance.getrandbits(NUMBER_BITS)
        self._seen = Seen()
        self.host.serve(self)
        if refresh_s is not None:
            self.host.spawn(self._refresh_regularly(refresh_s))

    # How the tree comes about: the two methods' own

    def _new_branch(self, topic: str) -> B:
        raise NotImplementedError

    def _begin_join(self, topic: str, branch: B) -> Reply:
        """Starts a JOIN at this broker."""
        raise NotImplementedError

    def _wants_join(self, branch: B) -> bool:
        raise NotImplementedError

    def _next_hops(self, branch: B) -> Iterable[Address]:
        """Where publications go down."""
        raise NotImplementedError

    def _expire(self, branch: B) -> None:
        """Forgets what was not renewed."""
        raise NotImplementedError

    def _is_empty(self, branch: B) -> bool:
        """Whether no broker is below."""
        raise NotImplementedError

    def _became_root(self, topic: str, branch: B) -> None:
        """For the methods that have something to do then."""

    def _hand_over(self, topic: str, branch: B, root: Peer) -> None:
        """For the methods that have something to do when another one is the root."""

    def _dropped(self, topic: str, branch: B) -> None:
        """For the methods that have something to say when a branch is gone."""

    def _unwanted(self, origin: Address, topic: str) -> None:
        """For the methods that have something to say about a publication of a topic that is not known here."""

    # Subscribers

    async def subscribe(self, topic: str) -> None:
        """Returns when the way from the root is there, however long that takes, or when it is wanted no longer."""
        branch = self._branch(topic)
        branch.subscribed = True
        await self._join(topic, branch)

    async def unsubscribe(self, topic: str) -> None:
        branch = self.topics.get(topic)
        if branch is not None:
            branch.subscribed = False
            self._prune(topic, branch)

    async def _join(self, topic: str, branch: B) -> None:
        while self.topics.get(topic) is branch and self._wants_join(branch):
            answer = await outcome(self.host, self._begin_join(topic, branch))
            if isinstance(answer, Joined):
                self._join_answered(branch)
                return
            await self._pause()

    def _join_answered(self, branch: B) -> None:
        """For the methods that note when a JOIN was answered."""

    # Publishers

    async def advertise(self, topic: str) -> None:
        """Returns when the root is found. There is no telling whether anybody listens: it counts as wanted."""
        if topic in self.roots:
            return
        self.roots[topic] = None
        await self._announce(topic)
        if topic in self.roots:
            self.on_demand(topic, True)

    async def withdraw(self, topic: str) -> None:
        self.roots.pop(topic, None)

    def publish(self, topic: str, body: bytes) -> bool:
        """Sends to the root, and is True: nobody knows whether there are subscribers."""
        root = self.roots.get(topic)
        if root is None:
            raise ValueError(f"nothing can be published on {topic!r} before it is advertised")
        self._number += 1
        me = self.host.address
        if root == me:
            self.on_submit(me, Submit(topic, me, self._number, 0, body))
        else:
            self.host.send(root, Submit(topic, me, self._number, 1, body))
        return True

    async def _announce(self, topic: str) -> None:
        """Finds the root of an advertised topic, or makes sure that it still is the one that is known."""
        if topic in self._announcing:
            return
        self._announcing.add(topic)
        while topic in self.roots:
            known = self.roots[topic]
            answer: Message | None = None
            if known is not None:
                answer = await self._ask_root(known, topic)
            if not isinstance(answer, Announced):
                reply = self.on_announce(self.host.address, Announce(topic, Walk(id_of(topic))))
                answer = await outcome(self.host, reply)
            if isinstance(answer, Announced) and topic in self.roots:
                self.roots[topic] = answer.root
                break
            await self._pause()
        self._announcing.discard(topic)

    async def _ask_root(self, root: Address, topic: str) -> Message | None:
        if root == self.host.address:
            return self._confirm_root(topic)
        return await ask(self.host, root, Announce(topic, None), Message, timeout_s=FIND_TIMEOUT_S)

    @handles(NotRoot)
    def on_astray(self, origin: Address, astray: NotRoot) -> Reply:
        if astray.topic in self.roots and self.roots[astray.topic] == origin:
            self.host.spawn(self._announce(astray.topic))
        return None

    # Roots

    @handles(Announce)
    def on_announce(self, origin: Address, announce: Announce) -> Reply:
        if announce.walk is None:
            return self._confirm_root(announce.topic)
        step = self.router.step(announce.walk)
        if step is None:
            return LostId()
        if step.to is not None:
            return Forward(step.to, Announce(announce.topic, step.walk))
        if not self._has_room(announce.topic):
            return AtCapacity()
        self._become_root(announce.topic, self._branch(announce.topic))
        return self._confirm_root(announce.topic)

    def _confirm_root(self, topic: str) -> Message:
        branch = self.topics.get(topic)
        if branch is None or not branch.is_root:
            return NotRoot(topic)
        branch.published_until = self.host.now() + self._lease_s
        return Announced(self.host.address)

    def _become_root(self, topic: str, branch: B) -> None:
        if not branch.is_root:
            branch.is_root = True
            branch.root = None
            self._became_root(topic, branch)

    async def _check_root(self, topic: str, branch: B) -> None:
        """Resigns if another broker owns the topic's ID now."""
        found = await self.router.lookup(branch.id)
        if found is None or found.owner.address == self.host.address or not branch.is_root:
            return
        branch.is_root = False
        branch.root = found.owner.address
        self._hand_over(topic, branch, found.owner)
        await self._join(topic, branch)

    @handles(Submit)
    def on_submit(self, origin: Address, submit: Submit) -> Reply:
        branch = self.topics.get(submit.topic)
        if branch is not None and branch.is_root:
            self._spread(branch, submit, None)
            return None
        astray = NotRoot(submit.topic)
        if submit.origin == self.host.address:
            self.on_astray(submit.origin, astray)
        else:
            self.host.send(submit.origin, astray)
        if branch is not None and branch.root is not None and submit.hops < SUBMIT_HOPS_MAX:
            on = Submit(submit.topic, submit.origin, submit.number, submit.hops + 1, submit.body)
            self.host.send(branch.root, on)
        return None

    # TreeDelivery the tree

    @handles(TreeDelivery)
    def on_down(self, origin: Address, down: TreeDelivery) -> Reply:
        branch = self.topics.get(down.topic)
        if branch is None:
            self._unwanted(origin, down.topic)
        else:
            self._spread(branch, down, origin)
        return None

    def _spread(self, branch: B, message: Submit | TreeDelivery, source: Address | None) -> None:
        """Delivers a publication here, if wanted, and below; once."""
        topic, origin, number, hops, body = message.topic, message.origin, message.number, message.hops, message.body
        if not self._seen.is_new(origin, number):
            return
        on = TreeDelivery(topic, origin, number, hops + 1, body)
        for to in self._next_hops(branch):
            if to != source:
                self.host.send(to, on)
        if branch.subscribed:
            self.on_message(Publication(topic, body, origin, number, hops))

    # Topics that come and go

    def _branch(self, topic: str) -> B:
        branch = self.topics.get(topic)
        if branch is None:
            branch = self.topics[topic] = self._new_branch(topic)
        return branch

    def _has_room(self, topic: str) -> bool:
        return topic in self.topics or len(self.topics) < TOPICS_MAX

    def _prune(self, topic: str, branch: B) -> None:
        """Forgets a topic that this broker is not needed for."""
        is_published = branch.is_root and branch.published_until > self.host.now()
        if branch.subscribed or is_published or not self._is_empty(branch):
            return
        if self.topics.get(topic) is branch:
            del self.topics[topic]
            self._dropped(topic, branch)

    async def _refresh_regularly(self, refresh_s: float) -> None:
        """One task a broker: each period it comes to every topic once, evenly over the time."""
        while True:
            branches, advertised = list(self.topics.items()), list(self.roots)
            pause_s = self.host.chance.uniform(0.5, 1.0) * refresh_s / (1 + len(branches) + len(advertised))
            for topic, branch in branches:
                await self.host.sleep(pause_s)
                self._expire(branch)
                self._prune(topic, branch)
                if self.topics.get(topic) is branch and not branch.is_renewing:
                    self.host.spawn(self._renew(topic, branch))
            for topic in advertised:
                await self.host.sleep(pause_s)
                self.host.spawn(self._announce(topic))
            await self.host.sleep(pause_s)

    async def _renew(self, topic: str, branch: B) -> None:
        branch.is_renewing = True
        if branch.is_root:
            await self._check_root(topic, branch)
        else:
            await self._join(topic, branch)
        branch.is_renewing = False

    async def _pause(self) -> None:
        await self.host.sleep(self.host.chance.uniform(0.25, 1.0) * RETRY_S)
