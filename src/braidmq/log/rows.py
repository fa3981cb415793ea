"""Rows of the log: the Arrow batch that is made of many publications at once.

A run of plain QoS 0 publications to one topic is kept as it came over the wire, with what is the same for all. Its
columns are made later and in bulk, of many runs together: there is hardly any work for a single message.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa

from braidmq.log.arrays import Numbers, bits, equal_texts, flags, plain, repeated, single_texts
from braidmq.log.commit import PartitionRows, Records
from braidmq.log.payloads import cut_payloads
from braidmq.log.schema import PROPERTIES, SCHEMA, TIME
from braidmq.log.write_buffer import UNSAID

STOCK_ROWS_MIN: Final = 4096
"""Rows of the columns that are kept."""


class BatchMaker:
    """Makes batches of one broker's rows. Columns that are nearly always the same are kept, and only cut to length."""

    def __init__(self, origin: str) -> None:
        self._origin = origin.encode()
        self._stock_rows = 0

    def make(self, part: PartitionRows, topics: Sequence[bytes], clients: Sequence[bytes]) -> pa.RecordBatch:
        """The rows of a partition; the rows of a run have consecutive offsets from its first."""
        rows = part.rows
        if rows > self._stock_rows:
            self._stock_up(max(rows, STOCK_ROWS_MIN))
        records = part.records
        counts = records["rows"].astype(np.int64)
        times = plain(TIME, records["at_us"].repeat(counts))
        qos, retain = records["qos"], records["retain"]
        columns = [
            repeated(pa.string(), topics, records["topic"], counts, rows),
            cut_payloads(part.data, records, counts, rows),
            plain(pa.int32(), qos.repeat(counts)) if qos.any() else self._plain_qos.slice(0, rows),
            flags(retain.repeat(counts)) if retain.any() else self._no_flags.slice(0, rows),
            plain(TIME, _published(records).repeat(counts)) if _has_published(records) else times,
            times,
            self._origins.slice(0, rows),
            repeated(pa.string(), clients, records["client"], counts, rows),
            _properties(part) if part.properties else self._no_properties.slice(0, rows),
            plain(pa.int64(), _offsets(part.firsts, counts, rows)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _stock_up(self, rows: int) -> None:
        self._stock_rows = rows
        self._plain_qos = plain(pa.int32(), np.zeros(rows, np.int32))
        self._no_flags = flags(np.zeros(rows, np.bool_))
        self._no_properties = _nulls(rows)
        self._origins = equal_texts(pa.string(), len(self._origin), rows, self._origin * rows)


def _offsets(firsts: Numbers, counts: Numbers, rows: int) -> Numbers:
    before = np.cumsum(counts) - counts
    offsets: Numbers = (firsts - before).repeat(counts)
    offsets += np.arange(rows)
    return offsets


def _has_published(records: Records) -> bool:
    return bool((records["published_us"] != UNSAID).any())


def _published(records: Records) -> Numbers:
    """What the device says, or when it arrived."""
    said = records["published_us"]
    return np.where(said == UNSAID, records["at_us"], said)


def _nulls(rows: int) -> pa.Array:
    """Null properties with nothing below them, so that a part of them is as small as it should be."""
    mask, ends = bits(np.zeros(rows, np.bool_)), pa.py_buffer(np.zeros(rows + 1, np.int32))
    nothing = pa.nulls(0, PROPERTIES.value_type)
    return pa.Array.from_buffers(PROPERTIES, rows, [mask, ends], rows, children=[nothing])


def _properties(part: PartitionRows) -> pa.Array:
    """Made of buffers like the rest: `pa.array` would first import pandas, if that is there, for half a second."""
    found = part.properties
    each = [found.get(run, ()) for run, rows in enumerate(part.records["rows"].tolist()) for _ in range(rows)]
    pairs = [pair for properties in each for pair in properties]
    fields = [single_texts(pa.string(), [pair[index].encode() for pair in pairs]) for index in (0, 1)]
    structs = pa.Array.from_buffers(PROPERTIES.value_type, len(pairs), [None], 0, children=fields)
    ends = pa.py_buffer(array("i", accumulate([len(properties) for properties in each], initial=0)))
    mask = bits(np.array([bool(properties) for properties in each]))
    return pa.Array.from_buffers(PROPERTIES, len(each), [mask, ends], each.count(()), children=[structs])
