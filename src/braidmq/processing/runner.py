"""A processor at this broker: its line, and the worker that is started, watched and started again.

    starting ──Ready──▶ running ──it ended──▶ waiting ──back-off──▶ starting
        └──Refused──▶ refused, until the configuration is read again

A worker that takes longer than its time limit for a message is killed. One that has ended, for whatever reason, is
started again after a pause that doubles each time. What it had and had not answered stands in front again and is sent
one by one; a message that was alone in a worker that ended `tries_max` times is left out, and said to be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from braidmq.processing.work_queue import Item, Kept, WorkQueue
from braidmq.processing.worker_process import WorkerProcess
from braidmq.processors.frames import Done, Feed, Fill, Forget, FromWorker, Ready, Refused, Setup, frame
from braidmq.processors.processor import Output

if TYPE_CHECKING:
    from braidmq.config.settings import ProcessorConfig

START_LIMIT_S: Final = 30.0
"""What a worker gets to load its processor."""
PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 30.0
"""The pause before a worker is started again."""
HEALTHY_S: Final = 10.0
"""A worker that lived so long was well: the next pause is the shortest again."""

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


class Watcher(Protocol):
    """Whom a station tells what happens."""

    def on_ready(self, station: ProcessorRunner) -> None: ...

    def on_refused(self, station: ProcessorRunner) -> None: ...

    def on_output(self, station: ProcessorRunner, item: Item, output: Output) -> None: ...

    def on_done(self, station: ProcessorRunner, items: list[Item]) -> None: ...

    def on_error(self, station: ProcessorRunner, what: str, text: str, item: Item | None) -> None: ...

    def begin_read(self) -> Callable[[], None]: ...


class ProcessorRunner:
    def __init__(self, config: ProcessorConfig, tries_max: int, watcher: Watcher) -> None:
        self.config = config
        self.tries_max = tries_max
        self.ready: Ready | None = None
        """What the processor says of itself, once it was loaded."""
        self.line = WorkQueue(config.spool or 1)
        self.counts = Counts()
        self.state: State = "starting"
        self.problem = ""
        """What went wrong last with its worker."""
        self.settled = asyncio.Event()
        """Set when it is known whether the processor can be used."""
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._life: WorkerProcess | None = None
        self._lives = 0
        self._is_rung = False
        self._progress_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._is_asked = False
        """Whether the worker is ended because it is to be started anew."""
        self._task = self._loop.create_task(self._run())

    @property
    def name(self) -> str:
        if self.ready is not None:
            return self.ready.name
        return self.config.name or self.config.file

    @property
    def pid(self) -> int | None:
        return None if self._life is None else self._life.pid

    # What comes

    def put(self, item: Item) -> None:
        """A message to be processed; it leaves for the worker in this tick of the loop."""
        self.line.put(item)
        if not self._is_rung:
            self._is_rung = True
            self._loop.call_soon(self._pump)

    def fill(self, topic: str, last: int, messages: list[bytes]) -> None:
        """A topic begins with this spool."""
        kept = self.line.spools[topic] = Kept()
        for raw in messages:
            kept.put(raw, last, self.line.spool)
        kept.last = last

    def forget(self, topic: str) -> None:
        """A topic is processed elsewhere from now on, or by nobody."""
        self.line.spools.pop(topic, None)
        if self._life is not None and self.state == "running":
            self._life.write(frame(Forget(topic)))

    def _pump(self) -> None:
        self._is_rung = False
        if self.state != "running" or self._life is None:
            return
        batch = self.line.batch()
        if not batch:
            return
        frames = [frame(fill) for item in batch if (fill := self._fill(item.topic)) is not None]
        frames.append(frame(Feed([msgspec.Raw(item.raw) for item in batch])))
        if self.line.flying == len(batch):
            self._progress_at = self._loop.time()
        self._life.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if self._watch is None:
            self._look_again()

    def _fill(self, topic: str) -> Fill | None:
        """The spool of a topic, if this worker has not had it."""
        kept = self.line.spools.get(topic)
        if kept is None:
            kept = self.line.spools[topic] = Kept()
        if kept.life == self._lives:
            return None
        kept.life = self._lives
        if not kept.messages and kept.last < 0:
            return None
        return Fill(topic, kept.last, [msgspec.Raw(raw) for raw in kept.messages])

    # What the worker says

    def _on_said(self, said: FromWorker) -> None:
        if isinstance(said, Done):
            self._on_done(said)
        elif isinstance(said, Ready):
            self._on_ready(said)
        elif isinstance(said, Refused):
            self._refuse(said.text)

    def _on_ready(self, ready: Ready) -> None:
        self.ready = ready
        self.line.resize(ready.spool)
        self.state = "running"
        self._watcher.on_ready(self)
        self.settled.set()
        if self.state == "running":  # it may have been refused
            self._pump()

    def refuse(self, text: str) -> None:
        """The processor cannot be used here."""
        self._refuse(text)
        if self._life is not None:
            self._life.kill("")

    def _refuse(self, text: str) -> None:
        self.state = "refused"
        self.problem = text
        self.settled.set()
        _log.error("processor %s is not used: %s", self.name, text)
        self._watcher.on_refused(self)

    def _on_done(self, done: Done) -> None:
        if done.count > self.line.flying:
            assert self._life is not None
            self._life.kill("it answered for more messages than it had")
            return
        self._progress_at = self._loop.time()
        self.problem = ""
        self.counts.processed += done.count
        self.counts.busy_s += done.busy_s
        items = self.line.done(done.count)
        for result in done.results:
            item = items[result.place]
            if result.output is not None:
                self._watcher.on_output(self, item, result.output)
            elif result.failure is not None:
                self._watcher.on_error(self, result.failure.what, result.failure.text, item)
        self._watcher.on_done(self, items)
        if len(self.line):
            self._pump()

    # The worker's lives

    async def _run(self) -> None:
        pause_s = PAUSE_MIN_S
        while self.state != "stopped":
            began_at = self._loop.time()
            code = await self._live()
            if self.state in ("refused", "stopped"):
                return
            if self._is_asked:
                self._is_asked = False
                self.line.ground()
                continue
            if self._loop.time() - began_at > HEALTHY_S:
                pause_s = PAUSE_MIN_S
            self._on_gone(code)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            self.counts.restarts += 1

    async def _live(self) -> int | None:
        """One life of the worker; its exit code, None if it could not be started."""
        config = self.config
        self.state = "starting"
        self._lives += 1
        self._life = life = WorkerProcess(self._on_said, self._watcher.begin_read)
        text = f"it took more than {START_LIMIT_S:g} s to load {config.file}"
        limit = self._loop.call_later(START_LIMIT_S, self._end_if_starting, life, text)
        try:
            await life.begin(
                Setup(config.file, config.name, config.topic, config.spool, config.output, config.time_limit_s)
            )
            return await life.wait()
        except OSError as error:
            life.fault = f"its process cannot be started: {error.strerror or error}"
            return None
        finally:
            limit.cancel()
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None
            life.kill("")

    def _end_if_starting(self, life: WorkerProcess, text: str) -> None:
        if self.state == "starting":
            life.kill(text)

    def _look_again(self) -> None:
        """Watches while the worker has something to do; kills it if nothing is done in time."""
        self._watch = None
        if not self.line.flying or self.ready is None or self._life is None:
            return
        left_s = self._progress_at + self.ready.time_limit_s - self._loop.time()
        if left_s <= 0:
            self._life.kill(f"a message took more than {self.ready.time_limit_s:g} s")
        else:
            self._watch = self._loop.call_later(left_s, self._look_again)

    def _on_gone(self, code: int | None) -> None:
        """The worker has ended, and was not asked to."""
        assert self._life is not None
        fault = self._life.fault or _exit_words(code)
        what = "time" if self._life.fault.startswith("a message") else "crash"
        suspect = self.line.ground()
        self.state = "waiting"
        self.problem = fault
        self._life = None
        self.settled.set()
        if suspect is not None:
            suspect.tries += 1
            if suspect.tries >= self.tries_max:
                item = self.line.skip()
                self._watcher.on_error(self, what, f"{fault}; left out after {item.tries} tries", item)
                self._watcher.on_done(self, [item])
                return
        self._watcher.on_error(self, what, fault, suspect)

    def restart(self, config: ProcessorConfig) -> None:
        """Loads the processor again, without a pause; what waits goes on waiting."""
        self.config = config
        if self.state == "refused":
            self.settled.clear()
            self._task = self._loop.create_task(self._run())
        elif self._life is not None:
            self._is_asked = True
            self.state = "starting"
            self._life.kill("")

    async def stop(self) -> None:
        self.state = "stopped"
        self.settled.set()
        if self._life is not None:
            self._life.kill("")
        else:
            self._task.cancel()
        await asyncio.wait((self._task,))


def _exit_words(code: int | None) -> str:
    if code is None:
        return "it could not be started"
    if code < 0:
        return f"it was ended by signal {-code}"
    return f"it ended with exit code {code}"
