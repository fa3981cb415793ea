"""One node of the flexible graph: its position in the ring, its table, and what to ask next."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Event, Host
from braidmq.keys import SEPARATOR, Key
from braidmq.overlay.flexible.table import Contact, FlexibleTable, key_of_contact
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import RingNode
from braidmq.overlay.vectors import Vector

KNOWING_MAX = 256
"""Brokers that a node has met, and that may so have it in their tables; they are told when it leaves."""

TOP_TURNS_MAX = 4
"""Entries of the highest level that are asked in turn: they know best if there is a higher one."""

EXPLORE_S, EXPLORE_MAX_S = 1.0, 15.0
"""The shortest pause before a publisher explores again, and how long pauses become while it finds nothing."""


class FlexibleNode:
    """One key of a broker: its position in the ring, its table, and the brokers that may have it in theirs."""

    __slots__ = (
        "_asking",
        "_joined",
        "_knowing",
        "base",
        "contact",
        "explore_at",
        "explore_pause_s",
        "key",
        "leaving",
        "losses",
        "table",
        "turn",
    )

    def __init__(self, base: RingNode, vector: Vector, size: int, others_max: int) -> None:
        self.key = base.me.key
        self.base = base
        self.contact = Contact(base.me, vector)
        self.table = FlexibleTable(self.key, vector, size, others_max)
        self.leaving = False
        self.turn = 0
        self.losses = 0
        """Entries that turned out to be gone."""
        self.explore_at = 0.0
        self.explore_pause_s = EXPLORE_S
        self._knowing: BoundedDict[Address, None] | None = None
        self._asking: set[Key] | None = None
        self._joined: Event | None = None
        """Made when something waits for it."""

    def joined(self, host: Host) -> Event:
        """Happens when the node's join ends: for a node that leaves."""
        if self._joined is None:
            self._joined = host.event()
        return self._joined

    def join_ended(self) -> None:
        if self._joined is not None:
            self._joined.set()
            self._joined = None

    def learn(self, contacts: Iterable[Contact]) -> bool:
        """Learns what has proven to be there; True if the table has changed."""
        self.table.sticky = (self.base.left.key, self.base.right.key)
        return self.table.learn(contacts)

    def lose(self, key: Key) -> bool:
        """Drops a node that is gone; False if it was no entry."""
        if not self.table.drop(key):
            return False
        self.losses += 1
        return True

    def known_to(self, broker: Address) -> None:
        """That broker may have this node in its tables."""
        if self._knowing is None:
            self._knowing = BoundedDict(KNOWING_MAX)
        self._knowing.renew(broker, None)

    def unknown_to(self, broker: Address) -> None:
        """That broker has left: it need not be told of this node's leave."""
        if self._knowing is not None:
            self._knowing.pop(broker, None)

    @property
    def knowing(self) -> list[Address]:
        return list(self._knowing or ())

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

    def wants_greeting(self, key: Key) -> bool:
        """Whether a node is of the same topic, and may so want this one in its table."""
        return key.partition(SEPARATOR)[0] == self.key.partition(SEPARATOR)[0]

    @property
    def state(self) -> tuple[Peer, Peer, int]:
        """What calls for quick learning when it changes: the links, and how many entries are gone."""
        return self.base.left, self.base.right, self.losses

    def turns(self) -> list[Peer | None]:
        """The nodes to ask in turn; None for some other broker."""
        peers: list[Peer | None] = [self.base.right, self.base.left]
        levels = list(self.table.levels().values())
        around = self.turn // (len(levels) + 3)
        peers += [_by_distance(self.key, level, around) for level in levels]
        if levels:
            top = levels[-1]
            peers += [_by_distance(self.key, top, around + more) for more in range(1, min(len(top), TOP_TURNS_MAX))]
        subscribers = self.table.own_subscribers()
        if subscribers:
            peers.append(_by_distance(self.key, subscribers, around))
        if len(self.table) < self.table.size:
            peers.append(None)
        return peers

    def next_to_explore(self, asked: Container[Key]) -> Peer | None:
        """The right neighbour, and then the nearest subscribers; without those that were asked."""
        peers = (self.base.right, *(contact.peer for contact in self.table.own_subscribers()))
        return next((peer for peer in peers if peer.key not in asked), None)


def _by_distance(key: Key, contacts: Sequence[Contact], number: int) -> Peer:
    """One of some contacts in the order of keys: number 0 is the nearest on the right of a key, 1 the next, …"""
    first = bisect_left(contacts, key, key=key_of_contact)
    return contacts[(first + number) % len(contacts)].peer
