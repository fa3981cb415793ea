"""Rows of the log: the Arrow batch that is made of many publications at once.

A run of plain QoS 0 publications to one topic is kept as it stood on the wire, with what is the same for all. Its
columns are made later and in bulk, of many runs together: hardly anything is done a message.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa

from braidmq.log.arrays import Numbers, bits, equal_texts, flags, plain, repeated, single_texts
from braidmq.log.payloads import cut_payloads
from braidmq.log.run import Runs
from braidmq.log.schema import PROPERTIES, SCHEMA, TIME

STOCK_ROWS_MIN: Final = 4096
"""Rows of the columns that are kept."""


class BatchMaker:
    """Makes batches of one broker's rows. Columns that are nearly always the same are kept, and only cut to length."""

    def __init__(self, origin: str) -> None:
        self._origin = origin.encode()
        self._stock_rows = 0

    def make(self, runs: Runs, firsts: Numbers) -> pa.RecordBatch:
        """The rows of some runs; the rows of a run have consecutive offsets from its first."""
        rows = sum(runs.rows)
        if rows > self._stock_rows:
            self._stock_up(max(rows, STOCK_ROWS_MIN))
        make = _columns_of_singles if rows == len(runs) else _columns
        topics, payloads, qos, retain, published, times, clients, properties, offsets = make(runs, firsts, rows)
        columns = [
            topics,
            payloads,
            self._plain_qos.slice(0, rows) if qos is None else qos,
            self._no_flags.slice(0, rows) if retain is None else retain,
            times if published is None else published,
            times,
            self._origins.slice(0, rows),
            clients,
            self._no_properties.slice(0, rows) if properties is None else properties,
            offsets,
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _stock_up(self, rows: int) -> None:
        self._stock_rows = rows
        self._plain_qos = plain(pa.int32(), np.zeros(rows, np.int32))
        self._no_flags = flags(np.zeros(rows, np.bool_))
        self._no_properties = _nulls(rows)
        self._origins = equal_texts(pa.string(), len(self._origin), rows, self._origin * rows)


Columns = tuple[pa.Array | None, ...]
"""All but the origin; None where no row says anything."""


def _columns_of_singles(runs: Runs, firsts: Numbers, rows: int) -> Columns:
    """Publications that came alone: with nothing to repeat, plain lists are faster than numpy."""
    payloads = [data[head:] if head else data for data, head in zip(runs.data, runs.head, strict=True)]
    return (
        single_texts(pa.string(), runs.topic),
        single_texts(pa.binary(), payloads),
        plain(pa.int32(), array("i", runs.qos)) if any(runs.qos) else None,
        flags(runs.retain) if any(runs.retain) else None,
        plain(TIME, array("q", _published(runs))) if _has_published(runs) else None,
        plain(TIME, array("q", runs.at_us)),
        single_texts(pa.string(), runs.client),
        _properties(runs),
        plain(pa.int64(), firsts),
    )


def _columns(runs: Runs, firsts: Numbers, rows: int) -> Columns:
    repeats = np.array(runs.rows, np.int64)
    began = np.cumsum(repeats) - repeats
    offsets = (firsts - began).repeat(repeats)
    offsets += np.arange(rows, dtype=np.int64)
    return (
        repeated(pa.string(), runs.topic, runs.rows, repeats, rows),
        cut_payloads(runs.data, runs.head, runs.size, repeats),
        plain(pa.int32(), np.array(runs.qos, np.int32).repeat(repeats)) if any(runs.qos) else None,
        flags(np.array(runs.retain, np.bool_).repeat(repeats)) if any(runs.retain) else None,
        plain(TIME, np.array(_published(runs), np.int64).repeat(repeats)) if _has_published(runs) else None,
        plain(TIME, np.array(runs.at_us, np.int64).repeat(repeats)),
        repeated(pa.string(), runs.client, runs.rows, repeats, rows),
        _properties(runs),
        plain(pa.int64(), offsets),
    )


def _has_published(runs: Runs) -> bool:
    return runs.published_us.count(None) < len(runs)


def _published(runs: Runs) -> list[int]:
    """What the device says, or when it arrived."""
    pairs = zip(runs.at_us, runs.published_us, strict=True)
    return [at_us if published_us is None else published_us for at_us, published_us in pairs]


def _nulls(rows: int) -> pa.Array:
    """Null properties with nothing below them, so that a part of them is as small as it should be."""
    mask, ends = bits(np.zeros(rows, np.bool_)), pa.py_buffer(np.zeros(rows + 1, np.int32))
    nothing = pa.nulls(0, PROPERTIES.value_type)
    return pa.Array.from_buffers(PROPERTIES, rows, [mask, ends], rows, children=[nothing])


def _properties(runs: Runs) -> pa.Array | None:
    """Made of buffers like the rest: `pa.array` would first import pandas, if that is there, for half a second."""
    if not any(runs.properties):
        return None
    each = [one for one, rows in zip(runs.properties, runs.rows, strict=True) for _ in range(rows)]
    pairs = [pair for properties in each for pair in properties]
    fields = [single_texts(pa.string(), [pair[place].encode() for pair in pairs]) for place in (0, 1)]
    structs = pa.Array.from_buffers(PROPERTIES.value_type, len(pairs), [None], 0, children=fields)
    ends = pa.py_buffer(array("i", accumulate([len(properties) for properties in each], initial=0)))
    mask = bits(np.array([bool(properties) for properties in each]))
    return pa.Array.from_buffers(PROPERTIES, len(each), [mask, ends], each.count(()), children=[structs])
