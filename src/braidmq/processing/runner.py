"""A processor at this broker: its work queue, and the worker process that is started, watched and started again.

    starting ──Ready──▶ running ──it ended──▶ waiting ──back-off──▶ starting
        └──LoadRefused──▶ refused, until the configuration is read again

A worker that takes longer than its time limit for a message is killed. A worker that has ended, for whatever reason, is
started again after a pause that doubles each time. What it had not answered is queued again, in front, and sent one by
one; a message that was alone in a worker that ended `tries_max` times is left out, with an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from braidmq.processing.work_queue import QueuedMessage, SpoolCopy, WorkQueue
from braidmq.processing.worker_process import WorkerProcess
from braidmq.processors.processor import Output
from braidmq.processors.worker_messages import Done, Feed, Fill, Forget, FromWorker, LoadRefused, Ready, Setup
from braidmq.system.framing import frame

if TYPE_CHECKING:
    from braidmq.config.settings import ProcessorConfig

START_LIMIT_S: Final = 30.0
"""How long a worker may take to load its processor."""
PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 30.0
"""The pause before a worker is started again."""
HEALTHY_S: Final = 10.0
"""A worker that ran so long was healthy: the next pause is the shortest again."""

State = Literal["starting", "running", "waiting", "refused", "stopped"]

_log = logging.getLogger("braidmq.processing")


class Counts(msgspec.Struct):
    """Totals since the broker's start."""

    processed: int = 0
    notified: int = 0
    errors: int = 0
    dropped: int = 0
    delegated: int = 0
    restarts: int = 0
    busy_s: float = 0.0
    copies_out: int = 0
    copies_in: int = 0
    """Messages for spools of other brokers, and from them."""


class Watcher(Protocol):
    """What a runner tells its owner."""

    def on_ready(self, runner: ProcessorRunner) -> None: ...

    def on_refused(self, runner: ProcessorRunner) -> None: ...

    def on_output(self, runner: ProcessorRunner, cause: QueuedMessage, output: Output) -> None: ...

    def on_done(self, runner: ProcessorRunner, messages: list[QueuedMessage]) -> None: ...

    def on_error(self, runner: ProcessorRunner, what: str, text: str, message: QueuedMessage | None) -> None: ...

    def begin_read(self) -> Callable[[], None]: ...


