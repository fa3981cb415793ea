"""What waits to be written to the log: two buffers, their bounds, and publishers that are held up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from braidmq.broker.recorder import LOST
from braidmq.log.reader import LogReader
from braidmq.log.run import Run
from braidmq.log.shared_memory import REGION_BYTES
from braidmq.log.writer_messages import WriterSettings
from braidmq.log.writer_process import WriterProcess
from braidmq.server import log_recorder
from braidmq.server.log_recorder import WAITING_BYTES_MAX, WRITE_BYTES_MAX, WRITE_S, LogRecorder
from tests.log.rows import START_US, read_all
from tests.raw import wait_until

if TYPE_CHECKING:
    pass


def test_buffers_come_whole_whatever_their_size(tmp_path: Path) -> None:
    """A buffer is used again and again; what has no room in the shared memory goes beside it, in its order."""
    writer = WriterProcess(WriterSettings(str(tmp_path / "log"), "b", 2, 1 << 20, 0, 0.0, "normal"))
    payloads: list[bytes] = []

    def write(number: int, *sizes: int) -> None:
        buffer = writer.buffers[number]
        for size in sizes:
            payloads.append(b"%d " % len(payloads) + bytes([len(payloads) % 256]) * size)
            buffer.add_run(
                Run.of(f"t/{len(payloads) % 3}", payloads[-1], START_US, client=None)._replace(first=len(payloads) - 1)
            )
        writer.append(buffer)
        buffer.clear()

    assert resident(writer) < 1 << 20
    for time_over in range(3):
        write(time_over % 2, *[3 * size for size in range(500)])
    write(0, 100, REGION_BYTES - 1000, 100, 3000, 0, 100, REGION_BYTES + 1, 100)
    assert resident(writer) > REGION_BYTES
    write(0, 1)
    assert resident(writer) < REGION_BYTES, "what was seldom needed is given back"
    write(1, 5, 6)
    write(0, 7)
    writer.close()
    assert [one["payload"] for one in read_all(LogReader(tmp_path / "log"))] == payloads


def resident(writer: WriterProcess) -> int:
    """Bytes of shared memory that are in use."""
    return os.fstat(writer._memory.file).st_blocks * 512


MEGABYTE = b"m" * (1 << 20)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogRecorder]:
    """One that rests for an hour before it writes, if nothing else makes it."""
    monkeypatch.setattr(log_recorder, "WRITE_EVERY_S", 3600.0)
    monkeypatch.setattr(log_recorder, "RETRY_S", 0.01)
    settings = WriterSettings(str(tmp_path / "log"), "b", 1, 1 << 26, 0, 0.0, "normal")
    made = LogRecorder(WriterProcess(settings), ["#"])
    yield made
    made.close()


def test_a_full_buffer_waits_for_no_more(recorder: LogRecorder) -> None:
    buffer = WRITE_BYTES_MAX // len(MEGABYTE)
    for _ in range(buffer + 1):  # the last one finds that a buffer waits
        recorder.record_plain(b"t", "c", 1.0, MEGABYTE, 0)
    wait_until(lambda: recorder.is_written(buffer), "a buffer is written")
    recorder.record_plain(b"t", "c", 1.0, b"after it", 0)
    assert not recorder.is_written(recorder.next_offset)


def test_writes_are_smaller_where_writing_takes_long(recorder: LogRecorder) -> None:
    assert recorder.log.pid is not None
    os.kill(recorder.log.pid, signal.SIGSTOP)
    try:
        buffer = WRITE_BYTES_MAX // len(MEGABYTE)
        for _ in range(buffer + 1):
            recorder.record_plain(b"t", "c", 1.0, MEGABYTE, 0)
        time.sleep(5 * WRITE_S)
    finally:
        os.kill(recorder.log.pid, signal.SIGCONT)
    wait_until(lambda: recorder.is_written(buffer), "a large buffer is written")
    for _ in range(buffer // 4):
        recorder.record_plain(b"t", "c", 1.0, MEGABYTE, 0)
    wait_until(lambda: recorder.is_written(buffer + buffer // 8), "less waits for no more")


def test_publishers_are_held_up_and_nothing_is_lost(recorder: LogRecorder) -> None:
    """While the writer stands still, two buffers are taken and no third."""
    assert recorder.log.pid is not None
    buffer = WRITE_BYTES_MAX // len(MEGABYTE)
    taken = 0

    def publish() -> None:
        nonlocal taken
        for number in range(4 * buffer):
            recorder.record_plain(b"t/%d" % (number % 3), "c", 1.0, b"%d " % number + MEGABYTE, 0)
            taken += 1

    publisher = threading.Thread(target=publish)
    os.kill(recorder.log.pid, signal.SIGSTOP)
    try:
        publisher.start()
        wait_until(lambda: taken >= 2 * buffer, "two buffers")
        time.sleep(0.5)
        assert publisher.is_alive()
        assert taken <= 2 * buffer + 2
    finally:
        os.kill(recorder.log.pid, signal.SIGCONT)
    publisher.join(60)
    recorder._write()
    numbers = [int(one["payload"].split()[0]) for one in read_all(LogReader(recorder.log.folder))]
    assert numbers == list(range(4 * buffer))
    assert recorder.dropped == 0


def test_what_waits_for_a_log_that_cannot_be_written_has_a_bound(recorder: LogRecorder) -> None:
    blocker = recorder.log.folder / "partition-000"
    blocker.write_text("")
    most = WAITING_BYTES_MAX // len(MEGABYTE)
    for _ in range(most + 5):
        recorder.record_plain(b"t", "c", 1.0, MEGABYTE, 0)
    wait_until(lambda: recorder.failures > 1, "it is tried again")
    for _ in range(2):
        recorder.record_plain(b"t", "c", 1.0, b"one too many", 0)
    assert recorder.last == LOST
    assert recorder.dropped >= 2
    kept = most + 7 - recorder.dropped
    assert most <= kept <= most + 1
    blocker.unlink()
    wait_until(lambda: recorder.is_written(kept), "it can be written again")
    recorder.record_plain(b"t", "c", 1.0, b"there is room", 0)
    assert recorder.last == kept
