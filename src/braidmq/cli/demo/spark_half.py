"""Spark's half of the demonstration: the query of `braidmq process spark --delegated`, on a thread of this process."""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from braidmq.cli.demo.plan import PROCESSOR, DemoPlan
from braidmq.cli.process.spark_run import MASTER
from braidmq.pipeline.errors import PipelineError, from_spark
from braidmq.processors.processor import ProcessorError

if TYPE_CHECKING:
    from braidmq.pipeline.progress import MicroBatches

START_MAX_S: Final = 180.0
POLL_S: Final = 0.2
JOIN_S: Final = 5.0


class SparkHalf:
    """`state` is starting, running, failed or ended; `why` says why it failed."""

    def __init__(self, plan: DemoPlan) -> None:
        self.state = "starting"
        self.why = ""
        self.took_s = 0.0
        """From the beginning to its first batch."""
        self.ran_at = math.inf
        """When it was running, by the monotonic clock."""
        self.processed = 0
        """Frames, those of earlier trips included."""
        self._plan = plan
        self._ending = threading.Event()
        self._spark: Any = None
        self._query: Any = None
        self._thread = threading.Thread(target=self._run, name="spark", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        from braidmq.pipeline.progress import MicroBatches

        began = time.monotonic()
        try:
            self._start()
            batches = MicroBatches(self._query)
            while not self._ending.wait(POLL_S):
                if not self._query.isActive:
                    raise self._query.exception() or PipelineError("the query has ended")
                self._count(batches)
                if self.state == "starting" and batches.last is not None:
                    self.ran_at = time.monotonic()
                    self.took_s = self.ran_at - began
                    self.state = "running"
            self._count(batches)
        except PipelineError as error:
            self._fail(error.text, error.hint)
        except ProcessorError as error:
            self._fail(str(error), "")
        except Exception as error:  # Spark and Java throw many kinds
            found = from_spark(error)
            self._fail(found.text, found.hint)

    def _count(self, batches: MicroBatches) -> None:
        from braidmq.pipeline.stateful import BatchCounts

        self.processed += sum(BatchCounts.of(each).rows for each in batches.new())

    def give_up(self) -> None:
        """Counts it as failed, since it takes too long to start."""
        self._fail(f"it did not start within {START_MAX_S:g} s", "See `braidmq doctor --spark`")

    def _fail(self, text: str, hint: str) -> None:
        if not self._ending.is_set():
            self.why = f"{text.rstrip('.')}. {hint}" if hint else text
            self.state = "failed"

    def _start(self) -> None:
        from braidmq.pipeline.portable import PortableProcessor
        from braidmq.pipeline.session import session
        from braidmq.pipeline.stateful import start

        plan = self._plan
        options = {"brokers": ",".join(site.admin for site in plan.bus_sites)}
        if plan.token is not None:
            options["token"] = plan.token
        self._spark = session("braidmq demo", plan.master or MASTER, quick=True, own_group=False)
        self._query = start(
            self._spark, PortableProcessor.of(PROCESSOR), options, self._checkpoint(options), delegated=True
        )

    def _checkpoint(self, options: dict[str, str]) -> str:
        """One for each set of logs, as a checkpoint holds for its own logs only."""
        from braidmq.pipeline.source.logs import Logs
        from braidmq.pipeline.source.options import ReadOptions

        states = Logs(ReadOptions.parse(options)).states()
        names = ",".join(f"{broker}={state.id}" for broker, state in sorted(states.items()))
        digest = hashlib.sha256(names.encode()).hexdigest()[:12]
        return str(Path(self._plan.data, "demo", f"checkpoint-{digest}").absolute())

    def end(self) -> None:
        """Ends the query, Spark and Java. While it starts there is nothing to end yet: Java ends with this process."""
        self._ending.set()
        if self._query is None:
            return
        self._thread.join(JOIN_S)
        from braidmq.pipeline.launch.gateway import end_java, silence

        with contextlib.suppress(Exception):  # whatever is left of it
            silence()
            self._query.stop()
            self._spark.stop()
        end_java()
        if self.state != "failed":
            self.state = "ended"
