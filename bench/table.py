"""The results, as people read them (rich tables, or Markdown) and as programs do (JSON)."""

from __future__ import annotations

import os
import platform
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench import scenarios
from bench.loader import Sample
from bench.memory import TARGET_BYTES, Memory
from bench.peers import BASELINE, OURS
from bench.scenarios import Run, Scenario

NOTHING = "–"
WIDTH_MIN = 140
"""Columns that the tables need; a narrower terminal wraps their lines rather than losing figures."""


class Started(msgspec.Struct, frozen=True):
    """A broker that took part."""

    peer: str
    version: str
    store: str
    command: list[str]
    config: str | None


class Machine(msgspec.Struct, frozen=True):
    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str

    def __str__(self) -> str:
        return f"{self.processor}, {self.cores} cores, {self.memory_gib} GiB, {self.system}, Python {self.python}"


class Row(msgspec.Struct, frozen=True):
    """One broker's medians in one scenario, beside the baseline's."""

    scenario: str
    peer: str
    median: Sample | None
    failure: str | None
    ratio: float | None
    """The median of the rounds' ratios, each of two runs that followed one another, so that noise hit both."""
    ratio_range: tuple[float, float] | None
    """The lowest and the highest ratio of one round: how far the machine's noise goes."""
    target: str | None
    reached: bool | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    started: list[Started]
    loads: dict[str, str]
    """Scenario → the command line of its load."""
    rounds: int
    seconds: int
    runs: list[Run]
    rows: list[Row]
    memory: list[Memory]
    memory_failures: dict[str, str]


