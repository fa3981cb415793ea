"""Bayeux: a tree for each topic, made of the root's own ways to its members.

A JOIN walks to the root, and the brokers on its way only pass it on. The root answers with a TREE, which walks back to
the member by the member's own ID (its membership vector), and every broker on that way keeps a route: the member
and the next hop towards it. Publications follow the routes down: one message for each next hop, however many members it
serves.

    member ──JOIN──▶ … ──JOIN──▶ root ──TREE──▶ relay ──TREE──▶ relay ──▶ member     a route at each relay

The last relay answers the member, which proves that the way is there. Leaving is a JOIN with `wanted` False: its TREE
takes the routes away. Two ways from the root may part and meet again, since a list of a higher level is part of the one
below; the second copy of a publication ends where they meet.

Members join again every `refresh_s`, which renews all routes. A root that resigns passes its members on to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from braidmq.host import Address, Forward, Message, Reply, handles
from braidmq.overlay import Peer
from braidmq.overlay.lookup import outcome
from braidmq.overlay.skip_graph import LostId, Walk
from braidmq.overlay.vectors import Vector
from braidmq.pubsub.baselines.rendezvous_tree import AtCapacity, Branch, Joined, RendezvousTree

LEAVE_TRIES = 3
"""How often a member that leaves says so, until it is answered; after that its routes expire."""

MEMBERS_MAX = 100_000
"""Members of a topic that a broker keeps routes to."""


class BayeuxJoin(Message, frozen=True, array_like=True, gc=False):
    """A member's wish on its way to the root; of two wishes the one with the higher number counts."""

    topic: str
    member: Address
    vector: Vector
    number: int
    wanted: bool
    walk: Walk


class BayeuxTree(Message, frozen=True, array_like=True, gc=False):
    """The root's answer on its way to the member."""

    topic: str
    member: Address
    number: int
    wanted: bool
    walk: Walk


class MemberRoute(NamedTuple):
    """The way to a member: its ID, the next hop, the number of its wish, and until when this holds."""

    vector: Vector
    to: Address
    number: int
    until: float


class BayeuxBranch(Branch):
    """A broker's routes to the members of a topic."""

    __slots__ = ("routes",)

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.routes: dict[Address, MemberRoute] = {}


class Bayeux(RendezvousTree[BayeuxBranch]):
    """A broker's part in all the trees."""

    async def unsubscribe(self, topic: str) -> None:
        """Returns when the routes are gone, or when nobody answers."""
        branch = self.topics.get(topic)
        if branch is None or not branch.subscribed:
            return
        branch.subscribed = False
        self._prune(topic, branch)
        for _ in range(LEAVE_TRIES):
            answer = await outcome(self.host, self._begin(topic, branch, wanted=False))
            if isinstance(answer, Joined) or branch.subscribed or self._subscribes(topic):
                return
            await self._pause()

    @handles(BayeuxJoin)
    def on_join(self, origin: Address, join: BayeuxJoin) -> Reply:
        step = self.router.step(join.walk)
        if step is None:
            return LostId()
        topic, member, number = join.topic, join.member, join.number
        if step.to is not None:
            return Forward(step.to, BayeuxJoin(topic, member, join.vector, number, join.wanted, step.walk))
        if join.wanted:
            if not self._has_room(topic):
                return AtCapacity()
            self._become_root(topic, self._branch(topic))
        return self.on_tree(origin, BayeuxTree(topic, member, number, join.wanted, Walk(join.vector)))

    @handles(BayeuxTree)
    def on_tree(self, origin: Address, tree: BayeuxTree) -> Reply:
        if tree.member == self.host.address:
            return Joined()
        step = self.router.step(tree.walk)
        if step is None or step.to is None:
            return LostId()
        if not self._update_route(tree, step.to):
            return AtCapacity()
        if step.to == tree.member:
            return Joined()
        return Forward(step.to, BayeuxTree(tree.topic, tree.member, tree.number, tree.wanted, step.walk))

    def _update_route(self, tree: BayeuxTree, to: Address) -> bool:
        """Keeps a route to a member or forgets it; False if there is no room."""
        branch = self.topics.get(tree.topic)
        known = branch.routes.get(tree.member) if branch is not None else None
        if known is not None and known.number > tree.number:
            return True  # it has said something else since
        if not tree.wanted:
            if branch is not None and known is not None:
                del branch.routes[tree.member]
                self._prune(tree.topic, branch)
            return True
        if not self._has_room(tree.topic):
            return False
        branch = self._branch(tree.topic)
        if known is None and len(branch.routes) >= MEMBERS_MAX:
            return False
        branch.routes[tree.member] = MemberRoute(tree.walk.id, to, tree.number, self.host.now() + self._lease_s)
        return True

    def _new_branch(self, topic: str) -> BayeuxBranch:
        return BayeuxBranch(topic)

    def _begin_join(self, topic: str, branch: BayeuxBranch) -> Reply:
        return self._begin(topic, branch, wanted=True)

    def _begin(self, topic: str, branch: BayeuxBranch, wanted: bool) -> Reply:
        self._number += 1
        me = self.host.address
        join = BayeuxJoin(topic, me, self.router.graph.vector, self._number, wanted, Walk(branch.id))
        return self.on_join(me, join)

    def _wants_join(self, branch: BayeuxBranch) -> bool:
        return branch.subscribed

    def _subscribes(self, topic: str) -> bool:
        branch = self.topics.get(topic)
        return branch is not None and branch.subscribed

    def _next_hops(self, branch: BayeuxBranch) -> Iterable[Address]:
        now = self.host.now()
        return dict.fromkeys([route.to for route in branch.routes.values() if route.until > now])

    def _expire(self, branch: BayeuxBranch) -> None:
        now = self.host.now()
        for member in [member for member, route in branch.routes.items() if route.until <= now]:
            del branch.routes[member]

    def _is_empty(self, branch: BayeuxBranch) -> bool:
        return not branch.routes

    def _hand_over(self, topic: str, branch: BayeuxBranch, root: Peer) -> None:
        walk = self.router.walk_to(branch.id, root)
        for member, route in branch.routes.items():
            self.host.send(root.address, BayeuxJoin(topic, member, route.vector, route.number, True, walk))
        branch.routes.clear()
