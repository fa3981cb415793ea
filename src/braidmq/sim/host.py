"""Hosts in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from math import inf
from random import Random
from typing import Any, Protocol

from braidmq.host import Address, Message, Reply
from braidmq.sim.clocks import ClockError
from braidmq.sim.task import Call, SimEvent, SimTask, Sleep, TaskHost, Trampoline, tasks_of
from braidmq.sim.ways import SimWays

Table = dict[type[Message], tuple[int, Callable[[Any, Address, Any], Reply]]]
"""Which of a host's services handles a message, and with what; hosts with the same services share one."""


class World(Trampoline, Protocol):
    """What a host asks of the simulator that it lives in."""

    now: float
    chance: Random

    @property
    def hosts(self) -> Mapping[Address, object]: ...

    def transmit(self, source: TaskHost, to: Address, message: Message, call: Call | None, hops: int) -> None: ...
    def start(self, task: SimTask) -> None: ...
    def table_of(self, kinds: tuple[type, ...]) -> Table: ...


class SimHost:
    """One host. It dies with all that it did: `incarnation` counts how often."""

    __slots__ = (
        "address",
        "alive",
        "chance",
        "first",
        "incarnation",
        "services",
        "sim",
        "table",
        "taken_ways",
        "tasks",
    )

    def __init__(self, sim: World, address: Address) -> None:
        self.sim = sim
        self.address = address
        self.alive = True
        self.incarnation = 0
        self.chance = sim.chance
        self.services: tuple[object, ...] = ()
        self.first: object = None
        """The first of them, at hand without a look into the tuple: let it be what is asked most."""
        self.table: Table = sim.table_of(())
        self.tasks: SimTask | None = None
        self.taken_ways: SimWays | None = None
        """From the moment that anybody cares about them."""

    def __repr__(self) -> str:
        return f"<SimHost {self.address!r}{'' if self.alive else ' dead'}>"

    @property
    def ways(self) -> SimWays:
        if self.taken_ways is None:
            self.taken_ways = SimWays(self)
        return self.taken_ways

    def now(self) -> float:
        return self.sim.now

    def serve(self, service: object) -> None:
        self.services = (*self.services, service)
        self.first = self.services[0]
        self.table = self.sim.table_of(tuple(map(type, self.services)))

    def send(self, to: Address, message: Message) -> None:
        self.sim.transmit(self, to, message, None, 1)

    def call(self, to: Address, request: Message, timeout_s: float) -> Call:
        if not 0 <= timeout_s < inf:
            raise ValueError(f"a call needs a time-out of 0 s or more, not {timeout_s}")
        return Call(self, to, request, timeout_s)

    def sleep(self, seconds: float) -> Sleep:
        if not seconds < inf:
            raise ValueError(f"a procedure cannot sleep for {seconds} s")
        return Sleep(seconds if seconds > 0 else 0.0)

    def event(self) -> SimEvent:
        return SimEvent(self.sim)

    def spawn(self, procedure: Coroutine[Any, Any, object]) -> SimTask:
        """Runs a procedure concurrently. It begins once what runs now is through, as it does on a network."""
        task = SimTask(self, procedure)
        if self.alive:
            self.sim.start(task)
        else:
            task.abandon()
        return task

    def crash(self) -> None:
        """Ends this incarnation without a word: procedures, calls and state are gone; services must be made anew."""
        self.alive = False
        self.incarnation += 1
        self.services, self.first = (), None
        self.taken_ways = None
        self.table = self.sim.table_of(())
        for task in list(tasks_of(self)):
            if task.wait is not None:  # the one that is running, and so brought this about, ends when it waits
                task.abandon()

    def restart(self) -> None:
        """Lives again at its address, empty."""
        if self.sim.hosts.get(self.address) is not self:
            raise ValueError(f"another host has taken the address {self.address!r}")
        self.alive = True


class SkewedHost(SimHost):
    """A host with a clock that is wrong."""

    __slots__ = ("_clock_error",)

    def __init__(self, sim: World, address: Address, clock_error: ClockError) -> None:
        super().__init__(sim, address)
        self._clock_error = clock_error

    def now(self) -> float:
        now = self.sim.now
        return now + self._clock_error(now)
