"""Range delivery: one message to every node whose key lies in a range, with a proof that it was all of them.

A range is split among the peers that a host knows in it: each gets the part from its own key up to the next one's, and
splits that again. Whoever owns keys of the range answers for exactly those, nodes or not: `Covered` names the part. The
sender subtracts it from its gaps and is done when none is left; what it sends again after a failure is just the gaps.
(ALGORITHMS §4: reply direct to the sender, retry fast at each hop and slow at the root.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import msgspec

from braidmq.host import Address, CallError, Host, Message, Reply, Service, handles
from braidmq.keys import Key, in_arc
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import CALL_TIMEOUT_S
from braidmq.overlay.suzaku import Suzaku

HOPS_MAX = 64
SEEN_MAX = 4096
"""Deliveries that a host remembers, so that none is made twice."""

REISSUE_S = 5.0
"""How long the sender waits for answers before it sends to the gaps again."""

POLL_S = 0.05


class Range(Message, frozen=True, array_like=True, gc=False):
    """Half open, from `start` up to but not including `end`; it does not wrap."""

    start: Key
    end: Key


class Deliver(Message, frozen=True, array_like=True, gc=False):
    root: Address
    number: int
    ranges: tuple[Range, ...]
    body: bytes
    hops: int


class Accepted(Message, frozen=True, array_like=True, gc=False):
    """This host has taken the ranges on."""


class Covered(Message, frozen=True, array_like=True, gc=False):
    number: int
    ranges: tuple[Range, ...]


class Outcome(msgspec.Struct, frozen=True):
    """`gaps` is what nobody has answered for: empty if, and only if, every node of the range has the message."""

    gaps: tuple[Range, ...]

    @property
    def complete(self) -> bool:
        return not self.gaps


def without(gaps: Iterable[Range], covered: Range) -> list[Range]:
    """What is left of some ranges when another is taken off."""
    left = []
    for gap in gaps:
        if covered.end <= gap.start or gap.end <= covered.start:
            left.append(gap)
            continue
        if gap.start < covered.start:
            left.append(Range(gap.start, covered.start))
        if covered.end < gap.end:
            left.append(Range(covered.end, gap.end))
    return left


class RangeDelivery(Service):
    """Sends to ranges of keys over the overlay of one host, and hands what arrives to its nodes."""

    def __init__(self, overlay: Suzaku, on_delivery: Callable[[Key, bytes, int], None]) -> None:
        self.overlay = overlay
        self.host: Host = overlay.host
        self.on_delivery = on_delivery
        """Called once for each own node in the range, with its key, the message and the hops it took."""
        self._number = 0
        self._gaps: dict[int, list[Range]] = {}
        self._seen: dict[tuple[Address, int, Key], None] = {}
        self.host.serve(self)

    async def deliver(self, start: Key, end: Key, body: bytes, timeout_s: float) -> Outcome:
        """Sends to all nodes in [start, end) and waits until that is proven, or the time is over."""
        self._number += 1
        number = self._number
        whole = (Range(start, end),)
        self._gaps[number] = list(whole)
        ends_at = self.host.now() + timeout_s
        self._spread(Deliver(self.host.address, number, whole, body, 0), ())
        again_at = self.host.now() + REISSUE_S
        while self._gaps[number] and self.host.now() < ends_at:
            await self.host.sleep(POLL_S)
            if self._gaps[number] and self.host.now() >= again_at:
                self._spread(Deliver(self.host.address, number, tuple(self._gaps[number]), body, 0), ())
                again_at = self.host.now() + REISSUE_S
        return Outcome(tuple(self._gaps.pop(number)))

    @handles(Deliver)
    def on_deliver(self, _origin: Address, message: Deliver) -> Reply:
        if message.hops > HOPS_MAX or not any(node.link.is_in for node in self.overlay.nodes.values()):
            return None
        self._spread(message, ())
        return Accepted()

    @handles(Covered)
    def on_covered(self, _origin: Address, answer: Covered) -> Reply:
        gaps = self._gaps.get(answer.number)
        if gaps is not None:
            for covered in answer.ranges:
                gaps = without(gaps, covered)
            self._gaps[answer.number] = gaps
        return None

    # Splitting

    def _spread(self, message: Deliver, avoid: tuple[Key, ...]) -> None:
        """Does what is for this host's own nodes, and hands the rest to those that are nearer to it."""
        mine: list[Range] = []
        theirs: dict[Address, tuple[Peer, list[Range]]] = {}
        for whole in message.ranges:
            for piece, peer in self._assign(whole, avoid):
                if peer is None:
                    mine.append(piece)
                elif piece.start < piece.end:
                    theirs.setdefault(peer.address, (peer, []))[1].append(piece)
        for peer, pieces in theirs.values():
            onward = msgspec.structs.replace(message, ranges=tuple(pieces), hops=message.hops + 1)
            self.host.spawn(self._hand_over(peer, onward, avoid))
        if mine:
            self._take(message, mine)

    def _assign(self, whole: Range, avoid: tuple[Key, ...]) -> list[tuple[Range, Peer | None]]:
        """The parts of a range and who takes each; None for what this host answers for itself."""
        own = {node.me.key: node for node in self.overlay.nodes.values() if node.link.is_in}
        inside = {
            peer.key: peer
            for node in own.values()
            for peer in node.peers()
            if whole.start <= peer.key < whole.end and peer.key not in avoid and peer.key not in own
        }
        places = sorted({*inside, *(key for key in own if whole.start <= key < whole.end)})
        parts: list[tuple[Range, Peer | None]] = []
        for place, end in pairwise([*places, whole.end]):
            if place in own:
                parts += self._owned(own[place].me.key, Range(place, end), own)
            else:
                parts.append((Range(place, end), inside[place]))
        head = Range(whole.start, places[0] if places else whole.end)
        if head.start < head.end:
            parts += self._head(head, own, avoid)
        return parts

    def _owned(self, key: Key, piece: Range, own: dict[Key, Any]) -> list[tuple[Range, Peer | None]]:
        """A part that begins at an own node: what the node owns of it, and what its right neighbour must see to."""
        right: Peer = own[key].link.right
        if right.key <= key or right.key >= piece.end:
            return [(piece, None)]
        return [(Range(piece.start, right.key), None), (Range(right.key, piece.end), right)]

    def _head(self, head: Range, own: dict[Key, Any], avoid: tuple[Key, ...]) -> list[tuple[Range, Peer | None]]:
        """The part before the first node that is known in the range: its owner, or who is nearest before it."""
        for key, node in own.items():
            if in_arc(key, head.start, node.link.right.key):
                return self._owned(key, head, own)
        node = next(iter(own.values()))
        before = [peer for peer in self.overlay.nearest(node, head.start) if peer.key not in avoid]
        return [(head, before[0] if before else node.link.right)]

    async def _hand_over(self, peer: Peer, message: Deliver, avoid: tuple[Key, ...]) -> None:
        """Gives ranges to a peer; if it does not take them on, they are split again without it."""
        for _ in range(2):
            try:
                answer = await self.host.call(peer.address, message, CALL_TIMEOUT_S)
            except CallError:
                continue
            if isinstance(answer, Accepted):
                return
        if len(avoid) < HOPS_MAX:
            self._spread(message, (*avoid, peer.key))

    # Arriving

    def _take(self, message: Deliver, mine: list[Range]) -> None:
        for piece in mine:
            for key in list(self.overlay.nodes):
                if piece.start <= key < piece.end and self._is_new(message, key):
                    self.on_delivery(key, message.body, message.hops)
        answer = Covered(message.number, tuple(mine))
        if message.root == self.host.address:
            self.on_covered(message.root, answer)
        else:
            self.host.send(message.root, answer)

    def _is_new(self, message: Deliver, key: Key) -> bool:
        mark = (message.root, message.number, key)
        if mark in self._seen:
            return False
        self._seen[mark] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.pop(next(iter(self._seen)))
        return True
