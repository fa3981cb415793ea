"""Memory that stays with a process that allocates and frees megabytes many times a second.

By default the GNU C library gives freed memory back to the system, and gets it again page by page, which can cost more
than the work it is for. With another C library nothing changes.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Of mallopt(3)."""


def keep_memory(at_end_bytes: int, single_bytes: int) -> None:
    """Gives nothing back while less than so much is free at the end of the heap; single pieces up to so much are taken
    from it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, at_end_bytes)
        mallopt(_MMAP_THRESHOLD, single_bytes)
