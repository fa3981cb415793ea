"""The flexible graph: a ring in the order of keys, and above it tables that are learnt (Banno and Shudo 2019, §3.4).

Level 0 is a DDLL ring, as in the Skip Graph, and everything is right as soon as it is. Above it there are no lists to
keep, but for each virtual node one table of the nodes that serve it best (`flexible_table`). A topic with few
subscribers so becomes a net in which everybody knows everybody, and one with many keeps the tree of a Skip Graph.

The paper learns by asking around, in part at random. Here a node asks for what its table lacks:

- *Exchange.* A node shows its table to another and gets back the entries of the other's table that would make it
  better, by the order on tables, which both can compute since a key names its topic. The other one learns the same way
  from what it is shown. Asked are in turn the neighbours on the ring, one entry of each level, the nearest on the right
  first, and more of the highest, one subscriber of the own topic and, while the table is not full, some other broker;
  and the broker's other nodes, which costs nothing. Why this suffices: my nearest right neighbour on a level has those
  that come next there in its own levels above, and those who share more digits with me than that level look for the
  same nodes there as I do. So one level's entries lead to the next level's, as the walks of a Skip Graph do. Rounds
  follow each other quickly until nothing has become better in all turns, then slowly.
- *Greeting.* What was heard of enters a table only once it has answered itself, so what is dead is not passed on; and
  who greets is learnt by the one it greets. Entries that were not heard from for long are greeted, to see if they are
  there. What one node of a broker has heard counts for all of them (`flexible_heard`).
- *Exploring.* Who publishes and has room in its table asks its right neighbour and subscribers at once.
- *Going.* A node knows which brokers it has met, either way, and tells them when it leaves. In the paper it tells the
  publishers by a range query, and all others find out later.

Who does not answer is suspected and dropped from all tables of the broker, with all nodes of its host.

A broker with many keys cannot afford a full table for each. The subscribers of a topic belong into the tables of that
topic, but all other entries serve all nodes of the broker alike, since these share what they know. So the nodes of a
broker share a number of such entries, that of KEYS_FULL full tables, and keep at least one on each level. And they
share a pace of learning: the more of them have something to learn, the longer each waits for its next round.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Final

from braidmq.host import Address, CallError, Host, Message, Reply, Service, handles
from braidmq.keys import Key
from braidmq.overlay.flexible.heard import INCARNATION_BITS, LONG_AGO, Heard
from braidmq.overlay.flexible.messages import CANDIDATES_MAX, Candidates, Exchange, Gone, Greet, Greeting
from braidmq.overlay.flexible.node import EXPLORE_MAX_S, EXPLORE_S, FlexibleNode
from braidmq.overlay.flexible.table import Contact, FlexibleTable
from braidmq.overlay.flexible.view import FlexibleView
from braidmq.overlay.lookup import Finding
from braidmq.overlay.overlay import Found, Introduce
from braidmq.overlay.peers import Acquaintances, Peer
from braidmq.overlay.ring import CALL_TIMEOUT_S, CALL_TRIES, Gap, Ring, RingNode, Status, nothing
from braidmq.overlay.skip_graph.vectors import Vector, common_digits
from braidmq.overlay.view import Entry, View

SIZE = 60
"""Entries of a table: about what a node of a Skip Graph of 50,000 nodes has at most (Banno and Shudo 2019, §4)."""

KEYS_FULL = 5
"""How many tables of a broker may be full: in the paper a broker has five topics. More keys share as many entries."""

OTHERS_MIN = 8
"""Entries that are no subscribers of the own topic, of which each table may have so many, however many keys share."""

ROUND_S = 0.5
"""The pause between two rounds while tables become better, at most."""

LEARNERS_MAX = 4
"""With more nodes of a broker that learn at a time, each pauses longer, so that it is no more work."""

BUSY_PAUSES, BUSY_PAUSE_MAX_S = 8, 5.0
"""The pause is at least so many times as long as the exchange took, up to a limit: when all are busy, less is asked."""

SLOW_ROUND_S, SLOW_ROUND_MAX_S = 10.0, 60.0
"""The first pause when nothing became better in all turns, and how long pauses become while that lasts."""

SIBLINGS_ASKED = 4
"""From how many nodes of the same broker, to either side, a node learns."""

FRESH_S = 30.0
"""Who was heard from within this time by any node of the broker need not be greeted by another one."""

EXPLORE_STEPS = 3
"""How many nodes a publisher asks when it explores."""

EXPLORE_STEP_S = 0.2
"""The time that those whom it has heard of have to answer, before one of them is asked for more."""

EXPLORERS_MAX = 16
"""Nodes of a broker that explore at a time."""

KEYS_FEW = 8
VIEW_AGE_S = 0.5
"""With more keys than those few, what tables learn is used for routing within this time; links are used at once."""

CHECK_INTERVAL_S = 10.0
"""How often, at most, one entry of a table is greeted to see if it is there."""

CHECK_S, CHECK_HOST_S = 300.0, 30.0
"""That is due if no node of the broker has heard from it for so long, or from any node of its host."""

GREETINGS_MAX = 64
"""Greetings of a broker that are under way at a time; what is not greeted now will be heard of again."""

LATE_S = 0.5
"""A broker that notices so late that a time has run out is too busy to judge others by it."""

LATE: Final = object()
"""Stands for an answer that was not waited for in earnest."""

FIND_TRIES = 3


class Abandoned(Exception):
    """A join that has lost its purpose."""


class FlexibleGraph(Service):
    """A broker's part of the graph: all its virtual nodes, under one membership vector.

    `incarnation` must be another one after each restart of the broker.
    """

    def __init__(
        self, host: Host, vector: Vector, introduce: Introduce, incarnation: int = 0, size: int = SIZE
    ) -> None:
        self.host = host
        self.vector = vector
        self.size = size
        self.nodes: dict[Key, FlexibleNode] = {}
        self.ring = Ring(host)
        self.introduce = introduce
        self.on_change: Callable[[], None] = nothing
        self.known = Acquaintances()
        """Who of the entries of all tables is suspected."""
        self._finding = Finding(host, self._get_view, introduce, self._on_silent)
        self._last_incarnation = incarnation << INCARNATION_BITS
        self._view: FlexibleView | None = None
        self._viewed_at = LONG_AGO
        self._is_stale = False
        """Whether tables or links have changed since the view was made."""
        self._has_new_links = False
        """Whether links have changed since the view was made or has followed them."""
        self._heard = Heard()
        self._others_max = size
        self._learners: set[Key] = set()
        """The nodes that learn quickly now."""
        self._explorers = 0
        self._greetings = 0
        self._on_link = self._changed
        self.ring.on_part = self._part
        host.serve(self)

    @property
    def view(self) -> View:
        view = self._view
        is_due = self._is_stale and (len(self.nodes) <= KEYS_FEW or self.host.now() - self._viewed_at >= VIEW_AGE_S)
        if view is None or is_due:
            self._is_stale, self._viewed_at = False, self.host.now()
            view = self._view = FlexibleView(self.host.address, self._linked(), self._entries)
        elif self._has_new_links:
            view.follow(self._linked())
        self._has_new_links = False
        return view

    def _entries(self) -> list[Entry]:
        """Each contact once: it is on the same level for all nodes of the broker, which have one vector."""
        found = {contact.peer.key: contact for node in self.nodes.values() for contact in node.table.contacts}
        known, vector = self.known, self.vector
        return [Entry(one.peer, common_digits(vector, one.vector), known) for one in found.values()]

    def _linked(self) -> list[RingNode]:
        return [node.base for node in self.nodes.values() if node.base.is_linked]

    def _get_view(self) -> View:
        return self.view

    def _changed(self) -> None:
        """A link has changed."""
        self._is_stale = self._has_new_links = True
        self.on_change()

    # Keys that come and go

    def found(self, key: Key) -> None:
        """Becomes the first node of a new graph."""
        node = self.place(key)
        node.base.found(partial(self._locate, node))
        self._changed()
        self.host.spawn(self.learn(node))

    async def join(self, key: Key) -> bytes:
        """Stands for a key from now on; the table is learnt after that. Returns when it does, or when it leaves."""
        if key in self.nodes:
            return b""
        node = self.place(key)
        try:
            await node.base.join(partial(self._locate, node))
        except Abandoned:
            self._remove(node)
            return b""
        self.host.spawn(self.learn(node))
        return node.base.heard

    async def leave(self, key: Key) -> None:
        """Stands for a key no longer; tells those who have it in their tables, and returns when it is unlinked."""
        node = self.nodes.get(key)
        if node is None or node.leaving:
            return
        node.leaving = True
        while self.nodes.get(key) is node and not node.base.is_in:
            await self.host.sleep(self.host.chance.uniform(0.1, 0.5))
        if self.nodes.get(key) is not node:
            return
        for broker in node.knowing:
            self.host.spawn(self._call(broker, Gone(node.base.me)))
        await node.base.leave()
        self._remove(node)

    def place(self, key: Key) -> FlexibleNode:
        """A virtual node that is not linked yet, in a new incarnation: what was said to an earlier one is not heard."""
        self._last_incarnation += 1
        base = self.ring.node(0, Peer(key, self.host.address, self._last_incarnation))
        base.on_change = self._on_link
        node = self.nodes[key] = FlexibleNode(base, self.vector, self.size, self._others_max)
        self._share()
        return node

    def _share(self) -> None:
        """Divides the entries that a broker has besides subscribers among its tables."""
        share = min(self.size, max(OTHERS_MIN, KEYS_FULL * self.size // max(1, len(self.nodes))))
        if share != self._others_max:
            self._others_max = share
            for node in self.nodes.values():
                node.table.others_max = share

    def _remove(self, node: FlexibleNode) -> None:
        node.base.status = Status.OUT
        self.ring.forget(node.base)
        if self.nodes.get(node.key) is node:
            del self.nodes[node.key]
            self._share()
        self._changed()

    async def _locate(self, node: FlexibleNode, key: Key) -> Gap | None:
        """Where a key belongs in the ring. Who is in asks others first: they may know of another ring."""
        if node.leaving and not node.base.is_in:
            raise Abandoned
        introducer = self.introduce() if node.base.is_in else None
        found = await self._finding.find(key, before=True, introducer=introducer)
        return Gap(found.owner, found.right) if found else None

    async def lookup(self, key: Key) -> Found | None:
        """The node from whose key up to its right neighbour's the key lies; None if nobody answered."""
        for _ in range(FIND_TRIES):
            found = await self._finding.find(key)
            if found is not None:
                return found
        return None

    # Learning

    async def learn(self, node: FlexibleNode) -> None:
        """Exchanges tables with others for as long as the node is there: quickly while that makes its own better."""
        vain = 0
        pause_s, state = SLOW_ROUND_S, node.state
        while self.nodes.get(node.key) is node and not node.leaving:
            self._is_stale = node.table.trim() or self._is_stale
            turns = node.turns()
            peer = turns[node.turn % len(turns)]
            is_better = node.turn % len(turns) == 0 and self._learn_from_siblings(node)
            node.turn += 1
            began_at = self.host.now()
            if await self._exchange(node, peer) or is_better or node.state != state:
                vain, pause_s, state = 0, SLOW_ROUND_S, node.state
            vain += 1
            if vain > len(turns):
                self._learners.discard(node.key)
                self._check(node, pause_s)
                await self.host.sleep(self.host.chance.uniform(0.5, 1.0) * pause_s)
                pause_s = min(2 * pause_s, SLOW_ROUND_MAX_S)
            elif peer is not None and peer.address != self.host.address:
                self._learners.add(node.key)
                round_s = ROUND_S * max(1.0, len(self._learners) / LEARNERS_MAX)
                busy_s = min(BUSY_PAUSES * (self.host.now() - began_at), BUSY_PAUSE_MAX_S)
                await self.host.sleep(self.host.chance.uniform(0.5, 1.0) * max(round_s, busy_s))
        if node.key not in self.nodes:
            self._learners.discard(node.key)

    def explore(self, key: Key) -> None:
        """A node publishes whose table may not be full: looks for subscribers that it lacks (§3.5.4)."""
        node = self.nodes.get(key)
        now = self.host.now()
        if node is None or now < node.explore_at or len(node.table) >= node.table.size:
            return
        if node.base.is_in and not node.leaving and self._explorers < EXPLORERS_MAX:
            node.explore_at = now + EXPLORE_STEPS * (CALL_TRIES * CALL_TIMEOUT_S + EXPLORE_STEP_S)
            self._explorers += 1
            self.host.spawn(self._explore(node))

    async def _explore(self, node: FlexibleNode) -> None:
        """Asks the right neighbour, and then subscribers, as long as one of them knows more."""
        asked: set[Key] = set()
        while len(asked) < EXPLORE_STEPS and (peer := node.next_to_explore(asked)) is not None:
            asked.add(peer.key)
            is_better = await self._exchange(node, peer)
            if is_better:
                node.explore_pause_s = EXPLORE_S
                await self.host.sleep(EXPLORE_STEP_S)
            elif node.table.is_subscriber(peer.key):
                break
        node.explore_at = self.host.now() + node.explore_pause_s
        node.explore_pause_s = min(2 * node.explore_pause_s, EXPLORE_MAX_S)
        self._explorers -= 1

    async def _exchange(self, node: FlexibleNode, peer: Peer | None) -> bool:
        """Asks for better entries, of one peer or, without one, of any broker; True if there are some."""
        address = peer.address if peer is not None else self.introduce()
        key = peer.key if peer is not None else None
        if address is None or address == self.host.address:
            return False
        table = node.table
        answer = await self._call(address, Exchange(key, node.contact, table.size, table.others_max, table.contacts))
        if self.nodes.get(node.key) is not node or node.leaving:
            return False
        if not isinstance(answer, Candidates) or answer.me.peer.address != address:
            self._heard_nothing(address, peer, answer)
            return False
        node.known_to(address)
        return self._meet(node, answer.me) | self._consider(node, answer.better)

    def _learn_from_siblings(self, node: FlexibleNode) -> bool:
        """Takes what the other nodes of this broker know, which are on the same levels; True if that is better."""
        contacts = [contact for sibling in self._siblings(node) for contact in sibling.table.contacts]
        if not contacts or not node.take(contacts):
            return False
        self._is_stale = True
        return True

    def _siblings(self, node: FlexibleNode) -> list[FlexibleNode]:
        """The nodes of this broker that stand nearest to one of them, and so know best what it needs."""
        keys = sorted(self.nodes)
        place = bisect_left(keys, node.key)
        near = (*keys[max(0, place - SIBLINGS_ASKED) : place], *keys[place + 1 : place + 1 + SIBLINGS_ASKED])
        return [self.nodes[key] for key in near]

    @handles(Exchange)
    def on_exchange(self, origin: Address, asked: Exchange) -> Reply:
        node = self._asked_node(asked.to)
        if node is None or asked.me.peer.address != origin:
            return self._gone(asked.to)
        node.known_to(origin)
        mine = (node.contact, *node.table.contacts)
        self._meet(node, asked.me)
        self._consider(node, asked.table)
        its = FlexibleTable(asked.me.peer.key, asked.me.vector, asked.size, asked.others_max)
        its.contacts = asked.table
        return Candidates(node.contact, its.best_news(mine, CANDIDATES_MAX))

    def _consider(self, node: FlexibleNode, contacts: Iterable[Contact]) -> bool:
        """Greets those who would make a table better, or takes those who were just heard; True if there are some."""
        now, is_suspected = self.host.now(), self.known.is_suspected
        news = [one for one in node.table.news(contacts) if not is_suspected(one.peer.key, now)]
        fresh: list[Contact] = []
        is_better = False
        for contact in node.table.preview(news) if news else ():
            peer = contact.peer
            if peer.address == self.host.address:
                continue
            if self._heard.at(peer) >= now - FRESH_S and not node.wants_greeting(peer.key):
                fresh.append(contact)
            elif self._begin_to_greet(node, peer):
                is_better = True
        if fresh and node.take(fresh):
            self._is_stale = is_better = True
        return is_better

    def _begin_to_greet(self, node: FlexibleNode, peer: Peer) -> bool:
        """False if it is being greeted, or too many are."""
        if self._greetings >= GREETINGS_MAX or not node.begins_to_ask(peer.key):
            return False
        self._greetings += 1
        self.host.spawn(self._greet(node, peer))
        return True

    async def _greet(self, node: FlexibleNode, peer: Peer) -> None:
        answer = await self._call(peer.address, Greet(peer.key, node.contact))
        self._greetings -= 1
        node.ends_to_ask(peer.key)
        if not isinstance(answer, Greeting) or not _is_same(answer.me.peer, peer):
            self._heard_nothing(peer.address, peer, answer)
        elif node.leaving:  # it has learnt of this node too late to be told
            self.host.send(peer.address, Gone(node.base.me))
        else:
            node.known_to(peer.address)
            self._meet(node, answer.me)

    @handles(Greet)
    def on_greet(self, origin: Address, greet: Greet) -> Reply:
        node = self._asked_node(greet.to)
        if node is None or greet.me.peer.address != origin:
            return self._gone(greet.to)
        node.known_to(origin)
        self._meet(node, greet.me)
        return Greeting(node.contact)

    def _meet(self, node: FlexibleNode, contact: Contact) -> bool:
        """A node has shown itself to be there; True if that changes the table.

        If siblings know an earlier incarnation of it, they learn of this one, too: or they would go on to tell of the
        earlier one.
        """
        if contact.peer.address == self.host.address:
            return False
        self.known.trust(contact.peer)
        has_changed = node.take((contact,))
        self._is_stale = self._is_stale or has_changed
        now = self.host.now()
        if self._heard.note(contact.peer, now):
            for sibling in self.nodes.values():
                known = sibling.table.get(contact.peer.key)
                if known is not None and known.peer.incarnation < contact.peer.incarnation:
                    self._is_stale = sibling.take((contact,)) or self._is_stale
        if self._heard.note_host(contact.peer, now):
            self._forget_earlier(contact.peer)
        return has_changed

    def _asked_node(self, key: Key | None) -> FlexibleNode | None:
        if key is None:
            return next((node for node in self.nodes.values() if node.base.is_in and not node.leaving), None)
        node = self.nodes.get(key)
        return node if node is not None and node.base.is_linked and not node.leaving else None

    def _gone(self, key: Key | None) -> Gone:
        """No node of this key is here, in no incarnation that has been."""
        return Gone(Peer(key or b"", self.host.address, self._last_incarnation))

    async def _call(self, to: Address, request: Message) -> object:
        """Asks until there is an answer; None if there is none, LATE if that may be the fault of this broker."""
        for _ in range(CALL_TRIES):
            began_at = self.host.now()
            try:
                return await self.host.call(to, request, CALL_TIMEOUT_S)
            except CallError:
                if self.host.now() - began_at > CALL_TIMEOUT_S + LATE_S:
                    return LATE
        return None

    # Those who are gone

    def _check(self, node: FlexibleNode, pause_s: float) -> None:
        """Greets entries that are due before the next round, and drops those that were suspected by the way.

        What is due for longest comes first, and one entry of each host: if that is not there, all of them go.
        """
        now, heard = self.host.now(), self._heard
        due: dict[Address, tuple[float, Peer]] = {}
        for contact in node.table.contacts:
            peer = contact.peer
            if self.known.is_suspected(peer.key, now):
                self.forget(peer.key)
                continue
            due_at = min(heard.at(peer) + CHECK_S, heard.host_at(peer.address) + CHECK_HOST_S)
            if due_at < min(now, due.get(peer.address, (now,))[0]):
                due[peer.address] = due_at, peer
        for _, peer in sorted(due.values(), key=itemgetter(0))[: max(1, int(pause_s / CHECK_INTERVAL_S))]:
            self._begin_to_greet(node, peer)

    def _on_silent(self, key: Key) -> None:
        """Somebody got no answer from a node that was named here: greets it, if it is an entry."""
        for node in self.nodes.values():
            contact = node.table.get(key)
            if contact is not None and self._begin_to_greet(node, contact.peer):
                return

    def _heard_nothing(self, address: Address, peer: Peer | None, answer: object) -> None:
        """A node said that it is gone, or a host said nothing: then all its nodes are gone."""
        if answer is LATE:
            return
        now = self.host.now()
        if peer is not None:
            self.known.suspect(peer, now)
            self.forget(peer.key)
        if answer is None:
            silent = [contact.peer for contact in self._contacts_at(address)]
            for one in silent:
                self.known.suspect(one, now)
            self._forget_all({one.key for one in silent})

    def _forget_earlier(self, peer: Peer) -> None:
        """A broker has restarted: drops what it was before."""
        incarnation = peer.incarnation >> INCARNATION_BITS
        self._forget_all(
            {
                c.peer.key
                for c in self._contacts_at(peer.address)
                if c.peer.incarnation >> INCARNATION_BITS < incarnation
            }
        )

    def _contacts_at(self, address: Address) -> list[Contact]:
        """The entries of all tables that are at one host, each node once."""
        found = {
            contact.peer.key: contact
            for node in self.nodes.values()
            for contact in node.table.contacts
            if contact.peer.address == address
        }
        return list(found.values())

    @handles(Gone)
    def on_gone(self, origin: Address, gone: Gone) -> Reply:
        """A node says that it leaves (UNSUB)."""
        for node in self.nodes.values():
            contact = node.table.get(gone.peer.key)
            if (
                contact is not None
                and contact.peer.address == origin
                and contact.peer.incarnation <= gone.peer.incarnation
            ):
                self.known.suspect(contact.peer, self.host.now())
                node.lose(gone.peer.key)
                self._heard.forget(gone.peer.key)
                self._drop_from_view(gone.peer.key)
        return gone

    def _part(self, broker: Address) -> None:
        for node in self.nodes.values():
            node.unknown_to(broker)

    def forget(self, key: Key) -> None:
        """Drops a node from all tables of this broker."""
        self._forget_all({key})

    def _forget_all(self, keys: set[Key]) -> None:
        for key in keys:
            self._heard.forget(key)
            self._drop_from_view(key)
        for node in self.nodes.values():
            for key in keys & node.table.keys():
                node.lose(key)

    def _drop_from_view(self, key: Key) -> None:
        self._is_stale = True
        if self._view is not None:
            self._view.drop(key)


def _is_same(one: Peer, other: Peer) -> bool:
    """Whether two are the same node, in whatever incarnation."""
    return one.key == other.key and one.address == other.address
