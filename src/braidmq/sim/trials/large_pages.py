"""Large pages for a large network: a simulation of 100,000 nodes jumps about in hundreds of megabytes.

With pages of 4 KiB nearly each jump misses the processor's table of pages, and costs more than the work it is for. So
once a network is laid out, its memory is asked to become pages of 2 MiB. That is a wish: where the system does not know
it, or has none to spare, all stays as it is.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from typing import Final

LARGE: Final = 2 << 20
HUGEPAGE: Final = 14
COLLAPSE: Final = 25
"""Linux's MADV_HUGEPAGE and MADV_COLLAPSE (6.1)."""


def use_large_pages() -> None:
    """Asks for large pages wherever this process has so much memory of its own."""
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    for start, end in _own_memory():
        start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
        if start < end:
            for advice in (HUGEPAGE, COLLAPSE):
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


def _own_memory() -> Iterator[tuple[int, int]]:
    """Where memory lies that can be written and is no file's."""
    with open("/proc/self/maps") as file:
        lines = [line.split() for line in file]
    for place, rights, _, _, _, *name in lines:
        if rights.startswith("rw-p") and name in ([], ["[heap]"]):
            start, _, end = place.partition("-")
            yield int(start, 16), int(end, 16)
