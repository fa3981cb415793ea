"""Virtual time: hosts without sockets, driven by one line of events.

Everything happens in the order of (time, number), and chance comes from one seed, so a run is a function of its seed:
the same trace in every process. Coroutines are driven by a trampoline of our own: a procedure yields what it waits for
(`_Call`, `_Sleep`) and is sent the outcome.

A wait knows its task, and is robbed of it when it is over: answered, timed out, cancelled, or lost in a crash. So a
second reply, a reply that comes too late and one meant for an earlier life all find nobody, and need no rule of their own.

Calls with the same time-out expire in the order in which they were made, and nearly all are answered: an ordered set
for each time-out serves them, and nothing is looked at before the time at which the first of them may be due.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from itertools import count
from math import inf
from random import Random
from typing import Any

from braidmq.host import Address, CallRefused, CallTimeout, Forward, Message, Reply
from braidmq.sim.network import Constant, Network
from braidmq.sim.timeline import Event, Timeline

__all__ = ["Cancelled", "Constant", "Network", "Refused", "SimHost", "SimTask", "SimulationError", "Simulator"]

DELIVER, REPLY, WAKE, ACT = 0, 1, 2, 3
"""What an event does: a message arrives, a reply arrives, a sleeper wakes, or a plain function is called.

(time, number, DELIVER, to, sender, message, call, hops) · (time, number, REPLY, call, sender, reply)
(time, number, WAKE, sleep) · (time, number, ACT, action)
"""

FORWARDS_WITHIN_MAX = 1000
"""How often a host may forward one request to itself, before that counts as an endless loop."""

CLEANUPS_MAX = 10
"""How often a procedure that waits while it is being ended is ended again."""

GC_THRESHOLD = 100_000
"""New objects between two looks for garbage during a run: there are millions of events and hardly a cycle."""

Table = dict[type[Message], tuple[int, Callable[[Any, Address, Any], Reply]]]
"""Which of a host's services handles a message, and with what; hosts with the same services share one."""


class SimulationError(Exception):
    """A handler, a procedure or an action failed. The message has the seed that makes it happen again."""

    def __init__(self, seed: int, now: float, what: str, error: BaseException) -> None:
        super().__init__(f"seed {seed}, at {now:.6f} s: {what} failed: {type(error).__name__}: {error}")
        self.seed = seed


class Cancelled(BaseException):  # noqa: N818 - not an error
    """Thrown into a procedure that was cancelled, at its wait; its clean-up runs, and may wait again."""


class Refused(Message):
    """The reply of a host that has no handler."""

    reason: str


class _Call:
    """A request that waits for its reply."""

    __slots__ = ("deadline", "host", "request", "task", "timeout_s", "to")

    def __init__(self, host: SimHost, to: Address, request: Message, timeout_s: float) -> None:
        self.host = host
        self.to = to
        self.request = request
        self.timeout_s = timeout_s
        self.deadline = 0.0
        self.task: SimTask | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


class _Sleep:
    __slots__ = ("seconds", "task")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.task: SimTask | None = None

    def __await__(self) -> Generator[Any, Any, None]:
        yield self


class SimTask:
    """A procedure under way in the simulator; a link in the chain of its host's tasks, too."""

    __slots__ = ("after", "before", "cancelled", "coroutine", "host", "wait")

    def __init__(self, host: SimHost, coroutine: Coroutine[Any, Any, None]) -> None:
        self.host = host
        self.coroutine: Coroutine[Any, Any, None] | None = coroutine
        self.wait: _Call | _Sleep | None = None
        self.cancelled = False
        self.before: SimTask | None = None
        self.after = host.tasks
        if self.after is not None:
            self.after.before = self
        host.tasks = self

    def cancel(self) -> None:
        """Ends it at its wait, now; one that is running (it cancels itself), when it waits next."""
        if self.coroutine is None:
            return
        if self.wait is None:
            self.cancelled = True
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
        """Its host is dead, and so is it: no clean-up of its has any effect, whatever it does."""
        coroutine = self.coroutine
        if self.wait is not None:
            self.host.sim.end_wait(self.wait)
        self.leave()
        for _ in range(CLEANUPS_MAX):
            try:
                if coroutine is not None:
                    coroutine.close()
                return
            except Exception:  # noqa: S112 - raised while it died, or it waits in its clean-up: once more
                continue


