"""Topics that change hands between this broker and Spark: on request, or because of the room here.

`assignments` says why a change is exact. Here the log gets the time to write everything that came before the change,
and what arrives of the topic meanwhile is held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from braidmq.processing.assignments import HELD_MAX, MoveError, TopicAssignment
from braidmq.processing.context import ProcessingContext
from braidmq.processing.homes import Homes
from braidmq.processing.runner import ProcessorRunner
from braidmq.processing.work_queue import QueuedMessage
from braidmq.processors.processor import SpoolState

SWEEP_S: Final = 10.0
"""How often unused topics are forgotten, and delegated ones asked back if there is room."""
WRITTEN_S: Final = 5.0
"""How long the log may take to write what comes before a change of hands."""
WRITTEN_POLL_S: Final = 0.002

_log = logging.getLogger("braidmq.processing")


class Reassignment:
    def __init__(self, context: ProcessingContext, homes: Homes, is_publisher: Callable[[str], bool]) -> None:
        """`is_publisher` says whether a client is still connected."""
        self._context = context
        self._homes = homes
        self._is_publisher = is_publisher
        self._assignments = context.assignments

    def runner(self, name: str) -> ProcessorRunner:
        """The processor of this name; a MoveError if there is none."""
        for runner in self._context.runners:
            if runner.name == name:
                return runner
        names = ", ".join(one.name for one in self._context.runners) or "none"
        raise MoveError(f"there is no processor {name} here, but: {names}")

    def assignment(self, name: str, topic: str) -> TopicAssignment:
        """A MoveError if the processor has had no message of the topic."""
        assignment = self._assignments.get((self.runner(name).name, topic))
        if assignment is None:
            raise MoveError(f"{name} has had no message of {topic} here")
        return assignment

    # Both ways

    async def move(self, name: str, topic: str, location: str) -> TopicAssignment:
        """To "spark"; or to the "edge", once Spark has returned the spool. A MoveError or an OSError says why not."""
        runner, assignment = self.runner(name), self.assignment(name, topic)
        await (self._ask_back if location == "edge" else self._delegate)(runner, assignment)
        return assignment

    async def _delegate(self, runner: ProcessorRunner, assignment: TopicAssignment) -> None:
        if assignment.location == "spark":
            self._assignments.give_up_return(assignment)
            return
        first = await self._pause(runner, assignment)
        self._homes.leave(assignment.key)
        try:
            self._assignments.delegate(assignment, runner.queue, first)
        except (MoveError, OSError):
            self.cancel(runner, assignment)
            raise
        assignment.changes_at = -1
        assignment.held = []  # Spark reads it from the log
        if not runner.queue.has(assignment.topic):
            runner.forget(assignment.topic)

    async def _ask_back(self, runner: ProcessorRunner, assignment: TopicAssignment) -> None:
        if assignment.location != "spark" or assignment.returns_at >= 0:
            return
        first = await self._pause(runner, assignment)
        try:
            self._assignments.ask_back(assignment, runner.queue, first, self._context.now())
        except MoveError:
            self.cancel(runner, assignment)
            raise
        assignment.changes_at = -1

    async def _pause(self, runner: ProcessorRunner, assignment: TopicAssignment) -> int:
        """Holds the topic's messages from now on; returns the next offset once the log has everything before it."""
        log = self._context.log
        if log is None or not assignment.is_logged:
            raise MoveError(f"{assignment.topic} is not logged, so Spark cannot read it: name it in log.topics")
        if assignment.is_changing:
            raise MoveError(f"{assignment.topic} is about to change hands")
        first = assignment.changes_at = log.next_offset
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + WRITTEN_S
        try:
            while not log.is_written(first):
                await asyncio.sleep(WRITTEN_POLL_S)
                if not assignment.is_changing or loop.time() > ends_at:
                    raise MoveError(f"the log could not keep up with {assignment.topic}: try again")
        except (MoveError, OSError):
            self.cancel(runner, assignment)
            raise
        return first

    def hold(self, runner: ProcessorRunner, assignment: TopicAssignment, message: QueuedMessage) -> None:
        """Keeps a message of a topic that is about to change hands; too many of them cancel the change."""
        assignment.held.append(message)
        if len(assignment.held) >= HELD_MAX:
            self.cancel(runner, assignment)

    def cancel(self, runner: ProcessorRunner, assignment: TopicAssignment) -> None:
        """The topic does not change hands after all: held messages go where they would have gone."""
        held, assignment.held, assignment.changes_at = assignment.held, [], -1
        if assignment.location == "edge":
            for message in held:
                runner.put(message)
        else:
            runner.counts.delegated += len(held)

    def cancel_all(self) -> None:
        """The broker ends: nothing changes hands any more."""
        for assignment in self._assignments:
            if assignment.is_changing:
                self.cancel(self.runner(assignment.key[0]), assignment)

    def take_back(self, name: str, topic: str, first: int, state: SpoolState) -> None:
        """Spark returns a topic with its spool; a MoveError tells Spark to go on with it."""
        runner, assignment = self.runner(name), self.assignment(name, topic)
        last, messages, held = self._assignments.take_back(assignment, first, state)
        runner.fill(topic, last, messages)
        self._assignments.note_size(assignment, runner.queue)
        for message in held:  # they have waited within a bound of their own
            runner.put(message)

    # Without a request

    async def keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.sweep()

    async def sweep(self) -> None:
        """Forgets what is unused, delegates what has no room, and asks back what has room again."""
        now = self._context.now()
        assignments = self._assignments
        assignments.sweep_publishers(now, self._is_publisher)
        assignments.sweep_returns(now)
        by_name = {runner.name: runner for runner in self._context.runners}
        for assignment in [one for one in assignments if now - one.used_at > self._context.settings.idle_s]:
            runner = by_name.get(assignment.key[0])
            if assignment.location != "spark" and (runner is None or not runner.queue.has(assignment.topic)):
                assignments.forget(assignment)
                if runner is not None:
                    runner.forget(assignment.topic)
        self._homes.sweep()
        changes = [(assignment, self._delegate) for assignment in assignments.surplus()]
        changes += [(assignment, self._ask_back) for assignment in assignments.recallable(now)]
        for assignment, change in changes:
            try:
                if (runner := by_name.get(assignment.key[0])) is not None and not assignment.is_changing:
                    await change(runner, assignment)
            except (MoveError, OSError) as error:
                _log.info("%s of %s stays where it is: %s", assignment.topic, assignment.key[0], error)
