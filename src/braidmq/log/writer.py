"""The process that writes a broker's log: `python -m braidmq.log.writer`, started by the broker, with requests on its
standard input and reports on its standard output.

Making batches of rows, compressing and writing them is work that can be done beside the broker. The process ends when
its input does, whatever became of the broker: by then everything that was sent to it is written.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import threading
import time
from typing import Any, Final

import msgspec

from braidmq.log.compaction import Compaction
from braidmq.log.errors import LogError, LogInUseError
from braidmq.log.kept_memory import keep_memory
from braidmq.log.log import Log
from braidmq.log.shared_memory import SharedMemory
from braidmq.log.write_buffer import BUFFERS
from braidmq.log.writer_messages import AppendRequest, WriterReport, WriterSettings
from braidmq.system.framing import FrameWriter, read_frame

MAINTENANCE_S: Final = 10.0
"""How often old segments are removed or made into Parquet."""

LOCK_WAIT_S: Final = 15.0
"""How long the writer of a broker that has died may still need the log."""

LOCK_POLL_S: Final = 0.05
NOTES_MAX: Final = 100
"""Notes that wait for the next report; more are left out."""

KEPT_BYTES: Final = 256 * 1024 * 1024
"""Memory that the process keeps: batch after batch allocates and frees some megabytes."""

GC_THRESHOLD: Final = 100_000
"""New objects between two garbage collections: runs come by the thousand, and hardly any is part of a cycle."""

NICENESS: Final = 10
"""Rows may be in the log a moment later, but all clients notice what holds the broker up: where processors are busy,
the writer gets a tenth of what the broker gets."""

_INPUT, _OUTPUT = 0, 1


class PendingNotes(logging.Handler):
    """Keeps log records until the next report takes them to the broker."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._kept: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._kept) < NOTES_MAX:
            self._kept.append((record.levelno, record.getMessage()))

    def take(self) -> list[tuple[int, str]]:
        taken, self._kept = self._kept, []
        return taken


class LogWriter:
    def __init__(self, log: Log, memory: memoryview, notes: PendingNotes) -> None:
        self._log = log
        self._memory = memory
        self._notes = notes
        self._frames = FrameWriter()
        self._end = threading.Event()
        self._decode = msgspec.msgpack.Decoder(AppendRequest).decode

    def run(self) -> None:
        maintenance = threading.Thread(target=self._maintain, daemon=True)
        maintenance.start()
        self._report(None)
        while (body := read_frame(_INPUT)) is not None:
            request = self._decode(body)
            self._log.retain_bytes, self._log.retain_age_s = request.retain_bytes, request.retain_age_s
            try:
                self._log.append_contents(request.contents, self._memory)
                self._report(None)
            except LogError as error:
                self._report(str(error))
        self._end.set()
        maintenance.join()
        self._log.close()

    def _report(self, error: str | None) -> None:
        log = self._log
        sizes = (log.rows, log.bytes, log.bytes_written, log.cut_bytes)
        with contextlib.suppress(BrokenPipeError):  # if the broker is gone, its requests end too
            self._frames.write(
                _OUTPUT, WriterReport(error, log.first_offset, log.next_offset, *sizes, self._notes.take())
            )

    def _maintain(self) -> None:
        compaction = Compaction(self._log)
        while not self._end.wait(MAINTENANCE_S):
            try:
                self._log.reserve()
                self._log.retain(time.time_ns() // 1000)
                compaction.run(time.time_ns() // 1000, self._end.is_set)
            except OSError as error:
                logging.getLogger("braidmq.log").error("%s", error)


def open_log(settings: WriterSettings) -> Log:
    """The log; waits while another process has it, since that may be about to end."""
    ends_at = time.monotonic() + LOCK_WAIT_S
    options: dict[str, Any] = msgspec.structs.asdict(settings)
    folder, _ = options.pop("folder"), options.pop("memory")
    while True:
        try:
            return Log(folder, **options)
        except LogError as error:
            if not isinstance(error, LogInUseError) or time.monotonic() > ends_at:
                raise
        time.sleep(LOCK_POLL_S)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with the broker, and not before it
    keep_memory(KEPT_BYTES, KEPT_BYTES)
    notes = PendingNotes()
    logger = logging.getLogger("braidmq")
    logger.addHandler(notes)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    body = read_frame(_INPUT)
    if body is None:
        return
    settings = msgspec.msgpack.decode(body, type=WriterSettings)
    try:
        log = open_log(settings)
    except OSError as error:
        FrameWriter().write(_OUTPUT, WriterReport(str(error)))
        return
    os.nice(NICENESS)
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    memory = SharedMemory(BUFFERS * settings.partitions, settings.memory)
    LogWriter(log, memoryview(memory.map), notes).run()


if __name__ == "__main__":
    main()
