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
    from braidmq.pipeline.progress import Batches

START_MAX_S: Final = 180.0
POLL_S: Final = 0.2
JOIN_S: Final = 5.0


class SparkHalf:
    """`state` is starting, running, failed or ended; `why` says why it failed."""

    def __init__(self, order: DemoPlan) -> None:
        self.state = "starting"
        self.why = ""
        self.took_s = 0.0
        """From the beginning to its first batch."""
        self.ran_at = math.inf
        """When it was there, by the monotonic clock."""
        self.processed = 0
        """Frames, those of earlier trips included."""
        self._order = order
        self._ending = threading.Event()
        self._spark: Any = None
        self._query: Any = None
        self._thread = threading.Thread(target=self._run, name="spark", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        from braidmq.pipeline.progress import Batches

        began = time.monotonic()
        try:
            self._start()
            batches = Batches(self._query)
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

    def _count(self, batches: Batches) -> None:
        from braidmq.pipeline.stateful import Done

        self.processed += sum(Done.of(each).rows for each in batches.new())

    def give_up(self) -> None:
        """It takes too long."""
        self._fail(f"it did not start within {START_MAX_S:g} s", "See `braidmq doctor --spark`")

    def _fail(self, text: str, hint: str) -> None:
        if not self._ending.is_set():
            self.why = f"{text.rstrip('.')}. {hint}" if hint else text
            self.state = "failed"

    def _start(self) -> None:
        from braidmq.pipeline.session import session
        from braidmq.pipeline.shipped import Shipped
        from braidmq.pipeline.stateful import start

        order = self._order
        options = {"brokers": ",".join(site.admin for site in order.bus_sites)}
        if order.token is not None:
            options["token"] = order.token
        self._spark = session("braidmq demo", order.master or MASTER, quick=True, own_group=False)
        self._query = start(self._spark, Shipped.of(PROCESSOR), options, self._checkpoint(options), delegated=True)

    def _checkpoint(self, options: dict[str, str]) -> str:
        """One for each set of logs: a checkpoint is of no use with others."""
        from braidmq.pipeline.logs import Logs
        from braidmq.pipeline.options import ReadOptions

        states = Logs(ReadOptions.parse(options)).states()
        names = ",".join(f"{broker}={state.id}" for broker, state in sorted(states.items()))
        digest = hashlib.sha256(names.encode()).hexdigest()[:12]
        return str(Path(self._order.data, "demo", f"checkpoint-{digest}").absolute())

    def end(self) -> None:
        """Ends the query, Spark and Java. While it starts there is nothing to end yet: Java ends with this process."""
        self._ending.set()
        if self._query is None:
            return
        self._thread.join(JOIN_S)
        from braidmq.pipeline.gateway import end_java, silence

        with contextlib.suppress(Exception):  # whatever is left of it
            silence()
            self._query.stop()
            self._spark.stop()
        end_java()
        if self.state != "failed":
            self.state = "ended"
