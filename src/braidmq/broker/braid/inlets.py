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

    __slots__ = ("early", "first", "held", "is_new", "last", "missing")

    def __init__(self, first: int) -> None:
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


class Inlets:
    def __init__(self, host: Host, deliver: Callable[[Batch], None], on_gap: Callable[[str], None]) -> None:
        """`on_gap` is called with an origin of which something of QoS 1 or 2 may be missing."""
        self._host = host
        self._deliver = deliver
        self._on_gap = on_gap
        self._holding: dict[str, int] = {}
        """By origin: batches that are held back."""
        self._streams: dict[tuple[str, int, str], Inlet] = {}
        self.duplicates = 0
        self.given_up = 0

    def is_holding(self, origin: str) -> bool:
        return origin in self._holding

    def take(self, batch: Batch) -> None:
        """Passes a batch on, now or in its turn; or not, if it has come before."""
        name = (batch.origin, batch.life, batch.topic)
        inlet = self._streams.pop(name, None)
        if inlet is None:
            inlet = Inlet(batch.first)
            if len(self._streams) >= INLETS_MAX:
                self._streams.pop(next(iter(self._streams)))
        self._streams[name] = inlet
        if inlet.is_new:
            self._hold(inlet, batch)
        elif batch.first == inlet.last + 1:
            self._pass_on(inlet, batch)
        elif batch.first > inlet.last + 1:
            self._hold(inlet, batch)
        else:
            self._take_late(inlet, batch)

    def _pass_on(self, inlet: Inlet, batch: Batch) -> None:
        inlet.last = batch.first + batch.count - 1
        self._deliver(batch)
        while inlet.held:
            following = self._release(inlet, inlet.last + 1)
            if following is None:
                break
            inlet.last += following.count
            self._deliver(following)

    def _hold(self, inlet: Inlet, batch: Batch) -> None:
        if batch.first in inlet.held:
            self.duplicates += batch.count
            return
        inlet.held[batch.first] = batch
        self._holding[batch.origin] = self._holding.get(batch.origin, 0) + 1
        if batch.letters and batch.letters[0].offset and not inlet.is_new:
            self._on_gap(batch.origin)
        if len(inlet.held) > HELD_MAX:
            if inlet.is_new:
                self._begin(inlet)
            else:
                self._give_up(inlet)
        elif len(inlet.held) == 1:
            self._host.spawn(self._wait(inlet))

    async def _wait(self, inlet: Inlet) -> None:
        """Gives up what has not come in time, again and again while something is held."""
        while inlet.held:
            if inlet.is_new:
                await self._host.sleep(REORDER_S)
                self._begin(inlet)
                continue
            oldest = min(inlet.held)
            letters = inlet.held[oldest].letters
            await self._host.sleep(FETCH_S if letters and letters[0].offset else REORDER_S)
            if inlet.held and min(inlet.held) == oldest:
                self._give_up(inlet)

    def _begin(self, inlet: Inlet) -> None:
        """Passes on what has come of a new stream, from its lowest number on."""
        inlet.is_new = False
        inlet.first = min(inlet.held)
        inlet.last = inlet.first - 1
        batch = self._release(inlet, inlet.first)
        assert batch is not None
        self._pass_on(inlet, batch)

    def _give_up(self, inlet: Inlet) -> None:
        first = min(inlet.held)
        for number in range(inlet.last + 1, first)[-MISSING_MAX:]:
            inlet.missing[number] = None
        while len(inlet.missing) > MISSING_MAX:
            inlet.missing.pop(next(iter(inlet.missing)))
        self.given_up += first - inlet.last - 1
        batch = self._release(inlet, first)
        assert batch is not None
        self._pass_on(inlet, batch)

    def _release(self, inlet: Inlet, first: int) -> Batch | None:
        batch = inlet.held.pop(first, None)
        if batch is not None:
            self._holding[batch.origin] -= 1
            if not self._holding[batch.origin]:
                del self._holding[batch.origin]
        return batch

    def _take_late(self, inlet: Inlet, batch: Batch) -> None:
        """What is before the last one: letters of it that are missing are taken, the rest is here already."""
        numbers = range(batch.first, batch.first + batch.count)
        if not batch.letters:
            self.duplicates += batch.count
            return
        for number, letter in zip(numbers, batch.letters, strict=True):
            if number > inlet.last:
                self.take(_only(batch, number))
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
