"""Splitting a range among the nodes that can see to its parts: the heart of range delivery.

Three ways to cut what lies between a broker's own keys:

MRF, multi-range forwarding (Banno et al. 2015, §5.2): the whole piece goes to one broker, the neighbour of the highest
level inside it. A broker with one key in the range receives once and forwards at most twice: to the left and to the
right of its key. That is what the subscribers of a topic have. With several keys in the range a broker can receive more
often, each of its keys only once, by each of the three ways; over a Skip Graph brokers are divided instead (`errands`).

SFB, split-forward (Banno and Shudo 2019, §3.5.1): the piece is cut at every neighbour inside it, and each gets what
lies beyond it, seen from here. More messages at once, and fewer hops.

RIGHT: as SFB, but every part begins at the node that gets it, and the head of the range goes to the node before it. A
node owns the keys up to its right neighbour, and a right link is what a node itself decides on: so here, and only here,
an answer is a proof. A left link is only told to a node, and may be late.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from braidmq.keys import Key
from braidmq.overlay.key_ranges import JUST_AFTER, KeyRange
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import RingNode, owns
from braidmq.overlay.view import RoutingEntry, View


class Cut(IntEnum):
    MRF = 1
    SFB = 2
    RIGHT = 3


class Split(msgspec.Struct):
    """The own keys in a range, which parts of it are accounted for here, and which nodes get the others.

    `heads` are pieces, too: parts before all nodes that are known in the range, for nodes outside of it, which can tell
    whether a node stands there.
    """

    keys: list[Key] = msgspec.field(default_factory=list)
    covered: list[KeyRange] = msgspec.field(default_factory=list)
    pieces: list[tuple[Peer, KeyRange]] = msgspec.field(default_factory=list)
    heads: list[tuple[Peer, KeyRange]] = msgspec.field(default_factory=list)


def split(view: View, low: Key, high: Key, cut: Cut, now: float, avoid: tuple[Key, ...] = ()) -> Split:
    """Which node sees to which part of [low, high); none of those to avoid, so a part may be left to none."""
    parts = Split(view.own_inside(low, high))
    if cut is Cut.RIGHT:
        _to_the_right(parts, view, low, high, now, avoid)
    elif parts.keys:
        _around_own(parts, view, low, high, cut, now, avoid)
    else:
        _from_outside(parts, view, low, high, cut, now, avoid)
    return parts


def owned_part(own: RingNode, start: Key, end: Key) -> KeyRange:
    """What an own node owns of a range that begins with a key of its own."""
    return start, own.right.key if start < own.right.key < end else end


# By right links alone


def _to_the_right(parts: Split, view: View, low: Key, high: Key, now: float, avoid: tuple[Key, ...]) -> None:
    before = view.own_up_to(low)
    if before is not None and owns(before, low) and not low < before.right.key < high:
        parts.covered.append((low, high))  # what tables still know in it is gone: right links decide
        return
    inside = {entry.peer.key: entry.peer for entry in view.inside(low, high, now, avoid)}
    starts = sorted({*inside, *parts.keys})
    for index, key in enumerate(starts):
        end = starts[index + 1] if index + 1 < len(starts) else high
        own = view.own.get(key)
        if own is None:
            parts.pieces.append((inside[key], (key, end)))
        else:
            _owned(parts, own, key, end, avoid)
    head = (low, starts[0] if starts else high)
    if head[0] < head[1]:
        _head(parts, parts.heads if starts else parts.pieces, view, *head, now, avoid)


def _owned(parts: Split, own: RingNode, start: Key, end: Key, avoid: tuple[Key, ...]) -> None:
    """A part that begins with keys that an own node owns: its right neighbour sees to the rest."""
    part = owned_part(own, start, end)
    parts.covered.append(part)
    right = own.right
    if part[1] < end and right.key not in avoid:
        parts.pieces.append((right, (right.key, end)))


def _head(
    parts: Split,
    pieces: list[tuple[Peer, KeyRange]],
    view: View,
    low: Key,
    high: Key,
    now: float,
    avoid: tuple[Key, ...],
) -> None:
    """The part before the first node that is known in the range."""
    own = view.own_up_to(low)
    if own is None:
        return
    step = view.step_towards(low, now, avoid=avoid)
    if step is not None:
        pieces.append((step.peer, (low, high)))
    elif owns(own, low):
        _owned(parts, own, low, high, avoid)


# By links of both sides


def _around_own(parts: Split, view: View, low: Key, high: Key, cut: Cut, now: float, avoid: tuple[Key, ...]) -> None:
    first = view.own[parts.keys[0]]
    if low < first.me.key and low <= first.left.key < first.me.key:
        _hand_out(parts, view, low, first.me.key, cut, now, avoid, leftwards=True)
    for index, key in enumerate(parts.keys):
        end = parts.keys[index + 1] if index + 1 < len(parts.keys) else high
        right = view.own[key].right.key
        if key < right < end:
            _hand_out(parts, view, right, end, cut, now, avoid)


def _from_outside(parts: Split, view: View, low: Key, high: Key, cut: Cut, now: float, avoid: tuple[Key, ...]) -> None:
    """To neighbours in the range if there are any; else nearer to it, if it is not known to be empty.

    Nearer is always nearer to `low` on the circle, so no node outside the range gets the same part of it twice.
    """
    before, behind = view.own_up_to(low), view.own_from(high)
    if before is not None and _is_empty_between(before, low, high):
        return
    inside = view.inside(low, high, now, avoid)
    if not inside:
        step = view.step_towards(low, now, avoid=avoid)
        if step is not None:
            parts.pieces.append((step.peer, (low, high)))
        return
    leftwards = behind is not None and behind.left.key == inside[-1].peer.key and behind is not before
    _hand_out(parts, view, low, high, cut, now, avoid, leftwards=leftwards)


def _is_empty_between(before: RingNode, low: Key, high: Key) -> bool:
    """Whether the node before a range has its right neighbour behind it."""
    me, right = before.me.key, before.right.key
    if me < low:
        return right >= high or right <= me
    return high <= right <= me  # the circle is closed: this node is the last of all keys


def _hand_out(
    parts: Split,
    view: View,
    low: Key,
    high: Key,
    cut: Cut,
    now: float,
    avoid: tuple[Key, ...],
    *,
    leftwards: bool = False,
) -> None:
    """Gives a piece without own keys to entries inside it."""
    inside = view.inside(low, high, now, avoid)
    if not inside:
        return
    if cut is Cut.MRF:
        chosen = {peer.address for peer, _ in parts.pieces}
        best = max(inside, key=lambda entry: (entry.level, entry.peer.address in chosen))
        parts.pieces.append((best.peer, (low, high)))
        return
    cuts = _cuts_leftwards(inside, low, high) if leftwards else _cuts_rightwards(inside, low, high)
    for index, entry in enumerate(inside):
        parts.pieces.append((entry.peer, (cuts[index], cuts[index + 1])))


def _cuts_rightwards(inside: list[RoutingEntry], low: Key, high: Key) -> list[Key]:
    """Each gets what lies from it to the next one; seen from a node before them."""
    return [low, *(entry.peer.key for entry in inside[1:]), high]


def _cuts_leftwards(inside: list[RoutingEntry], low: Key, high: Key) -> list[Key]:
    """Each gets what lies up to it from the one before; seen from a node behind them."""
    return [low, *(entry.peer.key + JUST_AFTER for entry in inside[:-1]), high]
