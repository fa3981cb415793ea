"""`braidmq sim`: trials of publish/subscribe methods in virtual time, with the protocols that brokers run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from braidmq.cli import output
from braidmq.cli.errors import CliError, UsageError
from braidmq.cli.option_groups import with_option_groups
from braidmq.cli.progress import Bar
from braidmq.cli.sim import figures
from braidmq.cli.sim.options import (
    MethodOptions,
    ResultOptions,
    SelectionOptions,
    TrialOptions,
    WorldOptions,
    listed,
    trials_of,
)
from braidmq.cli.sim.table import tabulate
from braidmq.pubsub.registry import METHODS

if TYPE_CHECKING:
    from braidmq.sim.trials.trial import Trial, TrialReport

app = typer.Typer(add_completion=False)

_KNOWN: Final = [(name, entry) for name, entry in METHODS.items() if not entry.is_baseline]
_BASELINES: Final = [name for name, entry in METHODS.items() if entry.is_baseline]

HELP: Final = (
    "Try a publish/subscribe method in the simulator: the protocol code that brokers run, in virtual time.\n\n"
    f"Methods: {', '.join(f'{name} ({one.known_as})' if one.known_as else name for name, one in _KNOWN)}, and the "
    f"baselines {listed(_BASELINES, 'and')}. Patterns: alpha, beta, gamma, delta, epsilon, zeta "
    "(publishers and subscribers a topic: 10/990, 500/500, 990/10, 1/9, 5/5, 9/1), subs10 … subs5120 (one "
    "topic among others, 5 a node), zipf, lookups, fleet (10,000 device topics and command filters a broker; "
    "fleet100x50 has fewer), or your own as PUBLISHERSxSUBSCRIBERSxTOPICS.\n\n"
    "With --faults there is a time of faults first: small networks grow by messages, and brokers crash, return, come "
    "and go. Once it is calm, every subscriber must get every message once, nobody else may be bothered, and "
    "publishers must know whether they are wanted: if not, the exit code is 1. The same command gives the same figures "
    "again, but for times and memory.\n\n"
    "multicast, anycast and ledger select and reserve one component of many: of a group of --group members, until none "
    "is free, or at an --occupancy with releases. They have no pattern.\n\n"
    "With --out the trials, of all seeds and of several methods, patterns and sizes if you like, become rows of a "
    "table, one after the other or, with --spark, as tasks of Spark. A run that was stopped goes on where it was."
)
EXAMPLES: Final = output.examples(
    ("Paths from publishers to subscribers, 100 topics of ten", "braidmq sim --method relayfree --pattern delta"),
    ("The same, as large as in the paper", "braidmq sim --method relayfree --pattern delta --nodes 100000"),
    ("Nobody listens: nothing is sent", "braidmq sim --method relayfree --pattern 1x0x100"),
    ("Three seeds: mean and range", "braidmq sim --method adaptive --pattern subs80 --seeds 1-3"),
    (
        "Loss, repetition, overtaking, a partition, and a broker that comes or goes each second",
        "braidmq sim --method relayfree --nodes 60 --faults loss=0.02,dup=0.02,reorder=0.05,partition=30-60,churn=1",
    ),
    ("A picture of one publication", "braidmq sim --method scribe --nodes 100 --trace scribe.svg"),
    ("Lookups of all nodes", "braidmq sim --method suzaku --pattern lookups --nodes 100000"),
    ("A fleet: keys, upkeep, first messages", "braidmq sim --method covers --pattern fleet20x20 --nodes 12"),
    ("The same with a key a topic", "braidmq sim --method adaptive --pattern fleet20x20 --nodes 12"),
    ("One component of 64, until none is free", "braidmq sim --method anycast --strategy close --seeds 1-5"),
    ("The same by the ledger, nearly all reserved", "braidmq sim --method ledger --slots 8 --occupancy 0.95"),
    ("For a script", "braidmq sim --method relayfree --json | jq .hops_mean"),
    (
        "A table of 600 trials, on all cores",
        "braidmq sim -m relayfree,scribe -p delta,zeta -n 256 --seeds 1-150 --spark 'local[*]' --out trials",
    ),
)


@app.command("sim", help=HELP, epilog=EXAMPLES)
@with_option_groups
def sim(
    *,
    trial: TrialOptions,
    method: MethodOptions,
    selection: SelectionOptions,
    world: WorldOptions,
    result: ResultOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    trials = trials_of(trial, method, selection, world, result)
    if result.out is not None:
        tabulate(trials, result.out, result.spark, json_lines)
        return
    with TrialBar(trial.method) as bar:
        reports = _play(trials, bar)
    if result.trace is not None:
        _write(result.trace, reports[0].picture or "")
    figures.show(reports, json_lines)
    failed = [report for report in reports if report.complaints_count]
    if failed:
        raise CliError(_told(failed), hint=f"It happens again with --seed {failed[0].parameters['seed']}.")


def _play(trials: list[Trial], bar: TrialBar) -> list[TrialReport]:
    import gc

    from braidmq.sim.engine import SimulationError
    from braidmq.sim.network import FaultsError
    from braidmq.sim.trials.patterns import PatternError
    from braidmq.sim.trials.trial import TrialError, play

    reports = []
    for trial in trials:
        bar.begin(f"seed {trial.seed}: " if len(trials) > 1 else "")
        try:
            reports.append(play(trial, bar.update))
        except (TrialError, PatternError, FaultsError) as error:
            raise UsageError(str(error)) from None
        except SimulationError as error:
            raise CliError(str(error), hint=f"It happens again with --seed {error.seed}.") from None
        if trial is not trials[-1]:
            gc.collect()
    gc.freeze()  # the last network is not looked through once more: the process is about to end
    return reports


def _write(path: Path, picture: str) -> None:
    try:
        path.write_text(picture)
    except OSError as error:
        raise CliError(f"cannot write the picture to {path}: {error.strerror}") from None
    output.note(f"A picture of the first publication is in {path}.")


def _told(failed: list[TrialReport]) -> str:
    """The complaints of all trials, each with its seed."""
    count = sum(report.complaints_count for report in failed)
    lines = [f"the checkers have {output.counted(count, 'complaint')}"]
    for report in failed:
        seed = report.parameters["seed"]
        lines += [f"  seed {seed}: {complaint}" for complaint in report.complaints]
        more = report.complaints_count - len(report.complaints)
        if more:
            lines.append(f"  seed {seed}: and {more:,} more")
    return "\n".join(lines)


class TrialBar(Bar):
    """A bar with the trial and its phase beside it."""

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self._before = 0.0
        self._shown = ""
        self._trial = ""

    def begin(self, trial: str) -> None:
        self._trial = trial

    def update(self, what: str, part: float) -> None:
        if not self.is_shown:
            return
        import time

        now = time.monotonic()
        if now - self._before < 0.1 and what == self._shown:
            return
        self._before, self._shown = now, what
        self.show(part, self._trial + what)
