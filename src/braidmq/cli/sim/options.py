"""What `braidmq sim` is asked for: the options, and the trials that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli.errors import UsageError
from braidmq.cli.number_lists import read_seeds, read_words
from braidmq.pubsub.registry import METHODS

if TYPE_CHECKING:
    from braidmq.sim.trials.trial import Trial

SELECTIONS: Final = ("multicast", "anycast", "ledger")
"""Methods that select one component of many."""

SEEDS_MAX: Final = 1_000
TRIALS_MAX: Final = 1_000_000
"""Trials of one table."""

_TRIAL: Final = "Trial"
_METHOD: Final = "Method"
_SELECTION: Final = "Selection"
_WORLD: Final = "World"


def listed(names: Iterable[str], last: str) -> str:
    """Names in a sentence: `a, b or c`."""
    *before, end = names
    return f"{', '.join(before)} {last} {end}"


@dataclass(frozen=True)
class TrialOptions:
    """What is tried."""

    method: Annotated[
        str,
        typer.Option(
            "-m",
            "--method",
            metavar="NAME",
            help=f"{listed((*METHODS, *SELECTIONS), 'or')}; several with commas for --out.",
            rich_help_panel=_TRIAL,
        ),
    ] = "relayfree"
    pattern: Annotated[
        str,
        typer.Option(
            "-p",
            "--pattern",
            metavar="NAME",
            help="How many brokers publish and subscribe to which topics.",
            rich_help_panel=_TRIAL,
        ),
    ] = "delta"
    nodes: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--nodes",
            metavar="N",
            help="Brokers; by default as the pattern has it. Several with commas for --out.",
            rich_help_panel=_TRIAL,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "-s", "--seed", min=0, help="The seed of all random numbers; 1 if not given.", rich_help_panel=_TRIAL
        ),
    ] = None
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds", metavar="A-B", help="Several trials, as 1-3 or 1,5,9: mean and range.", rich_help_panel=_TRIAL
        ),
    ] = None
    publications: Annotated[
        int | None,
        typer.Option(
            "--publications",
            min=1,
            help="How many publishers publish, drawn at random; by default all, or enough for a million deliveries.",
            rich_help_panel=_TRIAL,
        ),
    ] = None

    def check(self) -> None:
        if self.seed is not None and self.seeds is not None:
            raise UsageError("both --seed and --seeds", "Give one of them.")

    @property
    def methods(self) -> list[str]:
        return read_words(self.method)

    @property
    def patterns(self) -> list[str]:
        return read_words(self.pattern)

    @property
    def sizes(self) -> list[int | None]:
        return _read_sizes(self.nodes)

    def numbers(self, seeds_max: int) -> list[int]:
        """The seeds of all trials that differ in nothing else."""
        if self.seeds is not None:
            return read_seeds(self.seeds, seeds_max)
        return [1 if self.seed is None else self.seed]


@dataclass(frozen=True)
class MethodOptions:
    """How the method is set."""

    cut: Annotated[
        str | None,
        typer.Option(
            "--cut",
            metavar="mrf|sfb",
            help="How ranges are split: mrf forwards at most twice, sfb takes fewer hops.",
            rich_help_panel=_METHOD,
        ),
    ] = None
    table_size: Annotated[
        int | None,
        typer.Option("--table-size", help="Entries of a table of adaptive; 60 if not given.", rich_help_panel=_METHOD),
    ] = None
    learn_s: Annotated[
        float | None,
        typer.Option(
            "--learn",
            metavar="SECONDS",
            help="How long tables of adaptive are learnt first; 30 if not given, for up to 2,000 nodes.",
            rich_help_panel=_METHOD,
        ),
    ] = None
    ideal: Annotated[
        bool,
        typer.Option(
            "--ideal",
            help="Tables of adaptive are laid out as the best by their order, which is much faster than learning them.",
            rich_help_panel=_METHOD,
        ),
    ] = False
    clusters: Annotated[
        int | None, typer.Option("--clusters", help="Clusters that the nodes are in.", rich_help_panel=_METHOD)
    ] = None


@dataclass(frozen=True)
class SelectionOptions:
    """What is selected from, and how, by multicast, anycast or ledger."""

    group: Annotated[
        int | None,
        typer.Option("--group", help="Members that have the component; 64 if not given.", rich_help_panel=_SELECTION),
    ] = None
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="T",
            help="Periods of updates, of 60 s each, from one request to the next; 0 if not given.",
            rich_help_panel=_SELECTION,
        ),
    ] = None
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Of anycast: close, few, many, random, refined, earlier or optimal.",
            rich_help_panel=_SELECTION,
        ),
    ] = None
    aggregates: Annotated[
        str | None,
        typer.Option(
            "--aggregates",
            metavar="all|cut|at-once|none",
            help="Which aggregates updates carry; all, but cut for ledger and refined; at-once: changes do not wait.",
            rich_help_panel=_SELECTION,
        ),
    ] = None
    slots: Annotated[
        int | None,
        typer.Option("--slots", help="Components can be reserved 1 to so many times.", rich_help_panel=_SELECTION),
    ] = None
    occupancy: Annotated[
        float | None,
        typer.Option(
            "--occupancy",
            metavar="SHARE",
            help="Reserved when it begins; then one release a request, by chance.",
            rich_help_panel=_SELECTION,
        ),
    ] = None
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests", help="How many; until none is free, or 1,000 at an occupancy.", rich_help_panel=_SELECTION
        ),
    ] = None
    message_bytes: Annotated[
        int | None,
        typer.Option(
            "--message-bytes", help="The size that traffic is reckoned with; 800.", rich_help_panel=_SELECTION
        ),
    ] = None


@dataclass(frozen=True)
class WorldOptions:
    """The network that it runs in."""

    network: Annotated[
        str,
        typer.Option(
            "--network",
            metavar="NAME",
            help="Delays: constant (10 ms), uniform (5 to 50 ms) or wan (log-normal, median 40 ms).",
            rich_help_panel=_WORLD,
        ),
    ] = "constant"
    faults: Annotated[
        str | None,
        typer.Option(
            "--faults",
            metavar="LIST",
            help="loss=0.02, dup=0.02, reorder=0.05, clog=0.01:2, slow=0.1:10, partition=30-60, oneway=30-60, "
            "cut=30-60:0.1, jump=0.1:30, drift=0.1:0.1, churn=1; with commas.",
            rich_help_panel=_WORLD,
        ),
    ] = None


@dataclass(frozen=True)
class ResultOptions:
    """What becomes of the trials, besides figures on the screen."""

    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE.svg", help="Draw the first publication.", rich_help_panel="Output"),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Add the trials to a table of Parquet files.", rich_help_panel="Output"
        ),
    ] = None
    spark: Annotated[
        str | None,
        typer.Option(
            "--spark",
            metavar="MASTER",
            help="Play the trials of a table as tasks of Spark: local[*], spark://HOST:7077, …",
            rich_help_panel="Output",
        ),
    ] = None

    def check(self) -> None:
        if self.trace is not None:
            if self.trace.suffix.lower() != ".svg":
                hint = f"Write --trace {self.trace.with_suffix('.svg')}."
                raise UsageError(f"--trace {self.trace}: pictures are SVG", hint)
            if not self.trace.resolve().parent.is_dir():
                raise UsageError(f"there is no directory {self.trace.resolve().parent} for {self.trace.name}")
            if self.out is not None:
                raise UsageError("a picture is of one trial, not of a table", "Leave out --trace or --out.")
        if self.spark is not None and self.out is None:
            raise UsageError("--spark plays the trials of a table", "Say where it shall be: --out FOLDER.")


def trials_of(
    trial: TrialOptions,
    method: MethodOptions,
    selection: SelectionOptions,
    world: WorldOptions,
    result: ResultOptions,
) -> list[Trial]:
    """A trial for each method, pattern, size and seed; a UsageError if they are too many for what is wanted."""
    from braidmq.sim.trials.trial import Trial

    numbers = trial.numbers(SEEDS_MAX if result.out is None else TRIALS_MAX)
    if result.trace is not None and len(numbers) > 1:
        raise UsageError("a picture is of one trial, not of several", "Give --seed instead of --seeds.")
    trials = [
        Trial(
            method=one_method,
            pattern=one_pattern,
            nodes=one_size,
            seed=number,
            faults=world.faults,
            network=world.network,
            cut=method.cut,
            table_size=method.table_size,
            learn_s=method.learn_s,
            ideal=method.ideal,
            clusters=method.clusters,
            publications=trial.publications,
            trace=result.trace is not None,
            **asdict(selection),
        )
        for one_method, one_pattern, one_size, number in product(trial.methods, trial.patterns, trial.sizes, numbers)
    ]
    if len(trials) > TRIALS_MAX:
        raise UsageError(f"these are {len(trials):,} trials: at most {TRIALS_MAX:,}")
    if result.out is None and len(trials) > len(numbers):
        raise UsageError("several methods, patterns or sizes make a table", "Say where it shall be: --out FOLDER.")
    return trials


def _read_sizes(text: str | None) -> list[int | None]:
    if text is None:
        return [None]
    for word in read_words(text):
        if not word.isdecimal() or not int(word):
            raise UsageError(f"--nodes {text}: {word!r} is no number of brokers", "Write 1000, or 256,1024 with --out.")
    return [int(word) for word in read_words(text)]
