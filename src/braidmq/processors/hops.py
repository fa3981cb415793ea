"""Processors that feed each other: a publication carries how many it has come through, at the edge and on Spark.

Beyond HOPS_MAX it is taken for a loop, and nothing more is published.
"""

from __future__ import annotations

from typing import Final

from braidmq.processors.processor import Properties

HOPS: Final = "processor-hops"
"""The user property with the number of processors that a publication has come through."""
HOPS_MAX: Final = 8
"""Processors that a message may come through, one behind the other."""


def hops_of(pairs: Properties) -> int:
    """The number of processors that a publication has come through."""
    hops = 0
    for name, value in pairs:
        if name == HOPS and value.isascii() and value.isdigit() and len(value) < 10:
            hops = max(hops, int(value))
    return hops


def loop_words(hops: int) -> str:
    """Why a notification is not published any more."""
    return f"it has come through {hops} processors, which looks like a loop; see {HOPS}"
