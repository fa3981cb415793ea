"""Inlets: what arrives from other brokers, once each and in its order.

An origin numbers the publications of a topic. What comes a second time is dropped; what has overtaken waits a moment
for what is before it. After that moment the missing is given up, though it is still taken if it comes later and was
acknowledged to its publisher (QoS 1 and 2): late is better than never.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.broker.braid.batch import Batch
from braidmq.host import Host

REORDER_S = 0.2
"""How long a publication waits for one that it has overtaken."""

INLETS_MAX = 65_536
"""Streams (an origin's topic) that a broker remembers; the one that was silent for longest goes."""

MISSING_MAX = 1024
"""Numbers of a stream that were given up, and would still be taken."""

HELD_MAX = 256
"""Batches of a stream that wait for what is before them."""


class Inlet:
    """One stream: the publications of one topic from one life of one broker."""

    __slots__ = ("early", "first", "held", "last", "missing")

    def __init__(self, first: int) -> None:
        self.first = first
        """The first number that was seen."""
        self.last = first - 1
        """The last one that was passed on, with everything before it passed on or given up."""
        self.missing: dict[int, None] = {}
        self.early: dict[int, None] = {}
        """Numbers before the first one that came all the same."""
        self.held: dict[int, Batch] = {}


class Inlets:
    def __init__(self, host: Host, deliver: Callable[[Batch], None]) -> None:
        self._host = host
        self._deliver = deliver
        self._streams: dict[tuple[str, int, str], Inlet] = {}
        self.duplicates = 0
        self.given_up = 0

    def take(self, batch: Batch) -> None:
        """Passes a batch on, now or in its turn; or not, if it has come before."""
        name = (batch.origin, batch.life, batch.topic)
        inlet = self._streams.pop(name, None)
        if inlet is None:
            inlet = Inlet(batch.first)
            if len(self._streams) >= INLETS_MAX:
                self._streams.pop(next(iter(self._streams)))
        self._streams[name] = inlet
        if batch.first == inlet.last + 1:
            self._pass_on(inlet, batch)
        elif batch.first > inlet.last + 1:
            self._hold(inlet, batch)
        else:
            self._take_late(inlet, batch)

    def _pass_on(self, inlet: Inlet, batch: Batch) -> None:
        inlet.last = batch.first + batch.count - 1
        self._deliver(batch)
        while inlet.held:
            following = inlet.held.pop(inlet.last + 1, None)
            if following is None:
                break
            inlet.last += following.count
            self._deliver(following)

    def _hold(self, inlet: Inlet, batch: Batch) -> None:
        if batch.first in inlet.held:
            self.duplicates += batch.count
            return
        inlet.held[batch.first] = batch
        if len(inlet.held) > HELD_MAX:
            self._give_up(inlet)
        elif len(inlet.held) == 1:
            self._host.spawn(self._wait(inlet))

    async def _wait(self, inlet: Inlet) -> None:
        """Gives up what has not come in time, again and again while something is held."""
        while inlet.held:
            oldest = min(inlet.held)
            await self._host.sleep(REORDER_S)
            if inlet.held and min(inlet.held) == oldest:
                self._give_up(inlet)

    def _give_up(self, inlet: Inlet) -> None:
        first = min(inlet.held)
        for number in range(inlet.last + 1, first)[-MISSING_MAX:]:
            inlet.missing[number] = None
        while len(inlet.missing) > MISSING_MAX:
            inlet.missing.pop(next(iter(inlet.missing)))
        self.given_up += first - inlet.last - 1
        self._pass_on(inlet, inlet.held.pop(first))

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
