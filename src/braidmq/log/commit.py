"""A commit: runs that are written together, with their offsets, each partition's side by side."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from braidmq.log.arrays import Numbers
from braidmq.log.run import Runs
from braidmq.log.schema import partition_of


class Share(NamedTuple):
    """What one partition gets of it."""

    partition: int
    place: int
    """Its first row, among all rows."""
    rows: int
    first: int
    last: int
    """Offsets."""
    time_us: int
    """When the latest of them was received."""


class Commit:
    def __init__(self, runs: Runs, following: int, partitions: int) -> None:
        counts = np.array(runs.rows, np.int64)
        firsts = _firsts(runs, counts, following)
        self.following: Final = int(firsts[-1] + counts[-1])
        """The offset behind all of them."""
        number_of = {topic: partition_of(topic, partitions) for topic in set(runs.topic)}
        numbers = np.fromiter(map(number_of.__getitem__, runs.topic), np.int64, len(runs))
        times = np.array(runs.at_us, np.int64)
        if len(set(number_of.values())) > 1:
            order = np.argsort(numbers, kind="stable")
            runs = runs.in_order(order.tolist())
            numbers, counts, firsts, times = numbers[order], counts[order], firsts[order], times[order]
        self.runs: Final = runs
        """By partitions, and of one in the order of their offsets."""
        self.firsts: Final = firsts
        """The first offset of each."""
        self.shares: Final = _shares(numbers, counts, firsts, times)


def _firsts(runs: Runs, counts: Numbers, following: int) -> Numbers:
    """The offset of the first row of each run: its own, if it has one that does not go back."""
    if None not in runs.first:
        own = np.array(runs.first, np.int64)
        if own[0] >= following and (own[1:] >= own[:-1] + counts[:-1]).all():
            return own
    found = []
    for first, rows in zip(runs.first, runs.rows, strict=True):
        found.append(following if first is None else max(first, following))
        following = found[-1] + rows
    return np.array(found, np.int64)


def _shares(numbers: Numbers, counts: Numbers, firsts: Numbers, times: Numbers) -> list[Share]:
    begins = np.flatnonzero(np.diff(numbers, prepend=-1))
    ends = np.append(begins[1:], len(numbers)) - 1
    rows = np.add.reduceat(counts, begins)
    fields = (
        numbers[begins],
        np.cumsum(rows) - rows,
        rows,
        firsts[begins],
        firsts[ends] + counts[ends] - 1,
        np.maximum.reduceat(times, begins),
    )
    return list(map(Share, *(field.tolist() for field in fields)))
