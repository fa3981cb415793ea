"""Procedures in virtual time, and what they wait for.

A coroutine yields what it waits for, a `Call`, a `Sleep` or an `EventWait`, and is sent the outcome: a trampoline, no
event loop. A wait knows its task, and is robbed of it when it is over: answered, timed out, cancelled, or lost in a
crash. So a second reply, one that comes too late and one that was meant for an earlier incarnation find no task, and
need no rule of their own.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from math import inf
from typing import Any, Protocol

from braidmq.host import Address, Message
from braidmq.sim.ways import SimWays

CLEANUPS_MAX = 10
"""How often a procedure that waits while it is being ended is ended again."""


class Trampoline(Protocol):
    """What tasks and events ask of the simulator."""

    def step(self, task: SimTask, value: Any, error: BaseException | None) -> None: ...
    def end_wait(self, wait: Wait) -> None: ...
    def wake(self, wait: EventWait) -> None: ...


class TaskHost(Protocol):
    """What tasks and calls ask of the host that they belong to."""

    address: Address
    alive: bool
    incarnation: int
    tasks: SimTask | None
    """The youngest of its procedures; the next hangs at that."""
    taken_ways: SimWays | None

    @property
    def sim(self) -> Trampoline: ...


class Cancelled(BaseException):
    """Thrown into a procedure that was cancelled, at its wait; its clean-up runs, and may wait again."""


class Call:
    """A request that waits for its reply."""

    __slots__ = ("by", "deadline", "host", "origin", "request", "task", "timeout_s", "to")

    def __init__(self, host: TaskHost, to: Address, request: Message, timeout_s: float) -> None:
        self.host = host
        self.origin = host.address
        self.to = to
        self.request = request
        self.timeout_s = timeout_s
        self.deadline = 0.0
        self.by: Address | None = None
        """The host that has passed it on, if one has: the reply goes the same way."""
        self.task: SimTask | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


class Sleep:
    """A wait for time to pass."""

    __slots__ = ("seconds", "task")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.task: SimTask | None = None

    def __await__(self) -> Generator[Any, Any, None]:
        yield self


class SimEvent:
    """Something that procedures wait for."""

    __slots__ = ("_sim", "is_set", "waits")

    def __init__(self, sim: Trampoline) -> None:
        self._sim = sim
        self.is_set = False
        self.waits: dict[EventWait, None] = {}
        """Those under way, the longest first; one that is over takes itself out."""

    def set(self) -> None:
        if not self.is_set:
            self.is_set = True
            for wait in self.waits:
                self._sim.wake(wait)

    def wait(self, timeout_s: float | None = None) -> EventWait:
        if timeout_s is not None and not 0 <= timeout_s < inf:
            raise ValueError(f"a wait has a time-out of 0 s or more, or none, not {timeout_s}")
        return EventWait(self, inf if timeout_s is None else timeout_s)


class EventWait:
    """A wait for an event, or for its time-out."""

    __slots__ = ("deadline", "event", "task", "timeout_s")

    def __init__(self, event: SimEvent, timeout_s: float) -> None:
        self.event = event
        self.timeout_s = timeout_s
        self.deadline = 0.0
        self.task: SimTask | None = None

    def __await__(self) -> Generator[Any, Any, bool]:
        if not self.event.is_set:
            yield self
        return self.event.is_set


Wait = Call | Sleep | EventWait


class SimTask:
    """A procedure under way; it hangs in the chain of its host's tasks. It has no `wait` only while it is running."""

    __slots__ = ("after", "before", "cancelled", "coroutine", "host", "wait")

    def __init__(self, host: TaskHost, coroutine: Coroutine[Any, Any, object]) -> None:
        self.host = host
        self.coroutine: Coroutine[Any, Any, object] | None = coroutine
        self.wait: Wait | None = None
        self.cancelled = False
        self.before: SimTask | None = None
        self.after = host.tasks
        if self.after is not None:
            self.after.before = self
        host.tasks = self

    def __str__(self) -> str:
        return f"the procedure {getattr(self.coroutine, '__qualname__', 'of old')} of host {self.host.address!r}"

    def cancel(self) -> None:
        """Ends it at its wait, now; one that is running (it cancels itself), when it waits next."""
        if self.coroutine is None:
            return
        if self.wait is None:
            self.cancelled = True
        elif not self.host.alive:
            self.abandon()
        else:
            self.host.sim.end_wait(self.wait)
            self.host.sim.step(self, None, Cancelled())

    def leave(self) -> None:
        """It has ended: out of the chain."""
        self.coroutine = None
        if self.before is not None:
            self.before.after = self.after
        elif self.host.tasks is self:
            self.host.tasks = self.after
        if self.after is not None:
            self.after.before = self.before
        self.before = self.after = None

    def abandon(self) -> None:
        """Ends it as a crash does: whatever its clean-up does or wants is in vain."""
        coroutine = self.coroutine
        if coroutine is None:
            return
        if self.wait is not None:
            self.host.sim.end_wait(self.wait)
        self.leave()
        for _ in range(CLEANUPS_MAX):
            try:
                coroutine.close()
                return
            except Exception:  # noqa: S112 - it failed as it died, or it waits in its clean-up: once more
                continue


def tasks_of(host: TaskHost) -> Iterator[SimTask]:
    """The procedures of a host, the youngest first."""
    task = host.tasks
    while task is not None:
        yield task
        task = task.after
