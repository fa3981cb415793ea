"""Trials in a process that has nothing else in it: `python -m braidmq.pipeline.player`.

Behind each trial the whole process is looked through for garbage, which is what is left of the network. In a worker of
Spark, with all that it has imported, that takes longer than the trial does; so a worker has a player, which it keeps.

Both sides send frames: four bytes for the length, and MessagePack. Names of trials go in, a row for each comes out.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import cache
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from braidmq.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from braidmq.sim.rows import Row

LENGTH_BYTES: Final = 4


class Player:
    """The other side, in a worker."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "braidmq.pipeline.player"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def play(self, name: str) -> Row:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _send(self._process.stdin, name)
            row: Row | None = _receive(self._process.stdout)
        except OSError:
            row = None
        if row is None:
            player.cache_clear()  # the next try has a new one
            raise PipelineError(f"the process that played a trial has ended, with exit code {self._process.wait()}")
        return row


@cache
def player() -> Player:
    """That of this worker. It ends with it."""
    return Player()


def played(names: list[str]) -> list[Row]:
    """What a task does."""
    return [player().play(name) for name in names]


def _send(stream: IO[bytes], content: Any) -> None:
    body = msgspec.msgpack.encode(content)
    stream.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    """What was sent; None at the end."""
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    size = int.from_bytes(head, "big")
    body = stream.read(size)
    return msgspec.msgpack.decode(body) if len(body) == size else None


def main() -> None:
    from braidmq.sim.rows import row_of, trial_of

    while (name := _receive(sys.stdin.buffer)) is not None:
        _send(sys.stdout.buffer, row_of(trial_of(name)))
        gc.collect()  # while nobody waits: a network is all circles, and old by now


if __name__ == "__main__":
    main()
