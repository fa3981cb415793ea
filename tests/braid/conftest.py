"""Cut-throughs are tried with asyncio's loop and with uvloop's: the two differ in when bytes leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path.name == "test_cut_through.py":
        loops["uvloop"] = uvloop.new_event_loop
    return loops
