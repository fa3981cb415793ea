"""The Multi-key Skip Graph: a broker stands in it once for each of its keys, and finds any key in about log2 N hops.

Level 0 is one list of all virtual nodes in the order of keys. On level i, nodes whose membership vectors share the
first i digits form a list of their own, so each level skips about twice as far as the one below (Banno et al. 2015,
§5.1–5.2). Every list is a DDLL ring here, that is, the list closed to a circle: each level joins, leaves and mends
itself as the ring does (`ring`), and a walk to the left meets every node.

Insertion goes up: level 0 by a lookup, then on each level a walk to the left (`Seek`) until it meets a node that is of
the same list of the next level, and the join there. It ends when the walk comes round and has met none. A node
that is met and was the only one of its kind opens the level for the newcomer, with all its siblings. A level that has
only siblings in it is no level: it is closed again. Deletion goes down.

Nothing here has to succeed at once, and joins at the same time can even leave two lists where one should be. So every
node looks up its own position on every level, from the level below, as a stranger would: soon after its links there
have changed, and now and then in any case (`RingNode` does the latter). And every broker looks for one more level above
its highest. Level 0 whole makes level 1 whole, and so on up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from braidmq.host import Address, Event, Forward, Host, Message, Reply, Service, handles
from braidmq.keys import Key, in_arc
from braidmq.overlay.lookup import FIND_TRIES, Lookup, Nowhere, outcome
from braidmq.overlay.overlay import FoundOwner, Introduce
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import (
    FindGap,
    Gap,
    JoinAbandoned,
    LinkEvent,
    Ring,
    RingNode,
    RingStatus,
    link_all,
    nothing,
    owns,
)
from braidmq.overlay.skip_graph.messages import Nobody, Seek
from braidmq.overlay.vectors import DIGITS_MAX, Vector, is_member, level_of, list_of
from braidmq.overlay.view import RoutingEntry, View

SEEK_HOPS_MAX = 64
"""How far a walk for the next level goes. Each broker met shares one more digit with probability 1/2."""

MEND_INTERVAL_S = 10.0
"""How often a broker looks for a level above its highest, and for nodes of its own that are on too few levels."""

INCARNATION_BITS = 24
"""How many memberships of lists one incarnation of a broker can count apart."""


class VirtualNode:
    """One key of a broker: its position on level 0, 1, 2, …"""

    __slots__ = ("_settled", "climbing", "key", "leaving", "levels", "proven")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.levels: list[RingNode] = []
        self.climbing = False
        self.leaving = False
        self.proven: tuple[tuple[Peer, Peer], ...] = ()
        """The links of levels 1, 2, … that were found to be as they should be."""
        self._settled: Event | None = None
        """Made when something waits for it."""

    def is_linked(self, level: int) -> bool:
        """It has neighbours on this level, though it may be about to leave them."""
        return level < len(self.levels) and self.levels[level].is_linked

    def settled(self, host: Host) -> Event:
        """Happens when a join or a climb ends: for a node that leaves."""
        if self._settled is None:
            self._settled = host.event()
        return self._settled

    def settle(self) -> None:
        """A join or a climb has ended."""
        if self._settled is not None:
            self._settled.set()
            self._settled = None

    @property
    def is_idle(self) -> bool:
        return not self.leaving and not self.climbing and bool(self.levels) and self.levels[-1].is_in


class SkipGraph(Service):
    """A broker's part of the graph: all its virtual nodes, under one membership vector.

    `incarnation` must be another one after each restart of the broker.
    """

    def __init__(self, host: Host, vector: Vector, introduce: Introduce, incarnation: int = 0) -> None:
        self.host = host
        self.vector = vector
        self.nodes: dict[Key, VirtualNode] = {}
        self.ring = Ring(host)
        self.on_change: Callable[[], None] = nothing
        """Called when a link has changed: for the one layer above."""
        self.introduce = introduce
        self._last_incarnation = incarnation << INCARNATION_BITS
        self._view: View | None = None
        self._is_mending = False
        self._lookup = Lookup(host, self._get_view, self._introduce)
        self._on_link = self._changed
        """One for all links: there are millions of them in a large simulation."""
        host.serve(self)

    @property
    def view(self) -> View:
        return self._get_view()

    def _introduce(self) -> Address | None:
        return self.introduce()

    def _get_view(self) -> View:
        if self._view is None:
            linked = [node.levels[0] for node in self.nodes.values() if node.is_linked(0)]
            self._view = View(self.host.address, linked, self._entries, self.vector)
        return self._view

    def _entries(self) -> list[RoutingEntry]:
        return [
            RoutingEntry(peer, level, at.known)
            for node in self.nodes.values()
            for level, at in enumerate(node.levels)
            if node.is_linked(level)
            for peer in (at.left, at.right)
        ]

    # Keys that come and go

    def found(self, key: Key) -> None:
        """The first node of a new graph."""
        node = self.nodes[key] = VirtualNode(key)
        base = self.add_level(node, self.new_peer(key))
        base.found(partial(self._locate_base, node, base))
        self._changed()
        self._keep_mending()

    async def join(self, key: Key) -> bytes:
        """Stands for a key in the graph; returns when it does, or when it leaves. It then climbs by itself."""
        if key in self.nodes:
            return b""
        node = self.nodes[key] = VirtualNode(key)
        base = self.add_level(node, self.new_peer(key))
        self._keep_mending()
        try:
            await base.join(partial(self._locate_base, node, base))
        except JoinAbandoned:
            self._forget_top(node)
            self.nodes.pop(key, None)
            return b""
        finally:
            node.settle()
        self.host.spawn(self._climb(node))
        return base.heard

    async def leave(self, key: Key) -> None:
        """Stands for a key no longer; returns when its last link is gone."""
        node = self.nodes.get(key)
        if node is None or node.leaving:
            return
        node.leaving = True
        while self.nodes.get(key) is node and (node.climbing or not node.is_linked(0)):
            await node.settled(self.host).wait()
        while node.levels:
            await node.levels[-1].leave()
            self._forget_top(node)
        if self.nodes.get(key) is node:
            del self.nodes[key]
        self._changed()

    def add_level(self, node: VirtualNode, me: Peer) -> RingNode:
        """A virtual node's part of the next list above, not linked yet."""
        ring_node = self.ring.node(list_of(self.vector, len(node.levels)), me)
        ring_node.on_change = self._on_link
        node.levels.append(ring_node)
        return ring_node

    def new_peer(self, key: Key) -> Peer:
        """Another incarnation for each membership of a list, so that what was said in an earlier one is not heard."""
        self._last_incarnation += 1
        return Peer(key, self.host.address, self._last_incarnation)

    def _forget_top(self, node: VirtualNode) -> None:
        top = node.levels.pop()
        if top.status is not RingStatus.OUT:
            top.become(LinkEvent.DISSOLVED)
        self.ring.forget(top)
        self._changed()

    def _changed(self) -> None:
        self._view = None
        self.on_change()

    # Lookup

    async def lookup(self, key: Key) -> FoundOwner | None:
        """The owner of a key: the node from whose key up to its successor's it lies. None if no broker answered.

        A broker that has no key in the graph asks one that has.
        """
        return await self._lookup.lookup(key)

    async def _locate_base(self, node: VirtualNode, base: RingNode, key: Key) -> Gap | None:
        """Where a key belongs on level 0. A node that is in asks others first: they may know of another ring."""
        if node.leaving and not base.is_in:
            raise JoinAbandoned
        introducer = self.introduce() if base.is_in else None
        found = await self._lookup.find(key, before=True, introducer=introducer)
        return Gap(found.owner, found.right) if found else None

    # Up the levels

    async def _climb(self, node: VirtualNode) -> None:
        """Joins level after level until no other node is found there."""
        if node.climbing:
            return
        node.climbing = True
        tries = 0
        while not node.leaving and node.levels[-1].is_in and len(node.levels) <= DIGITS_MAX and tries < FIND_TRIES:
            level = len(node.levels)
            answer = await self._seek(node, level, foreign=False)
            if len(node.levels) != level:
                continue  # another met this node meanwhile, and it has opened the level
            if isinstance(answer, Nobody):
                break
            if not isinstance(answer, Gap) or not await self._enter(node, answer):
                tries += 1
        node.climbing = False
        node.settle()

    async def _enter(self, node: VirtualNode, gap: Gap) -> bool:
        """Joins the next list above; False if there is none any more."""
        ring_node = self.add_level(node, self.new_peer(node.key))
        try:
            await ring_node.join(partial(self._locate, node, ring_node, [gap]))
        except JoinAbandoned:
            self._forget_top(node)
            return False
        return True

    async def _locate(self, node: VirtualNode, ring_node: RingNode, seen: list[Gap], key: Key) -> Gap | None:
        """Where a node belongs in a list above level 0; a gap in `seen` is tried first."""
        is_joining = not ring_node.is_in
        if is_joining and node.leaving:
            raise JoinAbandoned
        if seen:
            return seen.pop()
        answer = await self._seek(node, level_of(ring_node.ring), foreign=False)
        if isinstance(answer, Nobody) and is_joining:
            raise JoinAbandoned
        return answer if isinstance(answer, Gap) else None

    def _seek(self, node: VirtualNode, level: int, foreign: bool) -> Awaitable[Message | None]:
        """Walks from a node to the left, on the level below."""
        if not node.is_linked(level - 1):
            return outcome(self.host, None)
        below = node.levels[level - 1]
        if below.left.key == node.key:
            return outcome(self.host, Nobody())
        seek = Seek(list_of(self.vector, level), below.left.key, below.me, foreign, 1)
        if below.left.address != self.host.address:
            return outcome(self.host, Forward(below.left.address, seek))
        return outcome(self.host, self.on_seek(self.host.address, seek))

    @handles(Seek)
    def on_seek(self, origin: Address, seek: Seek) -> Reply:
        level = level_of(seek.ring)
        if not 0 < level <= DIGITS_MAX:
            return Nowhere()
        is_sibling = seek.me.address == self.host.address
        may_match = is_member(self.vector, seek.ring) and not (is_sibling and seek.foreign)
        key = seek.to
        while True:
            node = self.nodes.get(key)
            if node is None or not node.is_linked(level - 1):
                return Nowhere()
            if may_match and (is_sibling or self._open_for(node, level, seek)) and node.is_linked(level):
                return self._gap_at(node.levels[level], seek)
            below = node.levels[level - 1]
            if in_arc(below.left.key, seek.me.key, key) or seek.hops > SEEK_HOPS_MAX:
                return Nobody()
            key = below.left.key
            if below.left.address != self.host.address:
                on = Seek(seek.ring, key, seek.me, seek.foreign, seek.hops + 1)
                return Forward(below.left.address, on)

    def _gap_at(self, node: RingNode, seek: Seek) -> Reply:
        """The position of the seeker, at this node or further on in its list."""
        if owns(node, seek.me.key) or node.right.key == seek.me.key:
            return Gap(node.me, node.right)
        return Forward(node.right.address, FindGap(node.ring, node.right.key, seek.me.key))

    def _open_for(self, met: VirtualNode, level: int, seek: Seek) -> bool:
        """Whether a node is on a level, or could be put there for a newcomer that met it.

        Of two that look for each other at the same time, only the one with the smaller key opens the level. A broker
        that has a node there already, or on its way, opens nothing: that would be a second list.
        """
        if len(met.levels) > level:
            return True
        if any(len(node.levels) > level for node in self.nodes.values()):
            return False
        if met.leaving or not met.levels[-1].is_in or (met.climbing and met.key > seek.me.key):
            return False
        self._open(level)
        return True

    def _open(self, level: int) -> None:
        """Makes a list of the broker's own nodes, for others to join."""
        nodes = [self.nodes[key] for key in sorted(self.nodes)]
        mine = [node for node in nodes if len(node.levels) == level and node.levels[-1].is_in and not node.leaving]
        added = [(node, self.add_level(node, self.new_peer(node.key))) for node in mine]
        link_all([ring_node for _, ring_node in added])
        for node, ring_node in added:
            ring_node.found(partial(self._locate, node, ring_node, []))
        self._changed()

    # Mending

    def _keep_mending(self) -> None:
        if not self._is_mending:
            self._is_mending = True
            self.host.spawn(self._mend_regularly())

    async def _mend_regularly(self) -> None:
        while self.nodes:
            await self.host.sleep(self.host.chance.uniform(0.5, 1.0) * MEND_INTERVAL_S)
            await self._mend()
        self._is_mending = False

    async def _mend(self) -> None:
        """Lifts nodes that stayed behind their siblings, checks what has changed, and looks at the highest level."""
        levels = max((len(node.levels) for node in self.nodes.values()), default=0)
        idle = [node for node in self.nodes.values() if node.is_idle]
        for node in idle:
            if len(node.levels) < levels:
                self.host.spawn(self._climb(node))
            elif node.proven != _links(node):
                self.host.spawn(self._prove(node))
        highest = [node for node in idle if len(node.levels) == levels and not node.climbing]
        if not highest:
            return
        node = self.host.chance.choice(highest)
        top = levels - 1
        if not (top and self._is_among_siblings(top)):
            await self._climb(node)
            return
        answer = await self._seek(node, top, foreign=True)
        if isinstance(answer, Nobody):
            self._close(top)
        elif isinstance(answer, Gap):
            await self._meet(node, top, answer)

    async def _prove(self, node: VirtualNode) -> None:
        """Makes sure, from the lowest changed level up, that the node's lists are the ones that others know."""
        for level in range(1, len(node.levels)):
            links = _links(node)[:level]
            if node.proven[:level] == links:
                continue
            answer = await self._seek(node, level, foreign=False)
            if _links(node)[:level] != links:
                return  # it is changing still
            if isinstance(answer, Gap) and node.key not in (answer.left.key, answer.right.key):
                await self._meet(node, level, answer)
                return
            if not isinstance(answer, Gap | Nobody):
                return
            node.proven = links
        node.proven = node.proven[: len(node.levels) - 1]

    async def _meet(self, node: VirtualNode, level: int, gap: Gap) -> None:
        """There is another list where a node has its own: introduces it to the one that should be its neighbour."""
        if level < len(node.levels) and node.levels[level].is_in:
            known = node.levels[level].known
            known.meet((gap.left, gap.right))
            known.trust(gap.left)
            await node.levels[level].check_left()

    def _is_among_siblings(self, level: int) -> bool:
        """Whether all links of a level, which is the highest, lead to this broker itself."""
        here = self.host.address
        for node in self.nodes.values():
            for ring_node in node.levels[level:]:
                if ring_node.ring != list_of(self.vector, level) or not ring_node.is_in:
                    return False
                if ring_node.left.address != here or ring_node.right.address != here:
                    return False
        return True

    def _close(self, level: int) -> None:
        if self._is_among_siblings(level):
            for node in self.nodes.values():
                if len(node.levels) > level:
                    self._forget_top(node)


def _links(node: VirtualNode) -> tuple[tuple[Peer, Peer], ...]:
    return tuple([(at.left, at.right) for at in node.levels[1:]])
