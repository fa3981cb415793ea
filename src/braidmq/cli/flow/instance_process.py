"""Starts the process of an instance, and starts it again when it ends, after a while that grows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import IO, Final

import msgspec

from braidmq.cli import output
from braidmq.cli.flow.instance import EXIT_TAKEN, InstancePlan

AGAIN_S, AGAIN_S_MAX = 0.5, 30.0
"""The pause before a process is started again; it doubles each time, and is short again after `WELL_S`."""
WELL_S: Final = 60.0
END_S: Final = 5.0
"""How long a process may take to end before it is killed."""
WORDS_MAX: Final = 2_000
"""Bytes of what a process has said last that are shown when it has failed."""


PROGRAMS: Final = ("braidmq.cli.flow.instance", "braidmq.cli.flow.spark_instance")
"""Of a component that runs in a process, and of one that runs on Spark."""


class InstanceProcess:
    def __init__(self, plan: InstancePlan) -> None:
        self.plan = plan
        self.is_given_up = False
        """Whether another instance of this number has come."""
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._started_at = 0.0
        self._again_at = 0.0
        self._pause_s = AGAIN_S

    @property
    def name(self) -> str:
        return f"{self.plan.component} {self.plan.number} at {self.plan.site}"

    def keep(self) -> None:
        """Starts it if it does not run and the time has come; says if it has ended."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._again_at and not self.is_given_up:
                self._start(now)
            return
        code = self._process.poll()
        if code is None:
            return
        words = self._last_words()
        self._process = None
        if code == EXIT_TAKEN:
            self.is_given_up = True
            return
        if now - self._started_at > WELL_S:
            self._pause_s = AGAIN_S
        output.note(f"{self.name} has ended: {words or f'exit code {code}'}; again in {self._pause_s:g} s", "red")
        self._again_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, AGAIN_S_MAX)

    def end(self) -> None:
        """Closes its input, upon which it ends."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._errors is not None:
            self._errors.close()

    def _start(self, now: float) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process has ended
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAMS[self.plan.spark is not None]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self.plan) + b"\n")
        self._process.stdin.flush()
        self._started_at = now

    def _last_words(self) -> str:
        assert self._errors is not None
        size = self._errors.seek(0, 2)
        self._errors.seek(max(0, size - WORDS_MAX))
        words = self._errors.read().decode(errors="replace").strip()
        self._errors.close()
        return words.rpartition("\n")[2]
