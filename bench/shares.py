"""`python -m bench.shares`: a shared subscription over three brokers, beside the same group at one of them.

Three brokers of one braid, each a process of its own. Rounds go through all places in turn, so that noise falls on all
alike; each figure is the median of the ratios to the run at one broker in the same round.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench import client, loader
from bench.braid import SETTLE_S, _wait_for_copies, process, wait_for_mqtt
from bench.loader import Load, Sample
from bench.peers import BraidMQ

BROKERS = 3
GOAL = 0.5
ONE, ALL, FROM_ONE, ACROSS = (
    "all at one broker",
    "publishers and members at all",
    "publishers at one, members at all",
    ("publishers at one, members at the others"),
)
LOAD = Load(publishers=10, subscribers=9, topics=10, qos=1)

console = Console(width=max(120, Console().width))


@contextlib.contextmanager
def braid(folder: Path, copies: int) -> Iterator[list[int]]:
    """The MQTT ports of the brokers of one braid."""
    ports, links, admin = ([client.free_port() for _ in range(BROKERS)] for _ in range(3))
    with contextlib.ExitStack() as stack:
        for number, (port, link) in enumerate(zip(ports, links, strict=True)):
            own = folder / f"b{number}"
            own.mkdir()
            command = [str(BraidMQ.executable), "up", "--port", str(port), "--data", str(own / "data")]
            command += ["--braid", f"127.0.0.1:{link}", "--log-level", "warning"]
            command += ["--set", f"braid.copies={copies}", "--admin-port", str(admin[number])]
            command += ["--join", f"127.0.0.1:{links[0]}"] if number else []
            stack.enter_context(process(command, own))
        for port in ports:
            wait_for_mqtt(port)
        for port in admin:
            _wait_for_copies(port, copies)
        time.sleep(SETTLE_S)
        yield ports


def places_of(ports: list[int]) -> dict[str, tuple[list[int], list[int]]]:
    """Where publishers and members are."""
    return {
        ONE: (ports[:1], ports[:1]),
        ALL: (ports, ports),
        FROM_ONE: (ports[:1], ports),
        ACROSS: (ports[:1], ports[1:]),
    }


def measure(load: Load, publish_at: list[int], members_at: list[int], seconds: int, group: str) -> Sample:
    publishers, members = (",".join(map(str, ports)) for ports in (publish_at, members_at))
    command = [*loader.command(load, publishers, seconds), "-b", members, "-x", f"jobs/{group}", "-g", group]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + loader.GRACE_S, check=False)
    figures = loader.LINE.search(done.stdout)
    if figures is None:
        raise SystemExit(done.stderr.strip() or "the load generator gave no figures")
    return Sample(*map(int, figures.groups()))


def drawn(samples: dict[str, list[Sample]]) -> Table:
    table = Table("where", "messages/s", "ratio", "goal", "p50", "p99", "lost", title="One group, QoS 1")
    for place, found in samples.items():
        ratios = [one.out_per_s / max(1, base.out_per_s) for one, base in zip(found, samples[ONE], strict=True)]
        p50, p99 = (statistics.median(getattr(one, what) for one in found) for what in ("p50_us", "p99_us"))
        ratio = statistics.median(ratios)
        table.add_row(
            place,
            f"{statistics.median(one.out_per_s for one in found):,.0f}",
            f"{ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
            "" if place == ONE else f"≥ {GOAL} {'✓' if ratio >= GOAL else '✗'}",
            f"{p50:,.0f} µs",
            f"{p99:,.0f} µs",
            f"{sum(one.lost for one in found):,}",
        )
    return table


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often the load goes through all places.")] = 3,
    seconds: Annotated[int, typer.Option(min=1, help="How long each run takes.")] = 3,
    copies: Annotated[int, typer.Option(min=1, max=3, help="Copies of each broker's store, its own included.")] = 2,
    window: Annotated[int, typer.Option(min=1, help="Messages that are under way at a time.")] = 1000,
) -> None:
    """A shared subscription over three brokers, as a ratio to the same group at one of them."""
    loader.build()
    load = Load(publishers=LOAD.publishers, subscribers=LOAD.subscribers, topics=LOAD.topics, qos=1, window=window)
    samples: dict[str, list[Sample]] = {}
    with tempfile.TemporaryDirectory(prefix="braidmq-bench-") as folder, braid(Path(folder), copies) as ports:
        for number in range(rounds):
            for index, (place, (publish_at, members_at)) in enumerate(places_of(ports).items()):
                sample = measure(load, publish_at, members_at, seconds, f"g{number}p{index}")
                samples.setdefault(place, []).append(sample)
                said = f"{sample.out_per_s:,}/s, p50 {sample.p50_us} µs, lost {sample.lost}"
                console.print(f"round {number + 1}: {place}: {said}", markup=False, highlight=False)
    console.print(drawn(samples))


if __name__ == "__main__":
    typer.run(main)
