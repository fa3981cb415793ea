"""Anycast: a search goes from node to node by the aggregates in their tables, and ends at one that is free.

At each node one of the elements that have a part in the search range and something free is chosen, and the search goes
on at its node with that part (Ishihara et al. 2021, Algorithm 1). Where nothing is free, it starts again from there
with the whole range. What the paper leaves for later is there by options: elements that led to nothing are remembered
on the way (`remembers`), a node that satisfies is not passed by (`finishes_here`), and a search has an end
(`hops_max`).

`earlier` is the algorithm of the precursor (IOTS 2019): elements that begin or end within the range, `shrink`, and the
closest preceding node where there is none; it begins at the asker's own node and not at the delegate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from braidmq.host import Address, Forward, Reply, Service, ask, handles
from braidmq.keys import Key, in_arc
from braidmq.overlay.peers import Peer
from braidmq.select.elements import SELF_LEVEL, Element, elements_of, highest_level
from braidmq.select.members import Members
from braidmq.select.messages import NotReserved, Reserved, SeekComponent
from braidmq.select.nodes import SearchNode
from braidmq.select.request import SelectionRequest
from braidmq.select.strategies import RANDOM, choose

ANYCAST_TIMEOUT_S: Final = 60.0
HOPS_MAX: Final = 100_000
"""How far a search goes where nothing else is said: the papers' searches have no end."""

FAILED_MAX: Final = 64
"""Elements that a search remembers to have led to nothing."""

CHOICES_MAX: Final = 1_000
"""How often one node chooses for one search; by chance a node may choose itself in vain, again and again."""

EARLIER: Final = "earlier"


class AnycastOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a search goes."""

    strategy: str = "close"
    hops_max: int = HOPS_MAX
    finishes_here: bool = False
    remembers: bool = False


class Anycast(Service):
    """A broker's part in searches."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._host = members.host
        self.on_step: Callable[[int, bool], None] | None = None
        """Called with the level and direction of each element that was chosen: for measurement."""
        self._host.serve(self)

    async def reserve(self, request: SelectionRequest, start: Peer, options: AnycastOptions) -> Reserved | NotReserved:
        """Searches from a node on: the delegate, or for `earlier` one of this broker."""
        low, high = request.group.keys
        seek = SeekComponent(
            start.key,
            request,
            options.strategy,
            low,
            high,
            0,
            options.hops_max,
            SELF_LEVEL,
            options.finishes_here,
            options.remembers,
        )
        answer = await ask(self._host, start.address, seek, (Reserved, NotReserved), timeout_s=ANYCAST_TIMEOUT_S)
        return NotReserved(0) if answer is None else answer

    @handles(SeekComponent)
    def on_seek(self, origin: Address, seek: SeekComponent) -> Reply:
        node = self._members.node(seek.to)
        if node is None:
            return NotReserved(seek.hops)
        self._members.interest.note(seek.request.group.label)
        if seek.level_max == SELF_LEVEL:
            seek = msgspec.structs.replace(seek, level_max=highest_level(node, seek.high))
        if seek.finishes_here and (taken := self._take(node.me.key, seek)) is not None:
            return taken
        step = self._step_earlier if seek.strategy == EARLIER else self._step
        for _ in range(CHOICES_MAX):
            outcome = step(node, seek)
            if not isinstance(outcome, SeekComponent):
                return outcome
            seek = outcome
        return NotReserved(seek.hops)

    def _step(self, node: SearchNode, seek: SeekComponent) -> Reply | SeekComponent:
        """The next node, the end, or the same search with the whole range, to be tried here again."""
        candidates = self._candidates(node, seek, seek.low, seek.high)
        if not candidates:
            low, high = seek.request.group.keys
            if (seek.low, seek.high) == (low, high):
                if seek.failed:
                    return msgspec.structs.replace(seek, failed=())
                return NotReserved(seek.hops, is_known=True)
            failed = (*seek.failed, node.me.key)[-FAILED_MAX:] if seek.remembers else ()
            return msgspec.structs.replace(seek, low=low, high=high, failed=failed)
        chosen = choose(self._host.chance, seek.strategy, candidates, seek.level_max)
        if self.on_step is not None:
            self.on_step(chosen.level, chosen.forward)
        if chosen.level == SELF_LEVEL:
            low, high = seek.request.group.keys
            return self._take(node.me.key, seek) or msgspec.structs.replace(seek, low=low, high=high)
        return self._forward(chosen, seek, chosen.low, chosen.high)

    def _candidates(self, node: SearchNode, seek: SeekComponent, low: Key, high: Key) -> list[Element]:
        elements = elements_of(node, seek.request, low, high)
        if seek.strategy == RANDOM:
            return list(elements)
        return [element for element in elements if element.free > 0 and element.peer.key not in seek.failed]

    def _take(self, key: Key, seek: SeekComponent) -> Reserved | None:
        found = self._members.here(key)
        taken = None if found is None else found[0].take(seek.request, found[1], self._host.now())
        if taken is None:
            return None
        self._members.watch_leases()
        return Reserved(taken, seek.hops)

    def _forward(self, chosen: Element, seek: SeekComponent, low: Key, high: Key) -> Reply:
        if seek.hops >= seek.hops_max:
            return NotReserved(seek.hops)
        peer = chosen.peer
        onward = msgspec.structs.replace(seek, to=peer.key, low=low, high=high, hops=seek.hops + 1)
        return Forward(peer.address, onward)

    def _step_earlier(self, node: SearchNode, seek: SeekComponent) -> Reply | SeekComponent:
        low, high = seek.low, seek.high
        matching = [
            element
            for element in elements_of(node, seek.request, *_EVERYTHING)
            if element.free > 0 and (low <= element.peer.key < high or low < element.until <= high)
        ]
        if matching:
            chosen = choose(self._host.chance, "many", matching, seek.level_max)
            if self.on_step is not None:
                self.on_step(chosen.level, chosen.forward)
            if chosen.level == SELF_LEVEL:
                return self._take(node.me.key, seek) or NotReserved(seek.hops)
            return self._forward(chosen, seek, max(low, chosen.peer.key), min(high, chosen.until))
        closest = _closest_preceding(node, low)
        if closest.key != node.me.key:
            if seek.hops >= seek.hops_max:
                return NotReserved(seek.hops)
            return Forward(closest.address, msgspec.structs.replace(seek, to=closest.key, hops=seek.hops + 1))
        whole = seek.request.group.keys
        if (low, high) == whole:
            return NotReserved(seek.hops, is_known=True)
        return msgspec.structs.replace(seek, low=whole[0], high=whole[1])


_EVERYTHING: Final = (b"", b"\xff" * 8)


def _closest_preceding(node: SearchNode, key: Key) -> Peer:
    """Of the own node and its fingers, the one nearest before a key, or at it."""
    best = node.me
    for table, first in ((node.forward, node.finger(0, True)), (node.backward, node.finger(0, False))):
        for finger in (*(() if first is None else (first,)), *table):
            peer = finger.peer
            if peer.key == key or (in_arc(best.key, peer.key, key) and best.key != key):
                best = peer
    return best
