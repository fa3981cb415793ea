"""Suzaku: a ring in key order with fingers both ways (Abe and Teranishi 2019; seed 000 §3.2, §3.3).

Every node points at the nodes 1, 2, 4, 8 … places to its right (`forward`) and to its left (`backward`), so that a
lookup halves the distance at each hop, from whichever side is nearer. Level 0 is the ring's own links. Level p + 1 is
learnt by asking the node at level p for its own level p: the asker's place is told with the question, so that the one
that is asked can note it in its opposite table (passive update), and half of the tables cost nothing.

A node that joins asks all levels at once, to and fro (zigzag): FFT 0, BFT 0, FFT 1, BFT 1, … After that one level of
the forward table is asked each `period_s`, round and round. With `both_ways` off this is Chord#.

What a finger covers reaches up to the next finger, and carries an aggregate of the values of all nodes in between. The
aggregate says itself how far it reaches; one that does not meet the next, or has an unknown part, is unknown. Only the
labels that a node wants of a range are told to it (`labels`): of most ranges none (seed 000 §4.7, §6).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import chain

import msgspec

from braidmq.host import Address, CallError, Forward, Host, Message, Reply, Service, handles
from braidmq.keys import Key, in_arc, strictly_between
from braidmq.overlay.aggregates import Aggregate, cut_to, merged
from braidmq.overlay.overlay import Found, Introduce
from braidmq.overlay.peers import Acquaintances, Peer
from braidmq.overlay.ring import CALL_TIMEOUT_S, Gap, Ring, RingNode, Status, nothing, owns
from braidmq.overlay.view import Entry, View

PERIOD_S = 60.0
"""How long until the next level of the forward table is asked."""

UPDATE_TRIES = 2
LEVELS_MAX = 40
BACKUP_LEVELS = 5
"""So many levels from below, a lookup may go to a finger's backups, too."""
LOOKUP_TIMEOUT_S = 5.0
LOOKUP_HOPS_MAX = 64
NEARER_MAX = 4
"""Peers that are named to a careful lookup at each hop."""
POINTERS_MAX = 64
"""Nodes known to point at this one; they are told when it leaves."""

LIVES_BITS = 24
"""How many stays in the ring one life of a broker can count apart."""


class Total(Message, frozen=True, array_like=True, gc=False):
    """What the nodes from somewhere up to, not including, `until` add up to; the oldest part of it is so old."""

    aggregate: Aggregate
    until: Key
    age_s: float


class Finger(msgspec.Struct, frozen=True, gc=False):
    """A node some way off, those to its left in case it is gone, and what the nodes from it on add up to."""

    peer: Peer
    backups: tuple[Peer, ...] = ()
    total: Total | None = None
    learnt_at: float = 0.0

    def age_s(self, now: float) -> float:
        """How old the oldest part of the total is by now."""
        return now - self.learnt_at + (self.total.age_s if self.total else 0.0)


class Update(Message, frozen=True, array_like=True, gc=False):
    """What is your finger at this level? I stand that far on your other side.

    `labels` are those of the answer's total that are wanted: None is all, () is no total.
    """

    to: Key
    asker: Peer
    backups: tuple[Peer, ...]
    level: int
    forward: bool
    total: Total | None
    labels: tuple[str, ...] | None


class Updated(Message, frozen=True, array_like=True, gc=False):
    """`me` is the node that answers (of which life), `beyond` its own finger at the level, None if it has none."""

    me: Peer
    backups: tuple[Peer, ...]
    total: Total | None
    beyond: Peer | None


class Sum(Message, frozen=True, array_like=True, gc=False):
    """What do you and the nodes up to a key add up to?"""

    to: Key
    until: Key
    labels: tuple[str, ...] | None


class Summed(Message, frozen=True, array_like=True, gc=False):
    """As far as whole fingers reach; from `rest` on somebody else must be asked."""

    aggregate: Aggregate
    age_s: float
    rest: Peer | None


class Find(Message, frozen=True, array_like=True, gc=False):
    """Goes to the node that owns the key."""

    to: Key
    key: Key
    hops: int = 0


