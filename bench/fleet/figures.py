"""What the parts have in common: sizes, a figure beside its target, and a word on how far things are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
    burst_steps: tuple[int, ...] = (1_000, 10_000)
    """Smaller fleets whose burst is measured, too."""
    minutes: float = 30.0
    """Of clients that come and go."""
    churn_per_s: int = 500
    idle_s: float = 60.0
    """How long the upkeep is measured."""
    subscriptions: int = 100
    """New filters of each kind whose SUBACK is timed."""
    first_s: float = 10.0
    """How long new topics are published at a low rate."""


QUICK = Sizes(
    devices=2_000,
    burst_steps=(),
    filters=1_000,
    minutes=0.25,
    churn_per_s=50,
    idle_s=5.0,
    subscriptions=20,
    first_s=2.0,
)


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


class Grid(NamedTuple):
    """A table before it is drawn."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def grid_of(title: str, figures: Sequence[Figure]) -> Grid:
    return Grid(title, ("figure", "measured", "target"), [(one.name, one.value, verdict(one)) for one in figures])


def verdict(one: Figure) -> str:
    return one.target if one.is_reached is None else f"{one.target}, {'reached' if one.is_reached else 'missed'}"


def drawn(grid: Grid) -> Table:
    """For a terminal."""
    table = Table(title=grid.title, box=box.SIMPLE_HEAD, title_style="bold")
    for number, name in enumerate(grid.head):
        table.add_column(name, justify="right" if number else "left")
    for row in grid.rows:
        style = "green" if row[-1].endswith(" reached") else "red" if row[-1].endswith(" missed") else ""
        table.add_row(*row, style=style)
    return table


def markdown(grid: Grid) -> str:
    lines = [grid.head, ["---", *("---:" for _ in grid.head[1:])], *grid.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
