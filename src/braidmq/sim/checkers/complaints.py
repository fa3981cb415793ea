"""What checkers say."""

from __future__ import annotations

from collections.abc import Iterable

COMPLAINTS_MAX = 20
"""Complaints that are kept; all are counted."""


class Complaints:
    """The first ones, and how many there were."""

    def __init__(self) -> None:
        self.first: list[str] = []
        self.count = 0

    def add(self, complaints: Iterable[str]) -> None:
        for complaint in complaints:
            self.count += 1
            if len(self.first) < COMPLAINTS_MAX:
                self.first.append(complaint)
