"""The CRC-32 of what stands in the log: that of zlib, by vector instructions where the package `isal` is there.

A reader looks at every byte with it, and zlib's own takes a third of the time of reading.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # an executor of Spark needs no more than it must; the sums are the same
    from zlib import crc32

__all__ = ["crc32"]
