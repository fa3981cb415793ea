"""`braidmq place plan`, `show` and `approve`: from a running braid to a plan that may be carried out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from braidmq.cli import output
from braidmq.cli.errors import CliError, UsageError
from braidmq.cli.option_groups import with_option_groups
from braidmq.cli.place.approval import PLAN_FILE, PlanFile, read_plan_file, write_approval
from braidmq.cli.place.braid_options import BraidOptions
from braidmq.cli.progress import Bar

if TYPE_CHECKING:
    from braidmq.cli.place.observing import ObservedSites
    from braidmq.placement.observed import PosedProblem
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
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the plan is written.")] = PLAN_FILE,
    minutes: Annotated[float, typer.Option("--minutes", help="How far back the logs are read.")] = 60.0,
    methods: Annotated[str, typer.Option("--method", help="One or more: refined, reloc, nearest, topic.")] = "refined",
    clusters: Annotated[str, typer.Option("--clusters", metavar="K", help="Clusters of RELOC; one or more.")] = "4",
    seeds: Annotated[int, typer.Option("--seeds", help="Each method is tried with so many seeds.")] = 1,
    moves_max: Annotated[
        int | None, typer.Option("-n", "--moves", help="At most so many clients move; all that should, if not given.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="Read the logs in this folder, and not from the brokers.")
    ] = None,
    latencies: Annotated[
        Path | None, typer.Option("--latencies", help="Rows client,site,ms: one way, as far as it is known.")
    ] = None,
    cloud_ms: Annotated[float, typer.Option("--cloud-ms", help="One way from a site to the cloud.")] = 5.0,
    master: Annotated[str | None, typer.Option("--master", help="Spark's master; this machine if not given.")] = None,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    """Plan where clients should be at home: from the logs of a braid, its subscriptions and its round trips."""
    from braidmq.cli.place.observing import observe, read_latencies
    from braidmq.placement.plan import write_plan

    if not (minutes > 0 and cloud_ms >= 0 and seeds >= 1):
        raise UsageError("--minutes above 0, --cloud-ms of 0 or more, and --seeds of 1 or more are needed")
    known = {} if latencies is None else read_latencies(latencies)
    asked = braid.brokers()
    seen = observe(asked)
    options = _where(braid, [one.url for one in asked], log)
    since = datetime.now(UTC) - timedelta(minutes=minutes)
    try:
        made = _planned(seen, known, cloud_ms, options, since, master, methods, clusters, seeds, moves_max)
        out.write_bytes(write_plan(made))
    except OSError as error:
        raise CliError(f"the plan cannot be written: {error}") from None
    _show(made, json_lines)
    if not json_lines:
        output.note(f"It is in {out}. `braidmq place approve {out}` approves it.", "dim")


def _where(braid: BraidOptions, urls: list[str], log: Path | None) -> dict[str, str]:
    """Where the logs are read."""
    if log is not None:
        return {"path": str(log.absolute())}
    return {"brokers": ",".join(urls)} | ({} if braid.token is None else {"token": braid.token})


def _planned(
    seen: ObservedSites,
    known: dict[tuple[str, str], float],
    cloud_ms: float,
    options: dict[str, str],
    since: datetime,
    master: str | None,
    methods: str,
    clusters: str,
    seeds: int,
    moves_max: int | None,
) -> HomePlan:
    from braidmq.cli.ending import Ending
    from braidmq.cli.on_spark import in_our_words, in_thread, own_java
    from braidmq.pipeline.homes.candidates import candidates, play_all
    from braidmq.pipeline.homes.publishers import published_rates
    from braidmq.pipeline.session import session
    from braidmq.placement.errors import PlacementError
    from braidmq.placement.observed import ObservedBraid, pose_observed
    from braidmq.placement.planning import PLAN_METHODS

    names = [one.strip() for one in methods.split(",")]
    if unknown := [one for one in names if one not in PLAN_METHODS]:
        raise UsageError(f"there is no method {unknown[0]}", f"There are {', '.join(PLAN_METHODS)}.")
    try:
        wanted = candidates(names, [int(one) for one in clusters.split(",")], range(1, seeds + 1))
    except ValueError:
        raise UsageError(f"--clusters {clusters}", "Give one or more numbers: --clusters 2,4") from None

    def work() -> HomePlan:
        spark = session("place", master)
        rows = spark.read.format("braidmq").options(**options).load()
        rates = published_rates(rows, since)
        braid = ObservedBraid(
            seen.sites,
            seen.clients,
            rates.publishers,
            seen.processors,
            rates.period_s,
            cloud_ms,
            seen.topic_homes,
            known,
        )
        posed = pose_observed(braid)
        best = play_all(spark, posed.problem, wanted)[0]
        words = f"{best.candidate.method}, seed {best.candidate.seed}, best of {len(wanted)}"
        return _made(posed, best.homes, words, moves_max)

    try:
        with in_our_words(), Ending() as ending, own_java(), Bar("Planning"):
            return in_thread(work, ending)
    except PlacementError as error:
        raise CliError(str(error), hint="Nothing was planned, and nothing moved.") from None


def _made(posed: PosedProblem, homes: Any, words: str, moves_max: int | None) -> HomePlan:
    """The plan, within the budget of moves; then come the clients that rules, or MQTT 3.1.1, have at a site."""
    from braidmq.placement.planning import make_plan
    from braidmq.placement.replan import ReplanSettings, replan

    problem = posed.problem
    now = problem.homes_of(posed.now)
    if moves_max is not None:
        homes = replan(problem, now, homes, ReplanSettings(budget=moves_max))
    for client, site in posed.fixed.items():
        homes[problem.clients.index(client)] = problem.servers.index(site)
    return make_plan(problem, homes, words, now=now)


SHOW_EXAMPLES: Final = output.examples(("A plan beside now and beside the bound", "braidmq place show plan.json"))


def show(
    file: PlanFile = PLAN_FILE,
    *,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    """Show a plan: what it promises, beside now and beside what no plan can beat."""
    _show(read_plan_file(file), json_lines)


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


def _show(plan: HomePlan, json_lines: bool) -> None:
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
