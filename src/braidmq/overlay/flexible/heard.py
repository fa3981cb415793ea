"""Which nodes a broker has heard from: when, and in which incarnation. All its tables share this.

So one node of a broker need not ask for what another one has just heard, and no node is checked more often than a
broker needs, in however many tables it is.
"""

from __future__ import annotations

from braidmq.bounded import BoundedDict
from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.peers import Peer

HEARD_MAX = 16_384
"""Nodes and hosts that are remembered, each; those not heard from for longest are forgotten first."""

INCARNATION_BITS = 24
"""How many stays in the ring one incarnation of a broker can count apart: the last bits of a node's incarnation."""

LONG_AGO = float("-inf")


class Heard:
    """The last sign of life of other brokers' nodes, and of their hosts."""

    __slots__ = ("_hosts", "_last")

    def __init__(self) -> None:
        self._last: BoundedDict[Key, tuple[int, float]] = BoundedDict(HEARD_MAX)
        self._hosts: BoundedDict[Address, tuple[int, float]] = BoundedDict(HEARD_MAX)

    def note(self, peer: Peer, now: float) -> bool:
        """It has just shown itself; True if it was last heard in another incarnation."""
        before = self._last.get(peer.key)
        self._last.renew(peer.key, (peer.incarnation, now))
        return before is not None and before[0] != peer.incarnation

    def note_host(self, peer: Peer, now: float) -> bool:
        """A node of this host has shown itself; True if its broker was last heard in an earlier incarnation."""
        incarnation = peer.incarnation >> INCARNATION_BITS
        before, _ = self._hosts.get(peer.address, (incarnation, now))
        self._hosts.renew(peer.address, (max(before, incarnation), now))
        return before < incarnation

    def at(self, peer: Peer) -> float:
        """When it was last heard in this incarnation."""
        incarnation, at = self._last.get(peer.key, (peer.incarnation, LONG_AGO))
        return at if incarnation == peer.incarnation else LONG_AGO

    def host_at(self, host: Address) -> float:
        """When any node of a host was last heard."""
        return self._hosts.get(host, (0, LONG_AGO))[1]

    def forget(self, key: Key) -> None:
        self._last.pop(key, None)
