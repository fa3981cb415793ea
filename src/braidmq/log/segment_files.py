"""Closed segments: what is in them, and how they are removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from braidmq.log.index import intact, read_entries
from braidmq.log.retention import ClosedSegment
from braidmq.log.segment import DATA, INDEX, PARQUET, UNFINISHED, with_end

SUMMARY: Final = b"braidmq"
"""The key of the summary in a Parquet file's metadata."""


def closed_segment(path: Path) -> ClosedSegment:
    """What a segment has; of a damaged one, what is left of it."""
    parquet = with_end(path, PARQUET)
    if parquet.exists():
        return _parquet_segment(path, parquet)
    entries = read_entries(with_end(path, INDEX))
    size = sum(one.stat().st_size for one in (with_end(path, DATA), with_end(path, INDEX)) if one.exists())
    entries = entries[intact(entries)]
    first = int(path.name)
    if not len(entries):
        return ClosedSegment(path, first, first - 1, 0, size, 0)
    last, time_us = int(entries["last"].max()), int(entries["time"].max())
    return ClosedSegment(path, first, last, time_us, size, int(entries["rows"].sum()))


def _parquet_segment(path: Path, parquet: Path) -> ClosedSegment:
    first = int(path.name)
    size = parquet.stat().st_size
    try:
        summary = json.loads(pq.read_metadata(parquet).metadata[SUMMARY])
        return ClosedSegment(path, first, summary["last"], summary["time_us"], size, summary["rows"], True)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError):
        return ClosedSegment(path, first, first - 1, int(parquet.stat().st_mtime * 1e6), size, 0, True)


def remove_segment(path: Path) -> None:
    """Removes the index before the data: without it the data does not count."""
    for end in (PARQUET, INDEX, DATA):
        with_end(path, end).unlink(missing_ok=True)


def tidy(folder: Path) -> None:
    """Removes what a crash left half made, or half removed."""
    if not folder.is_dir():
        return
    for unfinished in folder.glob(f"*{UNFINISHED}"):
        unfinished.unlink(missing_ok=True)
    for data in folder.glob(f"*{DATA}"):
        path = data.with_suffix("")
        if with_end(path, PARQUET).exists():
            with_end(path, INDEX).unlink(missing_ok=True)
            data.unlink(missing_ok=True)
        elif not with_end(path, INDEX).exists():
            data.unlink(missing_ok=True)
