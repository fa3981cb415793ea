"""The tables and curves of docs/fleet.md, from the JSON of runs: `python -m bench.fleet.page FILE…`.

The first file is the run that the page is about; others stand beside it, to compare methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench import curves
from bench.curves import Line, Panel
from bench.fleet import burst, churn, report, storm, suback, upkeep
from bench.fleet.figures import Figure, Grid, markdown, verdict
from bench.fleet.report import Report

DOCUMENT = Path(__file__).parents[2] / "docs" / "fleet.md"
CURVES = DOCUMENT.with_suffix(".svg")
BEGIN = "<!-- figures: begin -->"
END = "<!-- figures: end -->"
NOTHING = "–"


def updated(text: str, reports: Sequence[Report]) -> str:
    """The document with what stands between its two marks made anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected {BEGIN} and {END} in the document")
    sections = "\n".join(_sections(reports))
    return f"{before}{BEGIN}\n\n{sections}\n{END}{after}"


def _sections(reports: Sequence[Report]) -> Iterator[str]:
    yield f"Method `{reports[0].method}`; {reports[0].machine}.\n"
    yield f"![Rates, SUBACKs, cycles and memory as curves]({CURVES.name})\n"
    for qos in sorted({one.qos for one in reports[0].burst}):
        largest = [_largest(each.burst, qos) for each in reports]
        sizes = [f"{one.devices:,} devices" if one else "" for one in largest]
        found = [burst.figures(one) if one else [] for one in largest]
        yield from _section(f"Every device publishes once, QoS {qos}", reports, sizes, found)
    sizes = [f"{each.storm.clients:,} clients" if each.storm else "" for each in reports]
    found = [storm.figures(each.storm) if each.storm else [] for each in reports]
    yield from _section("The fleet comes back", reports, sizes, found)
    idle = [each.upkeep.many if each.upkeep else None for each in reports]
    sizes = [f"{one.topics:,} topics, {one.filters:,} filters" if one else "" for one in idle]
    found = [upkeep.figures(each.upkeep) if each.upkeep else [] for each in reports]
    yield from _section("Nothing happens", reports, sizes, found)
    sizes = [f"{each.churn.asked_per_s:,}/s" if each.churn else "" for each in reports]
    found = [churn.figures(each.churn) if each.churn else [] for each in reports]
    yield from _section("Clients come and go", reports, sizes, found)
    sizes = [f"up to {each.suback[-1].topics:,} topics" if each.suback else "" for each in reports]
    found = [suback.figures(each.suback) if each.suback else [] for each in reports]
    yield from _section("SUBACK across brokers", reports, sizes, found)
    for each in reports:
        if each.suback:
            yield f"p50 / p99 by the number of topics, `{each.method}`:\n\n{markdown(suback.grid(each.suback))}\n"


def _largest(bursts: Sequence[burst.Burst], qos: int) -> burst.Burst | None:
    return max((one for one in bursts if one.qos == qos), key=lambda one: one.devices, default=None)


def _section(
    heading: str, reports: Sequence[Report], sizes: Sequence[str], found: Sequence[Sequence[Figure]]
) -> Iterator[str]:
    """The figures of several runs: the names and targets are those of the first."""
    heads = [
        f"`{each.method}`, {size}" if size else f"`{each.method}`" for each, size in zip(reports, sizes, strict=True)
    ]
    rows = []
    for number, one in enumerate(found[0]):
        others = [figures[number].value if figures else NOTHING for figures in found[1:]]
        rows.append((one.name, one.value, verdict(one), *others))
    if rows:
        yield f"### {heading}\n\n{markdown(Grid(heading, ('figure', heads[0], 'target', *heads[1:]), rows))}\n"


def panels(reports: Sequence[Report]) -> Iterator[Panel]:
    """A colour is a method."""
    lines = list(_burst_lines(reports))
    if lines:
        yield Panel(
            "First messages of all devices", "devices", "delivered a second", lines, is_x_log=True, is_y_log=True
        )
    if lines := list(_suback_lines(reports)):
        bound = suback.MEDIAN_MAX_US / 1000
        yield Panel(
            "SUBACK, median", "topics at another broker", "ms", lines, is_x_log=True, is_y_log=True, bound=bound
        )
    if lines := list(_churn_lines(reports)):
        yield Panel("Clients that come and go: a cycle", "minutes", "ms", lines, is_y_log=True)
        yield Panel(
            "Clients that come and go: memory", "minutes", "MiB, the largest broker", list(_memory_lines(reports))
        )


def _burst_lines(reports: Sequence[Report]) -> Iterator[Line]:
    for colour, each in enumerate(reports):
        for qos in sorted({one.qos for one in each.burst}):
            points = [(one.devices, one.per_s) for one in each.burst if one.qos == qos]
            yield Line(f"{each.method}, QoS {qos}", points, is_dashed=qos == 1, colour=colour)


def _suback_lines(reports: Sequence[Report]) -> Iterator[Line]:
    for colour, each in enumerate(reports):
        for kind in ("+", "without publishers"):
            found = [one for one in each.suback if one.kind == kind and one.topics]
            if found:
                points = [(one.topics, one.times.p50_us / 1000) for one in found]
                yield Line(f"{each.method}, {kind}", points, is_dashed=kind != "+", colour=colour)


def _churn_lines(reports: Sequence[Report]) -> Iterator[Line]:
    for colour, each in enumerate(reports):
        if each.churn is not None:
            medians = [(one.ends_s / 60, one.latency.p50_us / 1000) for one in each.churn.windows]
            yield Line(f"{each.method}, p50", medians, colour=colour)
            high = [(one.ends_s / 60, one.latency.p99_us / 1000) for one in each.churn.windows]
            yield Line(f"{each.method}, p99", high, is_dashed=True, colour=colour)


def _memory_lines(reports: Sequence[Report]) -> Iterator[Line]:
    for colour, each in enumerate(reports):
        if each.churn is not None:
            points = [(one.ends_s / 60, max(one.resident_bytes) / 2**20) for one in each.churn.windows]
            yield Line(each.method, points, colour=colour)


def main(
    files: Annotated[list[Path], typer.Argument(help="Written by `python -m bench.fleet --json FILE`.", exists=True)],
) -> None:
    """Fills docs/fleet.md and draws its curves."""
    reports = [report.read(file) for file in files]
    DOCUMENT.write_text(updated(DOCUMENT.read_text(), reports))
    CURVES.write_text(curves.draw("A fleet of devices", list(panels(reports))))


if __name__ == "__main__":
    typer.run(main)
