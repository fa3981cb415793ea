"""Peers: which node is where, and which have not answered lately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Message
from braidmq.keys import Key

SUSPICION_S = 120.0
"""How long a peer that did not answer is passed over."""

KNOWN_MAX = 64
"""Peers that a node remembers beyond those it is linked to, so that two halves of a broken ring find each other."""


class Peer(Message, frozen=True, array_like=True, gc=False):
    """A node of an overlay: its key, its host, and which incarnation of it this is (a restart is another one)."""

    key: Key
    address: Address
    incarnation: int = 0


class Acquaintances:
    """Peers that were met, newest last, and those among them that are suspected to be gone; empty, it weighs little."""

    __slots__ = ("_known", "_suspected")

    def __init__(self) -> None:
        self._known: BoundedDict[Key, Peer] | None = None
        self._suspected: BoundedDict[Key, tuple[Peer, float]] | None = None
        """With when that began."""

    def meet(self, peers: Iterable[Peer]) -> None:
        if self._known is None:
            self._known = BoundedDict(KNOWN_MAX)
        for peer in peers:
            self._known.renew(peer.key, peer)
            suspected = self._suspected.get(peer.key) if self._suspected else None
            if suspected is not None and suspected[0].incarnation < peer.incarnation:
                self.trust(peer)  # it was an earlier one that did not answer

    def suspect(self, peer: Peer, now: float) -> None:
        if self._suspected is None:
            self._suspected = BoundedDict(KNOWN_MAX)
        self._suspected.renew(peer.key, (peer, now))

    def part(self, address: Address) -> None:
        """Forgets all peers at an address: they have left."""
        if self._known:
            for key in [key for key, peer in self._known.items() if peer.address == address]:
                del self._known[key]
        if self._suspected:
            for key in [key for key, (peer, _) in self._suspected.items() if peer.address == address]:
                del self._suspected[key]

    def trust(self, peer: Peer) -> None:
        """It has answered."""
        if self._suspected:
            self._suspected.pop(peer.key, None)

    def is_suspected(self, key: Key, now: float) -> bool:
        found = self._suspected.get(key) if self._suspected else None
        return found is not None and now - found[1] < SUSPICION_S

    def suspects(self, now: float) -> list[Peer]:
        return (
            [peer for peer, since in self._suspected.values() if now - since < SUSPICION_S] if self._suspected else []
        )

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._known.values() if self._known else ())