class ProcessorRunner:
    def __init__(self, config: ProcessorConfig, tries_max: int, watcher: Watcher) -> None:
        self.config = config
        self.tries_max = tries_max
        self.ready: Ready | None = None
        """How the processor describes itself, once it was loaded."""
        self.queue = WorkQueue(config.spool or 1)
        self.counts = Counts()
        self.state: State = "starting"
        self.problem = ""
        """What went wrong last with its worker."""
        self.started = asyncio.Event()
        """Set when the processor is loaded, or known to be unusable for now."""
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._worker: WorkerProcess | None = None
        self._incarnation = 0
        self._is_pump_due = False
        self._progress_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._is_restarting = False
        """Whether the worker is ended only to be started again."""
        self._task = self._loop.create_task(self._run())

    @property
    def name(self) -> str:
        if self.ready is not None:
            return self.ready.name
        return self.config.name or self.config.file

    @property
    def spool_scope(self) -> str:
        """How far its spools reach; what comes from everywhere is in them as it is."""
        return self.config.spool_scope if self.config.where == "publishers" else "site"

    @property
    def pid(self) -> int | None:
        return None if self._worker is None else self._worker.pid

    # Messages to the worker

    def put(self, item: QueuedMessage) -> None:
        """A message to be processed; it leaves for the worker in this tick of the loop."""
        self.queue.put(item)
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def fill(self, topic: str, last: int, messages: list[bytes]) -> None:
        """A topic begins with this spool."""
        kept = self.queue.spools[topic] = SpoolCopy()
        for raw in messages:
            kept.put(raw, last, self.queue.spool)
        kept.last = last

    def forget(self, topic: str) -> None:
        """A topic is processed elsewhere from now on, or not at all."""
        self.queue.spools.pop(topic, None)
        if self._worker is not None and self.state == "running":
            self._worker.write(frame(Forget(topic)))

    def _pump(self) -> None:
        self._is_pump_due = False
        if self.state != "running" or self._worker is None:
            return
        batch = self.queue.next_batch()
        if not batch:
            return
        frames = [frame(fill) for item in batch if (fill := self._fill(item.topic)) is not None]
        copies = [place for place, item in enumerate(batch) if item.is_copy]
        frames.append(frame(Feed([msgspec.Raw(item.raw) for item in batch], copies)))
        if self.queue.in_flight == len(batch):
            self._progress_at = self._loop.time()
        self._worker.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if self._watch is None:
            self._watch_progress()

    def _fill(self, topic: str) -> Fill | None:
        """The spool of a topic, if this worker has not been given it."""
        kept = self.queue.spools.get(topic)
        if kept is None:
            kept = self.queue.spools[topic] = SpoolCopy()
        if kept.incarnation == self._incarnation:
            return None
        kept.incarnation = self._incarnation
        if not kept.messages and kept.last < 0:
            return None
        return Fill(topic, kept.last, [msgspec.Raw(raw) for raw in kept.messages])

    # Frames of the worker

    def _on_frame(self, said: FromWorker) -> None:
        if isinstance(said, Done):
            self._on_done(said)
        elif isinstance(said, Ready):
            self._on_ready(said)
        elif isinstance(said, LoadRefused):
            self._refuse(said.text)

    def _on_ready(self, ready: Ready) -> None:
        self.ready = ready
        self.queue.resize(ready.spool)
        self.state = "running"
        self._watcher.on_ready(self)
        self.started.set()
        if self.state == "running":  # it may have been refused
            self._pump()

    def refuse(self, text: str) -> None:
        """The processor cannot be used here."""
        self._refuse(text)
        if self._worker is not None:
            self._worker.kill("")

    def _refuse(self, text: str) -> None:
        self.state = "refused"
        self.problem = text
        self.started.set()
        _log.error("processor %s is not used: %s", self.name, text)
        self._watcher.on_refused(self)

    def _on_done(self, done: Done) -> None:
        if done.count > self.queue.in_flight:
            assert self._worker is not None
            self._worker.kill("it answered for more messages than it had")
            return
        self._progress_at = self._loop.time()
        self.problem = ""
        self.counts.busy_s += done.busy_s
        items = self.queue.done(done.count)
        self.counts.processed += done.count - sum([item.is_copy for item in items])
        for result in done.results:
            item = items[result.index]
            if result.output is not None:
                self._watcher.on_output(self, item, result.output)
            elif result.failure is not None:
                self._watcher.on_error(self, result.failure.what, result.failure.text, item)
        self._watcher.on_done(self, items)
        if len(self.queue):
            self._pump()

    # The worker process

    async def _run(self) -> None:
        pause_s = PAUSE_MIN_S
        while self.state != "stopped":
            began_at = self._loop.time()
            code = await self._run_worker()
            if self.state in ("refused", "stopped"):
                return
            if self._is_restarting:
                self._is_restarting = False
                self.queue.requeue_in_flight()
                continue
            if self._loop.time() - began_at > HEALTHY_S:
                pause_s = PAUSE_MIN_S
            self._on_worker_ended(code)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            self.counts.restarts += 1

    async def _run_worker(self) -> int | None:
        """One worker process from start to end; its exit code, None if it could not be started."""
        config = self.config
        self.state = "starting"
        self._incarnation += 1
        self._worker = worker = WorkerProcess(self._on_frame, self._watcher.begin_read)
        text = f"it took more than {START_LIMIT_S:g} s to load {config.file}"
        limit = self._loop.call_later(START_LIMIT_S, self._end_if_starting, worker, text)
        try:
            await worker.begin(
                Setup(config.file, config.name, config.topic, config.spool, config.output, config.time_limit_s)
            )
            return await worker.wait()
        except OSError as error:
            worker.fault = f"its process cannot be started: {error.strerror or error}"
            return None
        finally:
            limit.cancel()
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None
            worker.kill("")

    def _end_if_starting(self, worker: WorkerProcess, text: str) -> None:
        if self.state == "starting":
            worker.kill(text)

    def _watch_progress(self) -> None:
        """Watches the worker while it has messages; kills it if it finishes none in time."""
        self._watch = None
        if not self.queue.in_flight or self.ready is None or self._worker is None:
            return
        left_s = self._progress_at + self.ready.time_limit_s - self._loop.time()
        if left_s <= 0:
            self._worker.kill(f"a message took more than {self.ready.time_limit_s:g} s")
        else:
            self._watch = self._loop.call_later(left_s, self._watch_progress)

    def _on_worker_ended(self, code: int | None) -> None:
        """The worker has ended by itself, or was killed for a fault."""
        assert self._worker is not None
        fault = self._worker.fault or _exit_words(code)
        what = "time" if self._worker.fault.startswith("a message") else "crash"
        suspect = self.queue.requeue_in_flight()
        self.state = "waiting"
        self.problem = fault
        self._worker = None
        self.started.set()
        if suspect is not None:
            suspect.tries += 1
            if suspect.tries >= self.tries_max:
                item = self.queue.give_up_first()
                self._watcher.on_error(self, what, f"{fault}; left out after {item.tries} tries", item)
                self._watcher.on_done(self, [item])
                return
        self._watcher.on_error(self, what, fault, suspect)

    def restart(self, config: ProcessorConfig) -> None:
        """Loads the processor again, without a pause; what waits goes on waiting."""
        self.config = config
        if self.state == "refused":
            self.started.clear()
            self._task = self._loop.create_task(self._run())
        elif self._worker is not None:
            self._is_restarting = True
            self.state = "starting"
            self._worker.kill("")

    async def stop(self) -> None:
        self.state = "stopped"
        self.started.set()
        if self._worker is not None:
            self._worker.kill("")
        else:
            self._task.cancel()
        await asyncio.wait((self._task,))


def _exit_words(code: int | None) -> str:
    if code is None:
        return "it could not be started"
    if code < 0:
        return f"it was ended by signal {-code}"
    return f"it ended with exit code {code}"
