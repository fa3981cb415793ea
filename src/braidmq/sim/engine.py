"""Virtual time: hosts without sockets, driven by one queue of events.

Everything happens in the order of time, and of the same time in the order of its making; chance comes from one seed. So
a run is a function of its seed: the same trace in every process. What waits, and what becomes of it, is in `task`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

from braidmq.detours.messages import NotPassed
from braidmq.host import Address, CallRefused, CallTimeout, Forward, Message, Reply
from braidmq.sim.clocks import ClockError
from braidmq.sim.garbage import rare_garbage_collection
from braidmq.sim.host import SimHost, SkewedHost, Table
from braidmq.sim.network import Constant, Network
from braidmq.sim.task import Call, Cancelled, EventWait, SimTask, Sleep, TaskHost, Wait
from braidmq.sim.timeline import SLOTS_PER_S, Deadlines, Event, Timeline
from braidmq.sim.ways import SimPassed

__all__ = ["Constant", "Network", "Refused", "SimHost", "SimTask", "SimulationError", "Simulator", "SkewedHost"]

DELIVER, REPLY, WAKE, ACT = 0, 1, 2, 3
"""What an event does: a message arrives, a reply arrives, a wait is over, or a plain function is called.

(time, DELIVER, to, sender, message, call, hops) · (time, REPLY, call, sender, reply) · (time, WAKE, wait) ·
(time, ACT, action)
"""

FORWARDS_WITHIN_MAX = 1000
"""How often a host may forward one request to itself, before that counts as an endless loop."""


class SimulationError(Exception):
    """A handler, a procedure or an action failed. The message has the seed that makes it happen again."""

    def __init__(self, text: str, seed: int) -> None:
        super().__init__(text)
        self.seed = seed


class Refused(Message):
    """The reply of a host that has no handler."""

    reason: str


class Simulator:
    """The world of a run. `network` decides when, whether and how often a message arrives; `clock_error_of` whose
    clock is wrong, asked when a host is made."""

    def __init__(
        self,
        seed: int,
        network: Network | None = None,
        clock_error_of: Callable[[Address], ClockError | None] | None = None,
    ) -> None:
        self.seed = seed
        self.chance = Random(seed)  # noqa: S311 - reproducible on purpose
        self.now = 0.0
        self.hosts: dict[Address, SimHost] = {}
        self._numbered: list[SimHost] = []
        """Those of them that were made with the addresses 0, 1, 2 … in this order: a list is sooner looked up."""
        self.messages = 0
        """How many have arrived at a living host, replies too."""
        self.network = network or Constant(0.01)
        self.on_send: Callable[[Address, Address, Message, int, tuple[float, ...]], None] | None = None
        """Called with sender, receiver, message, hops and the delays of its copies when one is sent."""
        self.on_message: Callable[[Address, Address, Message, int], None] | None = None
        """Called with sender, receiver, message and hops when one arrives; a reply comes with 0 hops."""
        self._clock_error_of = clock_error_of
        self._events = Timeline()
        self._push = self._events.push
        self._deadlines: Deadlines[Call | EventWait] = Deadlines()
        self._tables: dict[tuple[type, ...], Table] = {}
        self._running = False
        self._watch: tuple[float, Callable[[], object]] | None = None
        self._keeps_frozen: bool | None = None
        """Whether objects had been kept from garbage collection already when time first passed: to count is slow."""

    def host(self, address: Address) -> SimHost:
        """A new host at this address, where none is or the last one is dead."""
        if address in self.hosts and self.hosts[address].alive:
            raise ValueError(f"a host lives at the address {address!r}: crash it first")
        error = None if self._clock_error_of is None else self._clock_error_of(address)
        host = self.hosts[address] = SimHost(self, address) if error is None else SkewedHost(self, address, error)
        if type(address) is int and 0 <= address <= len(self._numbered):
            self._numbered[address : address + 1] = [host]
        return host

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Calls a function at a time: for scenarios, not for protocols."""
        if not self.now <= when < inf:
            raise ValueError(f"nothing can happen at {when} s: it is {self.now} s")
        self._push((when, ACT, action))

    def watch(self, every_s: float, look: Callable[[], object]) -> None:
        """Calls a function that only looks, every so often while time passes and between two events: for checkers.

        A run that ends when nothing is left to happen ends at the next of these times.
        """
        if not 0 < every_s < inf:
            raise ValueError(f"a run cannot be looked at every {every_s} s")
        if self._watch is not None:
            raise ValueError("this run is watched already")
        self._watch = (every_s, look)

    def run(self, until: float = inf, messages_max: int | None = None) -> None:
        """Lets time pass until then, until nothing is left to happen, or until so many messages have arrived."""
        if self._running:
            raise RuntimeError("time passes already: an action of a run cannot call run")
        self._running = True
        if self._keeps_frozen is None:
            self._keeps_frozen = gc.get_freeze_count() > 0
        try:
            with rare_garbage_collection(self._keeps_frozen):
                messages_end = inf if messages_max is None else self.messages + messages_max
                if self._watch is None:
                    self._pass_time(until, messages_end)
                else:
                    self._pass_watched_time(until, messages_end, *self._watch)
        finally:
            self._running = False

    # What hosts ask for

    def transmit(self, source: TaskHost, to: Address, message: Message, call: Call | None, hops: int) -> None:
        """Puts a message on its way, as often as the network lets it arrive. The dead say nothing."""
        if not source.alive:
            return
        sender, now = source.address, self.now
        if source.taken_ways is not None and (by := source.taken_ways.way_of(message, to)) is not None:
            message, call, to = SimPassed(to, sender, message, call, hops, is_reply=False), None, by
        network = self.network
        delays = network.steady or network.delays(self.chance, sender, to, now)
        if self.on_send is not None:
            self.on_send(sender, to, message, hops, delays)
        events = self._events
        for delay in delays:
            at = now + delay
            if int(at * SLOTS_PER_S) == events.filling:  # as `push` does it, at no call's cost
                events.filled.append((at, DELIVER, to, sender, message, call, hops))
            else:
                events.push((at, DELIVER, to, sender, message, call, hops))

    def step(self, task: SimTask, value: Any, error: BaseException | None) -> None:
        """Goes on with a procedure until it waits again."""
        coroutine = task.coroutine
        if coroutine is None:
            return
        incarnation = task.host.incarnation
        try:
            wait = coroutine.send(value) if error is None else coroutine.throw(error)
            while task.cancelled:
                task.cancelled = False
                wait = coroutine.throw(Cancelled())
        except (StopIteration, Cancelled):
            task.leave()
            return
        except Exception as failure:
            name = str(task)
            task.leave()
            raise self._failed(name, failure) from failure
        if task.host.incarnation != incarnation:
            task.abandon()
        elif type(wait) is Call:
            self._begin_call(task, wait)
        elif type(wait) is Sleep:
            self._begin_sleep(task, wait)
        elif type(wait) is EventWait:
            self._begin_wait(task, wait)
        else:
            name = str(task)
            task.abandon()
            raise self._failed(
                name, TypeError(f"{wait!r} is nothing to wait for: only its host's call, sleep and events are")
            )

    def start(self, task: SimTask) -> None:
        """Begins with a procedure, once what runs now is through."""
        self._begin_sleep(task, Sleep(0.0))

    def end_wait(self, wait: Wait) -> None:
        """The task waits no longer: whatever this was to bring comes in vain."""
        if wait.task is not None:
            wait.task.wait = None
            wait.task = None
            if type(wait) is Call:
                self._deadlines.end(wait)
            elif type(wait) is EventWait:
                wait.event.waits.pop(wait, None)
                if wait.timeout_s < inf:
                    self._deadlines.end(wait)

    def wake(self, wait: EventWait) -> None:
        """Goes on with what waited for an event, once what runs now is through."""
        self._push((self.now, WAKE, wait))

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
        events, deadlines, deliver = self._events, self._deadlines, self._deliver
        event: Event | None = None
        try:
            while True:  # CPython 3.11 does not specialise `while condition` in a function that is called once
                if self.messages >= messages_end:
                    return
                due_at = deadlines.due_at
                due = events.due
                if due and not events.late and due[-1][0] <= due_at and due[-1][0] <= until:  # `pop`, at no call's cost
                    event = due.pop()
                else:
                    event = events.pop(until if until < due_at else due_at)
                    if event is None:
                        if due_at > until or due_at == inf:
                            break
                        self._expire()
                        continue
                self.now = event[0]
                kind = event[1]
                if kind == DELIVER:
                    deliver(event)
                elif kind == REPLY:
                    self._reply(event)
                elif kind == WAKE:
                    self._awake(event[2])
                else:
                    event[2]()
        except SimulationError:
            raise
        except Exception as error:
            raise self._failed(_describe(event), error) from error
        if until != inf:
            self.now = max(self.now, until)

    def _pass_watched_time(self, until: float, messages_end: float, every_s: float, look: Callable[[], object]) -> None:
        """The same, with looks in between."""
        while self.now < until and self.messages < messages_end:
            if until == inf and self._deadlines.due_at == inf and self._events.is_empty:
                return
            number = int(self.now / every_s) + 1
            look_at = number * every_s
            if look_at <= self.now:  # by a rounding
                look_at = (number + 1) * every_s
            self._pass_time(min(until, look_at), messages_end)
            try:
                look()
            except Exception as error:
                raise self._failed("the watch", error) from error

    def _deliver(self, event: Event) -> None:
        _, _, to, sender, message, call, hops = event
        numbered = self._numbered
        host = numbered[to] if type(to) is int and 0 <= to < len(numbered) else self.hosts.get(to)
        if host is None or not host.alive:
            return
        self.messages += 1
        if self.on_message is not None and type(message) is not SimPassed:
            self.on_message(sender, to, message, hops)
        origin = sender if call is None else call.origin
        within = 0
        while True:
            handler = host.table.get(type(message))
            if handler is None and type(message) is SimPassed:
                self._pass_on(host, sender, message)
                return
            if handler is None:
                reply: Reply = Refused(f"{to} has no handler for {type(message).__name__}")
            else:
                index, handle = handler
                reply = handle(host.services[index] if index else host.first, origin, message)
            if type(reply) is not Forward:
                if call is not None and reply is not None:
                    self._answer(host, call, reply)
                return
            message = reply.message or message
            onward = reply.to
            if onward != to:
                steady = self.network.steady
                if steady and self.on_send is None and host.alive:  # as `transmit` does it, at no call's cost
                    at = self.now + steady[0]
                    events = self._events
                    if int(at * SLOTS_PER_S) == events.filling:
                        events.filled.append((at, DELIVER, onward, to, message, call, hops + 1))
                        return
                self.transmit(host, onward, message, call, hops + 1)
                return
            within += 1
            if within >= FORWARDS_WITHIN_MAX:
                raise RuntimeError(f"{to!r} forwards {message!r} to itself without end")

    def _pass_on(self, host: SimHost, sender: Address, passed: SimPassed) -> None:
        """Something for another host, which it is sent as it is, or for this one."""
        if passed.to != host.address:
            if self.on_message is not None:
                self.on_message(sender, host.address, passed.message, passed.hops)
            if passed.to in host.ways.detours:
                host.send(passed.origin, NotPassed(passed.to))
            else:
                self.transmit(host, passed.to, passed, None, passed.hops)
            return
        host.ways.on_passed(passed.origin, sender)
        if passed.is_reply:
            self._reply((self.now, REPLY, passed.call, passed.origin, passed.message))
        else:
            if passed.call is not None:
                passed.call.by = sender
            self._deliver((self.now, DELIVER, passed.to, passed.origin, passed.message, passed.call, passed.hops))

    def _answer(self, host: SimHost, call: Call, reply: Message) -> None:
        """Sends a reply to the first caller: directly, unless there is a detour, or the request has come by one."""
        if not host.alive:
            return
        sender, to = host.address, call.host.address
        if host.taken_ways is not None and (by := host.taken_ways.detour_of(reply, to, call.by)) is not None:
            self.transmit(host, by, SimPassed(to, sender, reply, call, 0, is_reply=True), None, 1)
            return
        network = self.network
        delays = network.steady or network.delays(self.chance, sender, to, self.now)
        if self.on_send is not None:
            self.on_send(sender, to, reply, 0, delays)
        for delay in delays:
            self._push((self.now + delay, REPLY, call, sender, reply))

    def _reply(self, event: Event) -> None:
        _, _, call, sender, reply = event
        if not call.host.alive:
            return
        self.messages += 1
        if self.on_message is not None:
            self.on_message(sender, call.host.address, reply, 0)
        task = call.task
        if task is not None:
            self.end_wait(call)
            if type(reply) is Refused:
                self.step(task, None, CallRefused(reply.reason))
            else:
                self.step(task, reply, None)

    def _begin_call(self, task: SimTask, call: Call) -> None:
        call.task = task
        task.wait = call
        call.deadline = self.now + call.timeout_s
        self._deadlines.add(call)
        self.transmit(call.host, call.to, call.request, call, 1)

    def _begin_sleep(self, task: SimTask, sleep: Sleep) -> None:
        sleep.task = task
        task.wait = sleep
        self._push((self.now + sleep.seconds, WAKE, sleep))

    def _begin_wait(self, task: SimTask, wait: EventWait) -> None:
        wait.task = task
        task.wait = wait
        wait.event.waits[wait] = None
        if wait.timeout_s < inf:
            wait.deadline = self.now + wait.timeout_s
            self._deadlines.add(wait)

    def _awake(self, wait: Sleep | EventWait) -> None:
        task = wait.task
        if task is not None:
            self.end_wait(wait)
            self.step(task, None, None)

    def _expire(self) -> None:
        wait = self._deadlines.expired()
        if wait is not None and wait.task is not None:
            self.now = wait.deadline
            task = wait.task
            self.end_wait(wait)
            if type(wait) is Call:
                self.step(task, None, CallTimeout(f"{wait.to} did not answer {type(wait.request).__name__}"))
            else:
                self.step(task, None, None)

    def _failed(self, what: str, error: Exception) -> SimulationError:
        return SimulationError(
            f"seed {self.seed}, at {self.now:.6f} s: {what} failed: {type(error).__name__}: {error}", self.seed
        )


def _describe(event: Event | None) -> str:
    """What failed when this happened, other than a procedure."""
    if event is not None and event[1] == DELIVER:
        return f"the handler of host {event[2]!r} for {event[4]!r} from {event[3]!r}"
    if event is not None and event[1] == ACT:
        return f"the action {getattr(event[2], '__qualname__', event[2])}"
    return "the simulation"
