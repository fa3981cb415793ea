"""Trials in a process that has nothing else in it: `python -m braidmq.pipeline.trials.trial_process`.

After each trial the garbage of the whole process is collected, which is what is left of the network. In a worker of
Spark, with all that it has imported, that takes longer than the trial itself; so a worker starts a trial process, and
keeps it. Names of trials go in, a row for each comes out, as frames over pipes.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from braidmq.pipeline.errors import PipelineError
from braidmq.system.framing import FrameWriter, read_frame

if TYPE_CHECKING:
    from braidmq.sim.trials.rows import Row

_INPUT: Final = 0
_OUTPUT: Final = 1


class TrialProcess:
    """The process, as a worker of Spark sees it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "braidmq.pipeline.trials.trial_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._writer = FrameWriter()

    def play(self, name: str) -> Row:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._writer.write(self._process.stdin.fileno(), name)
            body = read_frame(self._process.stdout.fileno())
        except OSError:
            body = None
        if body is None:
            trial_process.cache_clear()  # the next try has a new one
            raise PipelineError(f"the process that played a trial has ended, with exit code {self._process.wait()}")
        row: Row = msgspec.msgpack.decode(body)
        return row


@cache
def trial_process() -> TrialProcess:
    """The one of this worker; it ends with it."""
    return TrialProcess()


def played(names: list[str]) -> list[Row]:
    """The rows of some trials: what a task does."""
    return [trial_process().play(name) for name in names]


def main() -> None:
    from braidmq.sim.trials.rows import row_of, trial_of

    writer = FrameWriter()
    while (body := read_frame(_INPUT)) is not None:
        writer.write(_OUTPUT, row_of(trial_of(msgspec.msgpack.decode(body, type=str))))
        gc.collect()  # while nothing waits: a network is full of reference cycles, and old by now


if __name__ == "__main__":
    main()
