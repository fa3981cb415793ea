"""Arrow arrays made directly of their buffers: `pa.array` would look at each value."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]


def plain(kind: pa.DataType, values: npt.NDArray[np.generic] | array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], 0)


def flags(values: npt.ArrayLike) -> pa.Array:
    some = np.asarray(values, np.bool_)
    return pa.Array.from_buffers(pa.bool_(), len(some), [None, bits(some)], 0)


def bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def single_texts(kind: pa.DataType, values: Sequence[bytes | None]) -> pa.Array:
    known = [value or b"" for value in values]
    ends = pa.py_buffer(array("i", accumulate([len(value) for value in known], initial=0)))
    missing = values.count(None)
    mask = bits(np.array([value is not None for value in values])) if missing else None
    return pa.Array.from_buffers(kind, len(known), [mask, ends, pa.py_buffer(b"".join(known))], missing)


def texts(kind: pa.DataType, lengths: Numbers, data: object, mask: pa.Buffer | None = None, nulls: int = 0) -> pa.Array:
    """Texts that follow each other in `data`."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.Array.from_buffers(kind, len(lengths), [mask, pa.py_buffer(ends), pa.py_buffer(data)], nulls)


def equal_texts(kind: pa.DataType, length: int, rows: int, data: object) -> pa.Array:
    """The same for texts of one length."""
    ends = np.arange(rows + 1, dtype=np.int32)
    ends *= length
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(ends), pa.py_buffer(data)], 0)


def repeated(kind: pa.DataType, names: Sequence[bytes], numbers: Numbers, counts: Numbers, rows: int) -> pa.Array:
    """Names, by their numbers, each repeated `count` times; a negative number is null."""
    first = int(numbers[0])
    if first >= 0 and (numbers == first).all():
        return equal_texts(kind, len(names[first]), rows, names[first] * rows)
    known = [*names, b""]
    data = b"".join(map(mul, map(known.__getitem__, numbers.tolist()), counts.tolist()))
    lengths = np.array([len(name) for name in known])[numbers].repeat(counts)
    present = numbers >= 0
    if present.all():
        return texts(kind, lengths, data)
    return texts(kind, lengths, data, bits(present.repeat(counts)), rows - int(counts[present].sum()))
