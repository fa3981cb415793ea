"""What the parts have in common: sizes, a figure beside its target, and a word on how far things are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from rich import box
from rich.table import Table

Say = Callable[[str], None]
"""Tells the reader what is going on."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything there is. These are the full sizes."""

    devices: int = 100_000
    """Topics that are published, each by a device of its own."""
    filters: int = 50_000
    """Clients of the storm, and filters that stand while the upkeep is measured; each is a client's own."""
    minutes: float = 30.0
    """Of clients that come and go."""
    churn_per_s: int = 500
    idle_s: float = 60.0
    """How long the upkeep is measured."""
    subscriptions: int = 100
    """New filters of each kind whose SUBACK is timed."""
    first_s: float = 10.0
    """How long new topics are published at a low rate."""


QUICK = Sizes(devices=2_000, filters=1_000, minutes=0.5, churn_per_s=50, idle_s=8.0, subscriptions=20, first_s=3.0)


class Figure(msgspec.Struct, frozen=True):
    """Beside its target; without one it is there to be read."""

    name: str
    value: str
    target: str = ""
    is_reached: bool | None = None


def at_most(name: str, value: float, bound: float, shown: str, bound_shown: str) -> Figure:
    return Figure(name, shown, f"≤ {bound_shown}", value <= bound)


def at_least(name: str, value: float, bound: float, shown: str) -> Figure:
    return Figure(name, shown, f"≥ {bound:g}", value >= bound)


def exactly(name: str, value: int, wanted: int) -> Figure:
    return Figure(name, f"{value:,}", f"{wanted:,}", value == wanted)


def table_of(title: str, figures: Sequence[Figure], markdown: bool = False) -> Table:
    table = Table(
        title=None if markdown else title, box=box.MARKDOWN if markdown else box.SIMPLE_HEAD, title_style="bold"
    )
    table.add_column(title if markdown else "figure")
    table.add_column("measured", justify="right")
    table.add_column("target")
    for one in figures:
        verdict = "" if one.is_reached is None else " reached" if one.is_reached else " missed"
        style = "" if markdown or not verdict else "green" if one.is_reached else "red"
        table.add_row(one.name, one.value, f"{one.target}{verdict}", style=style)
    return table
