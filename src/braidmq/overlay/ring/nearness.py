"""Which of some peers lie between two keys of the circle, and which is nearest; suspected ones do not count."""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.keys import Key
from braidmq.overlay.peers import Acquaintances, Peer


def peers_between(peers: Iterable[Peer], start: Key, end: Key, known: Acquaintances, now: float) -> tuple[Peer, ...]:
    """Those strictly between two keys, in the order in which they were given."""
    if start < end:
        between = [peer for peer in peers if start < peer.key < end]
    else:
        between = [peer for peer in peers if peer.key > start or peer.key < end]
    return tuple([peer for peer in between if not known.is_suspected(peer.key, now)])


def nearest_left(peers: Iterable[Peer], best: Peer | None, mine: Key, known: Acquaintances, now: float) -> Peer | None:
    """Of some peers and the best so far, the one nearest to the left of a key."""
    is_suspected = known.is_suspected
    for peer in peers:
        key = peer.key
        if best is None:
            is_nearer = key != mine
        elif best.key < mine:
            is_nearer = best.key < key < mine
        else:
            is_nearer = key > best.key or key < mine
        if is_nearer and not is_suspected(key, now):
            best = peer
    return best
