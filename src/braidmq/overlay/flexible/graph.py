"""The flexible graph: a ring in the order of keys, and above it tables that are learnt (Banno and Shudo 2019, §3.4).

Level 0 is a DDLL ring, as in the Skip Graph, and everything is right as soon as it is. Above it there are no lists to
keep, but for each virtual node one table of the nodes that serve it best (`table`). A topic with few subscribers so
becomes a net in which every node knows every other, and one with many keeps the tree of a Skip Graph. `learning` says
how a table comes to its entries, `tables` what the nodes of a broker share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from braidmq.host import Address, Host
from braidmq.keys import Key
from braidmq.overlay.flexible.learning import TableLearning
from braidmq.overlay.flexible.node import FlexibleNode
from braidmq.overlay.flexible.tables import Tables
from braidmq.overlay.lookup import CarefulLookup
from braidmq.overlay.overlay import FoundOwner, Introduce
from braidmq.overlay.ring import Gap, JoinAbandoned, Ring, nothing
from braidmq.overlay.vectors import Vector
from braidmq.overlay.view import View

SIZE = 60
"""Entries of a table: about what a node of a Skip Graph of 50,000 nodes has at most (Banno and Shudo 2019, §4)."""


class FlexibleGraph:
    """A broker's part of the graph: all its virtual nodes, under one membership vector.

    `incarnation` must be another one after each restart of the broker.
    """

    def __init__(
        self, host: Host, vector: Vector, introduce: Introduce, incarnation: int = 0, size: int = SIZE
    ) -> None:
        self.host = host
        self.vector = vector
        self.size = size
        self.ring = Ring(host)
        self.introduce = introduce
        self.on_change: Callable[[], None] = nothing
        self._tables = Tables(host, vector, size, incarnation)
        self.nodes = self._tables.nodes
        self.learning = TableLearning(host, self._tables, self._introduce)
        self._lookup = CarefulLookup(
            host, self._tables.view, self._introduce, self.learning.on_silent, self.ring.silent
        )
        self._on_link = self._changed
        self.ring.on_part = self._tables.part

    @property
    def view(self) -> View:
        return self._tables.view()

    def _introduce(self) -> Address | None:
        return self.introduce()

    def _changed(self) -> None:
        """A link has changed."""
        self._tables.links_changed()
        self.on_change()

    # Keys that come and go

    def found(self, key: Key) -> None:
        """Becomes the first node of a new graph."""
        node = self.add_node(key)
        node.base.found(partial(self._locate, node))
        self._changed()
        self.host.spawn(self.learning.learn(node))

    async def join(self, key: Key) -> bytes:
        """Stands for a key from now on; the table is learnt after that. Returns when it does, or when it leaves."""
        if key in self.nodes:
            return b""
        node = self.add_node(key)
        try:
            await node.base.join(partial(self._locate, node))
        except JoinAbandoned:
            self._remove(node)
            return b""
        finally:
            node.join_ended()
        self.host.spawn(self.learning.learn(node))
        return node.base.heard

    async def leave(self, key: Key) -> None:
        """Stands for a key no longer; tells those that have it in their tables, and returns when it is unlinked."""
        node = self.nodes.get(key)
        if node is None or node.leaving:
            return
        node.leaving = True
        while self.nodes.get(key) is node and not node.base.is_in:
            await node.joined(self.host).wait()
        if self.nodes.get(key) is not node:
            return
        self.learning.say_goodbye(node)
        await node.base.leave()
        self._remove(node)

    def add_node(self, key: Key) -> FlexibleNode:
        """A virtual node that is not linked yet, in a new incarnation: what was said to an earlier one is not heard."""
        base = self.ring.node(0, self._tables.new_peer(key))
        base.on_change = self._on_link
        return self._tables.add(base)

    def _remove(self, node: FlexibleNode) -> None:
        """A node that is out."""
        self.ring.forget(node.base)
        self._tables.remove(node)
        self._changed()

    async def _locate(self, node: FlexibleNode, key: Key) -> Gap | None:
        """Where a key belongs in the ring. A node that is in asks others first: they may know of another ring."""
        if node.leaving and not node.base.is_in:
            raise JoinAbandoned
        introducer = self.introduce() if node.base.is_in else None
        found = await self._lookup.find(key, before=True, introducer=introducer)
        return Gap(found.owner, found.right) if found else None

    async def lookup(self, key: Key) -> FoundOwner | None:
        """The node from whose key up to its right neighbour's the key lies; None if no broker answered."""
        return await self._lookup.lookup(key)

    # What others may ask of the tables

    def explore(self, key: Key) -> None:
        """A node publishes whose table may not be full: looks for subscribers that it lacks (§3.5.4)."""
        self.learning.explore(key)

    def forget(self, key: Key) -> None:
        """Drops a node from all tables of this broker."""
        self._tables.forget(key)
