"""A template of frames: bytes of which only some fields differ from one frame to the next.

The messages of a stream are alike but for a few fields. Their template is made of two samples that differ in every byte
of those fields and nowhere else, so nothing needs to be known of how a message is encoded. To fill it in costs a
fraction of encoding a message, and to read from it a fraction of decoding one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_DIFFERENT = re.compile(rb"[^\0]+")


class FrameTemplate:
    __slots__ = ("_fixed", "_pieces", "holes", "size")

    def __init__(self, sample: bytes, other: bytes) -> None:
        """Two samples of one size. A ValueError if they are not."""
        size = len(sample)
        if size != len(other):
            raise ValueError(f"samples of {size} and {len(other)} bytes have no template in common")
        differences = (int.from_bytes(sample) ^ int.from_bytes(other)).to_bytes(size)
        self.size = size
        self.holes = [found.span() for found in _DIFFERENT.finditer(differences)]
        """Where the fields are: from, and up to."""
        begins = [0, *(end for _, end in self.holes)]
        ends = [*(begin for begin, _ in self.holes), size]
        self._fixed = [(begin, end, sample[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        self._pieces = [b""] * (2 * len(self.holes) + 1)
        self._pieces[::2] = [piece for _, _, piece in self._fixed]

    def fill(self, fields: Iterable[bytes]) -> bytes:
        """The bytes with these fields, each of its hole's size."""
        self._pieces[1::2] = fields
        return b"".join(self._pieces)

    def fits(self, data: bytes) -> bool:
        """Whether these bytes differ from the samples in the holes alone."""
        if len(data) != self.size:
            return False
        for begin, end, piece in self._fixed:  # noqa: SIM110 - to make a generator would cost more than this
            if data[begin:end] != piece:
                return False
        return True
