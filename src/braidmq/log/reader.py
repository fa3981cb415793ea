"""Reading a log from its files, while the broker writes them or when it is gone.

The index says where a range of offsets is, so only that is read: mapped into memory, checked, and given out as it is.
There are no locks: rows below the watermark never change, and a segment that is replaced or removed in the meantime is
looked up again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from braidmq.log.batches import BATCH_BYTES, between, together
from braidmq.log.checksum import crc32
from braidmq.log.decoding import decoded, stretches
from braidmq.log.errors import LogError
from braidmq.log.filters import TopicFilters
from braidmq.log.index import ENTRY, ENTRY_BYTES, Entries, IndexEntry, intact, read_entries
from braidmq.log.offsets import read_offsets
from braidmq.log.schema import COLUMNS, FORMAT, in_order, schema_of
from braidmq.log.segment import DATA, INDEX, PARQUET, partition_folder, segment_paths, with_end
from braidmq.log.source import LogState, microseconds

INFO_NAME: Final = "log.json"
SCANNED_MAX: Final = 1024
"""Entries of an index up to which they are scanned, not searched."""

FILTERS_MAX: Final = 4
"""Sets of filters whose verdicts about topics are kept for the next reading."""

LOOKS_MAX: Final = 3
"""How often opening a segment is tried while its form changes, from Arrow to Parquet; it changes once."""

_log = logging.getLogger("braidmq.log")


class Damage(NamedTuple):
    """Something in a log that cannot be read, and is left out."""

    path: Path
    text: str
    rows: int
    """How many rows are missing; 0 if that is not known."""


class LogReader:
    """Reads the log in a folder. `on_damage` is called with what cannot be read; by default it is logged."""

    def __init__(self, folder: str | Path, on_damage: Callable[[Damage], None] | None = None) -> None:
        self.folder = Path(folder)
        info = read_info(self.folder)
        self.broker = str(info["broker"])
        self.id = str(info["id"])
        self.partitions = int(info["partitions"])
        self.damaged_batches = 0
        self.damaged_rows = 0
        self._on_damage = on_damage or _warn

    def state(self) -> LogState:
        offsets = read_offsets(self.folder)
        return LogState(self.broker, self.id, self.partitions, offsets.first, offsets.next, FORMAT)

    def read(
        self,
        partition: int,
        start: int,
        until: int,
        filters: Sequence[str] = (),
        *,
        columns: Sequence[str] | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        if not 0 <= partition < self.partitions:
            raise ValueError(f"there is no partition {partition}: this log has 0 to {self.partitions - 1}")
        wanted = _wanted(tuple(filters))
        given_out = COLUMNS if columns is None else in_order([*columns, "offset"])
        looked_at = in_order([*given_out, "topic"]) if filters else given_out
        until = min(until, read_offsets(self.folder).next)
        if partition in wanted.partitions(self.partitions):
            rows = together(self._rows(partition, start, until, looked_at), batch_bytes)
            for batch in together(map(wanted.of, rows), batch_bytes):  # to filter many rows costs little more
                yield batch if looked_at == given_out else batch.select(list(given_out))

    def offset_at(self, at: datetime) -> int:
        time_us = microseconds(at)
        found = read_offsets(self.folder).next
        for partition in range(self.partitions):
            found = min(found, self._first_since(partition, time_us, found))
        return found

    def offset_after(self, start: int, rows: int) -> int:
        """Offsets are given to rows one after the other, but for a gap where the broker died: those are left out."""
        end = enough = read_offsets(self.folder).next
        left = max(1, rows)
        pieces = [np.empty((0, 3), np.int64)]
        for partition in range(self.partitions):
            found = 0
            for path in self._overlapping(partition, start, enough):
                spans = self._spans(path)
                spans = spans[spans[:, 1] >= start]
                pieces.append(spans)
                found += int(spans[1:, 2].sum())  # the first may begin before `start`
                if found >= left:  # one partition has enough: later rows of other partitions are not needed
                    enough = min(enough, int(spans[-1, 1]) + 1)
                    break
        for first, last in _united(np.concatenate(pieces)):
            first = max(first, start)
            if first >= end or last < first:
                continue
            if last - first + 1 >= left:
                return min(end, first + left)
            left -= last - first + 1
        return max(start, end)

    # Segments

    def _overlapping(self, partition: int, start: int, until: int) -> list[Path]:
        """The segments that can have rows of a range; one ends where the next begins."""
        paths = segment_paths(partition_folder(self.folder, partition))
        begins = [int(path.name) for path in paths]
        ends = [*begins[1:], until]
        return [path for path, begin, end in zip(paths, begins, ends, strict=False) if begin < until and end > start]

    def _rows(
        self, partition: int, start: int, until: int, columns: tuple[str, ...] = COLUMNS
    ) -> Iterator[pa.RecordBatch]:
        """Batches cut to the range, unfiltered."""
        for path in self._overlapping(partition, start, until):
            for _ in range(LOOKS_MAX):
                try:
                    for batch in self._segment_rows(path, start, until, columns):
                        yield batch
                        start = batch.column("offset")[-1].as_py() + 1
                    break
                except FileNotFoundError:
                    continue  # it has become Parquet just now, and is there; or retention took it, and it is not

    def segment_batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        """All rows of one segment."""
        return self._segment_rows(path, 0, 1 << 62, COLUMNS)

    def _segment_rows(self, path: Path, start: int, until: int, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        parquet = with_end(path, PARQUET)
        if parquet.exists():
            batches = self._parquet_rows(parquet, start, until, columns)
        else:
            batches = self._arrow_rows(path, start, until, columns)
        for batch in batches:
            if batch.num_rows:
                cut = between(batch, start, until)
                if cut.num_rows:
                    yield cut

    def _arrow_rows(self, path: Path, start: int, until: int, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        entries = self._entries(path, (start, until))
        entries = entries[(entries["last"] >= start) & (entries["first"] < until)]
        if not len(entries):
            return
        data_path = with_end(path, DATA)
        data = pa.memory_map(str(data_path)).read_buffer()
        for stretch in stretches(self._whole(data_path, data, entries)):
            batch = decoded(data, stretch, columns)
            if batch is not None:
                yield batch
                continue
            for entry in stretch:
                batch = decoded(data, [entry], columns)
                if batch is not None:
                    yield batch
                else:
                    self._batch_damaged(data_path, entry)

    def _whole(self, data_path: Path, data: pa.Buffer, entries: Entries) -> Iterator[IndexEntry]:
        """The entries whose batches are as they were written; damaged ones are reported."""
        for entry in map(IndexEntry._make, entries.tolist()):
            is_there = entry.position + entry.length <= data.size
            if is_there and crc32(data.slice(entry.position, entry.length)) == entry.checksum:
                yield entry
            else:
                self._batch_damaged(data_path, entry)

    def _batch_damaged(self, data_path: Path, entry: IndexEntry) -> None:
        where = f"offsets {entry.first} to {entry.last} ({entry.rows} rows at byte {entry.position})"
        self._damaged(Damage(data_path, f"{where} are damaged and are left out", entry.rows))

    def _entries(self, path: Path, span: tuple[int, int] | None = None) -> Entries:
        """The whole entries of a segment, or at least those of a span of offsets, where damage is reported."""
        index_path = with_end(path, INDEX)
        first, entries = (0, read_entries(index_path)) if span is None else _entries_of(index_path, *span)
        good = intact(entries)
        if span is not None and not good.all():
            for number in (first + np.flatnonzero(~good)).tolist():
                self._damaged(Damage(index_path, f"entry {number} is damaged; the rows of its batch are left out", 0))
        return entries[good]

    def _parquet_rows(self, path: Path, start: int, until: int, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        try:
            with pq.ParquetFile(path, memory_map=True) as file:
                spans = _group_spans(file)
                for group, (first, last, _) in enumerate(spans.tolist()):
                    if last >= start and first < until:
                        yield from self._row_group(path, file, group, first, last, columns)
        except pa.ArrowInvalid as error:
            self._damaged(Damage(path, f"it cannot be read and is left out: {error}", 0))

    def _row_group(
        self, path: Path, file: Any, group: int, first: int, last: int, columns: tuple[str, ...]
    ) -> list[pa.RecordBatch]:
        try:
            table = file.read_row_group(group, columns=list(columns))
            batches: list[pa.RecordBatch] = table.cast(schema_of(columns)).to_batches()
        except (pa.ArrowException, OSError) as error:
            rows = file.metadata.row_group(group).num_rows
            text = f"offsets {first} to {last} ({rows} rows) are damaged and are left out: {error}"
            self._damaged(Damage(path, text, rows))
            return []
        return batches

    def _damaged(self, damage: Damage) -> None:
        self.damaged_batches += 1
        self.damaged_rows += damage.rows
        self._on_damage(damage)

    # By time and by number

    def _spans(self, path: Path) -> npt.NDArray[np.int64]:
        """(first offset, last offset, rows) of what a segment has, piece by piece."""
        parquet = with_end(path, PARQUET)
        if parquet.exists():
            with pq.ParquetFile(parquet) as file:
                return _group_spans(file)
        try:
            entries = self._entries(path)
        except FileNotFoundError:
            return np.empty((0, 3), np.int64)
        return np.stack([entries["first"], entries["last"], entries["rows"].astype(np.int64)], axis=1)

    def _first_since(self, partition: int, time_us: int, below: int) -> int:
        """The first offset of a partition whose row was received then or later, if it is below another offset."""
        for path in segment_paths(partition_folder(self.folder, partition)):
            if int(path.name) >= below:
                break
            start = int(path.name)
            if not with_end(path, PARQUET).exists():
                try:
                    entries = self._entries(path)
                except FileNotFoundError:
                    continue
                late = np.flatnonzero(entries["time"] >= time_us)
                if not len(late):
                    continue
                start = int(entries["first"][late[0]])
            for batch in self._rows(partition, start, below):
                times = batch.column("received_at").cast(pa.int64()).to_numpy()
                late = np.flatnonzero(times >= time_us)
                if len(late):
                    return int(batch.column("offset")[int(late[0])].as_py())
        return below


def read_info(folder: Path) -> dict[str, Any]:
    """The description of a log in its folder."""
    path = folder / INFO_NAME
    try:
        info = json.loads(path.read_text())
        found = int(info["format"])
        if found != FORMAT:
            text = f"{folder} was written by another version (format {found}, this one reads {FORMAT})"
            raise LogError(f"{text}; use what wrote it, or another folder")
        if not isinstance(info["broker"], str) or not isinstance(info["id"], str) or int(info["partitions"]) < 1:
            raise ValueError
    except FileNotFoundError:
        raise LogError(f"{folder} has no log in it; is it the folder of [log] in the broker's configuration?") from None
    except (ValueError, KeyError, TypeError):
        raise LogError(f"{path} is damaged; restore it from a copy, or move the folder away to begin anew") from None
    except LogError:
        raise
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error
    return dict(info)


def _entries_of(path: Path, start: int, until: int) -> tuple[int, Entries]:
    """The entries of an index around a range of offsets, damaged ones too, and the number of the first of them.

    The index of a segment that gets a few rows at a time is long, and most readings want its end.
    """
    with path.open("rb") as file:
        low, high = 0, os.fstat(file.fileno()).st_size // ENTRY_BYTES
        while high - low > SCANNED_MAX:
            middle = (low + high) // 2
            entry = np.frombuffer(os.pread(file.fileno(), ENTRY_BYTES, middle * ENTRY_BYTES), ENTRY)
            if not intact(entry).any():
                break  # it is damaged: all that are left are scanned
            if entry["last"][0] < start:
                low = middle
            elif entry["first"][0] >= until:
                high = middle
            else:
                break
        data = os.pread(file.fileno(), (high - low) * ENTRY_BYTES, low * ENTRY_BYTES)
    return low, np.frombuffer(data, ENTRY, count=len(data) // ENTRY_BYTES)


@lru_cache(FILTERS_MAX)
def _wanted(filters: tuple[str, ...]) -> TopicFilters:
    return TopicFilters(filters)


def _group_spans(file: Any) -> npt.NDArray[np.int64]:
    """(first offset, last offset, rows) of each row group."""
    metadata = file.metadata
    spans = []
    for group in range(metadata.num_row_groups):
        column = next(
            metadata.row_group(group).column(number)
            for number in range(metadata.num_columns - 1, -1, -1)
            if metadata.row_group(group).column(number).path_in_schema == "offset"
        )
        spans.append((column.statistics.min, column.statistics.max, metadata.row_group(group).num_rows))
    return np.array(spans, np.int64).reshape(len(spans), 3)


def _united(spans: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Spans that touch or overlap, as one each, in order."""
    if not len(spans):
        return []
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    ends = np.maximum.accumulate(spans[:, 1])
    begins = np.flatnonzero(np.concatenate(([True], spans[1:, 0] > ends[:-1] + 1))).tolist()
    return [(int(spans[one, 0]), int(ends[other - 1])) for one, other in pairwise([*begins, len(spans)])]


def _warn(damage: Damage) -> None:
    _log.warning("%s: %s", damage.path, damage.text)
