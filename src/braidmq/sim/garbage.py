"""Garbage collection in large simulations: millions of objects are no garbage, and hardly any of them are in a cycle.

Objects that are frozen are not looked at any more.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

GC_THRESHOLD = 100_000
"""New objects between two looks for garbage."""


@contextmanager
def rare_garbage_collection(keep_frozen: bool) -> Iterator[None]:
    """Looks for garbage seldom, and not among what is there already: 100,000 hosts are no garbage."""
    thresholds = gc.get_threshold()
    gc.set_threshold(max(thresholds[0], GC_THRESHOLD) if thresholds[0] else 0, *thresholds[1:])
    gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if not keep_frozen:
            gc.unfreeze()


@contextmanager
def hardly_any_garbage_collection() -> Iterator[None]:
    """Looks for garbage seldom for a whole trial; what was frozen during it is looked at again afterwards."""
    thresholds = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """While millions of objects are made that are no garbage. They are frozen then."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
