"""Output that waits for copies of the store: written once they have what it rests on.

Each tick whose commit the copies lack has a step, with the position that they must reach. What a connection has to send
joins the step that it waits for or, if something of the same connection waits already, the later of the two: bytes of
one connection never change their order. A step may hold everything back: then whatever is to leave behind it waits for
it, to clients and to other brokers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from braidmq.broker.transport import Transport

HELD_BYTES_MAX = 64 * 1024 * 1024
"""What may wait for copies; above it they are given up, and it leaves."""


class DelayedStep:
    """What waits for one position."""

    __slots__ = ("actions", "closing", "output", "position", "since")

    def __init__(self, position: int, since: float) -> None:
        self.position = position
        self.since = since
        self.output: dict[object, tuple[Transport, list[bytes]]] = {}
        """By connection."""
        self.closing: dict[object, Transport] = {}
        self.actions: list[Callable[[], None]] = []
        """What sends to other brokers, in its order."""


class DelayedOutput:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._steps: deque[DelayedStep] = deque()
        self._last: dict[object, DelayedStep] = {}
        """By connection: where the last of what it has to send waits."""
        self._barrier: DelayedStep | None = None
        """The last step that holds everything back."""
        self.size = 0
        """Bytes that wait."""
        self.waits = 0
        self.waited_s = 0.0
        """Steps that were waited for, and how long that was in all."""

    def __bool__(self) -> bool:
        return bool(self._steps)

    # Held

    def step(self, position: int) -> DelayedStep:
        """That of the tick which ends now."""
        if not self._steps or self._steps[-1].position < position:
            self._steps.append(DelayedStep(position, self._clock()))
        return self._steps[-1]

    def hold_all(self, step: DelayedStep) -> None:
        """Whatever comes from now on waits for this step at least."""
        self._barrier = step

    @property
    def barrier(self) -> DelayedStep | None:
        """What everything waits for that leaves now."""
        return self._barrier

    def add(self, connection: object, link: Transport, data: bytes, step: DelayedStep | None) -> bool:
        """Takes what a connection has to send, if it has to wait for this step or for what it sent before; whether it
        does."""
        step = self._later(self._last.get(connection), self._later(step, self._barrier))
        if step is None:
            return False
        self._last[connection] = step
        step.output.setdefault(connection, (link, []))[1].append(data)
        self.size += len(data)
        return True

    def has(self, connection: object) -> bool:
        """Whether anything waits of what a connection has to send."""
        return connection in self._last

    def close(self, connection: object, link: Transport) -> bool:
        """Closes a connection behind what it still has to be sent, if anything waits; whether it does."""
        step = self._later(self._last.get(connection), self._barrier)
        if step is None:
            return False
        step.closing[connection] = link
        self._last[connection] = step
        return True

    @staticmethod
    def _later(one: DelayedStep | None, other: DelayedStep | None) -> DelayedStep | None:
        if one is None or other is None:
            return one or other
        return one if one.position > other.position else other

    def forget(self, connection: object) -> None:
        """The connection is gone, and is sent nothing any more."""
        if self._last.pop(connection, None) is not None:
            for step in self._steps:
                step.closing.pop(connection, None)
                _, data = step.output.pop(connection, (None, ()))
                self.size -= sum(map(len, data))

    # Written

    def release(self, position: int) -> int:
        """The copies have come to a position: what waited for it, and for earlier ones, leaves; the bytes that were
        written."""
        sent = 0
        while self._steps and self._steps[0].position <= position:
            step = self._steps.popleft()
            if step is self._barrier:
                self._barrier = None
            self.waits += 1
            self.waited_s += self._clock() - step.since
            for connection, (link, data) in step.output.items():
                if self._last.get(connection) is step and connection not in step.closing:
                    del self._last[connection]
                whole = data[0] if len(data) == 1 else b"".join(data)
                self.size -= len(whole)
                sent += len(whole)
                link.write(whole)
            for action in step.actions:
                action()
            for connection, link in step.closing.items():
                self._last.pop(connection, None)
                link.close()
        return sent
