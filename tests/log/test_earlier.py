"""A log that an earlier version wrote, and that a crash left behind, is read and goes on (`earlier/log.zip`).

Twenty rows of site1 over three topics: the first in Parquet, later ones in Arrow segments, the last two noted in the
journal only.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from braidmq.log.log import Log
from braidmq.log.reader import LogReader
from tests.log.rows import read_all, row

EARLIER = Path(__file__).parent / "earlier" / "log.zip"
IN_SEGMENTS, IN_JOURNAL = 18, 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(EARLIER) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_its_rows_are_read_as_they_were_written(folder: Path) -> None:
    reader = LogReader(folder)
    rows = read_all(reader)
    assert [one["offset"] for one in rows] == list(range(IN_SEGMENTS))
    assert [one["payload"] for one in rows] == [b"%d" % number for number in range(IN_SEGMENTS)]
    assert [one["topic"] for one in rows] == [f"plant/{number % 3}/state" for number in range(IN_SEGMENTS)]
    assert [one["retain"] for one in rows] == [number % 4 == 0 for number in range(IN_SEGMENTS)]
    assert {one["origin"] for one in rows} == {"site1"}
    assert [one["client"] for one in rows[:5]] == ["device0", "device1", "device0", "device1", None]
    assert rows[6]["properties"] == [
        {"name": "unit", "value": "°C"},
        {"name": "content-type", "value": "text/plain"},
    ]
    assert (rows[1]["received_at"] - rows[1]["published_at"]).microseconds == 500
    assert (reader.damaged_batches, reader.state().partitions) == (0, 2)


def test_it_goes_on_with_what_was_noted_and_loses_nothing(folder: Path) -> None:
    before = LogReader(folder).state()
    log = Log(folder, "site1", partitions=2)
    assert log.id == before.id
    after = log.next_offset
    assert after > IN_SEGMENTS + IN_JOURNAL  # what was reserved and may have been used is not used again
    log.append([row(0)])
    log.close()
    rows = read_all(LogReader(folder))
    assert [one["offset"] for one in rows] == [*range(IN_SEGMENTS + IN_JOURNAL), after]
    assert [one["qos"] for one in rows[IN_SEGMENTS:-1]] == [1, 2]
