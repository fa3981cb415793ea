"""Configurations read from text, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import argon2
import pytest

from braidmq.config.problems import ConfigError, Problem
from braidmq.config.settings import (
    Config,
)

CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
SECRET = "a secret of thirty-two bytes or more"
DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"

Read = Callable[[str], Config]


def problems(read: Read, text: str) -> dict[str, Problem]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return {problem.key: problem for problem in caught.value.problems}
