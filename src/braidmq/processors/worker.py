"""Runs one processor in a process of its own: `python -m braidmq.processors.worker`, its standard input a socket.

It does what it is told, message by message, and says what came of it: at the latest REPORT_S after the last time, and
else when it has nothing more to do. If its broker goes, it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import time
from types import FrameType
from typing import Final

from braidmq.processors.frames import (
    Done,
    Feed,
    Fill,
    Forget,
    Frames,
    FromWorker,
    Ready,
    Refused,
    Result,
    Setup,
    decode_message,
    decode_to_worker,
    frame,
)
from braidmq.processors.loading import load_processor
from braidmq.processors.processor import Failure, Processor, ProcessorError, Spool, SpoolState, spool_step

REPORT_S: Final = 0.005
"""How long a worker goes on before it says what it has done."""

READ_BYTES: Final = 1 << 18
_PR_SET_PDEATHSIG: Final = 1


class Worker:
    """A processor with the spools of its topics."""

    def __init__(self, connection: socket.socket, processor: Processor) -> None:
        self._connection = connection
        self._processor = processor
        self._spools: dict[str, Spool] = {}

    def take(self, body: bytes) -> None:
        message = decode_to_worker(body)
        if isinstance(message, Feed):
            self._run(message)
        elif isinstance(message, Fill):
            state = SpoolState(message.last, tuple([decode_message(one) for one in message.messages]))
            self._spools[message.topic] = Spool(self._processor.spool, state)
        elif isinstance(message, Forget):
            self._spools.pop(message.topic, None)

    def _run(self, feed: Feed) -> None:
        clock = time.perf_counter
        results: list[Result] = []
        count = 0
        began = clock()
        for raw in feed.messages:
            message = decode_message(raw)
            spool = self._spools.get(message.topic)
            if spool is None:
                spool = self._spools[message.topic] = Spool(self._processor.spool)
            outcome = spool_step(self._processor, spool, message)
            if isinstance(outcome, Failure):
                results.append(Result(count, None, outcome))
            elif outcome is not None:
                results.append(Result(count, outcome, None))
            count += 1
            now = clock()
            if now - began > REPORT_S:
                say(self._connection, Done(count, now - began, results))
                results = []
                count = 0
                began = clock()
        if count:
            say(self._connection, Done(count, clock() - began, results))


def say(connection: socket.socket, message: FromWorker) -> None:
    connection.sendall(frame(message))


def prepare(setup: Setup) -> Processor:
    """The processor that is asked for; a ProcessorError says why it cannot be."""
    loaded = load_processor(setup.source)
    return loaded.changed(
        name=setup.name,
        topic=setup.topic,
        spool=setup.spool,
        output=setup.output,
        time_limit_s=setup.time_limit_s,
    )


def serve(connection: socket.socket) -> None:
    """Until the other end is closed."""
    frames = Frames()
    worker: Worker | None = None
    while data := connection.recv(READ_BYTES):
        for body in frames.take(data):
            if worker is not None:
                worker.take(body)
                continue
            setup = decode_to_worker(body)
            assert isinstance(setup, Setup)
            try:
                one = prepare(setup)
            except ProcessorError as error:
                say(connection, Refused(str(error)))
                return
            worker = Worker(connection, one)
            say(connection, Ready(one.name, one.topic, one.spool, one.output, one.time_limit_s))


def end_with_parent() -> None:
    """Linux ends this process when its broker has gone, also if a function never comes back."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _let_pass(_number: int, _frame: FrameType | None) -> None:
    """A handler, since a signal that is ignored would be ignored by children as well."""


def main() -> None:
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C and service managers mean the broker, which ends this
        signal.signal(number, _let_pass)
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # a function that reads its input must not read this
    os.close(nothing)
    with contextlib.suppress(ConnectionError):
        serve(connection)


if __name__ == "__main__":
    main()
