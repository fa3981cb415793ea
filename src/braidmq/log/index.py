"""The index of a segment: an entry of fixed size for each batch. A batch counts once its entry is written.

An entry has the offsets of its batch, its position in the file and its checksum. A seal over the entry tells an intact
one from a damaged one, so that both a half-written end and a flipped bit are detected.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from braidmq.log.checksum import crc32

ENTRY: Final = np.dtype(
    [
        ("first", "<i8"),
        ("last", "<i8"),
        ("position", "<i8"),
        ("time", "<i8"),
        ("length", "<u4"),
        ("rows", "<u4"),
        ("checksum", "<u4"),
        ("seal", "<u4"),
    ]
)
"""`first` and `last` are offsets; `time` is the latest `received_at` in the batch, in microseconds of Unix time."""


class IndexEntry(NamedTuple):
    """One entry, field by field."""

    first: int
    last: int
    position: int
    time: int
    length: int
    rows: int
    checksum: int
    seal: int


ENTRY_BYTES: Final = ENTRY.itemsize
_WORDS: Final = ENTRY_BYTES // 4
_PACK: Final = struct.Struct("<qqqqIII")
_UNPACK: Final = struct.Struct(f"<{_WORDS - 1}I")
_WEIGHTS: Final = tuple(2654435761 + 2 * number for number in range(1, _WORDS))
_SALT: Final = 0x42726D71
"""The seal is the sum of all words, each times an odd weight, so that a change of one word always shows; with the salt,
a run of zeros is no entry."""

Entries = npt.NDArray[np.void]


def entry_bytes(first: int, last: int, position: int, time_us: int, batch: bytes | memoryview, rows: int) -> bytes:
    body = _PACK.pack(first, last, position, time_us, len(batch), rows, crc32(batch))
    weighed: int = sum([word * weight for word, weight in zip(_UNPACK.unpack(body), _WEIGHTS, strict=True)])
    return body + (weighed & 0xFFFFFFFF ^ _SALT).to_bytes(4, "little")


def read_entries(path: Path) -> Entries:
    """All complete entries, damaged ones too; a piece of one at the end is left out."""
    data = path.read_bytes()
    return np.frombuffer(data, ENTRY, count=len(data) // ENTRY_BYTES)


def intact(entries: Entries) -> npt.NDArray[np.bool_]:
    """Which entries are as they were written, by their seals."""
    if not len(entries):
        return np.zeros(0, np.bool_)
    words = np.ascontiguousarray(entries).view(np.uint32).reshape(len(entries), _WORDS)
    weighed = (words[:, :-1] * np.array(_WEIGHTS, np.uint32)).sum(axis=1, dtype=np.uint32) ^ np.uint32(_SALT)
    good: npt.NDArray[np.bool_] = weighed == words[:, -1]
    return good