class Lost(Message, frozen=True, array_like=True, gc=False):
    """A lookup met a node that is gone: it is better to ask carefully."""


class Ask(Message, frozen=True, array_like=True, gc=False):
    """Where would you go for this key? The careful lookup asks hop by hop, and so learns who does not answer.

    `to` is None when only the host is known: any of its nodes will do.
    """

    to: Key | None
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
        "_overlay",
        "_right",
        "backward",
        "forward",
        "host",
        "link",
        "period_s",
        "pointers",
        "silent",
    )

    def __init__(self, overlay: Suzaku, link: RingNode) -> None:
        self._overlay = overlay
        self.host = overlay.host
        self.link = link
        self.forward: list[Finger] = []
        """Levels 1 and up, without holes; level 0 is the ring's right link."""
        self.backward: list[Finger] = []
        self.pointers: dict[Key, Peer] = {}
        self.silent = Acquaintances()
        """Fingers that did not answer. The ring has its own: a finger may be passed over lightly, a neighbour not."""
        self._level = 0
        self._right: Finger | None = None
        """What the right neighbour has told of itself."""

    @property
    def me(self) -> Peer:
        return self.link.me

    def value(self) -> Aggregate:
        """What this node adds to the aggregates."""
        return self._overlay.value(self.me.key)

    def finger(self, level: int, forward: bool) -> Finger | None:
        if level == 0:
            peer = self.link.right if forward else self.link.left
            if peer.key == self.me.key:
                return None
            if forward and self._right is not None and self._right.peer == peer:
                return self._right
            return Finger(peer)
        table = self.forward if forward else self.backward
        return table[level - 1] if level <= len(table) else None

    def peers(self) -> Iterator[Peer]:
        """Everyone this node could pass a message to."""
        yield from (self.link.right, self.link.left, *self.link.neighbours)
        for table in (self.forward, self.backward):
            for finger in table:
                yield finger.peer
                yield from finger.backups

    def entries(self) -> list[Entry]:
        """The same, as what they are for routing: a forward finger has the aggregate of those up to the next.

        In a quiet network most backups are fingers or neighbours themselves: these are left out.
        """
        link, silent = self.link, self.silent
        found = [Entry(peer, 0, link.known) for peer in (link.left, *link.neighbours)]
        right = self.finger(0, True)
        if right is not None:
            found.append(_entry(right, 1, link.known))
        found += [_entry(finger, level, silent) for level, finger in enumerate(self.forward, 2)]
        found += [Entry(finger.peer, level, silent) for level, finger in enumerate(self.backward, 1)]
        backups = {peer.key: peer for finger in (*self.forward, *self.backward) for peer in finger.backups}
        for entry in found:
            backups.pop(entry.peer.key, None)
        return [*found, *[Entry(peer, 0, silent) for peer in backups.values()]]

    def ways(self) -> Iterator[Peer]:
        """Where a lookup may go on from here; of two with one key the later is the more certain.

        The backups of a near finger fill the gap to the one before it, which saves hops; in a wide gap they are lost.
        """
        for finger in (*self.backward[:BACKUP_LEVELS], *self.forward[:BACKUP_LEVELS]):
            yield from finger.backups
        for finger in (*self.backward, *self.forward):
            yield finger.peer
        yield self.link.left
        yield self.link.right

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
            await self.host.sleep(self.host.chance.uniform(0.9, 1.1) * self._overlay.period_s)
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
            total = await self._sum_from(answer.me) if is_last and forward else answer.total
            self._note(level, forward, Finger(answer.me, answer.backups, total, self.host.now()))
            if is_last:
                self._trim(level)
            return None if is_last else beyond
        return None

    async def _ask(self, peer: Peer, level: int, forward: bool) -> Updated | None:
        labels = self._labels(peer) if forward else ()
        told = self.total_below(level, labels) if forward else None
        request = Update(peer.key, self.me, self.link.neighbours, level, forward, told, labels)
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
            self._right = finger
            self._overlay.changed()

    def _labels(self, peer: Peer) -> tuple[str, ...] | None:
        return self._overlay.labels(self.me.key, peer.key)

    async def _sum_from(self, start: Peer) -> Total | None:
        """What the nodes from the last finger up to this node add up to: its own table would reach past us."""
        labels = self._labels(start)
        if labels == ():
            return None
        parts: list[Aggregate] = []
        age_s = 0.0
        began_at = self.host.now()
        rest: Peer | None = start
        for _ in range(LEVELS_MAX):
            if rest is None:
                return Total(merged(parts), self.me.key, age_s + self.host.now() - began_at)
            try:
                answer = await self.host.call(rest.address, Sum(rest.key, self.me.key, labels), CALL_TIMEOUT_S)
            except CallError:
                return None
            if not isinstance(answer, Summed):
                return None
            parts.append(answer.aggregate)
            age_s = max(age_s, answer.age_s)
            rest = answer.rest
        return None

    def on_sum(self, asked: Sum) -> Summed:
        """Adds up whole fingers, each of which must reach exactly to the next, and not past the end."""
        parts = [self.value()]
        age_s = 0.0
        now = self.host.now()
        rest: Peer | None = None
        level = 0
        while (finger := self.finger(level, True)) is not None:
            if not strictly_between(self.me.key, finger.peer.key, asked.until):
                break
            total, following = finger.total, self.finger(level + 1, True)
            is_whole = total is not None and following is not None and total.until == following.peer.key
            if total is None or not is_whole or not self._reaches(total.until, asked.until):
                rest = finger.peer
                break
            parts.append(total.aggregate)
            age_s = max(age_s, finger.age_s(now))
            level += 1
        return Summed(cut_to(asked.labels, merged(parts)), age_s, rest)

    def _reaches(self, key: Key, end: Key) -> bool:
        """Whether a key lies up to an end, seen from here."""
        return key == end or strictly_between(self.me.key, key, end)

    def _is_between(self, near: Peer, far: Peer, forward: bool) -> bool:
        """Whether `far` lies behind `near`, seen from here, and not once around."""
        if forward:
            return strictly_between(near.key, far.key, self.me.key)
        return strictly_between(self.me.key, far.key, near.key)

    def _put(self, level: int, forward: bool, finger: Finger) -> None:
        """Notes a finger; one above a level that is still missing is learnt later."""
        table = self.forward if forward else self.backward
        table[level - 1 : level] = [finger] if level <= len(table) + 1 else []
        self._overlay.changed()

    def _trim(self, level: int) -> None:
        """No node stands further off than this level."""
        del self.forward[level:]
        del self.backward[level:]
        self._overlay.changed()

    # Being asked

    def on_update(self, asked: Update) -> Updated | None:
        if not self.link.is_in:
            return None
        self._remember_pointer(asked.asker)
        if 0 < asked.level <= LEVELS_MAX and self._overlay.both_ways:
            self._put(asked.level, not asked.forward, Finger(asked.asker, asked.backups, asked.total, self.host.now()))
        beyond = self.finger(asked.level, asked.forward)
        return Updated(
            self.me,
            self.link.neighbours,
            self.total_below(asked.level + 1, asked.labels) if asked.forward else None,
            beyond.peer if beyond else None,
        )

    def _remember_pointer(self, peer: Peer) -> None:
        self.pointers.pop(peer.key, None)
        self.pointers[peer.key] = peer
        if len(self.pointers) > POINTERS_MAX:
            self.pointers.pop(next(iter(self.pointers)))

    def total_below(self, level: int, labels: tuple[str, ...] | None = None) -> Total | None:
        """What this node and the fingers below a level add up to: 2^(level − 1) nodes, this one alone at 0.

        None if a part is not known, or if two parts do not meet: who goes by the sum must not be told a smaller one.
        """
        if labels == ():
            return None
        parts = [self.value()]
        until = self.link.right.key
        age_s = 0.0
        now = self.host.now()
        for place in range(level - 1):
            finger = self.finger(place, True)
            if finger is None or finger.total is None or finger.peer.key != until:
                return None
            parts.append(finger.total.aggregate)
            until = finger.total.until
            age_s = max(age_s, finger.age_s(now))
        return Total(cut_to(labels, merged(parts)), until, age_s)

    # Leaving

    def say_goodbye(self) -> None:
        """Tells those that point here who stands in for this node."""
        for peer in self.pointers.values():
            if peer.key != self.me.key:
                self.host.send(peer.address, Leaving(peer.key, self.me, self.link.left))

    def on_leaving(self, told: Leaving) -> None:
        for table in (self.forward, self.backward):
            for place, finger in enumerate(table):
                if finger.peer == told.gone:
                    table[place:] = [Finger(told.instead), *table[place + 1 :]] if told.instead != self.me else []
                    break
        self._overlay.changed()


