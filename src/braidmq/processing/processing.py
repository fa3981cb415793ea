"""All message processors of a broker: publications go to those whose topic it is, and their notifications go out.

A processor works beside the publishers: it gets what clients of its own broker publish, without a subscription that
other brokers would see. Brokers that have publishers of the same topic share its spool (`homes`). With `where = "here"`
it gets what all clients of the braid publish, and the broker subscribes on its behalf. Notifications are published as a
client's publications are. Each carries the number of processors that it came through; beyond HOPS_MAX it is taken for a
loop and dropped.

Nothing that happens in a processor holds up the broker or another processor.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from braidmq.bounded import BoundedDict
from braidmq.broker.message import Message
from braidmq.mqtt.trees import FilterTree
from braidmq.mqtt.wire import string
from braidmq.processing.assignment_store import AssignmentStore, SavedSpool, SavedWork
from braidmq.processing.assignments import TopicAssignments
from braidmq.processing.context import ProcessingContext, PublicationLog
from braidmq.processing.envelope import forward_of
from braidmq.processing.error_reports import ErrorReporter
from braidmq.processing.feed import ProcessorFeed
from braidmq.processing.home_feed import HomeFeed
from braidmq.processing.homes import Homes
from braidmq.processing.intake import Intake
from braidmq.processing.reassignment import Reassignment
from braidmq.processing.restoring import restored
from braidmq.processing.runner import ProcessorRunner
from braidmq.processing.work_queue import QueuedMessage
from braidmq.processors.hops import HOPS_MAX, loop_words
from braidmq.processors.loading import is_file, split_source
from braidmq.processors.placement import Capacity
from braidmq.processors.processor import Output

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.config.settings import ProcessingConfig, ProcessorConfig

START_S: Final = 10.0
"""How long the start of the broker waits for its processors to be loaded."""
DRAIN_S: Final = 2.0
"""How long workers have to finish when the broker ends; the rest waits for the next start."""
DRAIN_POLL_S: Final = 0.01
SENDER_PREFIX: Final = "$processor/"
REMOTE_REPORTERS_MAX: Final = 64
"""Processors that run on Spark only and whose errors are counted."""

_log = logging.getLogger("braidmq.processing")


class Processing:
    """From start to stop. `origin` is this broker's name, as messages carry it."""

    def __init__(
        self,
        broker: Broker,
        origin: str,
        folder: Path | None,
        sync: bool,
        settings: ProcessingConfig,
        cluster: str | None = None,
    ) -> None:
        """`cluster` is this broker's in its braid; None if it is in none."""
        self._broker = broker
        self.assignments = TopicAssignments(AssignmentStore(folder, sync), _capacity(settings))
        self._context = ProcessingContext(broker.now, settings, origin, self.assignments)
        self.runners = self._context.runners
        self.homes = Homes(broker, self._context, cluster)
        self.reassignment = Reassignment(self._context, self.homes, self._is_publisher)
        self._intake = Intake(self._context, self.reassignment, self.homes, self.on_error)
        self._reporters: dict[ProcessorRunner, ErrorReporter] = {}
        self._remote_reporters: BoundedDict[str, ErrorReporter] = BoundedDict(REMOTE_REPORTERS_MAX)
        """Of processors that run on Spark only."""
        saved = self.assignments.store.take_saved()
        self._intake.saved_spools.update(
            {(name, spool.topic): spool for name, one in saved.items() for spool in one.spools}
        )
        self._had_saved = frozenset(saved)
        """The processors whose work a clean end has saved."""
        self._saved_queues = {name: one.queue for name, one in saved.items() if one.queue}
        """What waited for a worker before the start, until its processor is loaded."""
        self._digests: dict[ProcessorRunner, bytes] = {}
        self._tree: FilterTree[list[ProcessorRunner]] = FilterTree()
        self._routed: dict[ProcessorRunner, tuple[str, bool]] = {}
        """The filter of each processor that gets messages, and whether the broker subscribes to it."""
        self._sweeper: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        broker.router.feed_for = self._feed_for
        broker.on_wants = self.homes.on_wants

    @property
    def log(self) -> PublicationLog | None:
        return self._context.log

    # From start to stop

    async def start(self, configs: Sequence[ProcessorConfig], log: PublicationLog | None) -> None:
        """Returns when all processors are loaded, or refused, or take too long to load."""
        for config in configs:
            self._add(config)
        self._follow(log)
        if self.runners:
            waiting = [asyncio.ensure_future(runner.started.wait()) for runner in self.runners]
            _, late = await asyncio.wait(waiting, timeout=START_S)
            for one in late:
                one.cancel()
            if late:
                _log.warning("%d processors are not loaded after %g s; the broker starts", len(late), START_S)
            if log is not None:
                await self._restore(log)
        self._sweeper = asyncio.get_running_loop().create_task(self.reassignment.keep_sweeping())

    async def _restore(self, log: PublicationLog) -> None:
        """Makes from the log the spools that no clean end has saved, as far as their topics are in the log."""
        unsaved = [
            one.ready
            for one in self.runners
            if one.ready is not None and one.config.where == "publishers" and one.name not in self._had_saved
        ]
        settings = self._context.settings
        since = self._context.now() - settings.idle_s
        for ready, spools in await restored(log, unsaved, settings.storage_bytes_max, since):
            for one in spools:
                self._intake.saved_spools[ready.name, one.topic] = SavedSpool(
                    one.topic, True, one.last, one.messages, one.used_at
                )

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.reassignment.cancel_all()
        for runner in self.runners:
            self.homes.leave_all(runner.name)
        await self._drain()
        for runner in self.runners:
            self._unroute(runner)
        saved = self._unfinished()
        await asyncio.gather(*[runner.stop() for runner in self.runners], *self._stopping)
        try:
            self.assignments.store.save(saved)
            self.assignments.store.close()
        except OSError as error:
            _log.error("the spools of processors could not be written: %s", error)

    def reconfigure(
        self, configs: Sequence[ProcessorConfig], settings: ProcessingConfig, log: PublicationLog | None
    ) -> None:
        """Adopts new settings: a processor whose settings or file have changed is loaded again, with its spools."""
        self._context.settings = settings
        self.assignments.capacity = _capacity(settings)
        gone = list(self.runners)
        new: list[ProcessorConfig] = []
        for config in configs:
            runner = next((one for one in gone if one.config == config), None) or next(
                (one for one in gone if (one.config.file, one.config.name) == (config.file, config.name)), None
            )
            if runner is None:
                new.append(config)
                continue
            gone.remove(runner)
            runner.tries_max = settings.tries_max
            digest = _digest(config)
            if config != runner.config or digest != self._digests[runner] or runner.state == "refused":
                self._digests[runner] = digest
                self.homes.leave_all(runner.name)
                runner.restart(config)
        for runner in gone:
            self._remove(runner)
        for config in new:
            self._add(config)
        self._follow(log)

    def _follow(self, log: PublicationLog | None) -> None:
        """Processors see of a message what its row in the log says."""
        self._context.log = log
        if log is not None:
            self._context.origin = log.origin

    def _add(self, config: ProcessorConfig) -> None:
        runner = ProcessorRunner(config, self._context.settings.tries_max, self)
        self.runners.append(runner)
        self._digests[runner] = _digest(config)

    def _remove(self, runner: ProcessorRunner) -> None:
        self._unroute(runner)
        self.homes.leave_all(runner.name)
        self.runners.remove(runner)
        self._digests.pop(runner, None)
        self._reporters.pop(runner, None)
        if runner.ready is not None:
            for assignment in [one for one in self.assignments if one.key[0] == runner.name]:
                self.assignments.forget(assignment)
        task = asyncio.get_running_loop().create_task(runner.stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _drain(self) -> None:
        """Gives workers a moment to finish what they have."""
        ends_at = asyncio.get_running_loop().time() + DRAIN_S
        while any(runner.state == "running" and len(runner.queue) for runner in self.runners):
            if asyncio.get_running_loop().time() > ends_at:
                return
            await asyncio.sleep(DRAIN_POLL_S)

    def _unfinished(self) -> dict[str, SavedWork]:
        """The spools of processors and the messages that wait for them, for the next start."""
        work: dict[str, SavedWork] = {name: SavedWork([], queue) for name, queue in self._saved_queues.items()}
        latest = self._context.now() - self._context.settings.idle_s
        for (name, _), spool in self._intake.saved_spools.items():
            if spool.used_at > latest:
                work.setdefault(name, SavedWork([], [])).spools.append(spool)
        for runner in self.runners:
            own = work.setdefault(runner.name, SavedWork([], []))
            for topic, spooled in runner.queue.spools.items():
                assignment = self.assignments.get((runner.name, topic))
                if assignment is not None:
                    messages = tuple(spooled.messages)
                    own.spools.append(
                        SavedSpool(topic, assignment.is_logged, spooled.last, messages, assignment.used_at)
                    )
            for message in [one for one in runner.queue.items if not one.is_copy]:
                assignment = self.assignments.get((runner.name, message.topic))
                own.queue.append((message, assignment is not None and assignment.is_logged))
        return {name: one for name, one in work.items() if one.spools or one.queue}

    # Routes

    def _feed_for(self, topic: str) -> ProcessorFeed | HomeFeed | None:
        if topic.startswith("$") and (feed := self.homes.feed_for(topic)) is not None:
            return feed
        if not len(self._tree):
            return None
        runners = [runner for found in self._tree.match(topic) for runner in found]
        return ProcessorFeed(self._intake, topic, runners) if runners else None

    def _route(self, runner: ProcessorRunner, topic_filter: str, is_wide: bool) -> None:
        if self._routed.get(runner) == (topic_filter, is_wide):
            return
        self._unroute(runner)
        self._routed[runner] = (topic_filter, is_wide)
        found = self._tree.get(topic_filter)
        if found is None:
            self._tree.set(topic_filter, [runner])
        else:
            found.append(runner)
        if is_wide:
            self._broker.router.hold(topic_filter)
        self._changed(topic_filter, True)

    def _unroute(self, runner: ProcessorRunner) -> None:
        topic_filter, is_wide = self._routed.pop(runner, ("", False))
        found = self._tree.get(topic_filter) if topic_filter else None
        if found is None:
            return
        found.remove(runner)
        if not found:
            self._tree.remove(topic_filter)
        if is_wide:
            self._broker.router.release(topic_filter)
        self._changed(topic_filter, False)

    def _changed(self, topic_filter: str, wanted: bool) -> None:
        """Routes and demand have to be found anew."""
        self._broker.router.forget(topic_filter)
        self._broker.federation.on_processed(topic_filter, wanted)

    # What runners report

    def on_ready(self, runner: ProcessorRunner) -> None:
        ready = runner.ready
        assert ready is not None
        others = [one for one in self.runners if one is not runner and one.ready is not None]
        if any(one.name == ready.name for one in others):
            runner.refuse(f"another processor is called {ready.name}: give one of them a name of its own")
            return
        if runner not in self._reporters:
            _log.info("processor %s takes %s", ready.name, ready.topic)
        self._reporters[runner] = ErrorReporter(self._broker, ready.name)
        self._route(runner, ready.topic, runner.config.where == "here")
        self.homes.stand(runner)
        for message, is_logged in self._saved_queues.pop(ready.name, []):
            self._intake.resume(runner, message, is_logged)

    def on_refused(self, runner: ProcessorRunner) -> None:
        self._unroute(runner)

    def on_output(self, runner: ProcessorRunner, cause: QueuedMessage, output: Output) -> None:
        """Publishes a notification."""
        broker = self._broker
        limits = broker.limits
        if cause.hops >= HOPS_MAX:
            self.on_error(runner, "loop", loop_words(cause.hops), cause)
            return
        message = Message(
            output.topic,
            string(output.topic),
            output.payload,
            min(output.qos, limits.qos_max),
            output.retain and limits.retain,
            f"{SENDER_PREFIX}{runner.name}",
            forward_of(output.properties, cause.hops + 1),
            broker.now() + limits.message_expiry_max_s if limits.message_expiry_max_s else None,
        )
        if message.size > limits.packet_bytes_max:
            text = f"a notification of {message.size:,} bytes (limits.packet_bytes_max is {limits.packet_bytes_max:,})"
            self.on_error(runner, "result", text, cause)
            return
        if message.retain and (broker.degraded or (message.payload and not broker.retained.fits(message))):
            message.retain = False  # it is delivered even if it cannot be kept
        runner.counts.notified += 1
        broker.publish(message)
        broker.request_flush()

    def on_done(self, runner: ProcessorRunner, messages: list[QueuedMessage]) -> None:
        for topic in dict.fromkeys([message.topic for message in messages]):
            assignment = self.assignments.get((runner.name, topic))
            if assignment is None:
                if not runner.queue.has(topic):
                    runner.forget(topic)
            elif assignment.location == "edge":
                self.assignments.note_size(assignment, runner.queue)
            elif assignment.returns_at < 0 and not runner.queue.has(topic):
                runner.forget(topic)  # it is Spark's now, and the last of it is done here

    def on_error(self, runner: ProcessorRunner, what: str, text: str, message: QueuedMessage | None) -> None:
        runner.counts.errors += 1
        reporter = self._reporters.get(runner)
        if reporter is not None:
            topic, offset = (None, None) if message is None else (message.topic, message.offset)
            reporter.report(what, text, topic, offset)
        else:
            _log.warning("processor %s: %s", runner.name, text)

    def on_remote_error(self, name: str, what: str, text: str, topic: str | None, offset: int | None) -> None:
        """An error of a processor on Spark; this broker may not run that processor itself."""
        runner = next((one for one in self.runners if one.name == name), None)
        reporter = None if runner is None else self._reporters.get(runner)
        if runner is not None:
            runner.counts.errors += 1
        if reporter is None:
            reporter = self._remote_reporters.get(name) or ErrorReporter(self._broker, name)
            self._remote_reporters.renew(name, reporter)
        reporter.report(what, text, topic, offset)

    def _is_publisher(self, client: str) -> bool:
        """Whether a publisher is still there: a client that is connected, or another processor."""
        if client.startswith(SENDER_PREFIX):
            return True
        session = self._broker.sessions.get(client)
        return session is not None and session.connection is not None

    def begin_read(self) -> Callable[[], None]:
        return self._broker.tick.begin_read()


def _capacity(settings: ProcessingConfig) -> Capacity:
    return Capacity(settings.storage_bytes_max, settings.compute_max)


def _digest(config: ProcessorConfig) -> bytes:
    """Of a processor's file, to notice when it has changed."""
    path, _ = split_source(config.file)
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest() if is_file(path) else b""
    except OSError:
        return b""
