"""How tables are learnt: a broker's nodes exchange them with others, greet what they hear of, and explore.

The paper learns by asking around, in part at random. Here a node asks for what its table lacks:

- *Exchange.* A node shows its table to another and gets back the entries of the other's table that would make it
  better, by the order on tables, which both can compute since a key names its topic. The other one learns the same way
  from what it is shown. Asked are in turn the neighbours on the ring, one entry of each level, the nearest on the right
  first, and more of the highest, one subscriber of the own topic and, while the table is not full, some other broker;
  and the broker's other nodes, which costs nothing. Why this suffices: my nearest right neighbour on a level has those
  that come next there in its own levels above, and those that share more digits with me than that level look for the
  same nodes there as I do. So one level's entries lead to the next level's, as the walks of a Skip Graph do. Rounds
  follow each other quickly until nothing has become better in all turns, then slowly.
- *Greeting.* What was heard of enters a table only once it has answered itself, so what is dead is not passed on; and
  a node that greets is learnt by the one it greets. Entries that were not heard from for long are greeted, to see if
  they are there. What one node of a broker has heard counts for all of them (`heard`).
- *Exploring.* A node that publishes and has room in its table asks its right neighbour and subscribers at once.
- *Going.* A node knows which brokers it has met, either way, and tells them when it leaves. In the paper it tells the
  publishers by a range query, and all others find out later.

What does not answer is suspected and dropped from all tables of the broker, with all nodes of its host.

The nodes of a broker share a pace of learning: the more of them have something to learn, the longer each waits for its
next round.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from braidmq.host import Address, CallError, Host, Message, Reply, Service, handles
from braidmq.keys import Key
from braidmq.overlay.flexible.messages import (
    CANDIDATES_MAX,
    Candidates,
    ExchangeTables,
    Greet,
    Greeting,
    NodeGone,
)
from braidmq.overlay.flexible.node import EXPLORE_MAX_S, EXPLORE_S, FlexibleNode
from braidmq.overlay.flexible.table import Contact, FlexibleTable
from braidmq.overlay.flexible.tables import Tables
from braidmq.overlay.overlay import Introduce
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import CALL_TIMEOUT_S, CALL_TRIES

ROUND_S = 0.5
"""The pause between two rounds while tables become better, at most."""

LEARNERS_MAX = 4
"""With more nodes of a broker that learn at a time, each pauses longer, so that it is no more work."""

BUSY_PAUSES, BUSY_PAUSE_MAX_S = 8, 5.0
"""The pause is at least so many times as long as the exchange took, up to a limit: when all are busy, less is asked."""

SLOW_ROUND_S, SLOW_ROUND_MAX_S = 10.0, 60.0
"""The first pause when nothing became better in all turns, and how long pauses become while that lasts."""

FRESH_S = 30.0
"""What was heard from within this time by any node of the broker need not be greeted by another one."""

EXPLORE_STEPS = 3
"""How many nodes a publisher asks when it explores."""

EXPLORE_STEP_S = 0.2
"""The time that nodes it has heard of have to answer, before one of them is asked for more."""

EXPLORERS_MAX = 16
"""Nodes of a broker that explore at a time."""

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


class TableLearning(Service):
    """A broker's part in learning: asks for its own tables, and answers for them."""

    def __init__(self, host: Host, tables: Tables, introduce: Introduce) -> None:
        self._host = host
        self._tables = tables
        self._nodes = tables.nodes
        self._introduce = introduce
        self._learners: set[Key] = set()
        """The nodes that learn quickly now."""
        self._explorers = 0
        self._greetings = 0
        host.serve(self)

    # Rounds

    async def learn(self, node: FlexibleNode) -> None:
        """Exchanges tables with others for as long as the node is there: quickly while that makes its own better."""
        vain = 0
        pause_s, state = SLOW_ROUND_S, node.state
        while self._nodes.get(node.key) is node and not node.leaving:
            self._tables.trim(node)
            turns = node.turns()
            peer = turns[node.turn % len(turns)]
            is_better = node.turn % len(turns) == 0 and self._tables.learn_from_siblings(node)
            node.turn += 1
            began_at = self._host.now()
            if await self._exchange(node, peer) or is_better or node.state != state:
                vain, pause_s, state = 0, SLOW_ROUND_S, node.state
            vain += 1
            if vain > len(turns):
                self._learners.discard(node.key)
                self._check(node, pause_s)
                await self._host.sleep(self._host.chance.uniform(0.5, 1.0) * pause_s)
                pause_s = min(2 * pause_s, SLOW_ROUND_MAX_S)
            elif peer is not None and peer.address != self._host.address:
                self._learners.add(node.key)
                round_s = ROUND_S * max(1.0, len(self._learners) / LEARNERS_MAX)
                busy_s = min(BUSY_PAUSES * (self._host.now() - began_at), BUSY_PAUSE_MAX_S)
                await self._host.sleep(self._host.chance.uniform(0.5, 1.0) * max(round_s, busy_s))
        if node.key not in self._nodes:
            self._learners.discard(node.key)

    def explore(self, key: Key) -> None:
        """A node publishes whose table may not be full: looks for subscribers that it lacks (§3.5.4)."""
        node = self._nodes.get(key)
        now = self._host.now()
        if node is None or now < node.explore_at or len(node.table) >= node.table.size:
            return
        if node.base.is_in and not node.leaving and self._explorers < EXPLORERS_MAX:
            node.explore_at = now + EXPLORE_STEPS * (CALL_TRIES * CALL_TIMEOUT_S + EXPLORE_STEP_S)
            self._explorers += 1
            self._host.spawn(self._explore(node))

    async def _explore(self, node: FlexibleNode) -> None:
        """Asks the right neighbour, and then subscribers, as long as one of them knows more."""
        asked: set[Key] = set()
        while len(asked) < EXPLORE_STEPS and (peer := node.next_to_explore(asked)) is not None:
            asked.add(peer.key)
            is_better = await self._exchange(node, peer)
            if is_better:
                node.explore_pause_s = EXPLORE_S
                await self._host.sleep(EXPLORE_STEP_S)
            elif node.table.is_subscriber(peer.key):
                break
        node.explore_at = self._host.now() + node.explore_pause_s
        node.explore_pause_s = min(2 * node.explore_pause_s, EXPLORE_MAX_S)
        self._explorers -= 1

    async def _exchange(self, node: FlexibleNode, peer: Peer | None) -> bool:
        """Asks for better entries, of one peer or, without one, of any broker; True if there are some."""
        address = peer.address if peer is not None else self._introduce()
        key = peer.key if peer is not None else None
        if address is None or address == self._host.address:
            return False
        table = node.table
        answer = await self._call(
            address, ExchangeTables(key, node.contact, table.size, table.others_max, table.contacts)
        )
        if self._nodes.get(node.key) is not node or node.leaving:
            return False
        if not isinstance(answer, Candidates) or answer.me.peer.address != address:
            self._heard_nothing(address, peer, answer)
            return False
        node.known_to(address)
        return self._tables.meet(node, answer.me) | self._consider(node, answer.better)

    # Exchanging and greeting

    @handles(ExchangeTables)
    def on_exchange(self, origin: Address, asked: ExchangeTables) -> Reply:
        node = self._asked_node(asked.to)
        if node is None or asked.me.peer.address != origin:
            return self._gone(asked.to)
        node.known_to(origin)
        mine = (node.contact, *node.table.contacts)
        self._tables.meet(node, asked.me)
        self._consider(node, asked.table)
        its = FlexibleTable(asked.me.peer.key, asked.me.vector, asked.size, asked.others_max)
        its.contacts = asked.table
        return Candidates(node.contact, its.best_news(mine, CANDIDATES_MAX))

    def _consider(self, node: FlexibleNode, contacts: Iterable[Contact]) -> bool:
        """Greets nodes that would make a table better, or takes in those just heard; True if there are some."""
        now, is_suspected = self._host.now(), self._tables.known.is_suspected
        news = [one for one in node.table.news(contacts) if not is_suspected(one.peer.key, now)]
        fresh: list[Contact] = []
        is_better = False
        for contact in node.table.preview(news) if news else ():
            peer = contact.peer
            if peer.address == self._host.address:
                continue
            if self._tables.heard.at(peer) >= now - FRESH_S and not node.wants_greeting(peer.key):
                fresh.append(contact)
            elif self._begin_to_greet(node, peer):
                is_better = True
        if fresh and self._tables.learn(node, fresh):
            is_better = True
        return is_better

    def _begin_to_greet(self, node: FlexibleNode, peer: Peer) -> bool:
        """False if it is being greeted, or too many are."""
        if self._greetings >= GREETINGS_MAX or not node.begins_to_ask(peer.key):
            return False
        self._greetings += 1
        self._host.spawn(self._greet(node, peer))
        return True

    async def _greet(self, node: FlexibleNode, peer: Peer) -> None:
        answer = await self._call(peer.address, Greet(peer.key, node.contact))
        self._greetings -= 1
        node.ends_to_ask(peer.key)
        if not isinstance(answer, Greeting) or not _is_same(answer.me.peer, peer):
            self._heard_nothing(peer.address, peer, answer)
        elif node.leaving:  # it has learnt of this node too late to be told
            self._host.send(peer.address, NodeGone(node.base.me))
        else:
            node.known_to(peer.address)
            self._tables.meet(node, answer.me)

    @handles(Greet)
    def on_greet(self, origin: Address, greet: Greet) -> Reply:
        node = self._asked_node(greet.to)
        if node is None or greet.me.peer.address != origin:
            return self._gone(greet.to)
        node.known_to(origin)
        self._tables.meet(node, greet.me)
        return Greeting(node.contact)

    def _asked_node(self, key: Key | None) -> FlexibleNode | None:
        if key is None:
            return next((node for node in self._nodes.values() if node.base.is_in and not node.leaving), None)
        node = self._nodes.get(key)
        return node if node is not None and node.base.is_linked and not node.leaving else None

    def _gone(self, key: Key | None) -> NodeGone:
        """No node of this key is here, in no incarnation that has been."""
        return NodeGone(Peer(key or b"", self._host.address, self._tables.last_incarnation))

    async def _call(self, to: Address, request: Message) -> object:
        """Asks until there is an answer; None if there is none, LATE if that may be the fault of this broker."""
        for _ in range(CALL_TRIES):
            began_at = self._host.now()
            try:
                return await self._host.call(to, request, CALL_TIMEOUT_S)
            except CallError:
                if self._host.now() - began_at > CALL_TIMEOUT_S + LATE_S:
                    return LATE
        return None

    # What may be gone

    def _check(self, node: FlexibleNode, pause_s: float) -> None:
        """Greets entries that are due before the next round, and drops those that were suspected by the way.

        What is due for longest comes first, and one entry of each host: if that is not there, all of them go.
        """
        now, heard = self._host.now(), self._tables.heard
        due: dict[Address, tuple[float, Peer]] = {}
        for contact in node.table.contacts:
            peer = contact.peer
            if self._tables.known.is_suspected(peer.key, now):
                self._tables.forget(peer.key)
                continue
            due_at = min(heard.at(peer) + CHECK_S, heard.host_at(peer.address) + CHECK_HOST_S)
            if due_at < min(now, due.get(peer.address, (now,))[0]):
                due[peer.address] = due_at, peer
        for _, peer in sorted(due.values(), key=itemgetter(0))[: max(1, int(pause_s / CHECK_INTERVAL_S))]:
            self._begin_to_greet(node, peer)

    def on_silent(self, key: Key) -> None:
        """Another broker got no answer from a node that was named here: greets it, if it is an entry."""
        for node in self._nodes.values():
            contact = node.table.get(key)
            if contact is not None and self._begin_to_greet(node, contact.peer):
                return

    def _heard_nothing(self, address: Address, peer: Peer | None, answer: object) -> None:
        """A node said that it is gone, or a host said nothing: then all its nodes are gone."""
        if answer is LATE:
            return
        if peer is not None:
            self._tables.lose(peer)
        if answer is None:
            self._tables.lose_host(address)

    @handles(NodeGone)
    def on_gone(self, origin: Address, gone: NodeGone) -> Reply:
        """A node says that it leaves (UNSUB)."""
        self._tables.on_gone(origin, gone.peer)
        return gone

    def say_goodbye(self, node: FlexibleNode) -> None:
        """Tells all brokers that may know a node that it leaves."""
        for broker in node.knowing:
            self._host.spawn(self._call(broker, NodeGone(node.base.me)))


def _is_same(one: Peer, other: Peer) -> bool:
    """Whether two are the same node, in whatever incarnation."""
    return one.key == other.key and one.address == other.address
