"""Suzaku: a ring in key order with fingers both ways (Abe and Teranishi 2019; seed 000 §3.2, §3.3).

Every node points at the nodes 1, 2, 4, 8 … places to its right (`forward`) and to its left (`backward`), so that a
lookup halves the distance at each hop, from whichever side is nearer. Level 0 is the ring's own links. Level p + 1 is
learnt by asking the node at level p for its own level p: the asker's place is told with the question, so that the one
that is asked can note it in its opposite table (passive update), and half of the tables cost nothing.

A node that joins asks all levels at once, to and fro (zigzag): FFT 0, BFT 0, FFT 1, BFT 1, … After that one level of
the forward table is asked each `period_s`, round and round. With `both_ways` off this is Chord#.

What a finger covers reaches up to the next finger, and carries an aggregate of the values of all nodes in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

import msgspec

from braidmq.host import Address, CallError, Forward, Host, Message, Reply, Service, handles
from braidmq.keys import Key, in_arc, strictly_between
from braidmq.overlay.aggregates import Aggregate, merged
from braidmq.overlay.peers import Acquaintances, Peer
from braidmq.overlay.ring import CALL_TIMEOUT_S, Gap, Ring, RingNode, Status

PERIOD_S = 60.0
"""How long until the next level of the forward table is asked."""

UPDATE_TRIES = 2
LEVELS_MAX = 40
LOOKUP_TIMEOUT_S = 5.0
LOOKUP_HOPS_MAX = 64
NEARER_MAX = 4
"""Peers that are named to a careful lookup at each hop."""
POINTERS_MAX = 64
"""Nodes known to point at this one; they are told when it leaves."""


class Finger(msgspec.Struct, frozen=True, gc=False):
    """A node some way off, those to its left in case it is gone, and what it and the nodes behind it add up to."""

    peer: Peer
    backups: tuple[Peer, ...] = ()
    aggregate: Aggregate | None = None


class Update(Message, frozen=True, array_like=True, gc=False):
    """What is your finger at this level? I stand that far on your other side."""

    to: Key
    asker: Peer
    backups: tuple[Peer, ...]
    level: int
    forward: bool
    aggregate: Aggregate | None


class Updated(Message, frozen=True, array_like=True, gc=False):
    """`me` is the node that answers (of which life), `beyond` its own finger at the level, None if it has none."""

    me: Peer
    backups: tuple[Peer, ...]
    aggregate: Aggregate | None
    beyond: Peer | None


class Sum(Message, frozen=True, array_like=True, gc=False):
    """What do you and the nodes up to a key add up to?"""

    to: Key
    until: Key


class Summed(Message, frozen=True, array_like=True, gc=False):
    """As far as whole fingers reach; from `rest` on somebody else must be asked."""

    aggregate: Aggregate
    rest: Peer | None


class Find(Message, frozen=True, array_like=True, gc=False):
    """Goes to the node that owns the key."""

    to: Key
    key: Key
    hops: int = 0


class Found(Message, frozen=True, array_like=True, gc=False):
    owner: Peer
    right: Peer
    hops: int


class Ask(Message, frozen=True, array_like=True, gc=False):
    """Where would you go for this key? The careful lookup asks hop by hop, and so learns who does not answer."""

    to: Key
    key: Key
    avoid: tuple[Key, ...] = ()


class Told(Message, frozen=True, array_like=True, gc=False):
    """Peers that are nearer to the key, nearest first; none if the one that answers owns it."""

    is_in: bool
    me: Peer
    right: Peer
    nearer: tuple[Peer, ...]


class Leaving(Message, frozen=True, array_like=True, gc=False):
    """The sender is going: whoever points at it may point at `instead`."""

    to: Key
    gone: Peer
    instead: Peer


class SuzakuNode:
    """One key's fingers, over its place in the ring."""

    __slots__ = (
        "_level",
        "_right_aggregate",
        "_view",
        "backward",
        "forward",
        "host",
        "link",
        "period_s",
        "pointers",
        "silent",
        "value",
    )

    def __init__(self, host: Host, link: RingNode, period_s: float, value: Callable[[], Aggregate]) -> None:
        self.host = host
        self.link = link
        self.period_s = period_s
        self.value = value
        self.forward: list[Finger] = []
        """Levels 1 and up, without holes; level 0 is the ring's right link."""
        self.backward: list[Finger] = []
        self.pointers: dict[Key, Peer] = {}
        self.silent = Acquaintances()
        """Fingers that did not answer. The ring has its own: a finger may be passed over lightly, a neighbour not."""
        self._level = 0
        self._right_aggregate: Aggregate | None = None
        self._view: tuple[list[Key], list[Finger], int] | None = None

    @property
    def me(self) -> Peer:
        return self.link.me

    def finger(self, level: int, forward: bool) -> Finger | None:
        if level == 0:
            peer = self.link.right if forward else self.link.left
            if peer.key == self.me.key:
                return None
            return Finger(peer, (), self._right_aggregate if forward else None)
        table = self.forward if forward else self.backward
        return table[level - 1] if level <= len(table) else None

    def peers(self) -> Iterator[Peer]:
        """Everyone this node could pass a message to."""
        yield from (self.link.right, self.link.left, *self.link.neighbours)
        for table in (self.forward, self.backward):
            for finger in table:
                yield finger.peer
                yield from finger.backups

    def nearest_before(self, key: Key) -> Peer:
        """The peer nearest before a key that this node does not own, or on it.

        The finger just behind the key knows those on its left, and they may stand before it: fewer hops for nothing.
        """
        link = self.link
        keys, fingers, split = self._view or self._make_view()
        place = bisect_right(keys, key, 0, split) if key > link.me.key else bisect_right(keys, key, split)
        best = fingers[place - 1].peer if place else link.right
        others = fingers[place].backups if place < len(fingers) else (link.left, *link.neighbours)
        return self._better(best, others, key)

    def _make_view(self) -> tuple[list[Key], list[Finger], int]:
        """All fingers in the order in which one meets them going to the right, and where that order wraps."""
        me = self.me.key
        by_key = {finger.peer.key: finger for finger in (*self.backward, *self.forward)}
        keys = sorted(by_key, key=lambda key: (key <= me, key))
        split = sum(key > me for key in keys)
        self._view = (keys, [by_key[key] for key in keys], split)
        return self._view

    def _better(self, best: Peer, others: tuple[Peer, ...], key: Key) -> Peer:
        """The one that is nearest before the key, or on it."""
        start = best.key
        for peer in others:
            there = peer.key
            if start == key:
                return best
            if (start < there <= key) if start < key else (there > start or there <= key):
                best = peer
                start = there
        return best

    # Asking

    async def learn_all(self, both_ways: bool) -> None:
        """The zigzag of a node that has just joined: every level of both tables, one after the other."""
        ahead: Peer | None = self.link.right
        behind: Peer | None = self.link.left if both_ways else None
        for level in range(LEVELS_MAX):
            ahead = await self._update(level, True, ahead) if ahead else None
            behind = await self._update(level, False, behind) if behind else None
            if ahead is None and behind is None:
                return

    async def keep_learning(self) -> None:
        """One level of the forward table each period, round and round."""
        beyond: Peer | None = None
        while self.link.status is not Status.OUT:
            await self.host.sleep(self.host.chance.uniform(0.9, 1.1) * self.period_s)
            if not self.link.is_in:
                continue
            if beyond is None:
                self._level = 0
                beyond = self.link.right
            beyond = await self._update(self._level, True, beyond)
            self._level += 1

    async def _update(self, level: int, forward: bool, target: Peer) -> Peer | None:
        """Asks the node at a level, and notes it there; returns who stands at the next level, as far as it knows."""
        candidates = [target]
        known = self.finger(level, forward)
        if known is not None:
            candidates += (known.peer, *known.backups)
        for peer in candidates:
            if peer.key == self.me.key or self.silent.is_suspected(peer.key, self.host.now()):
                continue
            answer = await self._ask(peer, level, forward)
            if answer is None:
                self.silent.suspect(peer, self.host.now())
                continue
            beyond = answer.beyond
            is_last = beyond is None or not self._is_between(answer.me, beyond, forward)
            aggregate = await self._sum_from(answer.me) if is_last and forward else answer.aggregate
            self._note(level, forward, Finger(answer.me, answer.backups, aggregate))
            if is_last:
                self._trim(level)
            return None if is_last else beyond
        return None

    async def _ask(self, peer: Peer, level: int, forward: bool) -> Updated | None:
        told = self.aggregate_below(level) if forward else None
        request = Update(peer.key, self.me, self.link.neighbours, level, forward, told)
        for _ in range(UPDATE_TRIES):
            try:
                answer = await self.host.call(peer.address, request, CALL_TIMEOUT_S)
            except CallError:
                continue
            return answer if isinstance(answer, Updated) else None
        return None

    def _note(self, level: int, forward: bool, finger: Finger) -> None:
        if level:
            self._put(level, forward, finger)
        elif forward:
            self._right_aggregate = finger.aggregate

    async def _sum_from(self, start: Peer) -> Aggregate | None:
        """What the nodes from the last finger up to this node add up to: its own table would reach past us."""
        parts: list[Aggregate] = []
        rest: Peer | None = start
        for _ in range(LEVELS_MAX):
            if rest is None:
                return merged(parts)
            try:
                answer = await self.host.call(rest.address, Sum(rest.key, self.me.key), CALL_TIMEOUT_S)
            except CallError:
                return None
            if not isinstance(answer, Summed):
                return None
            parts.append(answer.aggregate)
            rest = answer.rest
        return None

    def on_sum(self, asked: Sum) -> Summed:
        parts = [self.value()]
        finger = self.finger(0, True)
        level = 0
        while finger is not None and strictly_between(self.me.key, finger.peer.key, asked.until):
            following = self.finger(level + 1, True)
            reaches = following is not None and (
                following.peer.key == asked.until or strictly_between(self.me.key, following.peer.key, asked.until)
            )
            if not reaches or finger.aggregate is None:
                return Summed(merged(parts), finger.peer)
            parts.append(finger.aggregate)
            finger = following
            level += 1
        return Summed(merged(parts), None)

    def _is_between(self, near: Peer, far: Peer, forward: bool) -> bool:
        """Whether `far` lies behind `near`, seen from here, and not once around."""
        if forward:
            return strictly_between(near.key, far.key, self.me.key)
        return strictly_between(self.me.key, far.key, near.key)

    def _put(self, level: int, forward: bool, finger: Finger) -> None:
        """Notes a finger; one above a level that is still missing is learnt later."""
        self._view = None
        table = self.forward if forward else self.backward
        table[level - 1 : level] = [finger] if level <= len(table) + 1 else []

    def _trim(self, level: int) -> None:
        """No node stands further off than this level."""
        self._view = None
        del self.forward[level:]
        del self.backward[level:]

    # Being asked

    def on_update(self, asked: Update) -> Updated | None:
        if not self.link.is_in:
            return None
        self._remember_pointer(asked.asker)
        if asked.level and asked.level <= LEVELS_MAX:
            self._put(asked.level, not asked.forward, Finger(asked.asker, asked.backups, asked.aggregate))
        beyond = self.finger(asked.level, asked.forward)
        return Updated(
            self.me,
            self.link.neighbours,
            self.aggregate_below(asked.level + 1) if asked.forward else None,
            beyond.peer if beyond else None,
        )

    def _remember_pointer(self, peer: Peer) -> None:
        self.pointers.pop(peer.key, None)
        self.pointers[peer.key] = peer
        if len(self.pointers) > POINTERS_MAX:
            self.pointers.pop(next(iter(self.pointers)))

    def aggregate_below(self, level: int) -> Aggregate:
        """What this node and the fingers below a level add up to: 2^(level − 1) nodes, this one alone at 0."""
        fingers = [self.finger(place, True) for place in range(level - 1)]
        return merged([self.value(), *(one.aggregate for one in fingers if one is not None and one.aggregate)])

    # Leaving

    def say_goodbye(self) -> None:
        """Tells those that point here who stands in for this node."""
        for peer in self.pointers.values():
            if peer.key != self.me.key:
                self.host.send(peer.address, Leaving(peer.key, self.me, self.link.left))

    def on_leaving(self, told: Leaving) -> None:
        self._view = None
        for table in (self.forward, self.backward):
            for place, finger in enumerate(table):
                if finger.peer == told.gone:
                    table[place:] = [Finger(told.instead), *table[place + 1 :]] if told.instead != self.me else []
                    break


