"""A long run, scaled down: whatever comes, a worker holds no more than its bounds say, in memory and on the disk."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.log.log import Log
from braidmq.log.run import Run as Row
from braidmq.pipeline.stateful import running
from braidmq.pipeline.stateful.running import SpoolCache
from braidmq.pipeline.stateful.snapshots import KEPT, SUFFIX
from tests.pipeline.test_stateful import BEGAN_US, PARTITIONS, Tasks, processor_file

BATCHES = 240
BATCH_ROWS = 60
SETTLED = 60
"""MicroBatches after which all bounds are reached."""
PAYLOAD_BYTES = 2_000
GROWTH_BYTES_MAX = 5_000_000
"""What may be in use more at the end than then: Python's tables grow in steps. All payloads are four times that."""
SPOOL = 3
TOPICS_MAX = 10
CACHED_MESSAGES_MAX = 80
"""Less than all partitions would have, so that some of them leave."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "log", "site1", partitions=PARTITIONS)
    yield made
    made.close()


def write(log: Log, batch: int) -> None:
    """Half of the rows are of topics that were never there before, and do not come again."""
    log.append(
        [
            Row.of(
                f"in/{batch}-{number}" if number < BATCH_ROWS // 2 else f"in/{number}",
                bytes(PAYLOAD_BYTES),
                BEGAN_US + batch,
                client=f"c{batch}-{number}",
                qos=1,
            )
            for number in range(BATCH_ROWS)
        ]
    )


def test_a_long_run_stays_within_its_bounds(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "braidmq.pipeline")  # what is kept of warnings would count
    memory = SpoolCache()
    monkeypatch.setattr(running, "spool_cache", lambda: memory)
    monkeypatch.setattr(running, "CACHED_MESSAGES_MAX", CACHED_MESSAGES_MAX)
    monkeypatch.setattr(running, "SNAPSHOT_ROWS_MIN", 1)
    monkeypatch.setattr(running, "SNAPSHOT_SHARE", 0)
    snapshots = tmp_path / "spools"
    file = processor_file(
        tmp_path,
        f"""
from braidmq.processors import processor

@processor(topic="in/+", spool={SPOOL}, output="out")
def silent(spool, message):
    assert len(spool) <= {SPOOL}
""",
    )
    tasks = Tasks(file, tmp_path / "log", snapshots)
    tasks.topics_max = TOPICS_MAX
    file_bytes_max = TOPICS_MAX * SPOOL * 2 * PAYLOAD_BYTES
    in_use = most = start = 0
    tracemalloc.start()
    try:
        for batch in range(BATCHES):
            write(log, batch)
            assert tasks.batch(start, log.next_offset) == []
            start = log.next_offset
            most = max(most, len(memory))
            assert len(memory) <= CACHED_MESSAGES_MAX
            for folder in snapshots.iterdir():
                files = list(folder.iterdir())
                assert all(one.suffix == SUFFIX and one.stat().st_size <= file_bytes_max for one in files)
                assert len(files) <= KEPT + 1
            if batch == SETTLED:
                in_use, _ = tracemalloc.get_traced_memory()
        grown = tracemalloc.get_traced_memory()[0] - in_use
    finally:
        tracemalloc.stop()
    assert len(list(snapshots.iterdir())) == PARTITIONS
    assert most > CACHED_MESSAGES_MAX - TOPICS_MAX * SPOOL
    assert grown < GROWTH_BYTES_MAX
