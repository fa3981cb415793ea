"""The offsets that processors are told are those that the log then has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="a log needs the extra `log`")

from braidmq.broker.message import Message
from braidmq.log.opening import open_log
from braidmq.log.writer_messages import WriterSettings
from braidmq.log.writer_process import WriterProcess
from braidmq.server.log_recorder import LogRecorder
from tests.raw import wait_until


@pytest.fixture
def numbered(tmp_path: Path) -> Iterator[LogRecorder]:
    settings = WriterSettings(str(tmp_path / "log"), "here", 8, 2**24, 2**30, 86_400.0, "normal")
    recorder = LogRecorder(WriterProcess(settings), ["in/#"])
    yield recorder
    recorder.close()


def take(numbered: LogRecorder, payload: bytes, qos: int) -> int:
    numbered.record(Message("in/1", b"\0\4in/1", payload, qos, False, "c"), 1.5)
    return numbered.last


def offsets_of(folder: Path) -> dict[bytes, int]:
    log = open_log(str(folder / "log"))
    state = log.state()
    found: dict[bytes, int] = {}
    for partition in range(state.partitions):
        for batch in log.read(partition, 0, state.next_offset):
            rows = batch.to_pydict()
            found |= dict(zip(rows["payload"], rows["offset"], strict=True))
    return found


def settle(numbered: LogRecorder) -> int:
    first = numbered.next_offset
    wait_until(lambda: numbered.is_written(first), "all is written")
    return first


def test_offsets_are_known_beforehand(numbered: LogRecorder, tmp_path: Path) -> None:
    told: dict[bytes, int] = {}
    for number in range(50):
        payload = str(number).encode()
        if number % 3 == 0:
            packet = b"\x30\x08\0\4in/1" + f"{number:02}".encode()
            other = b"\x30\x08\0\4in/1" + f"x{number % 10}".encode()
            numbered.record_run(b"in/1", "c", 1.5, packet + other, 2, 8, 10)
            told[f"{number:02}".encode()] = numbered.last
        elif number % 3 == 1:
            numbered.record_plain(b"in/1", "c", 1.5, payload, 1)
            told[payload] = numbered.last
        else:
            told[payload] = take(numbered, payload, number % 2)
        if number % 7 == 0:
            numbered.commit()
    assert settle(numbered) == 50 + 17
    found = offsets_of(tmp_path)
    assert {payload: found[payload] for payload in told} == told
    assert (numbered.origin, numbered.at) == ("here", 1.5)
