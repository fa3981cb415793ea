"""`python -m bench.log`: what the log costs, measured on a broker that keeps all topics beside one that keeps none.

Runs are interleaved, so that what else the machine does falls on both. The broker's processor time a
message is shown as well: it depends less on the other load.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench import client, cpu, loader
from bench.braid import process, wait_for_mqtt
from bench.loader import Load, Sample
from bench.peers import BraidMQ

TARGET = 0.7
"""QoS 0 with the log, to QoS 0 without."""

SCENARIOS = {
    "QoS 0, 1→1": Load(publishers=1, subscribers=1, topics=1, qos=0),
    "QoS 0, 10→10, 10 topics": Load(publishers=10, subscribers=10, topics=10, qos=0),
    "QoS 0, 100→100, 100 topics": Load(publishers=100, subscribers=100, topics=100, qos=0),
    "QoS 0, 1→1, mixed sizes": Load(publishers=1, subscribers=1, topics=1, qos=0, jitter_bytes=50),
    "QoS 1, 1→1": Load(publishers=1, subscribers=1, topics=1, qos=1),
    "QoS 1, 10→10, 10 topics": Load(publishers=10, subscribers=10, topics=10, qos=1),
}

console = Console()


class Result(msgspec.Struct, frozen=True):
    """Medians over the rounds."""

    scenario: str
    plain_per_s: float
    logged_per_s: float
    ratio: float
    low: float
    high: float
    best_ratio: float
    """Of the best run to the best run: other load only ever slows down."""
    plain_cpu_us: float
    logged_cpu_us: float
    target: float | None

    @property
    def is_reached(self) -> bool | None:
        return None if self.target is None else self.ratio >= self.target


class Rig:
    """A broker, with its processor time."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid = pid
        self._port = port

    def run(self, load: Load, seconds: int) -> tuple[Sample, float]:
        """Also the processor time of the broker a message, in microseconds."""
        before = cpu.own_s(self._pid)
        sample = loader.run(load, self._port, seconds)
        spent = cpu.own_s(self._pid) - before
        return sample, spent / max(1, sample.in_per_s * seconds) * 1e6


def start(stack: contextlib.ExitStack, folder: Path, name: str, *settings: str) -> Rig:
    own = folder / name
    own.mkdir()
    port = client.free_port()
    command = [str(BraidMQ.executable), "up", "--port", str(port), "--data", str(own / "data")]
    child = stack.enter_context(process([*command, *settings, "--log-level", "warning"], own))
    wait_for_mqtt(port)
    return Rig(child.pid, port)


def measure(name: str, load: Load, plain: Rig, logged: Rig, rounds: int, seconds: int) -> Result:
    pairs = [(plain.run(load, seconds), logged.run(load, seconds)) for _ in range(rounds)]
    ratios = [with_log.out_per_s / max(1, without.out_per_s) for (without, _), (with_log, _) in pairs]
    return Result(
        name,
        statistics.median(one.out_per_s for (one, _), _ in pairs),
        statistics.median(one.out_per_s for _, (one, _) in pairs),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        max(one.out_per_s for _, (one, _) in pairs) / max(1, *(one.out_per_s for (one, _), _ in pairs)),
        statistics.median(cpu for (_, cpu), _ in pairs),
        statistics.median(cpu for _, (_, cpu) in pairs),
        TARGET if load.qos == 0 else None,
    )


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each scenario runs.")] = 5,
    seconds: Annotated[int, typer.Option(min=1, help="How long each run lasts.")] = 2,
    only: Annotated[str, typer.Option(help="Only scenarios with this in their name.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """The throughput of a broker with its log, to that of one without."""
    loader.build()
    folder = Path(tempfile.mkdtemp(prefix="braidmq-bench-"))
    results = []
    try:
        with contextlib.ExitStack() as stack:
            plain = start(stack, folder, "plain")
            logged = start(stack, folder, "logged", "--set", 'log.topics=["#"]', "--set", "log.retain_bytes=1073741824")
            for name, load in SCENARIOS.items():
                if only.lower() in name.lower():
                    results.append(measure(name, load, plain, logged, rounds, seconds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(msgspec.json.encode(results).decode())
        return
    table = Table("scenario", "without", "with the log", "ratio", "range", "best runs", "processor a message", "target")
    table.title = "What the log costs"
    for one in results:
        target = "" if one.target is None else f"≥ {one.target:g} [{'green' if one.is_reached else 'red'}]"
        target += {None: "", True: "reached[/]", False: "missed[/]"}[one.is_reached]
        table.add_row(
            one.scenario,
            f"{one.plain_per_s:,.0f}/s",
            f"{one.logged_per_s:,.0f}/s",
            f"{one.ratio:.2f}",
            f"{one.low:.2f} to {one.high:.2f}",
            f"{one.best_ratio:.2f}",
            f"{one.plain_cpu_us:.2f} → {one.logged_cpu_us:.2f} µs",
            target,
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
