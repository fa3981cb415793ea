"""A log that got its rows one by one has a long index: what is read of it is found without looking at all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.log.index import ENTRY_BYTES
from braidmq.log.log import Log
from braidmq.log.reader import SCANNED_MAX, LogReader
from tests.pipeline.logs import fill

ROWS = 3 * SCANNED_MAX
SPANS = (
    (0, 5),
    (0, ROWS),
    (ROWS // 2 - 1, ROWS // 2 + 2),
    (SCANNED_MAX, ROWS),
    (ROWS - 3, ROWS),
    (ROWS - 1, 10 * ROWS),
)


def offsets(reader: LogReader, start: int, until: int) -> list[int]:
    return [offset for batch in reader.read(0, start, until) for offset in batch["offset"].to_pylist()]


def test_any_span_is_found_and_damage_costs_its_own_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(tmp_path, "site1", partitions=1)
    fill(log, ROWS, commit=1)
    log.close()
    for start, until in SPANS:
        assert offsets(LogReader(tmp_path), start, until) == list(range(start, min(until, ROWS)))

    [index] = tmp_path.rglob("*.index")
    content = bytearray(index.read_bytes())
    damaged = ROWS // 2  # the first one that is looked at
    content[damaged * ENTRY_BYTES + 20] ^= 0x10
    index.write_bytes(content)
    for start, until in SPANS:
        expected = [offset for offset in range(start, min(until, ROWS)) if offset != damaged]
        assert offsets(LogReader(tmp_path), start, until) == expected
    assert f"entry {damaged} is damaged" in caplog.text
