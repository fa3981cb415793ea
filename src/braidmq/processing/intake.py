"""From a publication to the work queues of its processors: numbered, encoded once, and bounded.

A processor gets a publication only where its topic is assigned to the edge. What belongs to Spark is read from the log
there; what is about to change hands is held until it is decided (`reassignment`). Other homes of the topic get a copy
of what is taken (`homes`).

Work queues have bounds. QoS 0 is dropped first, and counted; QoS 1 and 2 wait longer, and are dropped with an error.
"""

from __future__ import annotations

import logging
from typing import Protocol

from braidmq.broker.message import Message
from braidmq.broker.recorder import LOST, NOT_LOGGED
from braidmq.log.properties import pairs_of, published_us_of
from braidmq.processing.assignment_store import Key, SavedSpool
from braidmq.processing.assignments import TopicAssignment
from braidmq.processing.context import ProcessingContext
from braidmq.processing.homes import Homes
from braidmq.processing.reassignment import Reassignment
from braidmq.processing.runner import ProcessorRunner
from braidmq.processing.work_queue import QueuedMessage
from braidmq.processors.hops import hops_of
from braidmq.processors.placement import location_at
from braidmq.processors.processor import Message as Publication
from braidmq.processors.worker_messages import encode_message

_log = logging.getLogger("braidmq.processing")


class OnError(Protocol):
    def __call__(self, runner: ProcessorRunner, what: str, text: str, message: QueuedMessage | None) -> None: ...


class Intake:
    def __init__(self, context: ProcessingContext, reassignment: Reassignment, homes: Homes, on_error: OnError) -> None:
        self._context = context
        self._assignments = context.assignments
        self._reassignment = reassignment
        self._homes = homes
        self._on_error = on_error
        self.saved_spools: dict[Key, SavedSpool] = {}
        """Spools of before the start, until their topic comes again."""
        homes.give = self.queue

    def accept(self, runners: list[ProcessorRunner], message: Message, offset: int, is_here: bool) -> None:
        """One publication, for these processors; `offset` is the log's, or NOT_LOGGED, or LOST."""
        context = self._context
        log = context.log
        now = log.at if log is not None and offset >= 0 else round(context.now(), 6)
        pairs = pairs_of(message.forward)
        said_us = published_us_of(pairs) if pairs else None
        counted = -1
        raws: dict[int, bytes] = {}
        received_at = self._homes.clock.stamp(now) if is_here and self._homes.is_on else now
        for runner in runners:
            is_logged = offset != NOT_LOGGED and runner.config.where == "publishers"
            if is_logged and offset == LOST:  # its interval is one of offsets in the log, and it is not there
                runner.counts.dropped += 1
                continue
            if not is_logged and counted < 0:
                counted = self._count()
            own = offset if is_logged else counted
            raw = raws.get(own)
            if raw is None:
                published_at = round(message.at, 6) if message.at and not is_here else now
                if said_us is not None:
                    published_at = said_us / 1e6
                raw = raws[own] = encode_message(
                    Publication(
                        message.topic,
                        message.payload,
                        message.qos,
                        message.retain,
                        published_at,
                        received_at,
                        context.origin if is_here else "",
                        message.sender or None,
                        pairs,
                        own,
                    )
                )
            queued = QueuedMessage(message.topic, raw, own, message.qos, hops_of(pairs) if pairs else 0)
            self._give(runner, queued, is_logged, message.sender, now)

    def offset_of(self, is_logged: bool) -> int:
        """The offset of the publication that has just been given to the log, or NOT_LOGGED."""
        log = self._context.log
        return log.last if is_logged and log is not None else NOT_LOGGED

    def resume(self, runner: ProcessorRunner, message: QueuedMessage, is_logged: bool) -> None:
        """A message that waited when the broker ended. Its topic may have gone to Spark since it came."""
        key = (runner.name, message.topic)
        assignment = self._assignments.get(key)
        if assignment is None or assignment.location != "spark":
            self._give(runner, message, is_logged, "", self._context.now())
        elif location_at(self._assignments.store.intervals(key), message.offset) == "edge":
            saved = self.saved_spools.pop(key, None)
            if saved is not None:
                runner.fill(message.topic, saved.last, list(saved.messages))
            runner.put(message)

    def _count(self) -> int:
        """The next offset of what is not logged."""
        try:
            return self._assignments.store.take_offsets(1)
        except OSError as error:
            _log.error("the count of messages for processors could not be written: %s", error)
            return self._assignments.store.take_offsets(0) - 1

    def _give(self, runner: ProcessorRunner, message: QueuedMessage, is_logged: bool, client: str, now: float) -> None:
        assignment = self._assignments.get((runner.name, message.topic))
        if (
            assignment is None
            or assignment.is_logged != is_logged
            or assignment.location is None
            or assignment.last < 0
        ):
            if assignment is not None and assignment.is_logged != is_logged:
                runner.forget(message.topic)
            try:
                assignment = self._assign(runner, message, is_logged, now)
            except OSError as error:
                runner.counts.dropped += 1
                self._on_error(runner, "room", f"the place of the topic cannot be written: {error}", message)
                return
        else:
            assignment.last = message.offset
            assignment.used_at = now
        if client:
            self._assignments.note_publisher(assignment, client, now)
        is_taken = True
        if assignment.is_changing:
            self._reassignment.hold(runner, assignment, message)
        elif assignment.location == "edge":
            home = self._homes.home_of(runner, message.topic)
            if home is None or home.held is None:
                is_taken = self.queue(runner, message)
            else:
                self._homes.hold(home, message)
                return
        elif assignment.location == "spark":
            if assignment.returns_at < 0 or not self._assignments.hold(assignment, message):
                runner.counts.delegated += 1
        else:
            runner.counts.dropped += 1
            remedy = f"raise processing.storage_bytes_max, or log {message.topic}"
            self._on_error(runner, "room", f"no room for the topic, and it is not logged: {remedy}", message)
            return
        if is_taken:
            self._homes.copy(runner, message)

    def _assign(self, runner: ProcessorRunner, message: QueuedMessage, is_logged: bool, now: float) -> TopicAssignment:
        """The assignment of a topic that is new, or new since the start; it begins with its spool of before."""
        key = (runner.name, message.topic)
        is_new = self._assignments.get(key) is None
        assignment = self._assignments.find(key, runner.queue, message.offset, len(message.raw), is_logged, now)
        if is_new and assignment.location is not None:
            saved = self.saved_spools.pop(key, None)
            if (
                saved is not None
                and assignment.location == "edge"
                and saved.is_logged == is_logged
                and saved.last < message.offset
            ):
                runner.fill(message.topic, saved.last, list(saved.messages))
                self._assignments.note_size(assignment, runner.queue)
        return assignment

    def queue(self, runner: ProcessorRunner, message: QueuedMessage) -> bool:
        """Gives a message to its processor; False if too many wait there."""
        queue, settings = runner.queue, self._context.settings
        waiting = len(queue)
        if message.qos == 0 and waiting >= settings.queue_qos0_max:
            runner.counts.dropped += 1
        elif waiting >= settings.queue_messages_max or queue.bytes + len(message.raw) > settings.queue_bytes_max:
            runner.counts.dropped += 1
            if message.qos:
                text = f"{waiting:,} messages wait, so this one of QoS {message.qos} is dropped"
                self._on_error(runner, "queue", text, message)
        else:
            runner.put(message)
            return True
        return False
