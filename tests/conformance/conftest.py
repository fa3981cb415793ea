"""Fixtures of the conformance suite."""

from __future__ import annotations

import pytest

from .pair import V3, V5, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=[V3, V5], ids=["3.1.1", "5.0"])
def version(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value
