"""The recorder that keeps a log: rows are handed over on the fast path, and written by a process of their own.

Readers see rows a moment after WRITE_EVERY_S, under heavy load after up to WRITE_EVERY_S_MAX, since many rows together
cost less. Rows of QoS 1 and 2, whose publishers wait for an acknowledgement, are noted in the log's journal by the
broker's own commit, and are not lost from then on. One buffer is filled while the other is written. If that takes too
long, the broker waits for it, so that publishers are held up and nothing is lost. Only while the log cannot be written
at all are rows of QoS 0 dropped, when too many wait, and counted; QoS 1 and 2 are then refused (see `tick`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from braidmq.broker.message import Message
from braidmq.broker.recorder import LOST
from braidmq.config.naming import broker_name
from braidmq.config.settings import Config, LogConfig
from braidmq.log.errors import LogError
from braidmq.log.properties import pairs_of, published_us_of
from braidmq.log.run import Run
from braidmq.log.write_buffer import BUFFERS, WriteBuffer
from braidmq.log.writer_messages import WriterSettings
from braidmq.log.writer_process import WriterProcess
from braidmq.mqtt.trees import FilterTree

if TYPE_CHECKING:
    from braidmq.log.reader import LogReader

WRITE_EVERY_S: Final = 0.01
"""How long a row waits for others before it is written."""

WRITE_EVERY_S_MAX: Final = 0.1
RESTS: Final = 4
"""After a write, the pause is as many times as long as the write took, within these bounds."""

WRITE_S: Final = 0.1
WRITE_BYTES_MIN, WRITE_BYTES_MAX = 1024 * 1024, 32 * 1024 * 1024
"""How full a buffer is when it is written without waiting any longer: with as much as was written in WRITE_S the last
time, within these bounds. Frequent writes disturb the broker where processors are few."""

HELD_TIMES: Final = 4
"""How many times as much may arrive, up to WRITE_BYTES_MAX, while the other buffer is written, before publishers are
held up."""

WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of rows that wait for a log that cannot be written."""

RETRY_S: Final = 1.0
"""How often a log that could not be written is tried again."""

END_S: Final = 10.0
"""How long the thread has to end."""

_log = logging.getLogger("braidmq.log")
_new = tuple.__new__


