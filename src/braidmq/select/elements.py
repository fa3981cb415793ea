"""The elements of a node's tables that have a part in a search range: where a search can go from here."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from braidmq.keys import Key
from braidmq.overlay.key_ranges import JUST_AFTER
from braidmq.overlay.peers import Peer
from braidmq.overlay.suzaku import Finger
from braidmq.select.nodes import SearchNode
from braidmq.select.request import SelectionRequest, free_in

SELF_LEVEL = -1
UNKNOWN = 1
"""What a range without an aggregate counts: nodes that nothing is known of may have something free."""


class Element(msgspec.Struct, frozen=True, gc=False):
    """A node, the part of the search range that it stands for, and how many are thought to be free there."""

    level: int
    forward: bool
    peer: Peer
    low: Key
    high: Key
    until: Key
    """Where the element's own range ends, which may be beyond that part."""
    free: int


def elements_of(node: SearchNode, request: SelectionRequest, low: Key, high: Key) -> Iterator[Element]:
    """FFT[−1], the node itself, then both tables.

    Of an element whose range wraps around the ring, the part before the end of all keys counts and the other one does
    not: so levels above ⌈log2 N_r⌉ are not used (Ishihara et al. 2021, §4.5).
    """
    me = node.me
    if low <= me.key < high:
        own = free_in(request, node.value())
        yield Element(SELF_LEVEL, True, me, me.key, min(high, me.key + JUST_AFTER), me.key + JUST_AFTER, own)
    for forward in (True, False):
        before = me.key
        for level in range(max(len(node.forward), len(node.backward)) + 1):
            finger = node.finger(level, forward)
            if finger is None:
                break
            until = _end(node, finger, level) if forward else before
            before = finger.peer.key
            if until <= before:  # around the ring: what it has at the end of all keys
                until = max(high, before + JUST_AFTER)
            start, end = max(low, before), min(high, until)
            if start < end:
                total = finger.total
                free = UNKNOWN if total is None else free_in(request, total.aggregate)
                yield Element(level, forward, finger.peer, start, end, until, free)


def _end(node: SearchNode, finger: Finger, level: int) -> Key:
    following = node.finger(level + 1, True)
    return node.me.key if following is None else following.peer.key


def highest_level(node: SearchNode, high: Key) -> int:
    """The highest level of a table that can have a part in the range that this node begins: ⌈log2 N_r⌉."""
    level = 0
    while (finger := node.finger(level, True)) is not None and node.me.key < finger.peer.key < high:
        level += 1
    return level