class Suzaku(Service):
    """The overlay of one host: all its keys (siblings), which share what they know."""

    def __init__(
        self,
        host: Host,
        ring: Ring | None = None,
        *,
        period_s: float = PERIOD_S,
        both_ways: bool = True,
        introducers: Callable[[], Iterable[Peer]] = tuple,
    ) -> None:
        self.host = host
        self.ring = ring or Ring(host)
        self.period_s = period_s
        self.both_ways = both_ways
        self.introducers = introducers
        """Peers that are there for strangers: where a join, or the search for another ring, begins."""
        self.nodes: dict[Key, SuzakuNode] = {}
        host.serve(self)

    # Joining and leaving

    def node(self, me: Peer, value: Callable[[], Aggregate] = dict) -> SuzakuNode:
        node = self.nodes[me.key] = SuzakuNode(self.host, self.ring.node(0, me), self.period_s, value)
        return node

    def found(self, me: Peer, value: Callable[[], Aggregate] = dict) -> SuzakuNode:
        """The first node of a network."""
        node = self.node(me, value)
        node.link.found(self._locate)
        self.host.spawn(node.keep_learning())
        return node

    async def join(self, me: Peer, value: Callable[[], Aggregate] = dict) -> SuzakuNode:
        node = self.node(me, value)
        await node.link.join(self._locate)
        await node.learn_all(self.both_ways)
        self.host.spawn(node.keep_learning())
        return node

    async def leave(self, key: Key) -> None:
        node = self.nodes[key]
        await node.link.leave()
        node.say_goodbye()
        self.ring.forget(node.link)
        self.nodes.pop(key, None)

    async def _locate(self, key: Key) -> Gap | None:
        """The place of a key, asked as a stranger asks: of somebody else."""
        starts = [peer for peer in self.introducers() if peer.address != self.host.address]
        if not starts:
            return None
        found = await self._careful_lookup(key, self.host.chance.choice(starts))
        return Gap(found.owner, found.right) if found else None

    # Looking up

    async def lookup(self, key: Key) -> Found | None:
        """The node that owns the key, from here: quickly, and if that gets no answer carefully."""
        start = next((node for node in self.nodes.values() if node.link.is_in), None)
        if start is None:
            return None
        try:
            answer = await self.host.call(self.host.address, Find(start.me.key, key), LOOKUP_TIMEOUT_S)
        except CallError:
            return await self._careful_lookup(key, start.me)
        return answer if isinstance(answer, Found) else None

    async def _careful_lookup(self, key: Key, start: Peer) -> Found | None:
        """Asks hop by hop; who does not answer is passed over."""
        way = [start]
        silent: dict[Key, None] = {}
        for hops in range(LOOKUP_HOPS_MAX):
            if not way:
                return None
            peer = way[-1]
            try:
                told = await self.host.call(peer.address, Ask(peer.key, key, tuple(silent)), CALL_TIMEOUT_S)
            except CallError:
                told = None
            if not isinstance(told, Told) or not told.is_in:
                silent[way.pop().key] = None
                continue
            if not told.nearer:
                return Found(told.me, told.right, hops)
            nearer = next((one for one in told.nearer if one.key not in silent), None)
            if nearer is None:
                return None  # the ring is broken here; it will be mended
            way.append(nearer)
        return None

    def nearest(self, node: SuzakuNode, key: Key) -> list[Peer]:
        """The peers before the key that this host knows, nearest to it first; only those nearer than `node`."""
        now = self.host.now()
        found = {
            peer.key: peer
            for sibling in self.nodes.values()
            if sibling.link.is_in
            for peer in (sibling.me, *sibling.peers())
            if peer.key == key or strictly_between(node.me.key, peer.key, key)
        }
        living = [peer for peer in found.values() if peer.key not in self.nodes or self.nodes[peer.key].link.is_in]
        living = [peer for peer in living if not node.silent.is_suspected(peer.key, now)]
        return sorted(living, key=lambda peer: (peer.key <= key, peer.key), reverse=True)

    @handles(Find)
    def on_find(self, origin: Address, find: Find) -> Reply:
        node = self.nodes.get(find.to)
        if node is None or not node.link.is_in or find.hops > LOOKUP_HOPS_MAX:
            return None
        if in_arc(node.me.key, find.key, node.link.right.key):
            return Found(node.me, node.link.right, find.hops)
        best = self._best(node, find.key)
        here = best.address == self.host.address
        return Forward(best.address, Find(best.key, find.key, find.hops + (not here)))

    def _best(self, node: SuzakuNode, key: Key) -> Peer:
        """The peer that is nearest before the key: the next hop. There is always the right neighbour."""
        best = node.nearest_before(key)
        if len(self.nodes) > 1:
            for sibling in self.nodes.values():
                if sibling is not node and sibling.link.is_in:
                    for peer in (sibling.me, sibling.nearest_before(key)):
                        if best.key != key and (peer.key == key or strictly_between(best.key, peer.key, key)):
                            best = peer
        return best

    @handles(Ask)
    def on_ask(self, origin: Address, asked: Ask) -> Reply:
        node = self.nodes.get(asked.to)
        if node is None or not node.link.is_in:
            nobody = Peer(asked.to, self.host.address)
            return Told(False, nobody, nobody, ())
        if in_arc(node.me.key, asked.key, node.link.right.key):
            return Told(True, node.me, node.link.right, ())
        nearer = [peer for peer in self.nearest(node, asked.key) if peer.key not in asked.avoid]
        return Told(True, node.me, node.link.right, (*nearer[:NEARER_MAX], node.link.right))

    @handles(Update)
    def on_update(self, origin: Address, asked: Update) -> Reply:
        node = self.nodes.get(asked.to)
        return node.on_update(asked) if node else None

    @handles(Sum)
    def on_sum(self, origin: Address, asked: Sum) -> Reply:
        node = self.nodes.get(asked.to)
        return node.on_sum(asked) if node and node.link.is_in else None

    @handles(Leaving)
    def on_leaving(self, origin: Address, told: Leaving) -> Reply:
        node = self.nodes.get(told.to)
        if node:
            node.on_leaving(told)
        return None
