"""Scribe: a tree for each topic, made of the ways that its subscribers' JOINs take to the root, walked backwards.

A JOIN walks towards the topic's ID. Every broker that it passes takes the one before as a child, and so becomes a
forwarder, whether it cares for the topic or not. The JOIN ends at the root, or at a forwarder whose own way to the root
was confirmed already; the broker that ends it answers the subscriber, so an answer proves that the whole way is there.

    subscriber ──JOIN──▶ forwarder ──JOIN──▶ forwarder ──JOIN──▶ root         child of, child of, child of
               ◀──TreeDelivery──           ◀──TreeDelivery──           ◀──TreeDelivery──      ◀──Submit── publisher

A broker's parent is its right neighbour in the list of most common digits, so the ways of a topic merge and cannot form
a circle, except in the last list, which has the root in it and no way further up. There a JOIN goes once round before
the root is known; the broker that learns it is the root then leaves the parent that it took on the way. For
the same reason a JOIN never ends within the list it began in: a circle of forwarders would confirm itself for ever.

Forwarders join again every `refresh_s`, each for itself, which renews them as children; a broker without
children that does not subscribe leaves its parent. A crash is mended by the ring of the list first, then by the next
JOIN, which takes the new way.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from braidmq.host import Address, Forward, Message, Reply, handles
from braidmq.overlay.skip_graph import LostId, Walk
from braidmq.pubsub.baselines.rendezvous_tree import AtCapacity, Branch, Joined, RendezvousTree


class ScribeJoin(Message, frozen=True, array_like=True, gc=False):
    """`child` is the broker before, `number` its count, by which a late `ScribeLeave` is known."""

    topic: str
    child: Address
    number: int
    walk: Walk


class ScribeLeave(Message, frozen=True, array_like=True, gc=False):
    """The sender is no child any more, unless it has joined with a higher number since."""

    topic: str
    number: int


class Lease(NamedTuple):
    """Until when a child is one, and the number it joined with last."""

    until: float
    number: int


class Forwarder(Branch):
    """A broker in a topic's tree. Children are left neighbours, so they are at most as many as levels."""

    __slots__ = ("children", "confirmed_until", "parent")

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.children: dict[Address, Lease] = {}
        self.parent: Address | None = None
        self.confirmed_until = -inf
        """Until when the way to the root counts as confirmed."""


class Scribe(RendezvousTree[Forwarder]):
    """A broker's part in all the trees."""

    @handles(ScribeJoin)
    def on_join(self, origin: Address, join: ScribeJoin) -> Reply:
        topic, me = join.topic, self.host.address
        step = self.router.step(join.walk)
        if step is None:
            return LostId()
        if not self._has_room(topic):
            return AtCapacity()
        branch = self._branch(topic)
        now = self.host.now()
        if join.child != me and not join.walk.final:
            known = branch.children.get(join.child)
            number = join.number if known is None else max(join.number, known.number)
            branch.children[join.child] = Lease(now + self._lease_s, number)
        if step.to is None:
            self._become_root(topic, branch)
            return Joined()
        has_risen = -1 < join.walk.level < step.walk.level
        if branch.is_root or (has_risen and branch.confirmed_until > now):
            return Joined()
        if not step.walk.final:
            branch.parent = step.to
        self._number += 1
        return Forward(step.to, ScribeJoin(topic, me, self._number, step.walk))

    @handles(ScribeLeave)
    def on_leave(self, origin: Address, leave: ScribeLeave) -> Reply:
        branch = self.topics.get(leave.topic)
        known = branch.children.get(origin) if branch is not None else None
        if branch is not None and known is not None and known.number <= leave.number:
            del branch.children[origin]
            self._prune(leave.topic, branch)
        return None

    def _new_branch(self, topic: str) -> Forwarder:
        return Forwarder(topic)

    def _begin_join(self, topic: str, branch: Forwarder) -> Reply:
        return self.on_join(self.host.address, ScribeJoin(topic, self.host.address, 0, Walk(branch.id)))

    def _wants_join(self, branch: Forwarder) -> bool:
        return not branch.is_root

    def _join_answered(self, branch: Forwarder) -> None:
        branch.confirmed_until = self.host.now() + self._lease_s

    def _next_hops(self, branch: Forwarder) -> Iterable[Address]:
        now = self.host.now()
        return [child for child, lease in branch.children.items() if lease.until > now]

    def _expire(self, branch: Forwarder) -> None:
        now = self.host.now()
        for child in [child for child, lease in branch.children.items() if lease.until <= now]:
            del branch.children[child]

    def _is_empty(self, branch: Forwarder) -> bool:
        return not branch.children

    def _became_root(self, topic: str, branch: Forwarder) -> None:
        self._leave_parent(topic, branch)

    def _dropped(self, topic: str, branch: Forwarder) -> None:
        self._leave_parent(topic, branch)

    def _unwanted(self, origin: Address, topic: str) -> None:
        self.host.send(origin, ScribeLeave(topic, self._number))

    def _leave_parent(self, topic: str, branch: Forwarder) -> None:
        if branch.parent is not None:
            self.host.send(branch.parent, ScribeLeave(topic, self._number))
            branch.parent = None
