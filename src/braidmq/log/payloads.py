"""The payloads of many runs at once, cut out of the packets as they stood on the wire.

The packets follow each other in memory. It is enough to know where each begins and where its payload does: then they
are a column of alternating heads and payloads, of which Arrow takes every second one. In most runs all packets have the
size of the first, and numpy finds their positions; only packets of several sizes are walked through.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braidmq.log.arrays import Numbers, equal_texts, plain, texts
from braidmq.log.commit import Records
from braidmq.mqtt.wire import packet_starts

LENGTH_BYTES_MAX: Final = 4
"""A remaining length has at most so many (MQTT 5, section 1.5.5); a packet with a topic has more behind its first."""

TOGETHER_MIN: Final = 200
"""With so many runs it is quicker to walk through all of them at a time than through one after the other."""

Bytes = npt.NDArray[np.uint8]


def cut_payloads(data: memoryview, records: Records, counts: Numbers, rows: int) -> pa.Array:
    """The payloads of some runs, one a row. `data` has the packets of all of them."""
    heads, sizes = records["head"], records["size"]
    lengths = records["length"].astype(np.int64)
    if not heads.any():
        return texts(pa.binary(), lengths, data)
    packets = np.frombuffer(data, np.uint8)
    if heads[0] and (sizes == sizes[0]).all() and (heads == heads[0]).all():
        alike = _cut_alike(packets, int(heads[0]), int(sizes[0]), rows)
        if alike is not None:
            return alike
    first_rows = np.cumsum(counts) - counts
    begins = np.cumsum(lengths) - lengths
    size = sizes.astype(np.int64)
    starts = (begins - first_rows * size).repeat(counts) + np.arange(rows) * size.repeat(counts)
    head = heads.astype(np.int64).repeat(counts)
    if rows > len(records):
        even = lengths == counts * size
        if even.any():
            even &= _begin_alike(packets, starts, begins, first_rows, counts)
        if not even.all():
            _walk(packets, starts, np.flatnonzero(~even), begins, begins + lengths, first_rows, counts)
            head += _length_bytes(packets, starts) - _length_bytes(packets, begins).repeat(counts)
    bounds = np.empty(2 * rows + 1, np.int32)
    bounds[:-1:2] = starts
    bounds[1::2] = starts + head
    bounds[-1] = len(data)
    pieces = pa.Array.from_buffers(pa.binary(), 2 * rows, [None, pa.py_buffer(bounds), pa.py_buffer(data)], 0)
    seconds = np.arange(1, 2 * rows, 2, dtype=np.int32)
    return pieces.take(plain(pa.int32(), seconds))


def _cut_alike(packets: Bytes, head: int, size: int, rows: int) -> pa.Array | None:
    """The payloads of packets that all have one size, as those of one kind of sensor have; None if they have not.

    Each run is known to begin with a packet of this size. Another one has it too, if its length is the same.
    """
    if rows * size != len(packets):
        return None
    table = packets.reshape(rows, size)
    last = next(position for position in range(1, 1 + LENGTH_BYTES_MAX) if packets[position] < 128)
    lengths = table[:, 1 : last + 1]
    if not (lengths == lengths[0]).all():
        return None
    return equal_texts(pa.binary(), size - head, rows, np.ascontiguousarray(table[:, head:]))


def _begin_alike(
    packets: Bytes, starts: Numbers, begins: Numbers, first_rows: Numbers, repeats: Numbers
) -> npt.NDArray[np.bool_]:
    """Which runs have packets of one size only: those where the first bytes of the first, its length among them, stand
    again where each next one would begin. (One topic a run: what is behind a short length is the same too.)"""
    alike = np.ones(len(starts), np.bool_)
    for position in range(1, 1 + LENGTH_BYTES_MAX):
        expected = packets.take(begins + position, mode="clip").repeat(repeats)
        alike &= packets.take(starts + position, mode="clip") == expected
    return np.logical_and.reduceat(alike, first_rows)


def _walk(
    packets: Bytes,
    starts: Numbers,
    runs: Numbers,
    begins: Numbers,
    ends: Numbers,
    first_rows: Numbers,
    repeats: Numbers,
) -> None:
    """Finds the starts of the packets of some runs, from each to the next: in many runs at a time, as long as there are
    many with further packets, and then run by run."""
    runs = runs[np.argsort(-repeats[runs], kind="stable")]
    together = int(repeats[runs[TOGETHER_MIN - 1]]) if len(runs) >= TOGETHER_MIN else 0
    at, rows = begins[runs], first_rows[runs]
    going_on = np.searchsorted(-repeats[runs], -np.arange(together), side="left").tolist()
    short_lengths = np.ndarray(len(packets) - 2, "<u2", packets.data, offset=1, strides=(1,))
    for step, count in enumerate(going_on):
        at = at[:count]
        starts[rows[:count] + step] = at
        sizes = _SIZES.take(short_lengths[at])
        at = at + sizes if sizes.all() else _behind(packets, at)
    for number, run in enumerate(runs[repeats[runs] > together].tolist()):
        begin, row = int(at[number]), int(rows[number]) + together
        positions = packet_starts(packets[begin : ends[run]].tobytes())
        starts[row : row + len(positions)] = positions
        starts[row : row + len(positions)] += begin


def _sizes_by_length() -> Numbers:
    """The size of a packet by the two bytes that its remaining length begins with; 0 if that has more."""
    low, high = np.arange(1 << 16) & 255, np.arange(1 << 16) >> 8
    two = np.where(high < 128, 3 + (low & 127) + (high << 7), 0)
    return np.where(low < 128, 2 + low, two)


_SIZES: Final = _sizes_by_length()


def _behind(packets: Bytes, starts: Numbers) -> Numbers:
    """Where the packet after each of these begins."""
    position = starts + 1
    length = packets.take(position).astype(np.int64)
    goes_on = length > 127
    for number in range(1, LENGTH_BYTES_MAX):
        if not goes_on.any():
            break
        position += goes_on
        byte = packets.take(position, mode="clip").astype(np.int64)
        length += ((byte - 1) * goes_on) << 7 * number
        goes_on &= byte > 127
    return position + length + 1


def _length_bytes(packets: Bytes, starts: Numbers) -> Numbers:
    """How many bytes of the remaining length of each packet say that another one follows."""
    goes_on = np.ones(len(starts), np.bool_)
    count = np.zeros(len(starts), np.int64)
    for position in range(1, LENGTH_BYTES_MAX):
        goes_on &= packets.take(starts + position, mode="clip") > 127
        if not goes_on.any():
            break
        count += goes_on
    return count
