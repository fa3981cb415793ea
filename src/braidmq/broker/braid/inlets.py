"""Inlets: what arrives from other brokers, once each and in its order.

An origin numbers the publications of a topic. What comes a second time is dropped; what has overtaken waits a moment
for what is before it. After that moment the missing is given up, though it is still taken if it comes later and was
acknowledged to its publisher (QoS 1 and 2): late is better than never. A stream that is met in its middle waits a
moment, too: what comes first may have overtaken others.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.broker.braid.batch import Batch
from braidmq.host import Host

REORDER_S = 0.2
"""How long a publication of QoS 0 waits for one that it has overtaken."""

FETCH_S = 5.0
"""How long one of QoS 1 or 2 does, while what is missing is fetched."""

INLETS_MAX = 65_536
"""Streams (an origin's topic) that a broker remembers; the one that was silent for longest goes."""

MISSING_MAX = 1024
"""Numbers of a stream that were given up, and would still be taken."""

HELD_MAX = 256
"""Batches of a stream that wait for what is before them."""


class Inlet:
    """One stream: the publications of one topic from one life of one broker."""

    __slots__ = ("early", "first", "held", "is_new", "last", "missing", "origin")

    def __init__(self, origin: str, first: int) -> None:
        self.origin = origin
        self.is_new = first > 1
        """Whether nothing was passed on yet, and something may be before what has come."""
        self.first = first
        """The first number that was seen."""
        self.last = first - 1
        """The last one that was passed on, with everything before it passed on or given up."""
        self.missing: dict[int, None] = {}
        self.early: dict[int, None] = {}
        """Numbers before the first one that came all the same."""
        self.held: dict[int, Batch] = {}

    @property
    def is_kept(self) -> bool:
        """Whether what is missing before the first batch that is held may be in the origin's history."""
        letters = self.held[min(self.held)].letters
        return bool(letters) and letters[0].offset > 0


class Inlets:
    def __init__(self, host: Host, deliver: Callable[[Batch], None], on_gap: Callable[[str], None]) -> None:
        """`on_gap` is called with an origin of which something of QoS 1 or 2 may be missing; once that was fetched,
        `settle` is called."""
        self._host = host
        self._deliver = deliver
        self._on_gap = on_gap
        self._holding: dict[str, dict[Inlet, None]] = {}
        """By origin: the streams that hold something back."""
        self._streams: dict[tuple[str, int, str], Inlet] = {}
        self.duplicates = 0
        self.given_up = 0

    def is_holding(self, origin: str) -> bool:
        return origin in self._holding

    def settle(self, origin: str) -> None:
        """All that an origin has kept has been fetched: what is still missing will not come."""
        for inlet in list(self._holding.get(origin, ())):
            if inlet.is_kept:
                self._give_up(inlet)

    def take(self, batch: Batch) -> None:
        """Passes a batch on, now or in its turn; or not, if it has come before."""
        name = (batch.origin, batch.life, batch.topic)
        inlet = self._streams.pop(name, None)
        if inlet is None:
            inlet = Inlet(batch.origin, batch.first)
            if len(self._streams) >= INLETS_MAX:
                self._streams.pop(next(iter(self._streams)))
        self._streams[name] = inlet
        if inlet.is_new or batch.first > inlet.last + 1:
            self._hold(inlet, batch)
        else:
            self._pass_on(inlet, batch)
            self._pass_on_held(inlet)

    def _pass_on(self, inlet: Inlet, batch: Batch) -> None:
        if batch.first == inlet.last + 1:
            inlet.last += batch.count
            self._deliver(batch)
        else:
            self._take_late(inlet, batch)

    def _pass_on_held(self, inlet: Inlet) -> None:
        """What follows now without a gap."""
        while inlet.held:
            first = min(inlet.held)
            if first > inlet.last + 1:
                return
            batch = inlet.held.pop(first)
            self._pass_on(inlet, batch)
        holding = self._holding.get(inlet.origin)
        if holding is not None:
            holding.pop(inlet, None)
            if not holding:
                del self._holding[inlet.origin]

    def _hold(self, inlet: Inlet, batch: Batch) -> None:
        if batch.first in inlet.held:
            self.duplicates += batch.count
            return
        was_empty = not inlet.held
        inlet.held[batch.first] = batch
        self._holding.setdefault(inlet.origin, {})[inlet] = None
        if inlet.is_kept:
            self._on_gap(inlet.origin)
        if len(inlet.held) > HELD_MAX:
            self._give_up(inlet)
        elif was_empty:
            self._host.spawn(self._wait(inlet))

    async def _wait(self, inlet: Inlet) -> None:
        """Gives up what has not come in time, again and again while something is held."""
        while inlet.held:
            oldest = min(inlet.held)
            await self._host.sleep(FETCH_S if inlet.is_kept else REORDER_S)
            if inlet.held and min(inlet.held) == oldest:
                self._give_up(inlet)

    def _give_up(self, inlet: Inlet) -> None:
        """Goes on without what is missing before the first that is held."""
        first = min(inlet.held)
        if inlet.is_new:
            inlet.is_new = False
            inlet.first = first
        else:
            for number in range(inlet.last + 1, first)[-MISSING_MAX:]:
                inlet.missing[number] = None
            while len(inlet.missing) > MISSING_MAX:
                inlet.missing.pop(next(iter(inlet.missing)))
            self.given_up += first - inlet.last - 1
        inlet.last = first - 1
        self._pass_on_held(inlet)

    def _take_late(self, inlet: Inlet, batch: Batch) -> None:
        """What is before the last one: letters of it that are missing are taken, the rest is here already."""
        if not batch.letters:
            self.duplicates += batch.count
            return
        for number, letter in enumerate(batch.letters, batch.first):
            if number == inlet.last + 1:
                inlet.last = number
                self._deliver(_only(batch, number))
            elif letter.qos and self._is_new(inlet, number):
                self._deliver(_only(batch, number))
            else:
                self.duplicates += 1

    def _is_new(self, inlet: Inlet, number: int) -> bool:
        if number >= inlet.first:
            return inlet.missing.pop(number, "") is None
        if number in inlet.early or len(inlet.early) >= MISSING_MAX:
            return False
        inlet.early[number] = None
        return True


def _only(batch: Batch, number: int) -> Batch:
    """One letter of a batch."""
    letter = batch.letters[number - batch.first]
    return Batch(batch.origin, batch.life, batch.topic, number, 1, batch.version, b"", (letter,))
