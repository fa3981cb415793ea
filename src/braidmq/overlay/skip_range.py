"""Range delivery on the Skip Graph: one message to every node whose key lies in a range, along a tree.

Who has a message for some ranges takes out its own keys and hands each piece that is left to others, so every key is in
exactly one message. Two ways to cut a piece (ALGORITHMS §4):

MRF, multi-range forwarding (Banno et al. 2015, §5.2): the whole piece goes to one broker, the neighbour of the highest
level inside it. What goes to the same broker goes as one message. Where each broker has one key in the range, it
receives the message once and forwards it at most twice: to the left and to the right of its key. With several keys in
the range a broker can receive it more often, but each of its keys only once.

SFB, split-forward (Banno et al. 2018, §3.5.1): the piece is cut at every neighbour inside it, and each gets what lies
beyond it, seen from here. More messages at once, and 62 to 75 % of MRF's mean hops at 4,096 brokers.

A broker that has no key in the range passes it on: to neighbours inside if it has any, else to the one nearest to it.
A range that was handled once is not handled again (`SEEN_MAX`), so a message that the network repeats is harmless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum

from braidmq.host import Address, Message, Reply, Service, handles
from braidmq.keys import Key
from braidmq.overlay.peers import Peer
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.overlay.skip_view import Entry, SkipView

SEEN_MAX = 1024
"""Messages of which a broker remembers the ranges that it has handled."""

HOPS_MAX = 128

KeyRange = tuple[Key, Key]
"""[low, high) of the keys, which does not wrap."""


class Cut(IntEnum):
    MRF = 1
    SFB = 2


class RangeMessage(Message, frozen=True, array_like=True, gc=False):
    """A payload on its way to all nodes in some ranges. (origin, number) names it."""

    origin: Address
    number: int
    ranges: tuple[KeyRange, ...]
    cut: Cut
    hops: int
    payload: bytes


class Delivery(Message, frozen=True, array_like=True, gc=False):
    """What the application gets: the own keys that the message was for, and how far it came."""

    origin: Address
    number: int
    keys: tuple[Key, ...]
    hops: int
    payload: bytes


Assignment = list[tuple[Peer, KeyRange]]


class RangeDelivery(Service):
    """A broker's part in range delivery."""

    def __init__(self, graph: SkipGraph, deliver: Callable[[Delivery], None]) -> None:
        self.graph = graph
        self._deliver = deliver
        self._number = 0
        self._seen: dict[tuple[Address, int], list[KeyRange]] = {}
        graph.host.serve(self)

    def send(self, low: Key, high: Key, payload: bytes, cut: Cut = Cut.MRF) -> int:
        """Sends to all nodes with keys in [low, high), own ones included; the number of the message."""
        self._number += 1
        message = RangeMessage(self.graph.host.address, self._number, ((low, high),), cut, 0, payload)
        introducer = None if self.graph.view.own else self.graph.introduce()
        if introducer is None:
            self._handle(message)
        else:  # a broker that has no key in the graph hands it to one that has
            self._send_on(message, introducer, message.ranges)
        return self._number

    @handles(RangeMessage)
    def on_range(self, origin: Address, message: RangeMessage) -> Reply:
        self._handle(message)
        return None

    def _handle(self, message: RangeMessage) -> None:
        ranges = self._unseen(message)
        view, now = self.graph.view, self.graph.host.now()
        keys: list[Key] = []
        pieces: Assignment = []
        for low, high in ranges:
            own = view.own_inside(low, high)
            keys += own
            pieces += assign(view, low, high, own, message.cut, now)
        if keys:
            self._deliver(Delivery(message.origin, message.number, tuple(keys), message.hops, message.payload))
        if message.hops < HOPS_MAX:
            self._forward(message, pieces)

    def _forward(self, message: RangeMessage, pieces: Assignment) -> None:
        """One message for each broker."""
        parcels: dict[Address, list[KeyRange]] = {}
        for peer, piece in pieces:
            parcels.setdefault(peer.address, []).append(piece)
        for address, ranges in parcels.items():
            self._send_on(message, address, tuple(ranges))

    def _send_on(self, message: RangeMessage, to: Address, ranges: tuple[KeyRange, ...]) -> None:
        hops = message.hops + 1
        on = RangeMessage(message.origin, message.number, ranges, message.cut, hops, message.payload)
        self.graph.host.send(to, on)

    def _unseen(self, message: RangeMessage) -> list[KeyRange]:
        """The parts of the message's ranges that come here for the first time."""
        name = (message.origin, message.number)
        seen = self._seen.setdefault(name, [])
        if len(self._seen) > SEEN_MAX:
            self._seen.pop(next(iter(self._seen)))
        new = [piece for whole in message.ranges for piece in without(whole, seen)]
        seen += new
        return new


