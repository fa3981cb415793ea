"""What is tried in several ways: cut-throughs with asyncio's loop and with uvloop's, since the two differ in when bytes
leave; and transfer with a method that has a key a topic, and with one that knows all wants."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path.name.endswith("cut_through.py"):
        loops["uvloop"] = uvloop.new_event_loop
    return loops


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "both_kinds" in metafunc.fixturenames and "method" not in metafunc.fixturenames:
        metafunc.parametrize("both_kinds", ["relayfree", "covers"], indirect=True)


@pytest.fixture
def both_kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites of which nothing else is said have one kind of method, and in another run the other."""
    if hasattr(request, "param"):  # or the test itself says which methods it is tried with
        monkeypatch.setattr("tests.braid.sites.METHOD", request.param)


@pytest.fixture(autouse=True)
def files_of_sites_are_closed() -> Iterator[None]:
    """Simulated sites have real journals, and most tests end in the middle of their lives: a process may only have so
    many files open."""
    opened: dict[int, tuple[int, int]] = {}
    really_open = os.open

    def note(*arguments: Any, **options: Any) -> int:
        file = really_open(*arguments, **options)
        opened[file] = _identity(file)
        return file

    os.open = note
    try:
        yield
    finally:
        os.open = really_open
        for file, identity in opened.items():
            with contextlib.suppress(OSError):  # it is closed
                if _identity(file) == identity:
                    os.close(file)


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino
