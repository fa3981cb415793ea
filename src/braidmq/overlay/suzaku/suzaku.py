"""Suzaku: a ring in key order with fingers both ways (Abe and Teranishi 2019).

Every node points at the nodes 1, 2, 4, 8 … positions to its right (`forward`) and to its left (`backward`), so that a
lookup halves the distance at each hop, from whichever side is nearer. Level 0 is the ring's own links. Level p + 1 is
learnt by asking the node at level p for its own level p: the asker's position is told with the question, so that the
node that is asked can note it in its opposite table (passive update), and half of the tables cost nothing.

A node that joins asks all levels at once, to and fro (zigzag): FFT 0, BFT 0, FFT 1, BFT 1, … After that one level of
the forward table is asked each `period_s`, round and round. With `both_ways` off this is Chord#.

What a finger covers reaches up to the next finger, and carries an aggregate of the values of all nodes in between. The
aggregate says itself how far it reaches; one that does not meet the next, or has an unknown part, is unknown. Only the
labels that a node wants of a range are told to it (`labels`): of most ranges none (Ishihara et al. 2021, §4.7 and §6).
Where nodes have no values, nothing is added up, asked or sent. A value that changes travels with the periodic updates,
or by `revise` at once to the nodes that point here.

With `plain`, routing goes by fingers and links alone, as in the papers, and not by backups.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import chain

from braidmq.host import Address, CallError, Forward, Host, Reply, Service, handles
from braidmq.keys import Key, in_arc, strictly_between
from braidmq.overlay.aggregates import Aggregate
from braidmq.overlay.lookup import HOP_S, NoWay, find_hop_by_hop
from braidmq.overlay.overlay import FoundOwner, Introduce
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import Gap, Ring, nothing, owns
from braidmq.overlay.suzaku.messages import (
    AskNearer,
    AskSum,
    FindAlongFingers,
    FindLost,
    Leaving,
    Revised,
    TellNearer,
    Update,
)
from braidmq.overlay.suzaku.node import SuzakuNode
from braidmq.overlay.view import RoutingEntry, View

PERIOD_S = 60.0
"""How long until the next level of the forward table is asked."""

LOOKUP_TIMEOUT_S = 5.0
LOOKUP_HOPS_MAX = 64
NEARER_MAX = 4
"""Peers that are named to a careful lookup at each hop."""

INCARNATION_BITS = 24
"""How many stays in the ring one incarnation of a broker can count apart."""


class Suzaku(Service):
    """The overlay of one host: all its keys (siblings), which share what they know."""

    __slots__ = (
        "_last_incarnation",
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
        "on_wanted",
        "period_s",
        "plain",
        "ring",
        "value",
    )

    def __init__(
        self,
        host: Host,
        introduce: Introduce,
        incarnation: int = 0,
        *,
        period_s: float = PERIOD_S,
        both_ways: bool = True,
        plain: bool = False,
    ) -> None:
        self.host = host
        host.serve(self)
        self._way_keys: tuple[Key, ...] = ()
        """The nodes of this host and those that a lookup may go on to, in order; none if they must be made anew."""
        self._way_addresses: tuple[Address | None, ...] = ()
        """Where they are; None is here."""
        self.ring = Ring(host)
        self.introduce = introduce
        self.period_s = period_s
        self.both_ways = both_ways
        self.plain = plain
        self.on_change: Callable[[], None] = nothing
        """Called when a link or a finger has changed: for the one layer above."""
        self.value: Callable[[Key], Aggregate] | None = None
        """What a node, named by its key, adds to the aggregates; without it there are none."""
        self.labels: Callable[[Key, Key], tuple[str, ...] | None] | None = None
        """Which labels the node at one key wants of a range that begins at another; None is all, () is none.

        Without it, all are wanted if there is a `value`. A label that a node wants of itself and not of a range is
        one that no node there has.
        """
        self.on_wanted: Callable[[Key, tuple[str, ...]], None] | None = None
        """Called with a node's key and the labels that another node has asked it for."""
        self.nodes: dict[Key, SuzakuNode] = {}
        self._last_incarnation = incarnation << INCARNATION_BITS
        self._view: View | None = None
        self._on_link = self.changed
        """One for all links: there are many of them in a large simulation."""

    @property
    def view(self) -> View:
        if self._view is None:
            linked = [node.link for node in self.nodes.values() if node.link.is_linked]
            self._view = View(self.host.address, linked, self._entries)
        return self._view

    def _entries(self) -> Iterator[RoutingEntry]:
        return chain.from_iterable([node.entries() for node in self.nodes.values() if node.link.is_linked])

    def value_of(self, key: Key) -> Aggregate:
        """What the node at a key adds to the aggregates."""
        return {} if self.value is None else self.value(key)

    def labels_of(self, mine: Key, theirs: Key) -> tuple[str, ...] | None:
        """The labels that the node at one key wants of a range that begins at another."""
        if self.labels is not None:
            return self.labels(mine, theirs)
        return () if self.value is None else None

    def wanted(self, key: Key, labels: tuple[str, ...]) -> None:
        """The node at a key was asked for these labels."""
        if self.on_wanted is not None:
            self.on_wanted(key, labels)

    def revise(self, key: Key) -> None:
        """The value of the node at a key has changed: those that point at it are told at once."""
        node = self.nodes.get(key)
        if node is not None and node.link.is_in:
            node.revise()

    def changed(self) -> None:
        """A link or a finger has changed."""
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
        """Another incarnation for each stay in the ring, so that what was said in an earlier one is not heard."""
        self._last_incarnation += 1
        return Peer(key, self.host.address, self._last_incarnation)

    async def _locate(self, key: Key) -> Gap | None:
        """The position of a key, asked as a stranger asks: of another host."""
        introducer = self.introduce()
        if introducer is None:  # no other is known: only this host's own nodes can be beside it
            introducer = self.host.address
        found = await self._careful_lookup(key, None, introducer)
        return Gap(found.owner, found.right) if found else None

    # Looking up

    async def lookup(self, key: Key) -> FoundOwner | None:
        """The node that owns the key, from here: quickly, and if that gets no answer carefully."""
        for start in self.nodes.values():
            if start.link.is_in:
                break
        else:  # a broker that has no key in the ring asks one that has
            introducer = self.introduce()
            return None if introducer is None else await self._careful_lookup(key, None, introducer)
        try:  # not by `ask`, whose coroutine takes a twelfth off the rate of simulated lookups
            answer = await self.host.call(self.host.address, FindAlongFingers(start.me.key, key), LOOKUP_TIMEOUT_S)
        except CallError:
            answer = None
        if isinstance(answer, FoundOwner):
            return answer
        return await self._careful_lookup(key, start.me.key, start.me.address)

    async def _careful_lookup(self, key: Key, at: Key | None, address: Address) -> FoundOwner | None:
        """Asks hop by hop; silent nodes are passed over."""

        async def ask_hop(to: Key | None, address: Address, silent: tuple[Key, ...]) -> FoundOwner | Peer | NoWay:
            told = await self.ring.silent.ask(address, AskNearer(to, key, silent), TellNearer, HOP_S)
            if told is None or not told.is_in:
                return NoWay.ROUND
            if not told.nearer:
                return FoundOwner(told.me, told.right, 0)
            return next((peer for peer in told.nearer if peer.key not in silent), NoWay.END)

        return await find_hop_by_hop((at, address), ask_hop, LOOKUP_HOPS_MAX, LOOKUP_HOPS_MAX)

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

    @handles(FindAlongFingers)
    def on_find(self, origin: Address, find: FindAlongFingers) -> Reply:
        """Passes it on to the nearest node before the key that this host knows, or answers if that is its own."""
        key = find.key
        hops = find.hops
        keys = self._way_keys or self.make_ways()
        if not keys or hops > LOOKUP_HOPS_MAX:
            return FindLost()
        index = bisect_right(keys, key) - 1
        best, address = keys[index], self._way_addresses[index]
        if address is None:
            link = self.nodes[best].link
            return FoundOwner(link.me, link.right, hops) if link.is_in and owns(link, key) else FindLost()
        to = find.to
        if to <= key < best or (to >= best and (to <= key or key < best)):  # in_arc(to, key, best), at no call's cost
            return FindLost()  # it was for a node that is gone, and from here it would go back
        return Forward(address, FindAlongFingers(best, key, hops + 1))

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

    @handles(AskNearer)
    def on_ask(self, origin: Address, asked: AskNearer) -> Reply:
        if asked.to is None:
            node = next((one for one in self.nodes.values() if one.link.is_in), None)
        else:
            node = self.nodes.get(asked.to)
        if node is None or not node.link.is_in:
            absent = Peer(asked.key, self.host.address)
            return TellNearer(False, absent, absent, ())
        if in_arc(node.me.key, asked.key, node.link.right.key):
            return TellNearer(True, node.me, node.link.right, ())
        nearer = [peer for peer in self.nearest(node, asked.key) if peer.key not in asked.avoid]
        return TellNearer(True, node.me, node.link.right, (*nearer[:NEARER_MAX], node.link.right))

    @handles(Update)
    def on_update(self, origin: Address, asked: Update) -> Reply:
        node = self.nodes.get(asked.to)
        return node.on_update(asked) if node else None

    @handles(AskSum)
    def on_sum(self, origin: Address, asked: AskSum) -> Reply:
        node = self.nodes.get(asked.to)
        return node.on_sum(asked) if node and node.link.is_in else None

    @handles(Revised)
    def on_revised(self, origin: Address, told: Revised) -> Reply:
        node = self.nodes.get(told.to)
        if node and node.link.is_in:
            node.on_revised(told)
        return None

    @handles(Leaving)
    def on_leaving(self, origin: Address, told: Leaving) -> Reply:
        node = self.nodes.get(told.to)
        if node:
            node.on_leaving(told)
        return None
