"""Peers: who is where, and who has not answered lately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from braidmq.host import Address, Message
from braidmq.keys import Key

SUSPICION_S = 120.0
"""How long a peer that did not answer is passed over."""

KNOWN_MAX = 64
"""Peers that a node remembers beyond those it is linked to, so that two halves of a broken ring find each other."""


class Peer(Message, frozen=True, array_like=True, gc=False):
    """A node of an overlay: its key, its host, and which life of it this is (a restart is another one)."""

    key: Key
    address: Address
    life: int = 0


class Acquaintances:
    """Peers that were met, newest last, and those among them that are suspected to be gone; empty, it weighs little."""

    __slots__ = ("_known", "_suspected_at")

    def __init__(self) -> None:
        self._known: dict[Key, Peer] | None = None
        self._suspected_at: dict[Key, float] | None = None

    def meet(self, peers: Iterable[Peer]) -> None:
        known = self._known = self._known or {}
        for peer in peers:
            known.pop(peer.key, None)
            known[peer.key] = peer
        while len(known) > KNOWN_MAX:
            known.pop(next(iter(known)))

    def suspect(self, peer: Peer, now: float) -> None:
        suspected_at = self._suspected_at = self._suspected_at or {}
        suspected_at.pop(peer.key, None)
        suspected_at[peer.key] = now
        while len(suspected_at) > KNOWN_MAX:
            suspected_at.pop(next(iter(suspected_at)))

    def trust(self, peer: Peer) -> None:
        """It has answered."""
        if self._suspected_at:
            self._suspected_at.pop(peer.key, None)

    def is_suspected(self, key: Key, now: float) -> bool:
        since = self._suspected_at.get(key) if self._suspected_at else None
        return since is not None and now - since < SUSPICION_S

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._known.values() if self._known else ())