def this_machine() -> Machine:
    processor = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    return Machine(
        processor=processor,
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def rows(measured: Sequence[Scenario], peers: Sequence[str], runs: Sequence[Run]) -> list[Row]:
    return [row for scenario in measured for row in _scenario_rows(scenario, peers, runs)]


def _scenario_rows(scenario: Scenario, peers: Sequence[str], runs: Sequence[Run]) -> list[Row]:
    here = [run for run in runs if run.scenario == scenario.name]
    samples = {(run.peer, run.round): run.sample for run in here if run.sample is not None}
    medians = {peer: scenarios.median([found for (of, _), found in samples.items() if of == peer]) for peer in peers}
    rows_found = []
    for peer, median in medians.items():
        failure = next((run.failure for run in here if run.peer == peer and run.failure is not None), None)
        rounds = {number for _, number in samples}
        ratios = [_ratio_of(scenario, samples.get((peer, n)), samples.get((BASELINE, n))) for n in rounds]
        known = [value for value in ratios if value is not None]
        ratio = statistics.median(known) if known else None
        target = scenario.target if peer == OURS else None
        reached = None
        if target is not None and ratio is not None and median is not None:
            # A rate at which messages are lost is not a rate that was reached.
            reached = target.is_reached(ratio) and not median.lost and failure is None
        rows_found.append(
            Row(
                scenario=scenario.name,
                peer=peer,
                median=median,
                failure=failure,
                ratio=ratio,
                ratio_range=(min(known), max(known)) if known else None,
                target=None if target is None else str(target),
                reached=reached,
            )
        )
    return rows_found


def _ratio_of(scenario: Scenario, sample: Sample | None, baseline: Sample | None) -> float | None:
    if sample is None or baseline is None:
        return None
    value, unit = getattr(sample, scenario.measure), getattr(baseline, scenario.measure)
    return value / unit if unit else None


def show(report: Report, console: Console, *, markdown: bool = False) -> None:
    console = Console(width=max(console.width, WIDTH_MIN))
    if report.rows:
        console.print(_rates(report, markdown))
    if report.memory or report.memory_failures:
        console.print(_memory(report, markdown))
    _show_failures(report, console)
    if not any(started.peer == BASELINE for started in report.started):
        console.print(f"No ratios and no verdicts on the targets: they need {BASELINE} in the same run.")
    _show_commands(report, console)


def _new_table(title: str, markdown: bool) -> Table:
    return Table(title=None if markdown else title, box=box.MARKDOWN if markdown else box.SIMPLE_HEAD)


def _rates(report: Report, markdown: bool) -> Table:
    table = _new_table(
        f"messages a second and latency: median of {report.rounds} × {report.seconds} s, 100-byte payloads", markdown
    )
    table.add_column("scenario", no_wrap=True)
    table.add_column("broker", no_wrap=True)
    for heading in ("in/s", "out/s", "p50", "p99", "lost", f"to {BASELINE}", "by round"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("target", no_wrap=True)
    previous = None
    for row in report.rows:
        if previous not in (None, row.scenario) and not markdown:
            table.add_section()
        name = row.scenario if markdown or previous != row.scenario else ""
        previous = row.scenario
        table.add_row(name, row.peer, *_figures(row), _ratio(row), _range(row), _verdict(row.target, row.reached))
    return table


def _figures(row: Row) -> list[str | Text]:
    median = row.median
    if median is None:
        return [Text("failed", style="bold red"), NOTHING, NOTHING, NOTHING, NOTHING]
    lost = Text(f"{median.lost:,}", style="bold red" if median.lost else "")
    return [
        f"{median.in_per_s:,}",
        f"{median.out_per_s:,}",
        _microseconds(median.p50_us),
        _microseconds(median.p99_us),
        lost,
    ]


def _microseconds(value_us: int) -> str:
    return f"{value_us} µs" if value_us < 10_000 else f"{value_us / 1000:.1f} ms"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return NOTHING
    latency = row.median is not None and any(
        scenario.measure == "p50_us" for scenario in scenarios.SCENARIOS if scenario.name == row.scenario
    )
    return f"{row.ratio:.2f}×{' p50' if latency else ''}"


def _range(row: Row) -> str:
    if row.ratio_range is None or row.peer == BASELINE:
        return ""
    low, high = row.ratio_range
    return f"{low:.2f}–{high:.2f}"


def _verdict(target: str | None, reached: bool | None) -> Text:
    if target is None:
        return Text("")
    if reached is None:
        return Text(f"{target} unknown", style="yellow")
    return Text(f"{target} reached", style="green") if reached else Text(f"{target} missed", style="bold red")


def _memory(report: Report, markdown: bool) -> Table:
    table = _new_table("memory of idle connections", markdown)
    table.add_column("broker", no_wrap=True)
    for heading in ("connections", "MiB before", "MiB after", "KiB each", f"to {BASELINE}"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("target", no_wrap=True)
    baseline = next((memory.bytes_each for memory in report.memory if memory.peer == BASELINE), 0)
    for memory in report.memory:
        ours = memory.peer == OURS
        table.add_row(
            memory.peer,
            f"{memory.connections:,}",
            f"{memory.before_bytes / 2**20:.1f}",
            f"{memory.after_bytes / 2**20:.1f}",
            f"{memory.bytes_each / 1024:.2f}",
            f"{memory.bytes_each / baseline:.2f}×" if baseline > 0 else NOTHING,
            _verdict(f"≤ {TARGET_BYTES // 1024} KiB" if ours else None, memory.bytes_each <= TARGET_BYTES),
        )
    for peer in report.memory_failures:
        table.add_row(peer, Text("failed", style="bold red"), NOTHING, NOTHING, NOTHING, NOTHING, "")
    return table


def _show_failures(report: Report, console: Console) -> None:
    for row in report.rows:
        if row.failure is not None:
            console.print(f"failed: {row.scenario}, {row.peer}: {row.failure}", style="red", markup=False)
    for peer, failure in report.memory_failures.items():
        console.print(f"failed: idle connections, {peer}: {failure}", style="red", markup=False)


def _show_commands(report: Report, console: Console) -> None:
    console.print(f"\n{report.machine}", markup=False, highlight=False)
    console.print("\nBrokers", style="bold")
    for started in report.started:
        console.print(f"{started.peer} {started.version} (store: {started.store})", markup=False, highlight=False)
        console.print(f"  {shlex.join(started.command)}", markup=False, highlight=False, soft_wrap=True)
        for line in (started.config or "").splitlines():
            console.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)
    if not report.loads:
        return
    console.print("\nLoads", style="bold")
    width = max(len(name) for name in report.loads)
    for name, command in report.loads.items():
        console.print(f"{name:{width}}  {command}", markup=False, highlight=False, soft_wrap=True)


def write_json(report: Report, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
