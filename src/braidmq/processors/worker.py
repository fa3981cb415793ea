"""Runs one processor in a process of its own: `python -m braidmq.processors.worker`, its standard input a socket.

It processes message by message and reports the results: at the latest REPORT_S after the last report, or when it has
nothing more to do. It ends when its broker does.
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

from braidmq.processors.loading import load_processor
from braidmq.processors.processor import Failure, Processor, ProcessorError, Spool, SpoolState, spool_step
from braidmq.processors.worker_messages import (
    Done,
    Feed,
    Fill,
    Forget,
    FromWorker,
    LoadRefused,
    MessageResult,
    Ready,
    Setup,
    decode_message,
    decode_to_worker,
)
from braidmq.system.framing import FrameSplitter, frame

REPORT_S: Final = 0.005
"""How long a worker goes on before it reports what it has done."""

READ_BYTES: Final = 1 << 18
_PR_SET_PDEATHSIG: Final = 1


class Worker:
    """A processor with the spools of its topics."""

    def __init__(self, connection: socket.socket, processor: Processor) -> None:
        self._connection = connection
        self._processor = processor
        self._spools: dict[str, Spool] = {}

    def on_frame(self, body: bytes) -> None:
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
        results: list[MessageResult] = []
        count = 0
        began = clock()
        copies = frozenset(feed.copies)
        for place, raw in enumerate(feed.messages):
            message = decode_message(raw)
            spool = self._spools.get(message.topic)
            if spool is None:
                spool = self._spools[message.topic] = Spool(self._processor.spool)
            outcome = None
            if place in copies:
                spool.insert(message)
            else:
                outcome = spool_step(self._processor, spool, message)
            if isinstance(outcome, Failure):
                results.append(MessageResult(count, None, outcome))
            elif outcome is not None:
                results.append(MessageResult(count, outcome, None))
            count += 1
            now = clock()
            if now - began > REPORT_S:
                send(self._connection, Done(count, now - began, results))
                results = []
                count = 0
                began = clock()
        if count:
            send(self._connection, Done(count, clock() - began, results))


def send(connection: socket.socket, message: FromWorker) -> None:
    connection.sendall(frame(message))


def prepare(setup: Setup) -> Processor:
    """The processor that is asked for; a ProcessorError says why it cannot be used."""
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
    splitter = FrameSplitter()
    worker: Worker | None = None
    while data := connection.recv(READ_BYTES):
        for body in splitter.split(data):
            if worker is not None:
                worker.on_frame(body)
                continue
            setup = decode_to_worker(body)
            assert isinstance(setup, Setup)
            try:
                one = prepare(setup)
            except ProcessorError as error:
                send(connection, LoadRefused(str(error)))
                return
            worker = Worker(connection, one)
            send(connection, Ready(one.name, one.topic, one.spool, one.output, one.time_limit_s))


def end_with_parent() -> None:
    """Linux kills this process when its broker is gone, even if a function never returns."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _let_pass(_number: int, _frame: FrameType | None) -> None:
    """A handler, because children would inherit a signal that is ignored."""


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
