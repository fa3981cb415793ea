"""Compaction: a closed segment that is old enough becomes Parquet, for batch work.

It has the same rows with the same offsets, in a fraction of the space and in large groups. The file is made under
another name and is on the disk before it gets its own; only then are the old files removed: readers find one or the
other. A damaged segment stays as it is, so that what can be read of it is not taken for everything it had.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from braidmq.log.log import Log
from braidmq.log.reader import LogReader
from braidmq.log.retention import ClosedSegment
from braidmq.log.schema import SCHEMA
from braidmq.log.segment import DATA, INDEX, PARQUET, UNFINISHED, with_end
from braidmq.log.segment_files import SUMMARY, closed_segment

COMPACT_AFTER_S: Final = 600.0
"""How old the latest row of a segment has to be before it becomes Parquet."""

GROUP_ROWS: Final = 64 * 1024
"""Rows of a row group: what is read at a time."""

LEVEL: Final = 1
"""Of zstd: edge brokers have more disk than processor."""

_log = logging.getLogger("braidmq.log")


class Compaction:
    def __init__(self, log: Log, after_s: float = COMPACT_AFTER_S) -> None:
        self._log = log
        self._reader = LogReader(log.folder)
        self.after_s = after_s
        self._spared: set[Path] = set()
        """Damaged segments, which stay as they are until retention removes them."""

    def run(self, now_us: int, ends: Callable[[], bool] = lambda: False) -> int:
        """Compacts what is due, one segment after the other until `ends`; returns how many."""
        old_us = now_us - int(self.after_s * 1e6)
        due = [one for one in list(self._log.closed) if self._is_due(one, old_us)]
        done = 0
        for one in due:
            if ends():
                break
            done += self._compact(one)
        self._spared &= {one.path for one in self._log.closed}
        return done

    def _is_due(self, one: ClosedSegment, old_us: int) -> bool:
        return not one.is_parquet and one.rows > 0 and one.time_us < old_us and one.path not in self._spared

    def _compact(self, one: ClosedSegment) -> bool:
        unfinished = with_end(one.path, PARQUET + UNFINISHED)
        try:
            damaged = self._reader.damaged_batches
            rows = self._write(one, unfinished)
            if rows != one.rows or self._reader.damaged_batches > damaged:
                self._spared.add(one.path)
                _log.warning("%s: only %d of %d rows can be read; it stays as it is", one.path, rows, one.rows)
                return False
            self._log.replace(one, lambda: _swap(one, unfinished))
        except FileNotFoundError:
            return False  # retention was faster
        finally:
            unfinished.unlink(missing_ok=True)
        return True

    def _write(self, one: ClosedSegment, path: Path) -> int:
        rows = 0
        summary = json.dumps({"last": one.last, "time_us": one.time_us, "rows": one.rows})
        schema = SCHEMA.with_metadata({SUMMARY: summary})
        with pq.ParquetWriter(path, schema, compression="zstd", compression_level=LEVEL) as writer:
            waiting: list[pa.RecordBatch] = []
            for batch in self._reader.segment_batches(one.path):
                waiting.append(batch)
                rows += batch.num_rows
                if sum(each.num_rows for each in waiting) >= GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(waiting, SCHEMA), row_group_size=GROUP_ROWS)
                    waiting = []
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting, SCHEMA), row_group_size=GROUP_ROWS)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return rows


def _swap(one: ClosedSegment, unfinished: Path) -> ClosedSegment:
    unfinished.replace(with_end(one.path, PARQUET))
    for end in (INDEX, DATA):
        with_end(one.path, end).unlink(missing_ok=True)
    return closed_segment(one.path)
