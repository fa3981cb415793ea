"""All that a run found, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console

from bench import table
from bench.fleet import burst, churn, storm, suback, upkeep
from bench.fleet.burst import Burst
from bench.fleet.churn import Churn
from bench.fleet.figures import Grid, Sizes, drawn, grid_of
from bench.fleet.storm import Storm
from bench.fleet.suback import Suback
from bench.fleet.upkeep import Upkeep
from bench.table import Machine

WIDTH_MIN = 120


class Report(msgspec.Struct, kw_only=True):
    """A part that was not measured is empty."""

    method: str
    sizes: Sizes
    machine: Machine = msgspec.field(default_factory=table.this_machine)
    burst: list[Burst] = []
    storm: Storm | None = None
    upkeep: Upkeep | None = None
    churn: Churn | None = None
    suback: list[Suback] = []
    failures: dict[str, str] = {}
    """Part → why it has no figures."""


def grids(report: Report) -> Iterator[Grid]:
    for one in report.burst:
        yield grid_of(f"{one.devices:,} devices publish once, QoS {one.qos}", burst.figures(one))
    if report.storm is not None:
        title = f"{report.storm.clients:,} clients come back at {report.storm.brokers} brokers"
        yield grid_of(title, storm.figures(report.storm))
    if report.upkeep is not None:
        yield grid_of("a fleet that is idle", upkeep.figures(report.upkeep))
    if report.churn is not None:
        yield churn.grid(report.churn)
        yield grid_of("clients that come and go", churn.figures(report.churn))
    if report.suback:
        yield suback.grid(report.suback)
        yield grid_of("SUBACK across brokers", suback.figures(report.suback))


def show(report: Report, console: Console) -> None:
    console = Console(width=max(console.width, WIDTH_MIN))
    console.print(f"\nMethod {report.method}; {report.machine}", highlight=False)
    for grid in grids(report):
        console.print(drawn(grid))
    for part, why in report.failures.items():
        console.print(f"{part} failed: {why}", style="red", markup=False, highlight=False)


def write(report: Report, file: Path) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def read(file: Path) -> Report:
    return msgspec.json.decode(file.read_bytes(), type=Report)
