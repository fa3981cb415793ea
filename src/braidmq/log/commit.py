"""A commit: the rows that are written together, with their offsets, each partition's rows in one piece."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from braidmq.log.arrays import Numbers
from braidmq.log.run import Property
from braidmq.log.write_buffer import RECORD_FIELDS, BufferContents, PartitionRegion

RECORD: Final = np.dtype([(name, f"<{kind}") for name, kind in RECORD_FIELDS.items()])

Records = npt.NDArray[np.void]


class PartitionRows(NamedTuple):
    """The rows of one partition in a commit: runs in the order of their offsets."""

    partition: int
    records: Records
    firsts: Numbers
    """The first offset of each run: that of its record, unless it had to be moved up."""
    data: memoryview
    properties: dict[int, tuple[Property, ...]]
    """MQTT properties of the runs that have some, by the number of the run."""
    rows: int
    first: int
    last: int
    """Offsets."""
    time_us: int
    """When the latest of its rows was received."""


class Commit:
    def __init__(self, contents: BufferContents, memory: memoryview, following: int) -> None:
        """`following` is the lowest unused offset."""
        self.topics: Final = contents.topics
        self.clients: Final = contents.clients
        regions = contents.regions
        records = [np.frombuffer(region.records, RECORD) for region in regions]
        firsts = _firsts(records, following)
        self.parts: Final = [_partition_rows(*one, memory) for one in zip(regions, records, firsts, strict=True)]
        self.following: Final = max([part.last for part in self.parts]) + 1
        """The offset after the last row."""
        self.has_acknowledged: Final = any(one["qos"].any() for one in records)
        """Whether any row is of QoS 1 or 2, so that its publisher waits."""


def _partition_rows(region: PartitionRegion, records: Records, firsts: Numbers, memory: memoryview) -> PartitionRows:
    counts = records["rows"]
    span = (int(counts.sum()), int(firsts[0]), int(firsts[-1] + counts[-1] - 1), int(records["at_us"].max()))
    return PartitionRows(region.partition, records, firsts, region.data(memory), dict(region.properties), *span)


def _firsts(records: list[Records], following: int) -> list[Numbers]:
    """The first offsets of the runs of each region: those they came with, unless these are used by now.

    Then rows get higher ones, in the order of the offsets that they came with.
    """
    own = [one["first"] for one in records]
    if min([one[0] for one in own]) >= following:
        return own
    firsts = np.concatenate(own)
    counts = np.concatenate([one["rows"] for one in records]).astype(np.int64)
    order = np.argsort(firsts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    firsts[order] = np.maximum.accumulate(np.maximum(firsts[order], following) - before) + before
    return np.split(firsts, np.cumsum([len(one) for one in own])[:-1])