class SimHost:
    """One host. It dies with all that it did: `life` counts how often."""

    __slots__ = ("address", "alive", "chance", "life", "services", "sim", "table", "tasks")

    def __init__(self, sim: Simulator, address: Address) -> None:
        self.sim = sim
        self.address = address
        self.alive = True
        self.life = 0
        self.chance = sim.chance
        self.services: tuple[object, ...] = ()
        self.table: Table = sim.table_of(())
        self.tasks: SimTask | None = None

    def __repr__(self) -> str:
        return f"<SimHost {self.address!r}{'' if self.alive else ' dead'}>"

    def now(self) -> float:
        return self.sim.now

    def serve(self, service: object) -> None:
        self.services = (*self.services, service)
        self.table = self.sim.table_of(tuple(map(type, self.services)))

    def send(self, to: Address, message: Message) -> None:
        self.sim.transmit(self, to, message, None, 1)

    def call(self, to: Address, request: Message, timeout_s: float) -> _Call:
        if not 0 <= timeout_s < inf:
            raise ValueError(f"a call needs a time-out of 0 s or more, not {timeout_s}")
        return _Call(self, to, request, timeout_s)

    def sleep(self, seconds: float) -> _Sleep:
        if not seconds < inf:
            raise ValueError(f"nobody can sleep for {seconds} s")
        return _Sleep(seconds if seconds > 0 else 0.0)

    def spawn(self, procedure: Coroutine[Any, Any, None]) -> SimTask:
        """Runs a procedure beside the others. It begins once what runs now is through, as it does on a network."""
        task = SimTask(self, procedure)
        if self.alive:
            self.sim.wake(task, 0.0)
        else:
            task.abandon()
        return task

    def crash(self) -> None:
        """Ends this life without a word: procedures, calls and state are gone; services must be made anew."""
        self.alive = False
        self.life += 1
        self.services = ()
        self.table = self.sim.table_of(())
        task = self.tasks
        while task is not None:
            following = task.after
            if task.wait is not None:
                task.abandon()  # one that is running, and so brought this about, ends when it waits
            task = following

    def restart(self) -> None:
        """Lives again at its address, empty."""
        if self.sim.hosts.get(self.address) is not self:
            raise ValueError(f"another host has taken the address {self.address!r}")
        self.alive = True


