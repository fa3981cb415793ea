"""`python -m bench.placement`: plans of home servers beside a lower bound that no plan can be below.

First the size of the paper, over how far clients are scattered; then 10,000 clients with 1,000 topics on 16 servers.
The goal is a refined plan at most 2 % above the bound. A bound is improved until it is as close as a quarter of that,
or for so many rounds: a gap is what was proved, and the optimum may be closer.
"""

from __future__ import annotations

import time
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from braidmq.placement.bound import lower_bound
from braidmq.placement.comparison import PlacementCase
from braidmq.placement.field import FieldSettings
from braidmq.placement.model import evaluate
from braidmq.placement.planning import assign
from braidmq.placement.social import PAPER_SHAPE, GraphShape, grown_shape

GOAL: Final = 0.02
SCATTERS_KM: Final = (1.0, 5.0, 10.0, 20.0)

console = Console(width=max(100, Console().width))


def measure(table: Table, shape: GraphShape, settings: FieldSettings, seed: int, rounds: int) -> bool:
    """Adds a line for one field; whether the goal is met there."""
    problem = PlacementCase(seed, settings, shape).build().problem
    others = []
    for method in ("reloc", "nearest", "topic"):
        homes = assign(method, problem, np.random.default_rng(seed)).homes
        others.append(f"{evaluate(problem, homes).delay_ms:.3f}")
    begun = time.process_time()
    plan = assign("refined", problem, np.random.default_rng(seed))
    planned_s = time.process_time() - begun
    delay_ms = evaluate(problem, plan.homes).delay_ms
    begun = time.process_time()
    bound = lower_bound(problem, plan.homes, plan.prices, rounds=rounds, known_ms=delay_ms, close_enough=GOAL / 4)
    bound_s = time.process_time() - begun
    gap = bound.gap(delay_ms)
    table.add_row(
        f"{len(problem.clients):,} × {len(problem.topics):,} × {len(problem.servers)}",
        f"{settings.scatter_km:g}",
        f"{delay_ms:.3f}",
        f"{planned_s:.1f}",
        *others,
        f"{bound.delay_ms:.3f}",
        f"{bound_s:.1f}",
        f"{100 * gap:.2f} %",
    )
    return gap <= GOAL


def main(
    clients: Annotated[int, typer.Option(help="Of the large field.")] = 10_000,
    topics: Annotated[int, typer.Option(help="Of the large field.")] = 1_000,
    servers: Annotated[int, typer.Option(help="Of the large field.")] = 16,
    seed: Annotated[int, typer.Option(help="Of both.")] = 1,
    rounds: Annotated[int, typer.Option(help="Rounds of the bound, at most.")] = 150,
) -> None:
    table = Table(title="Plans of home servers: clients × topics × servers, Y in ms")
    for column in ("size", "σ km", "refined", "CPU s", "RELOC", "NS", "OTOS", "bound", "CPU s", "gap"):
        table.add_column(column, justify="right")
    is_met = [measure(table, PAPER_SHAPE, FieldSettings(scatter_km=km), seed, rounds) for km in SCATTERS_KM]
    share = topics / PAPER_SHAPE.topics * FieldSettings().servers / servers  # as much for each topic as in the paper
    large = FieldSettings(
        scatter_km=10.0,
        servers=servers,
        storage=FieldSettings().storage * share,
        compute=FieldSettings().compute * share,
    )
    is_met.append(measure(table, grown_shape(clients, topics), large, seed, rounds))
    console.print(table)
    if not all(is_met):
        console.print(f"[red]Not all plans are within {GOAL:.0%} of the bound.")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