class Suzaku(Service):
    """The overlay of one host: all its keys (siblings), which share what they know."""

    __slots__ = (
        "_lives",
        "_on_link",
        "_view",
        "_way_addresses",
        "_way_keys",
        "both_ways",
        "host",
        "introduce",
        "labels",
        "nodes",
        "on_change",
        "period_s",
        "ring",
        "value",
    )

    def __init__(
        self,
        host: Host,
        introduce: Introduce,
        life: int = 0,
        *,
        period_s: float = PERIOD_S,
        both_ways: bool = True,
    ) -> None:
        self.host = host
        self._way_keys: tuple[Key, ...] = ()
        """The nodes of this host and those that a lookup may go on to, in order; none if they must be made anew."""
        self._way_addresses: tuple[Address | None, ...] = ()
        """Where they are; None is here."""
        self.ring = Ring(host)
        self.introduce = introduce
        self.period_s = period_s
        self.both_ways = both_ways
        self.on_change: Callable[[], None] = nothing
        """Called when a link or a finger has changed: for the one layer above."""
        self.value: Callable[[Key], Aggregate] = _no_value
        """What a node, named by its key, adds to the aggregates."""
        self.labels: Callable[[Key, Key], tuple[str, ...] | None] = _all_labels
        """Which labels the node at one key wants of a range that begins at another; None is all, () is none."""
        self.nodes: dict[Key, SuzakuNode] = {}
        self._lives = life << LIVES_BITS
        self._view: View | None = None
        self._on_link = self.changed
        """One for all links: there are many of them in a large simulation."""
        host.serve(self)

    @property
    def view(self) -> View:
        if self._view is None:
            inside = [node for node in self.nodes.values() if node.link.is_linked]
            entries = chain.from_iterable([node.entries() for node in inside])
            self._view = View(self.host.address, [node.link for node in inside], entries)
        return self._view

    def changed(self) -> None:
        self._view = None
        self._way_keys = ()
        self.on_change()

    # Joining and leaving

    def node(self, me: Peer) -> SuzakuNode:
        """A node that is not linked yet."""
        link = self.ring.node(0, me)
        link.on_change = self._on_link
        node = self.nodes[me.key] = SuzakuNode(self, link)
        return node

    def found(self, key: Key) -> None:
        """The first node of a network."""
        node = self.node(self.new_peer(key))
        node.link.found(self._locate)
        self.changed()
        self.host.spawn(node.keep_learning())

    async def join(self, key: Key) -> bytes:
        """Stands for a key; returns when it does. It goes on learning its fingers by itself."""
        if key in self.nodes:
            return b""
        node = self.node(self.new_peer(key))
        await node.link.join(self._locate)
        self.host.spawn(self._learn(node))
        return node.link.heard

    async def _learn(self, node: SuzakuNode) -> None:
        await node.learn_all(self.both_ways)
        await node.keep_learning()

    async def leave(self, key: Key) -> None:
        node = self.nodes.get(key)
        if node is None:
            return
        await node.link.leave()
        node.say_goodbye()
        self.ring.forget(node.link)
        self.nodes.pop(key, None)
        self.changed()

    def new_peer(self, key: Key) -> Peer:
        """Another life for each stay in the ring, so that what was said in an earlier one is not heard."""
        self._lives += 1
        return Peer(key, self.host.address, self._lives)

    async def _locate(self, key: Key) -> Gap | None:
        """The place of a key, asked as a stranger asks: of somebody else."""
        introducer = self.introduce()
        if introducer is None:  # nobody else is known: only this host's own nodes can be beside it
            introducer = self.host.address
        found = await self._careful_lookup(key, None, introducer)
        return Gap(found.owner, found.right) if found else None

    # Looking up

    async def lookup(self, key: Key) -> Found | None:
        """The node that owns the key, from here: quickly, and if that gets no answer carefully."""
        start = next((node for node in self.nodes.values() if node.link.is_in), None)
        if start is None:  # a broker that has no key in the ring asks one that has
            introducer = self.introduce()
            return None if introducer is None else await self._careful_lookup(key, None, introducer)
        try:
            answer = await self.host.call(self.host.address, Find(start.me.key, key), LOOKUP_TIMEOUT_S)
        except CallError:
            answer = None
        if isinstance(answer, Found):
            return answer
        return await self._careful_lookup(key, start.me.key, start.me.address)

    async def _careful_lookup(self, key: Key, at: Key | None, address: Address) -> Found | None:
        """Asks hop by hop; who does not answer is passed over."""
        way: list[tuple[Key | None, Address]] = [(at, address)]
        silent: dict[Key, None] = {}
        for hops in range(LOOKUP_HOPS_MAX):
            if not way:
                return None
            to, where = way[-1]
            try:
                told = await self.host.call(where, Ask(to, key, tuple(silent)), CALL_TIMEOUT_S)
            except CallError:
                told = None
            if not isinstance(told, Told) or not told.is_in:
                way.pop()
                if to is not None:
                    silent[to] = None
                continue
            if not told.nearer:
                return Found(told.me, told.right, hops)
            nearer = next((one for one in told.nearer if one.key not in silent), None)
            if nearer is None:
                return None  # the ring is broken here; it will be mended
            way.append((nearer.key, nearer.address))
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
        """Passes it on to the nearest node before the key that this host knows, or answers if that is its own."""
        key = find.key
        keys = self._way_keys or self.make_ways()
        if not keys or find.hops > LOOKUP_HOPS_MAX:
            return Lost()
        place = bisect_right(keys, key) - 1
        best, address = keys[place], self._way_addresses[place]
        if address is None:
            link = self.nodes[best].link
            return Found(link.me, link.right, find.hops) if link.is_in and owns(link, key) else Lost()
        to = find.to
        if to <= key < best or (to >= best and (to <= key or key < best)):  # in_arc(to, key, best), at no call's cost
            return Lost()  # it was for a node that is gone, and from here it would go back
        return Forward(address, Find(best, key, find.hops + 1))

    def make_ways(self) -> tuple[Key, ...]:
        """Puts together all that lookups need, once after each change: two rows that are quick to read.

        A peer between a node of this host and its right neighbour is left out: it is gone, or the ring would know it.
        """
        here = self.host.address
        own = {node.me.key: node.link for node in self.nodes.values() if node.link.is_linked}
        known = (peer for key in own for peer in self.nodes[key].ways())
        ways: dict[Key, Address | None] = {peer.key: peer.address for peer in known if peer.address != here}
        ways.update(dict.fromkeys(own))
        keys: list[Key] = []
        before = own[max(own)] if own else None
        for key in sorted(ways):
            before = own.get(key, before)
            if key in own or (before is not None and not owns(before, key)):
                keys.append(key)
        self._way_keys = tuple(keys)
        self._way_addresses = tuple([ways[key] for key in keys])
        return self._way_keys

    @handles(Ask)
    def on_ask(self, origin: Address, asked: Ask) -> Reply:
        if asked.to is None:
            node = next((one for one in self.nodes.values() if one.link.is_in), None)
        else:
            node = self.nodes.get(asked.to)
        if node is None or not node.link.is_in:
            nobody = Peer(asked.key, self.host.address)
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


def _entry(finger: Finger, level: int, known: Acquaintances) -> Entry:
    total = finger.total
    if total is None:
        return Entry(finger.peer, level, known)
    return Entry(finger.peer, level, known, total.until, total.aggregate, finger.learnt_at - total.age_s)


def _no_value(_key: Key) -> Aggregate:
    return {}


def _all_labels(_mine: Key, _theirs: Key) -> tuple[str, ...] | None:
    return None
