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
  who greets is learnt by the one it greets. A few entries are greeted in each slow round to see if they are there.
- *Going.* A node knows whom it has met, either way, and tells them when it leaves. In the paper it tells the publishers
  by a range query, and all others find out later.

Who does not answer is suspected and dropped from all tables of the broker, with all nodes of its host.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial

from braidmq.host import Address, CallError, Host, Message, Reply, Service, handles
from braidmq.keys import Key
from braidmq.overlay.finding import Finding
from braidmq.overlay.flexible_messages import CANDIDATES_MAX, Candidates, Exchange, Gone, Greet, Greeting
from braidmq.overlay.flexible_table import Contact, FlexibleTable, subscribers_of
from braidmq.overlay.membership import Vector
from braidmq.overlay.overlay import Found, Introduce
from braidmq.overlay.peers import Acquaintances, Peer
from braidmq.overlay.ring import CALL_TIMEOUT_S, CALL_TRIES, Gap, Ring, RingNode, Status, nothing
from braidmq.overlay.view import Entry, View

SIZE = 60
"""Entries of a table: about what a node of a Skip Graph of 50,000 nodes has at most (Banno and Shudo 2019, §4)."""

KNOWING_MAX = 256
"""Nodes that this one has met, and that may so have it in their tables; they are told when it leaves."""

TOP_TURNS_MAX = 4
"""Entries of the highest level that are asked in turn: they know best if there is a higher one."""

ROUND_S = 0.5
"""The pause between two rounds while tables become better, at most."""

SLOW_ROUND_S, SLOW_ROUND_MAX_S = 10.0, 60.0
"""The first pause when nothing became better in all turns, and how long pauses become while that lasts."""

SIBLINGS_ASKED = 4
"""From how many nodes of the same broker, to either side, a node learns."""

MET_MAX = 16_384
"""Nodes whose last life is remembered."""

KEYS_FEW = 8
VIEW_AGE_S = 0.2
"""With more keys than those few, what tables learn is used for routing within this time; links are used at once."""

CHECK_INTERVAL_S = 10.0
"""How often, in the mean, one entry of a table is greeted to see if it is there."""

FIND_TRIES = 3

LIVES_BITS = 24
"""How many stays in the ring one life of a broker can count apart."""


class Abandoned(Exception):
    """A join that has lost its purpose."""


class FlexibleNode:
    """One key of a broker: its place in the ring, its table, and who may have it in theirs."""

    __slots__ = ("_asking", "_knowing", "base", "checked", "contact", "key", "leaving", "table", "turn")

    def __init__(self, base: RingNode, vector: Vector, size: int) -> None:
        self.key = base.me.key
        self.base = base
        self.contact = Contact(base.me, vector)
        self.table = FlexibleTable(self.key, vector, size, subscribers_of(self.key))
        self.leaving = False
        self.turn = 0
        self.checked = self.key
        self._knowing: dict[Key, Peer] | None = None
        self._asking: set[Key] | None = None

    def take(self, contacts: Iterable[Contact]) -> bool:
        """Learns what has proven to be there; True if the table has changed."""
        self.table.sticky = (self.base.left.key, self.base.right.key)
        return self.table.learn(contacts)

    def known_to(self, peer: Peer) -> None:
        """That node may have this one in its table."""
        knowing = self._knowing = self._knowing or {}
        knowing.pop(peer.key, None)
        knowing[peer.key] = peer
        if len(knowing) > KNOWING_MAX:
            knowing.pop(next(iter(knowing)))

    @property
    def knowing(self) -> list[Peer]:
        return list(self._knowing.values()) if self._knowing else []

    def begins_to_ask(self, key: Key) -> bool:
        """False if it asks for that node already."""
        asking = self._asking = self._asking or set()
        if key in asking:
            return False
        asking.add(key)
        return True

    def ends_to_ask(self, key: Key) -> None:
        if self._asking:
            self._asking.discard(key)

    def next_to_check(self) -> Contact | None:
        """The entries in turn, in the order of keys."""
        contacts = self.table.contacts
        if not contacts:
            return None
        contact = next((one for one in contacts if one.peer.key > self.checked), contacts[0])
        self.checked = contact.peer.key
        return contact

    @property
    def state(self) -> tuple[Peer, Peer, int]:
        """What calls for quick learning when it changes: the links, and how many entries there are."""
        return self.base.left, self.base.right, len(self.table)

    def turns(self) -> list[Peer | None]:
        """Whom to ask in turn; None for some other broker."""
        peers: list[Peer | None] = [self.base.right, self.base.left]
        levels = list(self.table.levels().values())
        around = self.turn // (len(levels) + 3)
        peers += [_by_distance(self.key, level, around) for level in levels]
        if levels:
            top = levels[-1]
            peers += [_by_distance(self.key, top, around + more) for more in range(1, min(len(top), TOP_TURNS_MAX))]
        subscribers = [c for c in self.table.contacts if self.table.is_subscriber(c.peer.key)]
        if subscribers:
            peers.append(_by_distance(self.key, subscribers, around))
        if len(self.table) < self.table.size:
            peers.append(None)
        return peers


