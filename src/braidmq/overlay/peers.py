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
    """Peers that were met, newest last, and those among them that are suspected to be gone."""

    __slots__ = ("_known", "_suspected_at")

    def __init__(self) -> None:
        self._known: dict[Key, Peer] = {}
        self._suspected_at: dict[Key, float] = {}

    def meet(self, peers: Iterable[Peer]) -> None:
        for peer in peers:
            self._known.pop(peer.key, None)
            self._known[peer.key] = peer
        while len(self._known) > KNOWN_MAX:
            self._known.pop(next(iter(self._known)))

    def suspect(self, peer: Peer, now: float) -> None:
        self._suspected_at.pop(peer.key, None)
        self._suspected_at[peer.key] = now
        while len(self._suspected_at) > KNOWN_MAX:
            self._suspected_at.pop(next(iter(self._suspected_at)))

    def trust(self, peer: Peer) -> None:
        """It has answered."""
        self._suspected_at.pop(peer.key, None)

    def is_suspected(self, key: Key, now: float) -> bool:
        since = self._suspected_at.get(key)
        return since is not None and now - since < SUSPICION_S

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._known.values())
