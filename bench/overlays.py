"""`python -m bench.overlays`: what the overlays and the simulator reach, beside what they are meant to reach.

Hops and counts are exact and the same on every machine; rates are of the CPU time of this one.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from functools import partial
from statistics import mean

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from braidmq.host import Address
from braidmq.overlay.suzaku import Find, Found, SuzakuNode
from braidmq.sim.engine import Simulator
from braidmq.sim.layout import lay_out_suzaku

HOPS_TARGETS = {64: (2.5, 5), 256: (3.6, 7), 1024: (4.6, 9)}
"""Mean and largest number of lookup hops, by the number of nodes."""

KIB_MAX = 4.0
BUILD_S_MAX = 20.0
RATE_MIN = 200_000


class Figure(msgspec.Struct, frozen=True):
    what: str
    value: float
    target: str
    reached: bool


def nodes_of(sim: Simulator, count: int) -> list[SuzakuNode]:
    keys: list[tuple[bytes, Address]] = [(b"%08d" % (number * 7919 % 100_000_007), number) for number in range(count)]
    return [node for overlay in lay_out_suzaku(sim, keys).values() for node in overlay.nodes.values()]


def look_up(sim: Simulator, pairs: list[tuple[SuzakuNode, SuzakuNode]]) -> list[int]:
    """The hops of each lookup, all of them begun one after the other."""
    hops: list[int] = []

    async def one(start: SuzakuNode, goal: SuzakuNode) -> None:
        host = sim.hosts[start.me.address]
        found = await host.call(start.me.address, Find(start.me.key, goal.me.key), 5.0)
        assert isinstance(found, Found)
        assert found.owner == goal.me
        hops.append(found.hops)

    def begin(start: SuzakuNode, goal: SuzakuNode) -> None:
        sim.hosts[start.me.address].spawn(one(start, goal))

    for number, (start, goal) in enumerate(pairs):
        sim.at(number * 1e-4, partial(begin, start, goal))
    sim.run()
    assert len(hops) == len(pairs)
    return hops


def hop_figures() -> Iterator[Figure]:
    for count, (mean_max, most) in HOPS_TARGETS.items():
        sim = Simulator(1)
        nodes = nodes_of(sim, count)
        hops = look_up(sim, [(start, goal) for start in nodes for goal in nodes])
        yield Figure(
            f"Suzaku, {count} nodes: mean hops of all lookups", mean(hops), f"≤ {mean_max}", mean(hops) <= mean_max
        )
        yield Figure(f"Suzaku, {count} nodes: most hops", max(hops), f"≤ {most}", max(hops) <= most)


def scale_figures(count: int, lookups: int) -> Iterator[Figure]:
    gc.collect()
    before, began_at = resident_bytes(), time.process_time()
    sim = Simulator(1)
    nodes = nodes_of(sim, count)
    took_s = time.process_time() - began_at
    kib = (resident_bytes() - before) / count / 1024
    yield Figure(f"{count} Suzaku nodes laid out, s", took_s, f"≤ {BUILD_S_MAX:g}", took_s <= BUILD_S_MAX)
    yield Figure("memory a node with 17 fingers each way, KiB", kib, f"≤ {KIB_MAX:g}", kib <= KIB_MAX)
    chance = sim.chance
    pairs = [(chance.choice(nodes), chance.choice(nodes)) for _ in range(lookups)]
    began_at = time.process_time()
    look_up(sim, pairs)
    rate = sim.messages / (time.process_time() - began_at)
    yield Figure("simulated messages a second (lookups)", rate, f"≥ {RATE_MIN:,}", rate >= RATE_MIN)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def main(
    nodes: int = typer.Option(100_000, help="How large the large network is."),
    lookups: int = typer.Option(20_000, help="How many lookups are simulated in it."),
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