def without(whole: KeyRange, taken: list[KeyRange]) -> list[KeyRange]:
    """What is left of a range when others are taken from it."""
    left: list[KeyRange] = []
    rest = deque([whole])
    while rest:
        low, high = rest.popleft()
        if low >= high:
            continue
        for start, end in taken:
            if start < high and low < end:
                rest.append((low, start))
                rest.append((end, high))
                break
        else:
            left.append((low, high))
    return left


def assign(view: SkipView, low: Key, high: Key, own: list[Key], cut: Cut, now: float) -> Assignment:
    """Who gets which part of [low, high); `own` are the broker's keys in it, which are served already."""
    if not own:
        return _approach(view, low, high, cut, now)
    starts = [low, *(key + b"\0" for key in own)]
    ends = [*own, high]
    pieces: Assignment = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        inside = view.inside(start, end, now) if start < end else []
        if not inside:
            continue  # the neighbours on level 0 are among the entries: nobody is there
        if cut is Cut.MRF:
            pieces.append((_highest(inside, pieces).peer, (start, end)))
        elif number == 0:
            pieces += _leftwards(inside, start, end)
        else:
            pieces += _rightwards(inside, start, end)
    return pieces


def _highest(inside: list[Entry], pieces: Assignment) -> Entry:
    """The neighbour of the highest level; of equals, one whose broker gets a piece already, or else the first."""
    chosen = {peer.address for peer, _ in pieces}
    return max(inside, key=lambda entry: (entry.level, entry.peer.address in chosen))


def _rightwards(inside: list[Entry], start: Key, end: Key) -> Assignment:
    """Each neighbour gets what lies from it to the next one; seen from a place before them."""
    cuts = [start, *(entry.peer.key for entry in inside[1:]), end]
    return [(entry.peer, (cuts[place], cuts[place + 1])) for place, entry in enumerate(inside)]


def _leftwards(inside: list[Entry], start: Key, end: Key) -> Assignment:
    """Each neighbour gets what lies up to it from the one before; seen from a place behind them."""
    cuts = [start, *(entry.peer.key + b"\0" for entry in inside[:-1]), end]
    return [(entry.peer, (cuts[place], cuts[place + 1])) for place, entry in enumerate(inside)]


def _approach(view: SkipView, low: Key, high: Key, cut: Cut, now: float) -> Assignment:
    """From outside: to neighbours in the range if there are any, else nearer to it, if it is not proven empty.

    Nearer is always nearer to `low` on the circle, so nobody outside the range gets the same part of it twice.
    """
    inside = view.inside(low, high, now)
    before, behind = view.own_before(low), view.own_from(high)
    if not inside:
        step = view.step_towards(low, now)
        return [(step.peer, (low, high))] if step else []
    if cut is Cut.MRF:
        return [(_highest(inside, []).peer, (low, high))]
    if before is not None and before.right.key == inside[0].peer.key:
        return _rightwards(inside, low, high)
    if behind is not None and behind.left.key == inside[-1].peer.key:
        return _leftwards(inside, low, high)
    first = inside[0].peer.key
    step = view.step_towards(low, now)
    rest: Assignment = [(step.peer, (low, first))] if step else []
    return rest + _rightwards(inside, first, high)
