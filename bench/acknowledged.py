"""`python -m bench.acknowledged`: QoS 1 and 2 on one broker, braided, across two, and with copies of the journal.

All brokers run at the same time, and rounds go through all of them in turn, so that noise falls on all alike: each
figure is the median of ratios of runs that followed one another (`bench.scenarios`). Mosquitto, one broker of its own,
a braid of two, and a second braid of two in which each holds a copy of the other's journal.

A broker that has just started keeps all of QoS 1 and 2 for two minutes, since it cannot know yet what was wanted before
(`AFTER_START_S`); after that only what another broker wants. The rounds begin when that time is over, unless
`--settle` says otherwise: with 0 they show what keeping costs.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console

from bench import loader, table
from bench.braid import braided_pair, measure
from bench.fleet.figures import Figure, Grid, drawn, grid_of, markdown
from bench.loader import Load, Sample
from bench.peers import BraidMQ, Mosquitto
from bench.process import Broker
from bench.table import Machine
from braidmq.braid.transfer.outbound import AFTER_START_S
from braidmq.pubsub.registry import METHOD_DEFAULT

MOSQUITTO, ALONE, SAME, ACROSS = "Mosquitto", "alone", "braided, same broker", "braided, across"
SAME_COPIES, ACROSS_COPIES = "2 copies, same broker", "2 copies, across"
PLACES = (MOSQUITTO, ALONE, SAME, ACROSS, SAME_COPIES, ACROSS_COPIES)
"""Where publishers and subscribers are."""

LOADS = {
    "QoS 1, 10→10": Load(publishers=10, subscribers=10, topics=10, qos=1),
    "QoS 1, 10→10, durable": Load(publishers=10, subscribers=10, topics=10, qos=1, is_durable=True),
    "QoS 2, 10→10": Load(publishers=10, subscribers=10, topics=10, qos=2),
    "QoS 2, 10→10, durable": Load(publishers=10, subscribers=10, topics=10, qos=2, is_durable=True),
    "QoS 1, one in flight": Load(publishers=1, subscribers=1, topics=1, qos=1, window=1),
    "QoS 0, one in flight": Load(publishers=1, subscribers=1, topics=1, qos=0, window=1),
    "QoS 0, 10→10": Load(publishers=10, subscribers=10, topics=10, qos=0),
}
Measured = Literal["out_per_s", "p50_us", "p99_us"]

console = Console(width=max(130, Console().width))


class Goal(msgspec.Struct, frozen=True):
    """A ratio of two runs of one round: of the same load at two places, or of two measures of one run."""

    load: str
    place: str
    beside: str
    bound: float
    measure: Measured = "out_per_s"
    beside_measure: Measured | None = None

    @property
    def name(self) -> str:
        if self.beside_measure is not None:
            return f"{self.load}, {self.place}: p99 to p50"
        return f"{self.load}: {self.place} to {self.beside}{'' if self.measure == 'out_per_s' else ', p50'}"


RATE, DURABLE, ONE = "QoS 1, 10→10", "QoS 1, 10→10, durable", "QoS 1, one in flight"
GOALS = (
    Goal(RATE, ALONE, MOSQUITTO, 8.0),
    Goal("QoS 2, 10→10", ALONE, MOSQUITTO, 5.0),
    Goal(RATE, SAME, ALONE, 0.8),
    Goal(RATE, ACROSS, ALONE, 0.4),
    Goal(RATE, SAME_COPIES, ALONE, 0.3),
    Goal(RATE, ACROSS_COPIES, ALONE, 0.3),
    Goal(ONE, ALONE, MOSQUITTO, 1.0, "p50_us"),
    Goal(ONE, SAME, ALONE, 1.5, "p50_us"),
    Goal(ONE, ACROSS, ALONE, 3.0, "p50_us"),
    Goal(ONE, ALONE, ALONE, 5.0, "p99_us", "p50_us"),
    Goal(ONE, SAME, SAME, 5.0, "p99_us", "p50_us"),
    Goal(ONE, ACROSS, ACROSS, 5.0, "p99_us", "p50_us"),
)


class Run(msgspec.Struct, frozen=True):
    round: int
    load: str
    place: str
    sample: Sample


class Report(msgspec.Struct, frozen=True):
    machine: Machine
    method: str
    rounds: int
    seconds: int
    settle_s: float
    runs: list[Run]


@contextlib.contextmanager
def all_places(folder: Path, method: str) -> Iterator[dict[str, tuple[int, int]]]:
    """The ports of a publisher's and of a subscriber's broker at each place."""
    with contextlib.ExitStack() as stack:
        theirs = stack.enter_context(Broker(Mosquitto(), folder / "mosquitto"))
        alone = stack.enter_context(Broker(BraidMQ(), folder / "alone"))
        one, other = stack.enter_context(braided_pair(folder, method))
        copied, mirror = stack.enter_context(braided_pair(folder, method, copies=2))
        yield {
            MOSQUITTO: (theirs.port, theirs.port),
            ALONE: (alone.port, alone.port),
            SAME: (one, one),
            ACROSS: (one, other),
            SAME_COPIES: (copied, copied),
            ACROSS_COPIES: (copied, mirror),
        }


def measured(folder: Path, report: Report, loads: list[str]) -> Iterator[Run]:
    with all_places(folder, report.method) as places:
        time.sleep(report.settle_s)
        for number in range(1, report.rounds + 1):
            for name in loads:
                for place, ports in places.items():
                    prefix = f"{list(LOADS).index(name)}/{PLACES.index(place)}/{number}"
                    yield Run(number, name, place, measure(LOADS[name], *ports, report.seconds, prefix))


def grid_of_runs(report: Report, load: str) -> Grid:
    """What was measured at each place: medians, and the rates' lowest and highest."""
    rows = []
    for place in PLACES:
        samples = [run.sample for run in report.runs if (run.load, run.place) == (load, place)]
        rates = [one.out_per_s for one in samples]
        p50, p99 = (statistics.median(getattr(one, what) for one in samples) for what in ("p50_us", "p99_us"))
        rows.append(
            (
                place,
                f"{statistics.median(rates):,.0f}",
                f"{min(rates):,}–{max(rates):,}",
                f"{p50:,.0f} µs",
                f"{p99:,.0f} µs",
                f"{sum(one.lost for one in samples):,}",
            )
        )
    return Grid(load, ("where", "deliveries/s", "by round", "p50", "p99", "lost"), rows)


