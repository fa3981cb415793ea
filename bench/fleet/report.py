"""All that a run found, as tables for people and as JSON for programs."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console

from bench import table
from bench.fleet import burst, churn, storm, suback, upkeep
from bench.fleet.burst import Burst
from bench.fleet.churn import Churn
from bench.fleet.figures import Sizes, table_of
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


def show(report: Report, console: Console, *, markdown: bool = False) -> None:
    console = Console(width=max(console.width, WIDTH_MIN))
    for one in report.burst:
        title = f"{one.devices:,} devices publish once, QoS {one.qos}, {report.method}"
        console.print(table_of(title, burst.figures(one), markdown))
    if report.storm is not None:
        title = f"{report.storm.clients:,} clients come back at {report.storm.brokers} brokers, {report.method}"
        console.print(table_of(title, storm.figures(report.storm), markdown))
    if report.upkeep is not None:
        console.print(table_of(f"a fleet that is idle, {report.method}", upkeep.figures(report.upkeep), markdown))
    if report.churn is not None:
        console.print(churn.table_of(report.churn, markdown))
        console.print(table_of(f"clients that come and go, {report.method}", churn.figures(report.churn), markdown))
    if report.suback:
        console.print(suback.table_of(report.suback, markdown))
        console.print(table_of(f"SUBACK across brokers, {report.method}", suback.figures(report.suback), markdown))
    for part, why in report.failures.items():
        console.print(f"{part} failed: {why}", style="red", markup=False, highlight=False)


def write(report: Report, file: Path) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def read(file: Path) -> Report:
    return msgspec.json.decode(file.read_bytes(), type=Report)
