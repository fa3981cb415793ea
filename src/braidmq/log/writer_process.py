"""The broker's side of the process that writes its log (see `writer`).

It is used like a `Log`, by one thread at a time. A writer that dies is started again with the next request; the request
during which it died fails as a write to a bad disk would, and may be tried again. The journal is on this side: what is
noted there is safe without the writer.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

import msgspec

from braidmq.log.errors import LogError
from braidmq.log.journal import RowJournal
from braidmq.log.run import Run
from braidmq.log.shared_memory import SharedMemory
from braidmq.log.write_buffer import BUFFERS, WriteBuffer
from braidmq.log.writer_messages import AppendRequest, WriterReport, WriterSettings
from braidmq.system.framing import FrameWriter, read_frame

END_S: Final = 20.0
"""How long the writer has to write the rest when the broker ends."""

PIPE_BYTES: Final = 1 << 20
"""The size of the pipe to the writer, if the system grants it."""

_log = logging.getLogger("braidmq.log")


class WriterProcess:
    """Opens the log, in a process of its own; a LogError says why it cannot be used."""

    def __init__(self, settings: WriterSettings) -> None:
        self.folder = Path(settings.folder)
        self.broker = settings.broker
        self.retain_bytes = settings.retain_bytes
        self.retain_age_s = settings.retain_age_s
        self._memory = SharedMemory(BUFFERS * settings.partitions)
        self.buffers = [WriteBuffer(settings.partitions, self._memory, number) for number in range(BUFFERS)]
        """One can be filled while the other is written."""
        self._settings = msgspec.structs.replace(settings, memory=self._memory.file)
        self._rows_before = self._written_before = 0
        self._report = WriterReport()
        self._frames = FrameWriter()
        self._decode = msgspec.msgpack.Decoder(WriterReport).decode
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except LogError:
            self._memory.close()
            raise
        try:
            self._journal = RowJournal(self.folder, settings.sync == "full")
        except OSError as error:
            self._stop()
            self._memory.close()
            raise LogError(f"the journal of {self.folder} cannot be opened: {error.strerror}") from error

    # The process

    def _start(self) -> None:
        # A group of its own, so that Ctrl-C does not reach it; but no session: Linux may share processor time out by
        # sessions, and then the writer alone would get as much as the broker with all that is beside it.
        command = [sys.executable, "-m", "braidmq.log.writer"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            pass_fds=[self._memory.file],
        )
        with contextlib.suppress(OSError):
            fcntl.fcntl(_pipe(self._process.stdin), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        try:
            self._exchange(self._settings)
        except LogError:
            self._stop()
            raise

    def _exchange(self, message: msgspec.Struct) -> None:
        """Sends a request and waits for the report on it."""
        assert self._process is not None
        try:
            self._frames.write(_pipe(self._process.stdin), message)
            body = read_frame(_pipe(self._process.stdout))
        except OSError:
            body = None
        if body is None:
            self._stop()
            raise LogError(f"the process that writes the log in {self.folder} has died; it is started again")
        report = self._decode(body)
        for level, text in report.notes:
            _log.log(level, "%s", text)
        if report.error is not None:
            raise LogError(report.error)
        self._report = report

    def _stop(self) -> None:
        """Lets the process end by itself, and kills it if it does not in time."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._rows_before, self._written_before = self.rows, self.bytes_written
        self._report = msgspec.structs.replace(self._report, rows=0, bytes_written=0)

    def _restart(self) -> None:
        self._start()
        self._journal.clear()  # the new process has put into the log what was noted

    # As a log

    def append(self, buffer: WriteBuffer) -> None:
        """Writes the rows, all or none; they can be read then. A LogError says why not, and they may be tried again."""
        if self._process is None:
            self._restart()
        self._journal.switch_files()
        self._exchange(AppendRequest(buffer.contents, self.retain_bytes, self.retain_age_s))
        self._journal.discard_below(self.next_offset)

    def note(self, runs: list[Run]) -> None:
        """Makes rows durable that have their offsets, and that an `append` will bring soon."""
        try:
            self._journal.note(runs)
        except OSError as error:
            raise LogError(f"the journal in {self.folder} cannot be written: {error.strerror}") from error

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def rows(self) -> int:
        """Written since the start."""
        return self._rows_before + self._report.rows

    @property
    def bytes_written(self) -> int:
        return self._written_before + self._report.bytes_written

    @property
    def bytes(self) -> int:
        """What the log takes up on the disk."""
        return self._report.bytes

    @property
    def cut_bytes(self) -> int:
        """What the last crash had left unfinished."""
        return self._report.cut_bytes

    @property
    def first_offset(self) -> int:
        return self._report.first_offset

    @property
    def next_offset(self) -> int:
        return self._report.next_offset

    def close(self) -> None:
        self._stop()
        self._journal.close()
        self._memory.close()


def _pipe(file: IO[bytes] | None) -> int:
    assert file is not None
    return file.fileno()
