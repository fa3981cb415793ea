"""All tables of a broker, and what its nodes share: the view, what was heard of other nodes, and a number of entries.

A broker with many keys cannot afford a full table for each. The subscribers of a topic belong into the tables of that
topic, but all other entries serve all nodes of the broker alike, since these share what they know. So the nodes of a
broker share a number of such entries, that of KEYS_FULL full tables, and keep at least one on each level.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from braidmq.host import Address, Host
from braidmq.keys import Key
from braidmq.overlay.flexible.heard import INCARNATION_BITS, LONG_AGO, Heard
from braidmq.overlay.flexible.node import FlexibleNode
from braidmq.overlay.flexible.table import Contact
from braidmq.overlay.flexible.view import FlexibleView
from braidmq.overlay.peers import Acquaintances, Peer
from braidmq.overlay.ring import RingNode
from braidmq.overlay.vectors import Vector, common_digits
from braidmq.overlay.view import RoutingEntry, View

KEYS_FULL = 5
"""How many tables of a broker may be full: in the paper a broker has five topics. More keys share as many entries."""

OTHERS_MIN = 8
"""Entries that are no subscribers of the own topic, of which each table may have so many, however many keys share."""

SIBLINGS_ASKED = 4
"""From how many nodes of the same broker, to either side, a node learns."""

KEYS_FEW = 8
VIEW_AGE_S = 0.5
"""With more keys than those few, what tables learn is used for routing within this time; links are used at once."""


class Tables:
    """The nodes of one broker, each with its table, and what they know together."""

    def __init__(self, host: Host, vector: Vector, size: int, incarnation: int) -> None:
        self.vector = vector
        self.size = size
        self.nodes: dict[Key, FlexibleNode] = {}
        self.known = Acquaintances()
        """The suspected ones of the entries of all tables."""
        self.heard = Heard()
        self.last_incarnation = incarnation << INCARNATION_BITS
        """Of all nodes that this broker has had."""
        self._host = host
        self._view: FlexibleView | None = None
        self._viewed_at = LONG_AGO
        self._is_stale = False
        """Whether tables or links have changed since the view was made."""
        self._has_new_links = False
        """Whether links have changed since the view was made or has followed them."""
        self._others_max = size

    # The view

    def view(self) -> View:
        view = self._view
        is_due = self._is_stale and (len(self.nodes) <= KEYS_FEW or self._host.now() - self._viewed_at >= VIEW_AGE_S)
        if view is None or is_due:
            self._is_stale, self._viewed_at = False, self._host.now()
            view = self._view = FlexibleView(self._host.address, self._linked(), self._entries)
        elif self._has_new_links:
            view = self._view = view.following(self._linked())
        self._has_new_links = False
        return view

    def _entries(self) -> list[RoutingEntry]:
        """Each contact once: it is on the same level for all nodes of the broker, which have one vector."""
        found = {contact.peer.key: contact for node in self.nodes.values() for contact in node.table.contacts}
        known, vector = self.known, self.vector
        return [RoutingEntry(one.peer, common_digits(vector, one.vector), known) for one in found.values()]

    def _linked(self) -> list[RingNode]:
        return [node.base for node in self.nodes.values() if node.base.is_linked]

    def links_changed(self) -> None:
        self._is_stale = self._has_new_links = True

    # The nodes

    def new_peer(self, key: Key) -> Peer:
        """Another incarnation for each stay in the ring, so that what was said in an earlier one is not heard."""
        self.last_incarnation += 1
        return Peer(key, self._host.address, self.last_incarnation)

    def add(self, base: RingNode) -> FlexibleNode:
        node = self.nodes[base.me.key] = FlexibleNode(base, self.vector, self.size, self._others_max)
        self._share()
        return node

    def remove(self, node: FlexibleNode) -> None:
        if self.nodes.get(node.key) is node:
            del self.nodes[node.key]
            self._share()

    def _share(self) -> None:
        """Divides the entries that a broker has besides subscribers among its tables."""
        share = min(self.size, max(OTHERS_MIN, KEYS_FULL * self.size // max(1, len(self.nodes))))
        if share != self._others_max:
            self._others_max = share
            for node in self.nodes.values():
                node.table.others_max = share

    def part(self, broker: Address) -> None:
        """A broker has left: no node need tell it anything any more."""
        for node in self.nodes.values():
            node.unknown_to(broker)

    # What comes into tables

    def trim(self, node: FlexibleNode) -> None:
        """Drops entries of a node that are too many now."""
        self._is_stale = node.table.trim() or self._is_stale

    def learn(self, node: FlexibleNode, contacts: Iterable[Contact]) -> bool:
        """Puts what has proven to be there into a node's table, if that makes it better; True if it does."""
        if not node.learn(contacts):
            return False
        self._is_stale = True
        return True

    def learn_from_siblings(self, node: FlexibleNode) -> bool:
        """Takes over what the other nodes of this broker know, which are on the same levels; True if that is better."""
        contacts = [contact for sibling in self._siblings(node) for contact in sibling.table.contacts]
        return bool(contacts) and self.learn(node, contacts)

    def _siblings(self, node: FlexibleNode) -> list[FlexibleNode]:
        """The nodes of this broker that stand nearest to one of them, and so know best what it needs."""
        keys = sorted(self.nodes)
        index = bisect_left(keys, node.key)
        near = (*keys[max(0, index - SIBLINGS_ASKED) : index], *keys[index + 1 : index + 1 + SIBLINGS_ASKED])
        return [self.nodes[key] for key in near]

    def meet(self, node: FlexibleNode, contact: Contact) -> bool:
        """A node has shown itself to be there; True if that changes the table.

        If siblings know an earlier incarnation of it, they learn of this one, too: or they would go on to tell of the
        earlier one.
        """
        if contact.peer.address == self._host.address:
            return False
        self.known.trust(contact.peer)
        has_changed = self.learn(node, (contact,))
        now = self._host.now()
        if self.heard.note(contact.peer, now):
            for sibling in self.nodes.values():
                known = sibling.table.get(contact.peer.key)
                if known is not None and known.peer.incarnation < contact.peer.incarnation:
                    self.learn(sibling, (contact,))
        if self.heard.note_host(contact.peer, now):
            self._forget_earlier(contact.peer)
        return has_changed

    # What goes from tables

    def lose(self, peer: Peer) -> None:
        """A node is gone: it is suspected, and dropped from all tables."""
        self.known.suspect(peer, self._host.now())
        self.forget(peer.key)

    def lose_host(self, address: Address) -> None:
        """A host is silent: all its nodes are gone."""
        silent = [contact.peer for contact in self._contacts_at(address)]
        for peer in silent:
            self.known.suspect(peer, self._host.now())
        self._forget_all({peer.key for peer in silent})

    def on_gone(self, origin: Address, gone: Peer) -> None:
        """A node has said itself that it goes (UNSUB)."""
        for node in self.nodes.values():
            contact = node.table.get(gone.key)
            if contact is None or contact.peer.address != origin or contact.peer.incarnation > gone.incarnation:
                continue
            self.known.suspect(contact.peer, self._host.now())
            node.lose(gone.key)
            self.heard.forget(gone.key)
            self._drop_from_view(gone.key)

    def _forget_earlier(self, peer: Peer) -> None:
        """A broker has restarted: drops what it was before."""
        now = peer.incarnation >> INCARNATION_BITS
        at_host = [contact.peer for contact in self._contacts_at(peer.address)]
        self._forget_all({one.key for one in at_host if one.incarnation >> INCARNATION_BITS < now})

    def _contacts_at(self, address: Address) -> list[Contact]:
        """The entries of all tables that are at one host, each node once."""
        found = {
            contact.peer.key: contact
            for node in self.nodes.values()
            for contact in node.table.contacts
            if contact.peer.address == address
        }
        return list(found.values())

    def forget(self, key: Key) -> None:
        """Drops a node from all tables of this broker."""
        self._forget_all({key})

    def _forget_all(self, keys: set[Key]) -> None:
        for key in keys:
            self.heard.forget(key)
            self._drop_from_view(key)
        for node in self.nodes.values():
            for key in keys & node.table.keys():
                node.lose(key)

    def _drop_from_view(self, key: Key) -> None:
        self._is_stale = True
        if self._view is not None:
            self._view.drop(key)
