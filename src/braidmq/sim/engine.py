"""Virtual time: hosts without sockets, driven by one queue of events.

Everything happens in the order of (time, number), and chance comes from one seed, so a run is a function of its seed:
the same trace in every process. Coroutines are driven by a trampoline of our own: a procedure yields what it waits for
(`_Call`, `_Sleep`) and is sent the outcome. Calls with the same time-out expire in the order in which they were made:
a queue for each time-out serves them, not the heap.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from random import Random
from typing import Any

from braidmq.host import Address, CallRefused, CallTimeout, Forward, Handler, Message, handlers_of

DELIVER, REPLY, WAKE, ACT = 0, 1, 2, 3
"""What an event does: a message arrives, a reply arrives, a sleeper wakes, or a plain function is called."""

Event = tuple[float, int, int, Any, Any, Any, Any, int]
"""(time, number, what, host, sender, message, call, hops); what a kind does not need is None."""


class _Call:
    """A request that waits for its reply."""

    __slots__ = ("deadline", "done", "host", "request", "task", "timeout_s", "to")

    def __init__(self, host: SimHost, to: Address, request: Message, timeout_s: float) -> None:
        self.host = host
        self.to = to
        self.request = request
        self.timeout_s = timeout_s
        self.deadline = 0.0
        self.task: SimTask | None = None
        self.done = False

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


class _Sleep:
    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __await__(self) -> Generator[Any, Any, None]:
        yield self


class SimTask:
    """A procedure under way in the simulator."""

    __slots__ = ("coroutine", "host", "life")

    def __init__(self, host: SimHost, coroutine: Coroutine[Any, Any, None]) -> None:
        self.host = host
        self.coroutine: Coroutine[Any, Any, None] | None = coroutine
        self.life = host.life

    def cancel(self) -> None:
        if self.coroutine is not None:
            coroutine, self.coroutine = self.coroutine, None
            coroutine.close()


class SimHost:
    """One host. `life` grows with each crash, so that what belonged to an earlier life is not heard."""

    __slots__ = ("address", "alive", "chance", "handlers", "life", "sim")

    def __init__(self, sim: Simulator, address: Address) -> None:
        self.sim = sim
        self.address = address
        self.alive = True
        self.life = 0
        self.chance = sim.chance
        self.handlers: dict[type[Message], Handler] = {}

    def now(self) -> float:
        return self.sim.now

    def serve(self, service: object) -> None:
        self.handlers.update(handlers_of(service))

    def send(self, to: Address, message: Message) -> None:
        self.sim.transmit(self, to, message, None, 1)

    def call(self, to: Address, request: Message, timeout_s: float) -> _Call:
        return _Call(self, to, request, timeout_s)

    def sleep(self, seconds: float) -> _Sleep:
        return _Sleep(seconds)

    def spawn(self, procedure: Coroutine[Any, Any, None]) -> SimTask:
        task = SimTask(self, procedure)
        self.sim.step(task, None, None)
        return task

    def crash(self) -> None:
        """Ends this life without a word: procedures, calls and state are gone; services must be made anew."""
        self.alive = False
        self.life += 1
        self.handlers = {}

    def restart(self) -> None:
        self.alive = True


class Simulator:
    """The world of a run. `network` decides when, whether and how often a message arrives."""

    def __init__(self, seed: int, network: Network | None = None) -> None:
        self.seed = seed
        self.chance = Random(seed)  # noqa: S311 - reproducible on purpose
        self.now = 0.0
        self.hosts: dict[Address, SimHost] = {}
        self.messages = 0
        self.network = network or Constant(0.01)
        self.on_message: Callable[[Address, Address, Message, int], None] | None = None
        """Called with sender, receiver, message and hops when one arrives: for traces and counts."""
        self._events: list[Event] = []
        self._number = 0
        self._deadlines: dict[float, deque[_Call]] = {}

    def host(self, address: Address) -> SimHost:
        """A new host at this address."""
        host = self.hosts[address] = SimHost(self, address)
        return host

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Calls a function at a time: for scenarios, not for protocols."""
        self._push(when, ACT, action, None, None, None, 0)

    def run(self, until: float = float("inf"), messages_max: int | None = None) -> None:
        """Lets time pass until then, until nothing is left to happen, or until so many messages have arrived."""
        events = self._events
        stop = None if messages_max is None else self.messages + messages_max
        while True:
            deadline = self._expire_before(events[0][0] if events else float("inf"), until)
            if not events or events[0][0] > until:
                if deadline is None:
                    break
                continue
            if stop is not None and self.messages >= stop:
                return
            when, _, kind, host, sender, message, call, hops = heapq.heappop(events)
            self.now = when
            if kind == DELIVER:
                self._deliver(host, sender, message, call, hops)
            elif kind == REPLY:
                self._finish(call, message, None)
            elif kind == WAKE:
                self.step(host, None, None)
            else:
                host()
        if until != float("inf"):
            self.now = max(self.now, until)

    # What hosts ask for

    def transmit(self, source: SimHost, to: Address, message: Message, call: _Call | None, hops: int) -> None:
        """Puts a message on its way, as often as the network lets it arrive."""
        for delay in self.network.delays(self.chance, source.address, to, self.now):
            self._push(self.now + delay, DELIVER, to, source.address, message, call, hops)

    def step(self, task: SimTask, value: Any, error: Exception | None) -> None:
        """Goes on with a procedure until it waits again."""
        coroutine = task.coroutine
        host = task.host
        if coroutine is None:
            return
        if host.life != task.life:
            task.cancel()
            return
        try:
            wish = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration:
            task.coroutine = None
            return
        if isinstance(wish, _Call):
            wish.task = task
            wish.deadline = self.now + wish.timeout_s
            queue = self._deadlines.get(wish.timeout_s)
            if queue is None:
                queue = self._deadlines[wish.timeout_s] = deque()
            queue.append(wish)
            self.transmit(host, wish.to, wish.request, wish, 1)
        else:
            self._push(self.now + wish.seconds, WAKE, task, None, None, None, 0)

    # What happens

    def _push(self, when: float, kind: int, host: Any, sender: Any, message: Any, call: Any, hops: int) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, kind, host, sender, message, call, hops))

    def _deliver(self, to: Address, sender: Address, message: Message, call: _Call | None, hops: int) -> None:
        host = self.hosts.get(to)
        if host is None or not host.alive:
            return
        self.messages += 1
        if self.on_message is not None:
            self.on_message(sender, to, message, hops)
        handler = host.handlers.get(type(message))
        if handler is None:
            if call is not None:
                self._answer(host, call, CallRefused(f"{to} has no handler for {type(message).__name__}"))
            return
        origin = sender if call is None else call.host.address
        reply = handler(origin, message)
        while isinstance(reply, Forward):
            if reply.to != host.address:
                self.transmit(host, reply.to, reply.message or message, call, hops + 1)
                return
            message = reply.message or message
            reply = host.handlers[type(message)](origin, message)
        if call is not None and reply is not None:
            self._answer(host, call, reply)

    def _answer(self, host: SimHost, call: _Call, reply: Message | Exception) -> None:
        for delay in self.network.delays(self.chance, host.address, call.host.address, self.now):
            self._push(self.now + delay, REPLY, None, None, reply, call, 0)

    def _finish(self, call: _Call, reply: Message | Exception | None, error: Exception | None) -> None:
        task = call.task
        if call.done or task is None:
            return
        call.done = True
        if not call.host.alive or call.host.life != task.life:
            task.cancel()
        elif isinstance(reply, Exception):
            self.step(task, None, reply)
        else:
            if error is None:
                self.messages += 1
            self.step(task, reply, error)

    def _expire_before(self, event_at: float, until: float) -> float | None:
        """Times out the call that is due first, if that is before the next event; its deadline, or None."""
        due: deque[_Call] | None = None
        for queue in self._deadlines.values():
            while queue and queue[0].done:
                queue.popleft()
            if queue and (due is None or queue[0].deadline < due[0].deadline):
                due = queue
        if due is None or due[0].deadline >= event_at or due[0].deadline > until:
            return None
        call = due.popleft()
        self.now = call.deadline
        self._finish(call, None, CallTimeout(f"{call.to} did not answer {type(call.request).__name__}"))
        return call.deadline


class Network:
    """When a message arrives: a delay for each copy that does, none if it is lost."""

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        raise NotImplementedError


class Constant(Network):
    """Every message takes the same time."""

    def __init__(self, delay_s: float) -> None:
        self._delays = (delay_s,)

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return self._delays