class LogRecorder:
    def __init__(self, log: WriterProcess, topics: Iterable[str]) -> None:
        self.log = log
        self.dirty = False
        self.dropped = 0
        """Rows that were not kept, because the log could not be written."""
        self.failures = 0
        self.last = LOST
        """The offset of what was handed over last, of a run that of the first; LOST if it was dropped."""
        self._at_us = 0
        self._next = self._floor = log.next_offset
        """What the next row gets, if the writer has not gone on at a higher one."""
        self._unnoted: list[Run] = []
        """Those of QoS 1 and 2 that the next commit notes; only the loop knows them."""
        self._active, self._empty = log.buffers
        self._writing: WriteBuffer | None = None
        """The buffer that is being written, or could not be. Meanwhile the other one is filled, and none is empty."""
        self._write_bytes = self._held_at_bytes = self._check_at_bytes = WRITE_BYTES_MAX
        """When a buffer is written at once; when publishers are held up; and when `_make_room` looks at it again."""
        self._adding = threading.Lock()
        """Held while rows are added to a buffer, and while the buffers change places."""
        self._is_failing = False
        self._turn = threading.Lock()
        """Held while a buffer is written."""
        self._is_awake = False
        self._wake = threading.Event()
        self._hurry = threading.Event()
        """Ends the pause before the next write."""
        self._is_ending = False
        self.set_topics(topics)
        self._thread = threading.Thread(target=self._write_for_ever, name="log", daemon=True)
        self._thread.start()

    @cached_property
    def reader(self) -> LogReader:
        """For readers on the admin port."""
        from braidmq.log.reader import LogReader

        return LogReader(self.log.folder)

    @property
    def folder(self) -> Path:
        return self.log.folder

    @property
    def origin(self) -> str:
        """The broker's name in the rows."""
        return self.log.broker

    @property
    def damaged(self) -> tuple[int, int]:
        """(batches, rows) that were found to be damaged when they were read over the admin port."""
        if "reader" not in self.__dict__:
            return 0, 0
        return self.reader.damaged_batches, self.reader.damaged_rows

    # What is wanted

    def set_topics(self, topics: Iterable[str]) -> None:
        self._tree: FilterTree[bool] = FilterTree()
        for one in topics:
            self._tree.set(one, True)

    def reconfigure(self, settings: LogConfig) -> None:
        """Takes over what may change while it runs."""
        self.set_topics(settings.topics)
        self.log.retain_bytes = settings.retain_bytes
        self.log.retain_age_s = settings.retain_age_s

    def wants(self, topic: str) -> bool:
        return not topic.startswith("$") and bool(self._tree.match(topic))

    # The loop hands over

    def record_run(self, topic: bytes, client: str, at: float, run: bytes, count: int, head: int, size: int) -> None:
        if self._has_room(0, count):
            at_us, first = int(at * 1e6), self.next_offset
            with self._adding:
                self._active.add(topic, client, at_us, 0, False, count, run, head, size, first)
            self._added(first, count, at_us)

    def record_plain(self, topic: bytes, client: str, at: float, payload: bytes, qos: int) -> None:
        if self._has_room(qos, 1):
            at_us, size, first = int(at * 1e6), len(payload), self.next_offset
            with self._adding:
                self._active.add(topic, client, at_us, qos, False, 1, payload, 0, size, first)
            self._added(first, 1, at_us)
            if qos:
                name = client.encode()
                self._unnoted.append(_new(Run, (topic, name, at_us, qos, False, 1, payload, 0, size, (), None, first)))
                self.dirty = True

    def record(self, message: Message, at: float) -> None:
        if self._has_room(message.qos, 1):
            pairs, first = pairs_of(message.forward), self.next_offset
            run = Run.of(
                message.topic,
                message.payload,
                int(at * 1e6),
                client=message.sender or None,
                qos=message.qos,
                retain=message.retain,
                properties=pairs,
                published_us=published_us_of(pairs),
            )._replace(first=first)
            with self._adding:
                self._active.add_run(run)
            self._added(first, 1, run.at_us)
            if run.qos:
                self._unnoted.append(run)
                self.dirty = True

    def _has_room(self, qos: int, rows: int) -> bool:
        if self._active.bytes > self._check_at_bytes and not self._make_room(qos, rows):
            self.last = LOST
            return False
        return True

    def _added(self, first: int, rows: int, at_us: int) -> None:
        self.last, self._at_us = first, at_us
        self._next = first + rows
        if not self._is_awake:
            self._is_awake = True
            self._wake.set()

    @property
    def at(self) -> float:
        """When what was handed over last was received, as its row says it."""
        return self._at_us / 1e6

    @property
    def next_offset(self) -> int:
        """The offset of the next row that is handed over. The row keeps it however often writing it is tried; only a
        writer that died goes on at a higher one."""
        return self._next if self._next > self._floor else self._floor

    def _make_room(self, qos: int, rows: int) -> bool:
        """Much waits, so it is written soon. If it is too much, waits until the other buffer is written. False if that
        fails and the rows are dropped."""
        if not self._is_failing:
            self._hurry.set()
            if self._active.bytes <= self._held_at_bytes:
                self._check_at_bytes = self._held_at_bytes
                return True
            with self._turn, suppress(LogError):
                self._write_pending()  # unless it has been written meanwhile
                self._begin_writing()
                return True
        in_hand = self._writing
        self._check_at_bytes = WAITING_BYTES_MAX - (0 if in_hand is None else in_hand.bytes)
        if qos or self._active.bytes <= self._check_at_bytes:
            return True  # QoS 1 and 2 are refused already, but for this tick's
        self.dropped += rows
        return False

    def is_written(self, offset: int) -> bool:
        """Whether all rows below an offset are there for readers."""
        return self.log.next_offset >= offset

    def commit(self) -> None:
        """A crash does not take what was handed over with QoS 1 or 2."""
        if self._is_failing:
            self._write()
        self.log.note(self._unnoted)
        self._unnoted.clear()
        self.dirty = False

    # Writing

    def _write(self) -> None:
        """All that waits now, in both buffers."""
        for _ in range(BUFFERS):
            self._write_one_buffer()

    def _write_one_buffer(self) -> None:
        with self._turn:
            self._begin_writing()
            self._write_pending()

    def _write_pending(self) -> None:
        buffer = self._writing
        if buffer is None:
            return
        began_at = monotonic()
        try:
            self.log.append(buffer)
        except LogError as error:
            self.failures += 1
            if not self._is_failing:
                self._is_failing = True
                _log.critical("%s; rows are lost when %d bytes of them wait", error, WAITING_BYTES_MAX)
            raise
        finally:
            self._floor = self.log.next_offset
        if buffer.bytes >= WRITE_BYTES_MIN:  # less says little about the disk
            in_time = int(buffer.bytes * WRITE_S / max(monotonic() - began_at, 1e-6))
            self._write_bytes = min(max(in_time, WRITE_BYTES_MIN), WRITE_BYTES_MAX)
            self._held_at_bytes = min(HELD_TIMES * self._write_bytes, WRITE_BYTES_MAX)
            self._check_at_bytes = self._write_bytes
        buffer.clear()
        self._writing, self._empty = None, buffer
        if self._is_failing:
            self._is_failing = False
            _log.warning("the log can be written again; %d rows were lost", self.dropped)

    def _begin_writing(self) -> None:
        """The active buffer is the next to be written, unless it is empty or another one is not written yet."""
        if self._writing is None:
            with self._adding:
                if self._active.rows:
                    self._writing, self._active = self._active, self._empty
                    self._check_at_bytes = self._write_bytes

    def _write_for_ever(self) -> None:
        rest_s = WRITE_EVERY_S
        while not self._is_ending:
            self._wake.wait()
            self._wake.clear()
            self._hurry.wait(RETRY_S if self._is_failing else rest_s)
            self._hurry.clear()
            self._is_awake = False
            began_at = monotonic()
            try:
                self._write_one_buffer()
                rest_s = min(max(WRITE_EVERY_S, RESTS * (monotonic() - began_at)), WRITE_EVERY_S_MAX)
            except LogError:
                pass  # it has been reported
            if self._writing is not None or self._active.rows:
                self._is_awake = True
                self._wake.set()

    def close(self) -> None:
        """Writes the rest and closes the log."""
        self._is_ending = True
        self._hurry.set()
        self._wake.set()
        self._thread.join(END_S)
        try:
            self._write()
        except LogError as error:
            rows = sum(buffer.rows for buffer in self.log.buffers)
            _log.error("%s; %d rows are lost", error, rows)
        self.log.close()


def open_recorder(config: Config) -> LogRecorder:
    """The recorder that a configuration asks for; a LogError says why its log cannot be used."""
    settings = config.log
    how = WriterSettings(
        folder=str(folder_of(config)),
        broker=broker_name(config),
        partitions=settings.partitions,
        segment_bytes=settings.segment_bytes,
        retain_bytes=settings.retain_bytes,
        retain_age_s=settings.retain_age_s,
        sync=config.store.sync,
    )
    return LogRecorder(WriterProcess(how), settings.topics)


def folder_of(config: Config) -> Path:
    return Path(config.data) / "log" if config.log.folder is None else Path(config.log.folder)
