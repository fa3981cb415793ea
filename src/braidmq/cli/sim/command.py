"""`braidmq sim`: trials of publish/subscribe methods in virtual time, with the protocols that brokers run."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from braidmq.cli import output
from braidmq.cli.errors import CliError, UsageError
from braidmq.cli.progress import Bar
from braidmq.cli.sim.table import tabulate

if TYPE_CHECKING:
    from braidmq.sim.trial import Report, Trial

app = typer.Typer(add_completion=False)

SEEDS_MAX: Final = 1_000
TRIALS_MAX: Final = 1_000_000
"""Trials of one table."""
DIGITS: Final = 6
"""Decimals of a figure in JSON."""

_TRIAL: Final = "Trial"
_METHOD: Final = "Method"
_WORLD: Final = "World"

HELP: Final = (
    "Try a publish/subscribe method in the simulator: the protocol code that brokers run, in virtual time.\n\n"
    "Methods: suzaku, relayfree (SG-TBPS), adaptive (flexible routing tables), locality (PIQT), and the baselines "
    "scribe, bayeux and canmc. Patterns: alpha, beta, gamma, delta, epsilon, zeta (publishers and subscribers a topic: "
    "10/990, 500/500, 990/10, 1/9, 5/5, 9/1), subs10 … subs5120 (one topic among others, 5 a node), zipf, lookups, or "
    "your own as PUBLISHERSxSUBSCRIBERSxTOPICS.\n\n"
    "With --faults the network has a rough time first: small ones grow by messages, and brokers crash, return, come "
    "and go. Once it is calm, every subscriber must get every message once, nobody else may be bothered, and "
    "publishers must know whether they are wanted: if not, the exit code is 1. The same command gives the same figures "
    "again, but for times and memory.\n\n"
    "With --out the trials, of all seeds and of several methods, patterns and sizes if you like, become rows of a "
    "table, one after the other or, with --spark, as tasks of Spark. A run that was stopped goes on where it was."
)
EXAMPLES: Final = output.examples(
    ("Paths from publishers to subscribers, 100 topics of ten", "braidmq sim --method relayfree --pattern delta"),
    ("The same, as large as in the paper", "braidmq sim --method relayfree --pattern delta --nodes 100000"),
    ("Nobody listens: nothing is sent", "braidmq sim --method relayfree --pattern 1x0x100"),
    ("Three seeds: mean and range", "braidmq sim --method adaptive --pattern subs80 --seeds 1-3"),
    (
        "Loss, repetition, overtaking, a partition, and somebody who comes or goes each second",
        "braidmq sim --method relayfree --nodes 60 --faults loss=0.02,dup=0.02,reorder=0.05,partition=30-60,churn=1",
    ),
    ("A picture of one publication", "braidmq sim --method scribe --nodes 100 --trace scribe.svg"),
    ("Lookups of all nodes", "braidmq sim --method suzaku --pattern lookups --nodes 100000"),
    ("For a script", "braidmq sim --method relayfree --json | jq .hops_mean"),
    (
        "A table of 600 trials, on all cores",
        "braidmq sim -m relayfree,scribe -p delta,zeta -n 256 --seeds 1-150 --spark 'local[*]' --out trials",
    ),
)


@app.command("sim", help=HELP, epilog=EXAMPLES)
def sim(
    method: Annotated[
        str,
        typer.Option(
            "-m",
            "--method",
            metavar="NAME",
            help="suzaku, relayfree, adaptive, locality, scribe, bayeux or canmc; several with commas for --out.",
            rich_help_panel=_TRIAL,
        ),
    ] = "relayfree",
    pattern: Annotated[
        str,
        typer.Option(
            "-p", "--pattern", metavar="NAME", help="Who publishes and subscribes what.", rich_help_panel=_TRIAL
        ),
    ] = "delta",
    nodes: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--nodes",
            metavar="N",
            help="Brokers; by default as the pattern has it. Several with commas for --out.",
            rich_help_panel=_TRIAL,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("-s", "--seed", min=0, help="All chance comes from it; 1 if not given.", rich_help_panel=_TRIAL),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds", metavar="A-B", help="Several trials, as 1-3 or 1,5,9: mean and range.", rich_help_panel=_TRIAL
        ),
    ] = None,
    publications: Annotated[
        int | None,
        typer.Option(
            "--publications",
            min=1,
            help="So many publishers publish, drawn by chance; by default all, or what brings a million deliveries.",
            rich_help_panel=_TRIAL,
        ),
    ] = None,
    cut: Annotated[
        str | None,
        typer.Option(
            "--cut",
            metavar="mrf|sfb",
            help="How ranges are split: mrf forwards at most twice, sfb takes fewer hops.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    table_size: Annotated[
        int | None,
        typer.Option("--table-size", help="Entries of a table of adaptive; 60 if not given.", rich_help_panel=_METHOD),
    ] = None,
    learn_s: Annotated[
        float | None,
        typer.Option(
            "--learn",
            metavar="SECONDS",
            help="Tables of adaptive are learnt for so long before; 30 if not given, up to 2,000 nodes that learn.",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    ideal: Annotated[
        bool,
        typer.Option(
            "--ideal",
            help="Tables of adaptive are laid out, the best by their order: much faster, and nobody has learnt them.",
            rich_help_panel=_METHOD,
        ),
    ] = False,
    clusters: Annotated[
        int | None, typer.Option("--clusters", help="Clusters that the nodes are in.", rich_help_panel=_METHOD)
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            "--network",
            metavar="NAME",
            help="Delays: constant (10 ms), uniform (5 to 50 ms) or wan (log-normal, median 40 ms).",
            rich_help_panel=_WORLD,
        ),
    ] = "constant",
    faults: Annotated[
        str | None,
        typer.Option(
            "--faults",
            metavar="LIST",
            help="loss=0.02, dup=0.02, reorder=0.05, slow=0.1:10, partition=30-60, churn=1; with commas.",
            rich_help_panel=_WORLD,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE.svg", help="Draw the first publication.", rich_help_panel="Output"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Add the trials to a table of Parquet files.", rich_help_panel="Output"
        ),
    ] = None,
    spark: Annotated[
        str | None,
        typer.Option(
            "--spark",
            metavar="MASTER",
            help="Play the trials of a table as tasks of Spark: local[*], spark://HOST:7077, …",
            rich_help_panel="Output",
        ),
    ] = None,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    if seed is not None and seeds is not None:
        raise UsageError("both --seed and --seeds", "Give one of them.")
    seeds_max = SEEDS_MAX if out is None else TRIALS_MAX
    numbers = [1 if seed is None else seed] if seeds is None else _read_seeds(seeds, seeds_max)
    if trace is not None:
        if len(numbers) > 1:
            raise UsageError("a picture is of one trial, not of several", "Give --seed instead of --seeds.")
        if trace.suffix.lower() != ".svg":
            raise UsageError(f"--trace {trace}: pictures are SVG", f"Write --trace {trace.with_suffix('.svg')}.")
        if not trace.resolve().parent.is_dir():
            raise UsageError(f"there is no directory {trace.resolve().parent} for {trace.name}")

    from braidmq.sim.trial import Trial

    trials = [
        Trial(
            method=one_method,
            pattern=one_pattern,
            nodes=one_size,
            seed=number,
            faults=faults,
            network=network,
            cut=cut,
            table_size=table_size,
            learn_s=learn_s,
            ideal=ideal,
            clusters=clusters,
            publications=publications,
            trace=trace is not None,
        )
        for one_method, one_pattern, one_size, number in product(
            _words(method), _words(pattern), _read_sizes(nodes), numbers
        )
    ]
    if out is not None:
        if trace is not None:
            raise UsageError("a picture is of one trial, not of a table", "Leave out --trace or --out.")
        if len(trials) > TRIALS_MAX:
            raise UsageError(f"these are {len(trials):,} trials: at most {TRIALS_MAX:,}")
        tabulate(trials, out, spark, json_lines)
        return
    if spark is not None:
        raise UsageError("--spark plays the trials of a table", "Say where it shall be: --out FOLDER.")
    if len(trials) > len(numbers):
        raise UsageError("several methods, patterns or sizes make a table", "Say where it shall be: --out FOLDER.")
    with Display(method) as display:
        reports = _play(trials, display)
    if trace is not None:
        _write(trace, reports[0].picture or "")
    _show(reports, json_lines)
    failed = [report for report in reports if report.complaints_count]
    if failed:
        raise CliError(_told(failed), hint=f"It happens again with --seed {failed[0].parameters['seed']}.")


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))


def _read_sizes(text: str | None) -> list[int | None]:
    if text is None:
        return [None]
    for word in _words(text):
        if not word.isdecimal() or not int(word):
            raise UsageError(f"--nodes {text}: {word!r} is no number of brokers", "Write 1000, or 256,1024 with --out.")
    return [int(word) for word in _words(text)]


def _read_seeds(text: str, seeds_max: int) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--seeds {text}: {part.strip()!r} is no number and no range", "Write 1-3 or 1,5,9.")
        end = int(last) if dash else int(first)
        if end - int(first) >= seeds_max:
            raise UsageError(f"--seeds {text}: at most {seeds_max:,}")
        if end < int(first):
            raise UsageError(f"--seeds {text}: the smaller one comes first, as in 1-3")
        seeds += range(int(first), end + 1)
    if len(seeds) > seeds_max:
        raise UsageError(f"--seeds {text}: at most {seeds_max:,}")
    return list(dict.fromkeys(seeds))


def _play(trials: list[Trial], display: Display) -> list[Report]:
    import gc

    from braidmq.sim.engine import SimulationError
    from braidmq.sim.network import FaultsError
    from braidmq.sim.patterns import PatternError
    from braidmq.sim.trial import TrialError, play

    reports = []
    for trial in trials:
        display.begin(f"seed {trial.seed}: " if len(trials) > 1 else "")
        try:
            reports.append(play(trial, display.update))
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


def _told(failed: list[Report]) -> str:
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


# Output


def _show(reports: list[Report], json_lines: bool) -> None:
    from msgspec.structs import asdict

    figures = [asdict(report.figures) for report in reports]
    for one in figures:
        rough = one.pop("rough")
        one |= {f"rough_{name}": value for name, value in asdict(rough).items()} if rough is not None else {}
    ranges = {name: (min(one[name] for one in figures), max(one[name] for one in figures)) for name in figures[0]}
    if len(figures) == 1:
        means = figures[0]
    else:
        means = {name: sum(one[name] for one in figures) / len(figures) for name in figures[0]}
    if json_lines:
        _print_json(reports, means, ranges)
    else:
        _print_table(reports, means, ranges)


def _print_json(reports: list[Report], means: dict[str, Any], ranges: dict[str, tuple[Any, Any]]) -> None:
    found: dict[str, Any] = dict(reports[0].parameters)
    if len(reports) > 1:
        del found["seed"]
        found["seeds"] = [report.parameters["seed"] for report in reports]
    found |= {name: _rounded(value) for name, value in means.items()}
    if len(reports) > 1:
        found["ranges"] = {name: [_rounded(least), _rounded(most)] for name, (least, most) in ranges.items()}
    found["notes"] = reports[0].notes
    found["complaints"] = sum(report.complaints_count for report in reports)
    output.print_json(found)


def _rounded(value: float) -> float:
    return round(value, DIGITS) if isinstance(value, float) else value


ROWS: Final = (
    ("hops, mean", "hops_mean", "{:,.2f}"),
    ("hops, p50", "hops_p50", "{:,.0f}"),
    ("hops, p99", "hops_p99", "{:,.0f}"),
    ("hops, most", "hops_max", "{:,.0f}"),
    ("publications", "publications", "{:,.0f}"),
    ("  not sent, as nobody wants them", "suspended", "{:,.0f}"),
    ("deliveries", "deliveries", "{:,.0f}"),
    ("  missed", "missed", "{:,.0f}"),
    ("  duplicates", "duplicates", "{:,.0f}"),
    ("brokers bothered that have nothing to do with it", "bothered", "{:,.0f}"),
    ("messages", "messages", "{:,.0f}"),
    ("  without subscribers", "messages_without_subscribers", "{:,.0f}"),
    ("forwards of one publication by one node, most", "forwards_max", "{:,.0f}"),
    ("children of one node, most", "children_max", "{:,.0f}"),
    ("messages from one cluster to another", "crossings", "{:,.0f}"),
    ("bytes", "bytes", "{:,.0f}"),
    ("delay in virtual time, mean", "delay_mean_s", "{:,.3f} s"),
    ("delay in virtual time, most", "delay_max_s", "{:,.3f} s"),
    ("virtual time", "virtual_s", "{:,.1f} s"),
    ("rough time: deliveries that were due", "rough_expected", "{:,.0f}"),
    ("rough time: deliveries", "rough_deliveries", "{:,.0f}"),
    ("rough time: duplicates", "rough_duplicates", "{:,.0f}"),
    ("messages to build the network", "build_messages", "{:,.0f}"),
    ("simulated messages", "simulated_messages", "{:,.0f}"),
    ("  a second of CPU time", "simulated_messages_per_s", "{:,.0f}"),
    ("CPU time to build", "build_s", "{:,.1f} s"),
    ("CPU time to run", "run_s", "{:,.1f} s"),
    ("wall time", "wall_s", "{:,.1f} s"),
    ("memory", "rss_mib", "{:,.0f} MiB"),
)
"""What people see of the figures, in which words."""

PUBLICATIONS_ONLY: Final = (
    *("publications", "suspended", "deliveries", "duplicates", "bothered", "messages_without_subscribers"),
    *("crossings", "forwards_max", "children_max", "bytes", "delay_mean_s", "delay_max_s"),
)
"""Figures that lookups do not have."""


def _print_table(reports: list[Report], means: dict[str, Any], ranges: dict[str, tuple[Any, Any]]) -> None:
    from rich.table import Table

    parameters = reports[0].parameters
    words = [f"{parameters['method']}, {parameters['pattern']}, {parameters['nodes']:,} nodes"]
    seeds = [str(report.parameters["seed"]) for report in reports]
    words.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds")
    words += [f"{name.replace('_', ' ')} {parameters[name]}" for name in ("cut", "table_size") if parameters[name]]
    if parameters["learn_s"] is not None:
        words.append(f"learnt for {parameters['learn_s']:g} s")
    if parameters["clusters"] != 1:
        words.append(f"{parameters['clusters']} clusters")
    words += [str(parameters[name]) for name in ("network", "faults") if parameters[name]]
    table = Table(title=", ".join(words), title_justify="left")
    table.add_column("figure")
    table.add_column("mean" if len(reports) > 1 else "value", justify="right")
    if len(reports) > 1:
        table.add_column("range", justify="right")
    hidden: tuple[str, ...] = PUBLICATIONS_ONLY if parameters["pattern"] == "lookups" else ()
    if parameters["clusters"] == 1:
        hidden += ("crossings",)
    for label, name, form in ROWS:
        if name not in means or name in hidden:
            continue
        wrong = name in ("missed", "duplicates") and means[name]
        row = [label, f"[red]{form.format(means[name])}[/red]" if wrong else form.format(means[name])]
        if len(reports) > 1:
            row.append(" … ".join(form.format(end) for end in ranges[name]))
        table.add_row(*row)
    output.console().print(table)
    for note in dict.fromkeys(note for report in reports for note in report.notes):
        output.say(f"Note: {note}.")


class Display(Bar):
    """Which trial it is, and what it is at, beside the bar."""

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