def figure(report: Report, goal: Goal) -> Figure:
    """A goal, the median of the rounds beside it. What was lost reaches none."""
    samples = {(run.round, run.place): run.sample for run in report.runs if run.load == goal.load}
    ratios = []
    for number in range(1, report.rounds + 1):
        above = getattr(samples[number, goal.place], goal.measure)
        ratios.append(above / max(1, getattr(samples[number, goal.beside], goal.beside_measure or goal.measure)))
    ratio = statistics.median(ratios)
    is_rate = goal.measure == "out_per_s"
    is_whole = not any(samples[number, goal.place].lost for number in range(1, report.rounds + 1))
    is_reached = is_whole and (ratio >= goal.bound if is_rate else ratio <= goal.bound)
    shown = f"{ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
    return Figure(goal.name, shown, f"{'≥' if is_rate else '≤'} {goal.bound:g}", is_reached)


def grids(report: Report) -> Iterator[Grid]:
    loads = dict.fromkeys(run.load for run in report.runs)
    for load in loads:
        yield grid_of_runs(report, load)
    title = f"ratios, median of {report.rounds} × {report.seconds} s (lowest–highest)"
    yield grid_of(title, [figure(report, goal) for goal in GOALS if goal.load in loads])


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each load goes through all places.")] = 5,
    seconds: Annotated[int, typer.Option(min=1, help="How long each run takes.")] = 2,
    settle_s: Annotated[float, typer.Option("--settle", min=0, help="Seconds before the first round.")] = AFTER_START_S,
    only: Annotated[str, typer.Option(help="Only loads with this in their name.")] = "",
    method: Annotated[str, typer.Option(help="How publications travel.")] = METHOD_DEFAULT,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every run to this file.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """QoS 1 and 2, as ratios to Mosquitto and to a broker alone."""
    loads = [name for name in LOADS if only.lower() in name.lower()]
    if not loads:
        raise typer.BadParameter(f"no load has {only!r} in its name; they are {', '.join(LOADS)}")
    if Mosquitto().version() is None:
        raise SystemExit(f"Mosquitto is not installed: {Mosquitto.hint}")
    loader.build()
    report = Report(table.this_machine(), method, rounds, seconds, settle_s, [])
    with tempfile.TemporaryDirectory(prefix="braidmq-bench-") as folder:
        for run in measured(Path(folder), report, loads):
            report.runs.append(run)
            said = f"{run.sample.out_per_s:,}/s, p50 {run.sample.p50_us} µs, lost {run.sample.lost}"
            console.print(f"round {run.round}: {run.load}: {run.place}: {said}", markup=False, highlight=False)
    console.print(f"\nMethod {method}; {report.machine}", highlight=False)
    for grid in grids(report):
        if as_markdown:
            console.print(f"\n{grid.title}\n\n{markdown(grid)}", markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(drawn(grid))
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


if __name__ == "__main__":
    typer.run(main)
