"""What happened in a run: every message on its way, for people to read, to compare and to see.

    trace = Trace(sim)
    sim.run()
    print(trace)                                      # a line for each journey
    Path("delivery.svg").write_text(trace.svg())      # a space-time diagram
    assert trace.digest() == other.digest()           # the same run, to the last message

A `Journey` is one copy of a message from its sender to its receiver, or to where it was lost. The digest covers all of
them, also those that the trace no longer keeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

import msgspec

from braidmq.host import Address, Message
from braidmq.sim.engine import Simulator
from braidmq.sim.journey import Journey
from braidmq.sim.picture import draw

JOURNEYS_MAX = 100_000
"""How many a trace keeps where nothing else is said; the oldest leave first."""

UNDER_WAY_SLACK = 1000
"""How many journeys that ended unheard are remembered, beyond as many as are under way."""

MESSAGE_CHARACTERS_MAX = 72
"""How much of a message a line shows."""


class Trace:
    """Listens to a simulator from now on, beside what listens already."""

    def __init__(self, sim: Simulator, journeys_max: int = JOURNEYS_MAX) -> None:
        self.journeys: deque[Journey] = deque(maxlen=journeys_max)
        self.count = 0
        """How many there were, kept or not."""
        self._sim = sim
        self._under_way: dict[tuple[float, Address, Address, int], list[Journey]] = {}
        self._sweep_at = UNDER_WAY_SLACK
        self._digest = blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder(enc_hook=repr, order="deterministic").encode
        self._before = (sim.on_send, sim.on_message)
        sim.on_send, sim.on_message = self._sent, self._arrived

    def stop(self) -> None:
        """Listens no more. Of several traces, the one begun last stops first."""
        if self._sim.on_send != self._sent:
            raise ValueError("another trace that began later still listens: stop that first")
        self._sim.on_send, self._sim.on_message = self._before

    def digest(self) -> str:
        """The same for two runs if, and only if, the same messages went the same ways at the same times."""
        return self._digest.hexdigest()

    def lines(self) -> Iterator[str]:
        """A line for each journey, in order of sending: when sent, when arrived or why not, from, to, hops, message."""
        gone = self.count - len(self.journeys)
        if gone:
            yield f"… {gone} earlier journeys are no longer kept"
        width = max((len(str(end)) for j in self.journeys for end in (j.sender, j.receiver)), default=0)
        for journey in self.journeys:
            hops = f"hop {journey.hops}" if journey.hops else "reply"
            yield (
                f"{journey.sent_s:12.6f}  {self._fate(journey):>12}  {journey.sender!s:>{width}} → "
                f"{journey.receiver!s:<{width}}  {hops:<6}  {shortened(journey.message)}"
            )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def svg(
        self, only: Callable[[Journey], bool] | None = None, hosts: Sequence[Address] | None = None, title: str = ""
    ) -> str:
        """A space-time diagram: hosts side by side in the given order or that of their addresses, time downwards."""
        return draw([j for j in self.journeys if only is None or only(j)], hosts, title, self._sim.now)

    def _fate(self, journey: Journey) -> str:
        if journey.arrives_s is None:
            return "lost"
        if not journey.heard:
            return "under way" if journey.arrives_s > self._sim.now else "nobody there"
        return f"{journey.arrives_s:.6f}"

    def _note(self, happening: tuple[object, ...]) -> None:
        try:
            self._digest.update(self._encode(happening))
        except OverflowError:  # a number beyond 64 bits
            self._digest.update(repr(happening).encode())

    def _sent(self, sender: Address, receiver: Address, message: Message, hops: int, delays: tuple[float, ...]) -> None:
        now = self._sim.now
        self._note((now, sender, receiver, message, hops, delays))
        for delay in delays or (None,):
            arrives_s = None if delay is None else now + delay
            journey = Journey(now, arrives_s, sender, receiver, message, hops)
            self.journeys.append(journey)
            self.count += 1
            if arrives_s is not None:
                self._under_way.setdefault((arrives_s, sender, receiver, id(message)), []).append(journey)
        if len(self._under_way) > self._sweep_at:
            self._under_way = {key: journeys for key, journeys in self._under_way.items() if key[0] >= now}
            self._sweep_at = 2 * len(self._under_way) + UNDER_WAY_SLACK
        if self._before[0] is not None:
            self._before[0](sender, receiver, message, hops, delays)

    def _arrived(self, sender: Address, receiver: Address, message: Message, hops: int) -> None:
        now = self._sim.now
        self._note((now, sender, receiver, message, hops))
        key = (now, sender, receiver, id(message))
        journeys = self._under_way.get(key)
        if journeys:  # none, if it was sent before the trace began
            journeys.pop(0).heard = True
            if not journeys:
                del self._under_way[key]
        if self._before[1] is not None:
            self._before[1](sender, receiver, message, hops)


def shortened(message: Message) -> str:
    """A message in one line of bounded length."""
    text = repr(message)
    return text if len(text) <= MESSAGE_CHARACTERS_MAX else text[: MESSAGE_CHARACTERS_MAX - 1] + "…"
