"""`python -m bench.overlays`: what the overlays and the simulator reach, beside what they are meant to reach.

Hops and counts are exact and the same on every machine; rates are of the CPU time of this one.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable, Iterator
from statistics import mean, median

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.suzaku import Suzaku
from braidmq.sim.engine import Simulator
from braidmq.sim.layouts.suzaku import lay_out_suzaku
from braidmq.sim.trials.large_pages import use_large_pages

HOPS_TARGETS = {64: (2.5, 5), 256: (3.6, 7), 1024: (4.6, 9)}
"""Mean and largest number of lookup hops, by the number of nodes."""

KIB_MAX = 4.0
BUILD_S_MAX = 20.0
RATE_MIN = 200_000

CLIENTS = 1000
"""Brokers that look up at the same time."""

ROUNDS = 5
"""How often the rate is measured: on a shared machine it is now and then much lower for a while."""


class Figure(msgspec.Struct, frozen=True):
    what: str
    value: float
    target: str
    reached: bool


def laid_out(sim: Simulator, count: int) -> list[Suzaku]:
    """Brokers with a key each, numbered in another order than that of their keys."""
    keys: dict[Address, list[Key]] = {number: [b"%08d" % (number * 7919 % 100_000_007)] for number in range(count)}
    overlays = list(lay_out_suzaku(sim, keys).values())
    for overlay in overlays:
        overlay.make_ways()
    return overlays


def look_up(sim: Simulator, goals_by_broker: Iterable[tuple[Suzaku, Iterable[Key]]]) -> list[int]:
    """The hops of all lookups; each broker begins one when it has the answer to the last."""
    hops: list[int] = []

    async def client(overlay: Suzaku, goals: Iterable[Key]) -> None:
        for goal in goals:
            found = await overlay.lookup(goal)
            assert found is not None
            assert found.owner.key == goal
            hops.append(found.hops)

    for overlay, goals in goals_by_broker:
        overlay.host.spawn(client(overlay, goals))
    sim.run()
    return hops


def hop_figures() -> Iterator[Figure]:
    for count, (mean_max, most) in HOPS_TARGETS.items():
        sim = Simulator(1)
        overlays = laid_out(sim, count)
        keys = [key for overlay in overlays for key in overlay.nodes]
        hops = look_up(sim, [(overlay, keys) for overlay in overlays])
        assert len(hops) == count * count
        yield Figure(
            f"Suzaku, {count} nodes: mean hops of all lookups", mean(hops), f"≤ {mean_max}", mean(hops) <= mean_max
        )
        yield Figure(f"Suzaku, {count} nodes: most hops", max(hops), f"≤ {most}", max(hops) <= most)


def scale_figures(count: int, lookups: int) -> Iterator[Figure]:
    gc.collect()
    before, began_at = resident_bytes(), time.process_time()
    sim = Simulator(1)
    overlays = laid_out(sim, count)
    took_s = time.process_time() - began_at
    kib = (resident_bytes() - before) / count / 1024
    yield Figure(f"{count} Suzaku nodes laid out, s", took_s, f"≤ {BUILD_S_MAX:g}", took_s <= BUILD_S_MAX)
    yield Figure("memory a node with all its fingers, KiB", kib, f"≤ {KIB_MAX:g}", kib <= KIB_MAX)
    use_large_pages()
    keys = [key for overlay in overlays for key in overlay.nodes]
    rates = [round_rate(sim, overlays, keys, lookups) for _ in range(ROUNDS)]
    for what, rate in (("best", max(rates)), ("median", median(rates))):
        yield Figure(
            f"simulated messages a CPU second (lookups), {what} of {ROUNDS} rounds",
            rate,
            f"≥ {RATE_MIN:,}",
            rate >= RATE_MIN,
        )


def round_rate(sim: Simulator, overlays: list[Suzaku], keys: list[Key], lookups: int) -> float:
    """Messages a second of CPU time: some brokers look up keys at random, one after the other."""
    chance = sim.chance
    goals = [
        (chance.choice(overlays), [chance.choice(keys) for _ in range(lookups // CLIENTS)]) for _ in range(CLIENTS)
    ]
    gc.collect()
    before, began_at = sim.messages, time.process_time()
    look_up(sim, goals)
    return (sim.messages - before) / (time.process_time() - began_at)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def main(
    nodes: int = typer.Option(100_000, help="How large the large network is."),
    lookups: int = typer.Option(20_000, help="How many lookups are simulated in each round."),
    json_lines: bool = typer.Option(False, "--json", help="One JSON object a figure."),
) -> None:
    """Measures the overlays in the simulator."""
    console = Console()
    table = Table("figure", "value", "target", "")
    for figures in (hop_figures(), scale_figures(nodes, lookups)):
        for figure in figures:
            if json_lines:
                sys.stdout.write(msgspec.json.encode(figure).decode() + "\n")
            table.add_row(figure.what, f"{figure.value:,.2f}", figure.target, "reached" if figure.reached else "missed")
    if not json_lines:
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