def _by_distance(key: Key, contacts: list[Contact], number: int) -> Peer:
    """One of some contacts in the order of keys: number 0 is the nearest on the right of a key, 1 the next, …"""
    first = sum(contact.peer.key < key for contact in contacts)
    return contacts[(first + number) % len(contacts)].peer


class FlexibleGraph(Service):
    """A broker's part of the graph: all its virtual nodes, under one membership vector.

    `life` must be another one after each restart of the broker.
    """

    def __init__(self, host: Host, vector: Vector, introduce: Introduce, life: int = 0, size: int = SIZE) -> None:
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
        self._lives = life << LIVES_BITS
        self._view: View | None = None
        self._is_stale = False
        """Whether tables have learnt something since the view was made."""
        self._made_at = 0.0
        self._met: dict[Key, int] = {}
        """In which life nodes have last shown themselves."""
        self._on_link = self._changed
        host.serve(self)

    @property
    def view(self) -> View:
        if self._view is None or (self._is_stale and self.host.now() - self._made_at >= self._view_age_s):
            self._is_stale, self._made_at = False, self.host.now()
            linked = [node for node in self.nodes.values() if node.base.is_linked]
            entries = [Entry(peer, 0, node.base.known) for node in linked for peer in (node.base.left, node.base.right)]
            for node in linked:
                level_of, known = node.table.level_of, self.known
                entries += [Entry(contact.peer, level_of(contact), known) for contact in node.table.contacts]
            self._view = View(self.host.address, [node.base for node in linked], entries)
        return self._view

    def _get_view(self) -> View:
        return self.view

    @property
    def _view_age_s(self) -> float:
        """How long a view holds though tables have learnt more: the more keys, the more it costs to make it anew."""
        return VIEW_AGE_S if len(self.nodes) > KEYS_FEW else 0.0

    def _changed(self) -> None:
        """A link has changed."""
        self._view = None
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
        for other in node.knowing:
            self.host.send(other.address, Gone(node.base.me))
        await node.base.leave()
        self._remove(node)

    def place(self, key: Key) -> FlexibleNode:
        """A virtual node that is not linked yet, in a new life: what was said to an earlier one is not heard."""
        self._lives += 1
        base = self.ring.node(0, Peer(key, self.host.address, self._lives))
        base.on_change = self._on_link
        node = self.nodes[key] = FlexibleNode(base, self.vector, self.size)
        return node

    def _remove(self, node: FlexibleNode) -> None:
        node.base.status = Status.OUT
        self.ring.forget(node.base)
        if self.nodes.get(node.key) is node:
            del self.nodes[node.key]
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
            turns = node.turns()
            peer = turns[node.turn % len(turns)]
            is_better = node.turn % len(turns) == 0 and self._learn_from_siblings(node)
            node.turn += 1
            if await self._exchange(node, peer) or is_better or node.state != state:
                vain, pause_s, state = 0, SLOW_ROUND_S, node.state
            vain += 1
            if vain > len(turns):
                self._check(node, pause_s)
                await self.host.sleep(self.host.chance.uniform(0.5, 1.0) * pause_s)
                pause_s = min(2 * pause_s, SLOW_ROUND_MAX_S)
            elif peer is not None and peer.address != self.host.address:
                await self.host.sleep(self.host.chance.uniform(0.5, 1.0) * ROUND_S)

    async def explore(self, key: Key) -> None:
        """Asks the right neighbour at once: for a publisher whose table is not full."""
        node = self.nodes.get(key)
        if node is not None and node.base.is_in:
            await self._exchange(node, node.base.right)

    async def _exchange(self, node: FlexibleNode, peer: Peer | None) -> bool:
        """Asks for better entries, of one peer or, without one, of any broker; True if there are some."""
        address = peer.address if peer is not None else self.introduce()
        key = peer.key if peer is not None else None
        if address is None or address == self.host.address:
            return False
        answer = await self._call(address, Exchange(key, node.contact, node.table.size, node.table.contacts))
        if self.nodes.get(node.key) is not node or node.leaving:
            return False
        if not isinstance(answer, Candidates) or answer.me.peer.address != address:
            self._heard_nothing(address, peer, answer)
            return False
        node.known_to(answer.me.peer)
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
        node.known_to(asked.me.peer)
        mine = (node.contact, *node.table.contacts)
        self._meet(node, asked.me)
        self._consider(node, asked.table)
        return Candidates(node.contact, _better_for(asked, mine))

    def _consider(self, node: FlexibleNode, contacts: Iterable[Contact]) -> bool:
        """Greets those who would make a table better; True if there are some."""
        now, is_suspected = self.host.now(), self.known.is_suspected
        greeted = False
        for contact in node.table.preview([one for one in contacts if not is_suspected(one.peer.key, now)]):
            if contact.peer.address != self.host.address and node.begins_to_ask(contact.peer.key):
                self.host.spawn(self._greet(node, contact.peer))
                greeted = True
        return greeted

    async def _greet(self, node: FlexibleNode, peer: Peer) -> None:
        answer = await self._call(peer.address, Greet(peer.key, node.contact))
        node.ends_to_ask(peer.key)
        if not isinstance(answer, Greeting) or not _is_same(answer.me.peer, peer):
            self._heard_nothing(peer.address, peer, answer)
        elif node.leaving:  # it has learnt of this node too late to be told
            self.host.send(peer.address, Gone(node.base.me))
        else:
            node.known_to(peer)
            self._meet(node, answer.me)

    @handles(Greet)
    def on_greet(self, origin: Address, greet: Greet) -> Reply:
        node = self._asked_node(greet.to)
        if node is None or greet.me.peer.address != origin:
            return self._gone(greet.to)
        node.known_to(greet.me.peer)
        self._meet(node, greet.me)
        return Greeting(node.contact)

    def _meet(self, node: FlexibleNode, contact: Contact) -> bool:
        """A node has shown itself to be there; True if that changes the table.

        If siblings know an earlier life of it, they learn of this one, too: or they would go on to tell of that one.
        """
        if contact.peer.address == self.host.address:
            return False
        self.known.trust(contact.peer)
        has_changed = node.take((contact,))
        self._is_stale = self._is_stale or has_changed
        if self._met.get(contact.peer.key) != contact.peer.life:
            self._met[contact.peer.key] = contact.peer.life
            if len(self._met) > MET_MAX:
                self._met.pop(next(iter(self._met)))
            for sibling in self.nodes.values():
                known = sibling.table.get(contact.peer.key)
                if known is not None and known.peer.life < contact.peer.life:
                    self._is_stale = sibling.take((contact,)) or self._is_stale
        return has_changed

    def _asked_node(self, key: Key | None) -> FlexibleNode | None:
        if key is None:
            return next((node for node in self.nodes.values() if node.base.is_in and not node.leaving), None)
        node = self.nodes.get(key)
        return node if node is not None and node.base.is_linked and not node.leaving else None

    def _gone(self, key: Key | None) -> Gone:
        """No node of this key is here, in no life that has been."""
        return Gone(Peer(key or b"", self.host.address, self._lives))

    async def _call(self, to: Address, request: Message) -> object:
        """Asks until there is an answer; None if there is none."""
        for _ in range(CALL_TRIES):
            try:
                return await self.host.call(to, request, CALL_TIMEOUT_S)
            except CallError:
                continue
        return None

    # Those who are gone

    def _check(self, node: FlexibleNode, pause_s: float) -> None:
        """Greets the entries that are due before the next round, and drops those that were suspected by the way."""
        now = self.host.now()
        for contact in node.table.contacts:
            if self.known.is_suspected(contact.peer.key, now):
                self.forget(contact.peer.key)
        for _ in range(max(1, int(pause_s / CHECK_INTERVAL_S))):
            due = node.next_to_check()
            if due is not None and node.begins_to_ask(due.peer.key):
                self.host.spawn(self._greet(node, due.peer))

    def _on_silent(self, key: Key) -> None:
        """Somebody got no answer from a node that was named here: greets it, if it is an entry."""
        for node in self.nodes.values():
            contact = node.table.get(key)
            if contact is not None and node.begins_to_ask(key):
                self.host.spawn(self._greet(node, contact.peer))
                return

    def _heard_nothing(self, address: Address, peer: Peer | None, answer: object) -> None:
        """A node said that it is gone, or a host said nothing: then all its nodes are gone."""
        now = self.host.now()
        if peer is not None:
            self.known.suspect(peer, now)
            self.forget(peer.key)
        if answer is None:
            for node in list(self.nodes.values()):
                for contact in node.table.contacts:
                    if contact.peer.address == address:
                        self.known.suspect(contact.peer, now)
                        self.forget(contact.peer.key)

    @handles(Gone)
    def on_gone(self, origin: Address, gone: Gone) -> Reply:
        """A node says that it leaves (UNSUB)."""
        for node in self.nodes.values():
            contact = node.table.get(gone.peer.key)
            if contact is not None and contact.peer.address == origin and contact.peer.life <= gone.peer.life:
                self.known.suspect(contact.peer, self.host.now())
                node.table.drop(gone.peer.key)
                self._view = None
        return None

    def forget(self, key: Key) -> None:
        """Drops a node from all tables of this broker."""
        for node in self.nodes.values():
            if node.table.drop(key):
                self._view = None


def _is_same(one: Peer, other: Peer) -> bool:
    """Whether two are the same node, in whatever life."""
    return one.key == other.key and one.address == other.address


def _better_for(asked: Exchange, known: Iterable[Contact]) -> tuple[Contact, ...]:
    """What of all that is known makes the table better that somebody has shown; the best, if it is too much."""
    key, vector = asked.me.peer.key, asked.me.vector
    its = FlexibleTable(key, vector, asked.size, subscribers_of(key))
    its.contacts = asked.table
    better = its.preview(known)
    if len(better) > CANDIDATES_MAX:
        best = FlexibleTable(key, vector, CANDIDATES_MAX, its.subscribers)
        best.learn(better)
        return best.contacts
    return tuple(better)
