"""Makes a plan for a running braid: what its sites say and have logged becomes a problem, and candidates are tried."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.errors import CliError, UsageError
from braidmq.cli.place.observing import read_latencies
from braidmq.cli.progress import Bar

if TYPE_CHECKING:
    from braidmq.cli.admin_port import BrokerAdmin
    from braidmq.cli.place.braid_options import BraidOptions
    from braidmq.cli.place.observing import ObservedSites
    from braidmq.pipeline.homes.candidates import PlanCandidate
    from braidmq.placement.observed import PosedProblem
    from braidmq.placement.plan import HomePlan
    from braidmq.placement.problem import Ints

PANEL = "Plan"


@dataclass(frozen=True)
class PlanOptions:
    """How a plan is made."""

    minutes: Annotated[
        float, typer.Option("--minutes", help="How far back the logs are read.", rich_help_panel=PANEL)
    ] = 60.0
    methods: Annotated[
        str, typer.Option("--method", help="One or more: refined, reloc, nearest, topic.", rich_help_panel=PANEL)
    ] = "refined"
    clusters: Annotated[
        str, typer.Option("--clusters", metavar="K", help="Clusters of RELOC; one or more.", rich_help_panel=PANEL)
    ] = "4"
    seeds: Annotated[
        int, typer.Option("--seeds", help="Each method is tried with so many seeds.", rich_help_panel=PANEL)
    ] = 1
    moves_max: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--moves",
            "--budget",
            help="At most so many clients move; all that should, if not given.",
            rich_help_panel=PANEL,
        ),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option("--log", help="Read the logs in this folder, and not from the brokers.", rich_help_panel=PANEL),
    ] = None
    latencies: Annotated[
        Path | None,
        typer.Option("--latencies", help="Rows client,site,ms: one way, as far as it is known.", rich_help_panel=PANEL),
    ] = None
    cloud_ms: Annotated[
        float, typer.Option("--cloud-ms", help="One way from a site to the cloud.", rich_help_panel=PANEL)
    ] = 5.0
    master: Annotated[
        str | None,
        typer.Option("--master", help="Spark's master; this machine if not given.", rich_help_panel=PANEL),
    ] = None

    def checked(self) -> AskedPlan:
        """A UsageError says what makes no sense, before anybody is asked anything."""
        from braidmq.pipeline.homes.candidates import candidates
        from braidmq.placement.planning import PLAN_METHODS

        if not (self.minutes > 0 and self.cloud_ms >= 0 and self.seeds >= 1 and (self.moves_max or 0) >= 0):
            raise UsageError(
                "--minutes above 0, --cloud-ms and --moves of 0 or more, and --seeds of 1 or more are needed"
            )
        names = [one.strip() for one in self.methods.split(",")]
        if unknown := [one for one in names if one not in PLAN_METHODS]:
            raise UsageError(f"there is no method {unknown[0]}", f"There are {', '.join(PLAN_METHODS)}.")
        try:
            clusters = [int(one) for one in self.clusters.split(",")]
        except ValueError:
            raise UsageError(f"--clusters {self.clusters}", "Give one or more numbers: --clusters 2,4") from None
        known = {} if self.latencies is None else read_latencies(self.latencies)
        return AskedPlan(candidates(names, clusters, range(1, self.seeds + 1)), known)


@dataclass(frozen=True)
class AskedPlan:
    candidates: list[PlanCandidate]
    client_ms: dict[tuple[str, str], float]
    """One way from a client to a site, where that is known."""


def logs_of(braid: BraidOptions, brokers: list[BrokerAdmin], options: PlanOptions) -> dict[str, str]:
    """Where the logs are read: options of the source."""
    if options.log is not None:
        return {"path": str(options.log.absolute())}
    token = {} if braid.token is None else {"token": braid.token}
    return {"brokers": ",".join(one.url for one in brokers)} | token


def make(
    seen: ObservedSites,
    asked: AskedPlan,
    options: PlanOptions,
    logs: dict[str, str],
    moved_before: Collection[str] = (),
) -> HomePlan:
    """A CliError says why there is none. Clients that were `moved_before` have to gain more than others."""
    from braidmq.cli.ending import Ending
    from braidmq.cli.on_spark import in_our_words, in_thread, own_java
    from braidmq.pipeline.homes.candidates import play_all
    from braidmq.pipeline.homes.publishers import published_rates
    from braidmq.pipeline.session import session
    from braidmq.placement.errors import PlacementError
    from braidmq.placement.observed import ObservedBraid, pose_observed

    since = datetime.now(UTC) - timedelta(minutes=options.minutes)

    def work() -> HomePlan:
        spark = session("place", options.master)
        rates = published_rates(spark.read.format("braidmq").options(**logs).load(), since)
        braid = ObservedBraid(
            seen.sites,
            seen.clients,
            rates.publishers,
            seen.processors,
            rates.period_s,
            options.cloud_ms,
            seen.topic_homes,
            asked.client_ms,
        )
        posed = pose_observed(braid)
        best = play_all(spark, posed.problem, asked.candidates)[0]
        words = f"{best.candidate.method}, seed {best.candidate.seed}, best of {len(asked.candidates)}"
        return _made(posed, best.homes, words, options.moves_max, moved_before)

    try:
        with in_our_words(), Ending() as ending, own_java(), Bar("Planning"):
            return in_thread(work, ending)
    except PlacementError as error:
        raise CliError(str(error), hint="Nothing was planned, and nothing moved.") from None


def _made(
    posed: PosedProblem, homes: Ints, words: str, moves_max: int | None, moved_before: Collection[str]
) -> HomePlan:
    """The plan, within the budget of moves; then come the clients that rules, or MQTT 3.1.1, have at a site."""
    from braidmq.placement.planning import make_plan
    from braidmq.placement.replan import ReplanSettings, replan

    problem = posed.problem
    now = problem.homes_of(posed.now)
    if moves_max is not None:
        homes = replan(problem, now, homes, ReplanSettings(budget=moves_max), moved_before)
    return make_plan(problem, problem.kept(homes), words, now=now)
