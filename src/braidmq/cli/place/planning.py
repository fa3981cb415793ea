"""`braidmq place plan`, `show` and `approve`: from a running braid to a plan that may be carried out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.errors import CliError
from braidmq.cli.option_groups import with_option_groups
from braidmq.cli.place.approval import PLAN_FILE, PlanFile, read_plan_file, write_approval
from braidmq.cli.place.braid_options import BraidOptions
from braidmq.cli.place.making import PlanOptions, logs_of, make

if TYPE_CHECKING:
    from braidmq.placement.plan import HomePlan, PlanFigures

PLAN_EXAMPLES: Final = output.examples(
    ("From the last hour of a braid's logs", "braidmq place plan --brokers http://edge1:9883,http://edge2:9883"),
    ("With measured distances of clients, and at most 50 moves", "braidmq place plan -d data --latencies ms.csv -n 50"),
    ("The paper's method, and others, side by side", "braidmq place plan -d data --method reloc,nearest,topic"),
)


@with_option_groups
def plan(
    *,
    braid: BraidOptions,
    options: PlanOptions,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the plan is written.")] = PLAN_FILE,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="Also write a table of all clients, with now and planned.")
    ] = None,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    """Plan where clients should be at home: from the logs of a braid, its subscriptions and its round trips."""
    from braidmq.cli.place.observing import observe
    from braidmq.placement.plan import write_plan

    asked = options.checked()
    brokers = braid.brokers()
    made = make(observe(brokers), asked, options, logs_of(braid, brokers, options))
    try:
        out.write_bytes(write_plan(made))
        if parquet is not None:
            _write_table(made, parquet)
    except OSError as error:
        raise CliError(f"the plan cannot be written: {error}") from None
    show_plan(made, json_lines)
    if not json_lines:
        output.note(f"It is in {out}. `braidmq place approve {out}` approves it.", "dim")


def _write_table(plan: HomePlan, path: Path) -> None:
    """A row for each client: where it is, where it is to be, and by which plan."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    before = {move.client: move.source for move in plan.moves}
    rows = {
        "plan": [plan.id] * len(plan.homes),
        "client": [*plan.homes],
        "now": [before.get(client, home) for client, home in plan.homes.items()],
        "planned": [*plan.homes.values()],
    }
    pq.write_table(pa.table(rows), path)


SHOW_EXAMPLES: Final = output.examples(("A plan beside now and beside the bound", "braidmq place show plan.json"))


def show(
    file: PlanFile = PLAN_FILE,
    *,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    """Show a plan: what it promises, beside now and beside what no plan can beat."""
    show_plan(read_plan_file(file), json_lines)


APPROVE_EXAMPLES: Final = output.examples(("Approve it as it is", "braidmq place approve plan.json"))


def approve(file: PlanFile = PLAN_FILE, *, json_lines: output.JsonOption = False) -> None:
    """Approve a plan: exactly this one can be applied then."""
    found = read_plan_file(file)
    made = write_approval(file, found)
    if json_lines:
        output.print_json({"id": found.id, "digest": made.digest, "by": made.by, "at": made.at})
    else:
        output.say(f"The plan {found.id} is approved: {output.counted(len(found.moves), 'client')} will move.")


_DELAYS: Final = ("delay, ms", "by distance", "by resources")
_LOADS: Final = ("clients", "storage", "computation", "processed there")


def show_plan(plan: HomePlan, json_lines: bool) -> None:
    import msgspec

    if json_lines:
        told = {"id": plan.id, "digest": plan.digest, "method": plan.method, "moves": len(plan.moves)}
        figures = {"now": plan.now, "planned": plan.planned, "bound_ms": plan.bound_ms}
        output.print_json(told | msgspec.to_builtins(figures))
        return
    output.say(
        f"Plan {plan.id} ({plan.method}): {output.counted(len(plan.moves), 'client')} of {len(plan.homes):,} move."
    )
    rows = [(words, *_delays(one)) for words, one in (("now", plan.now), ("planned", plan.planned)) if one is not None]
    if plan.bound_ms is not None:
        rows.append(("no plan below", f"{plan.bound_ms:.2f}", "", ""))
    delays = output.table("", *_DELAYS, numbers=_DELAYS)
    for row in rows:
        delays.add_row(*row)
    sites = output.table("site", *_LOADS, numbers=_LOADS)
    for one in plan.planned.servers:
        storage = f"{one.storage:,.0f} of {one.storage_max:,.0f}"
        compute = f"{one.compute:,.0f} of {one.compute_max:,.0f}"
        sites.add_row(one.name, f"{one.clients:,}", storage, compute, f"{one.local_share:.0%}")
    shown = output.console()
    shown.print(delays)
    shown.print(sites)


def _delays(figures: PlanFigures) -> tuple[str, str, str]:
    return f"{figures.delay_ms:.2f}", f"{figures.distance_ms:.2f}", f"{figures.resource_ms:.2f}"
