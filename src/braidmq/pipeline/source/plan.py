"""How ranges of logs become tasks of Spark.

A task costs ten milliseconds, whatever it reads. So a few rows of many partitions are one task, and many rows of one
partition are several. With `tasks = partitions` each partition of a log is one task, which a processor with state for
each topic needs: a topic has one partition, and its rows come in the order of their offsets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from braidmq.log.filters import TopicFilters
from braidmq.pipeline.errors import MissingExtra
from braidmq.pipeline.source.logs import LogLocation

try:
    from pyspark.sql.datasource import InputPartition
except ImportError as error:
    raise MissingExtra(error.name) from None

TASK_ROWS_MIN: Final = 25_000
TASK_ROWS_GOOD: Final = 250_000
"""The rows of a task, if there are as many for every core: with more, its own cost hardly counts any less."""

TASKS_A_CORE: Final = 2
"""Counts the cores of the machine that plans. One task may take longer than another; so no core idles for long."""

TASK_ROWS_MAX: Final = 1_000_000


@dataclass(frozen=True)
class Range:
    """Offsets of one broker's log: `start` <= offset < `until`."""

    broker: str
    location: LogLocation
    log_id: str
    partitions: int
    start: int
    until: int


@dataclass(frozen=True)
class Piece:
    """The part of a range in one partition of the log, or a part of that."""

    broker: str
    location: LogLocation
    log_id: str
    partition: int
    start: int
    until: int


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """What one task of Spark reads, piece after piece."""

    pieces: tuple[Piece, ...]


def tasks(ranges: Iterable[Range], topics: Sequence[str], *, task_each: bool) -> list[ReadTask]:
    """The tasks for some ranges; partitions that cannot have a topic of the filters are left out."""
    wanted = TopicFilters(topics)
    ranges = list(ranges)
    enough = _task_rows(sum(each.until - each.start for each in ranges))
    found: list[ReadTask] = []
    gathered: list[Piece] = []
    rows = 0.0
    for each in ranges:
        for piece in _pieces(each, wanted, task_each):
            gathered.append(piece)
            rows += (piece.until - piece.start) / each.partitions
            if task_each or rows >= enough:
                found.append(ReadTask(tuple(gathered)))
                gathered, rows = [], 0.0
    if gathered:
        found.append(ReadTask(tuple(gathered)))
    return found


def _task_rows(rows: int) -> float:
    """How many rows make a task, if there are `rows` in all."""
    return min(max(rows / (TASKS_A_CORE * (os.cpu_count() or 1)), TASK_ROWS_MIN), TASK_ROWS_GOOD)


def _pieces(each: Range, wanted: TopicFilters, task_each: bool) -> Iterator[Piece]:
    if each.start >= each.until:
        return
    step = each.until - each.start if task_each else TASK_ROWS_MAX * each.partitions
    for partition in wanted.partitions(each.partitions):
        for start in range(each.start, each.until, step):
            until = min(start + step, each.until)
            yield Piece(each.broker, each.location, each.log_id, partition, start, until)
