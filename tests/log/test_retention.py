"""A log keeps within its bounds, and what becomes Parquet has the same rows."""

from __future__ import annotations

import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from braidmq.log.compaction import Compaction
from braidmq.log.log import Log
from braidmq.log.reader import LogReader
from braidmq.log.retention import segment_bytes_max
from braidmq.log.run import Run
from tests.log.rows import EVER, START_US, numbers_in, read_all, write

LATER_US = START_US + 10_000 * 1_000_000


def filled(folder: Path, rows: int = 200, **options: float) -> Log:
    """A log with many small segments: ten rows a commit, and a segment is full after a few."""
    log = Log(folder, "b", partitions=2, segment_bytes=8_000, **options)  # type: ignore[arg-type]
    for first in range(0, rows, 10):
        write(log, *range(first, first + 10))
    return log


def test_by_size(tmp_path: Path) -> None:
    log = filled(tmp_path, retain_bytes=64_000)
    for first in range(200, 2000, 10):
        write(log, *range(first, first + 10))
        log.retain(LATER_US)
        assert log.bytes <= 64_000
    assert sum(path.stat().st_size for path in tmp_path.glob("partition-*/*")) == log.bytes
    left = numbers_in(tmp_path)
    state = LogReader(tmp_path).state()
    assert state.first_offset == log.first_offset > 0
    assert [number for number in left if number >= state.first_offset] == list(range(state.first_offset, 2000))
    log.close()
    log = Log(tmp_path, "b", partitions=2)
    assert (log.first_offset, log.next_offset) == (state.first_offset, 2000)
    log.close()


def test_by_age(tmp_path: Path) -> None:
    log = filled(tmp_path, retain_age_s=100.0)
    now_us = START_US + 200 * 1_000_000
    assert log.retain(now_us) > 0
    left = numbers_in(tmp_path)
    assert set(range(100, 200)) <= set(left), "what is young enough stays"
    assert min(left) > 50, "what is much too old does not"
    assert log.retain(now_us) == 0
    log.retain(now_us + 200 * 1_000_000)
    assert numbers_in(tmp_path) == []
    assert log.first_offset == log.next_offset == 200
    write(log, 200)
    assert numbers_in(tmp_path) == [200]
    log.close()


def test_without_bounds_everything_stays(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert log.retain(LATER_US) == 0
    assert numbers_in(tmp_path) == list(range(200))
    log.close()


def test_segments_are_small_enough_for_the_bound() -> None:
    assert segment_bytes_max(1000, 0, 8) == 1000
    assert segment_bytes_max(1000, 3200, 8) == 100
    assert segment_bytes_max(1000, 10**9, 8) == 1000


def test_parquet_has_the_same_rows(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.append([Run.of("t/1", b"payload 200", START_US, client=None, properties=[("a", "b")])])
    before = read_all(LogReader(tmp_path))
    compaction = Compaction(log, after_s=60.0)
    assert compaction.run(START_US) == 0, "they are too young"
    done = compaction.run(LATER_US)
    assert done == len(log.closed) > 4
    assert compaction.run(LATER_US) == 0
    parquet = sorted(tmp_path.glob("*/*.parquet"))
    assert len(parquet) == done
    reader = LogReader(tmp_path)
    assert read_all(reader) == before
    assert read_all(reader, 33, 77, ("t/2",)) == [
        one for one in before if 33 <= one["offset"] < 77 and one["topic"] == "t/2"
    ]
    start = datetime.fromtimestamp(START_US / 1e6, UTC)
    assert [reader.offset_at(start + timedelta(seconds=number)) for number in (0, 55, 150)] == [0, 55, 150]
    assert reader.offset_after(20, 30) == 50
    assert reader.offset_after(20, 10_000) == 201
    assert pq.read_table(parquet[0]).schema.names == list(before[0])
    for partition in range(2):
        whole, few = (
            pa.Table.from_batches(reader.read(partition, 0, EVER, columns=columns)) for columns in (None, ["payload"])
        )
        assert few.equals(whole.select(["payload", "offset"]))
    sizes = log.bytes
    log.close()
    log = Log(tmp_path, "b", partitions=2)
    assert (log.bytes, len([one for one in log.closed if one.is_parquet])) == (sizes, done)
    write(log, 201)
    assert read_all(LogReader(tmp_path))[:-1] == before
    log.retain_bytes = 1
    log.retain(LATER_US)
    assert list(tmp_path.glob("*/*.parquet")) == []
    log.close()


def test_a_crash_while_parquet_is_made(tmp_path: Path) -> None:
    log = filled(tmp_path)
    before = read_all(LogReader(tmp_path))
    one = log.closed[0]
    arrow = {path: path.read_bytes() for path in one.path.parent.glob(one.path.name + "*")}
    Compaction(log, after_s=60.0).run(LATER_US)
    log.close()
    for path, content in arrow.items():  # the old files are still there
        path.write_bytes(content)
    one.path.with_name(one.path.name + ".parquet.part").write_bytes(b"PAR1 half")
    assert read_all(LogReader(tmp_path)) == before
    log = Log(tmp_path, "b", partitions=2)
    assert read_all(LogReader(tmp_path)) == before
    assert not list(tmp_path.glob("*/*.part"))
    assert not any(path.exists() for path in arrow)
    log.close()


def test_damaged_segments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = filled(tmp_path)
    hurt, whole = log.closed[0], log.closed[2]
    data = hurt.path.with_name(hurt.path.name + ".arrow")
    content = bytearray(data.read_bytes())
    content[content.index(b"payload ")] ^= 1
    data.write_bytes(content)
    compaction = Compaction(log, after_s=60.0)
    assert compaction.run(LATER_US) == len(log.closed) - 1
    assert "it stays as it is" in caplog.text
    assert data.exists()
    assert compaction.run(LATER_US) == 0
    parquet = whole.path.with_name(whole.path.name + ".parquet")
    parquet.write_bytes(b"nonsense")
    reader = LogReader(tmp_path)
    left = numbers_in(reader)
    assert 200 - whole.rows - 10 <= len(left) < 200 - whole.rows
    assert reader.damaged_batches == 2
    assert f"{parquet}: it cannot be read and is left out" in caplog.text
    log.close()
    Log(tmp_path, "b", partitions=2).close()


def test_readers_are_not_disturbed(tmp_path: Path) -> None:
    """Rows above the first offset are there all the time, while segments come, become Parquet and go."""
    log = filled(tmp_path, rows=400)
    stop = threading.Event()
    problems: list[str] = []

    def read() -> None:
        reader = LogReader(tmp_path)
        while not stop.is_set():
            state = reader.state()
            rows = read_all(reader, 0, state.next_offset)
            first = reader.state().first_offset
            got = {one["offset"] for one in rows}
            missing = [offset for offset in range(first, state.next_offset) if offset not in got]
            if missing or reader.damaged_batches:
                problems.append(f"{missing[:5]} {reader.damaged_batches}")

    thread = threading.Thread(target=read)
    thread.start()
    compaction = Compaction(log, after_s=0.0)
    for first in range(400, 1200, 10):
        write(log, *range(first, first + 10))
        compaction.run(START_US + first * 1_000_000)
        if first % 100 == 0:
            log.retain_bytes = 60_000
            log.retain(LATER_US)
    stop.set()
    thread.join()
    assert not problems
    log.close()
    shutil.rmtree(tmp_path)