class Simulator:
    """The world of a run. `network` decides when, whether and how often a message arrives."""

    def __init__(self, seed: int, network: Network | None = None) -> None:
        self.seed = seed
        self.chance = Random(seed)  # noqa: S311 - reproducible on purpose
        self.now = 0.0
        self.hosts: dict[Address, SimHost] = {}
        self.messages = 0
        """How many have arrived at a living host, replies too."""
        self.network = network or Constant(0.01)
        self.on_send: Callable[[Address, Address, Message, int, tuple[float, ...]], None] | None = None
        """Called with sender, receiver, message, hops and the delays of its copies when one is sent."""
        self.on_message: Callable[[Address, Address, Message, int], None] | None = None
        """Called with sender, receiver, message and hops when one arrives; a reply comes with 0 hops."""
        self._events = Timeline()
        self._push = self._events.push
        self._numbers = count()
        self._calls: dict[float, OrderedDict[_Call, None]] = {}
        """By time-out; in each, those made first come first."""
        self._due_at = inf
        """No call is due before."""
        self._tables: dict[tuple[type, ...], Table] = {}
        self._running = False

    def host(self, address: Address) -> SimHost:
        """A new host at this address, where none is or the last one is dead."""
        if address in self.hosts and self.hosts[address].alive:
            raise ValueError(f"a host lives at the address {address!r}: crash it first")
        host = self.hosts[address] = SimHost(self, address)
        return host

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Calls a function at a time: for scenarios, not for protocols."""
        if not self.now <= when < inf:
            raise ValueError(f"nothing can happen at {when} s: it is {self.now} s")
        self._push((when, next(self._numbers), ACT, action))

    def run(self, until: float = inf, messages_max: int | None = None) -> None:
        """Lets time pass until then, until nothing is left to happen, or until so many messages have arrived."""
        if self._running:
            raise RuntimeError("time passes already: an action of a run cannot call run")
        self._running = True
        try:
            with _rare_garbage_collection():
                self._pass_time(until, inf if messages_max is None else self.messages + messages_max)
        finally:
            self._running = False

    # What hosts ask for

    def transmit(self, source: SimHost, to: Address, message: Message, call: _Call | None, hops: int) -> None:
        """Puts a message on its way, as often as the network lets it arrive. The dead say nothing."""
        if not source.alive:
            return
        sender = source.address
        delays = self.network.delays(self.chance, sender, to, self.now)
        if self.on_send is not None:
            self.on_send(sender, to, message, hops, delays)
        for delay in delays:
            self._push((self.now + delay, next(self._numbers), DELIVER, to, sender, message, call, hops))

    def step(self, task: SimTask, value: Any, error: BaseException | None) -> None:
        """Goes on with a procedure until it waits again."""
        coroutine = task.coroutine
        if coroutine is None:
            return
        life = task.host.life
        try:
            wait = coroutine.send(value) if error is None else coroutine.throw(error)
            while task.cancelled:
                task.cancelled = False
                wait = coroutine.throw(Cancelled())
        except (StopIteration, Cancelled):
            task.leave()
            return
        except BaseException:
            task.leave()
            raise
        if task.host.life != life:
            task.abandon()
        elif type(wait) is _Call:
            self._begin_call(task, wait)
        elif type(wait) is _Sleep:
            self.wake(task, wait.seconds, wait)
        else:
            task.leave()
            raise TypeError(f"{coroutine.__qualname__} waits for {wait!r}; it can wait for its host's call and sleep alone")

    def wake(self, task: SimTask, seconds: float, sleep: _Sleep | None = None) -> None:
        """Goes on with a procedure after a while."""
        sleep = sleep or _Sleep(seconds)
        sleep.task = task
        task.wait = sleep
        self._push((self.now + seconds, next(self._numbers), WAKE, sleep))

    def end_wait(self, wait: _Call | _Sleep) -> None:
        """The task waits no longer: whatever this was to bring comes in vain."""
        if wait.task is not None:
            wait.task.wait = None
            wait.task = None
            if type(wait) is _Call:
                del self._calls[wait.timeout_s][wait]

    def table_of(self, kinds: tuple[type, ...]) -> Table:
        """The handlers of a host with services of these kinds; of two for one message, the later's."""
        table = self._tables.get(kinds)
        if table is None:
            table = self._tables[kinds] = {}
            for index, kind in enumerate(kinds):
                for message, name in getattr(kind, "handlers", {}).items():
                    table[message] = (index, getattr(kind, name))
        return table

    # What happens

    def _pass_time(self, until: float, messages_end: float) -> None:
        pop = self._events.pop
        event: Event | None = None
        try:
            while self.messages < messages_end:
                event = pop(until if until < self._due_at else self._due_at)
                if event is None:
                    if self._due_at > until or self._due_at == inf:
                        break
                    self._expire()
                    continue
                self.now = event[0]
                kind = event[2]
                if kind == DELIVER:
                    self._deliver(*event[3:])
                elif kind == REPLY:
                    self._reply(event[3], event[4], event[5])
                elif kind == WAKE:
                    self._finish(event[3], None, None)
                else:
                    event[3]()
            else:
                return
        except SimulationError:
            raise
        except Exception as error:
            raise SimulationError(self.seed, self.now, self._describe(event), error) from error
        if until != inf:
            self.now = max(self.now, until)

    def _deliver(self, to: Address, sender: Address, message: Message, call: _Call | None, hops: int) -> None:
        host = self.hosts.get(to)
        if host is None or not host.alive:
            return
        self.messages += 1
        if self.on_message is not None:
            self.on_message(sender, to, message, hops)
        origin = sender if call is None else call.host.address
        for _ in range(FORWARDS_WITHIN_MAX):
            found = host.table.get(type(message))
            if found is None:
                if call is not None:
                    self._answer(host, call, Refused(f"{to} has no handler for {type(message).__name__}"))
                return
            reply = found[1](host.services[found[0]], origin, message)
            if type(reply) is not Forward:
                if call is not None and reply is not None:
                    self._answer(host, call, reply)
                return
            message = message if reply.message is None else reply.message
            if reply.to != to:
                self.transmit(host, reply.to, message, call, hops + 1)
                return
        raise RuntimeError(f"{to} forwards {message} to itself without end")

    def _answer(self, host: SimHost, call: _Call, reply: Message) -> None:
        """Sends a reply to the first caller, directly."""
        if not host.alive:
            return
        sender, to = host.address, call.host.address
        delays = self.network.delays(self.chance, sender, to, self.now)
        if self.on_send is not None:
            self.on_send(sender, to, reply, 0, delays)
        for delay in delays:
            self._push((self.now + delay, next(self._numbers), REPLY, call, sender, reply))

    def _reply(self, call: _Call, sender: Address, reply: Message) -> None:
        host = call.host
        if not host.alive:
            return
        self.messages += 1
        if self.on_message is not None:
            self.on_message(sender, host.address, reply, 0)
        if type(reply) is Refused:
            self._finish(call, None, CallRefused(reply.reason))
        else:
            self._finish(call, reply, None)

    def _begin_call(self, task: SimTask, call: _Call) -> None:
        call.task = task
        task.wait = call
        call.deadline = deadline = self.now + call.timeout_s
        if deadline < self._due_at:
            self._due_at = deadline
        calls = self._calls.get(call.timeout_s)
        if calls is None:
            calls = self._calls[call.timeout_s] = OrderedDict()
        calls[call] = None
        self.transmit(call.host, call.to, call.request, call, 1)

    def _finish(self, wait: _Call | _Sleep, value: Any, error: Exception | None) -> None:
        """What a procedure waited for has come, if it still waits."""
        task = wait.task
        if task is not None:
            self.end_wait(wait)
            self.step(task, value, error)

    def _expire(self) -> None:
        """Times out the call that is due; or finds that it was answered, and when the next one is due."""
        first: _Call | None = None
        for timeout_s in list(self._calls):
            calls = self._calls[timeout_s]
            if not calls:
                del self._calls[timeout_s]
                continue
            call = next(iter(calls))
            if first is None or call.deadline < first.deadline:
                first = call
        if first is None or first.deadline > self._due_at:
            self._due_at = inf if first is None else first.deadline
            return
        self.now = first.deadline
        self._finish(first, None, CallTimeout(f"{first.to} did not answer {type(first.request).__name__}"))

    def _describe(self, event: Event | None) -> str:
        """What was going on, for an error's message."""
        if event is None:
            return "a procedure whose call timed out"
        if event[2] == DELIVER:
            return f"the handler of host {event[3]!r} for {event[5]!r} from {event[4]!r}"
        if event[2] == REPLY:
            return f"a procedure of host {event[3].host.address!r}, answered {event[5]!r} by {event[4]!r},"
        if event[2] == WAKE:
            return "a procedure that began or woke"
        return f"the action {event[3]!r}"


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Looks for garbage seldom, and not among what is there already: 100,000 hosts are no garbage."""
    thresholds = gc.get_threshold()
    frozen = gc.get_freeze_count()
    gc.set_threshold(max(thresholds[0], GC_THRESHOLD) if thresholds[0] else 0, *thresholds[1:])
    gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if not frozen:
            gc.unfreeze()
