"""`braidmq sim --out`: trials as rows of a table, and a summary of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from braidmq.cli import output
from braidmq.cli.ending import Ending, Interrupted
from braidmq.cli.errors import CliError, ExitCode
from braidmq.cli.progress import Bar

if TYPE_CHECKING:
    from braidmq.pipeline.trials.table import Play
    from braidmq.sim.trials.trial import Trial

GROUPS: Final = ("method", "pattern", "nodes")
SHOWN_MAX: Final = 100
"""Rows of the summary."""


def tabulate(trials: list[Trial], out: Path, master: str | None, json_lines: bool) -> None:
    """Plays the trials that the table does not have, shows a summary of all, and fails if one of them did."""
    from braidmq.pipeline.trials.table import TrialTable, play_all, play_here
    from braidmq.sim.trials.rows import name_of

    table = TrialTable(out)
    names = {name_of(trial) for trial in trials}
    with Bar("trials") as bar:

        def progress(done: int, total: int) -> None:
            if bar.is_shown:
                bar.show(done / total, f"{done:,} of {total:,}")

        try:
            if master is None:
                had = play_all(trials, table, play_here, 1, progress)
            else:
                had = _play_on_spark(master, lambda play, cores: play_all(trials, table, play, cores, progress))
        except (KeyboardInterrupt, Interrupted):
            have = len(table.done() & names)
            raise CliError(
                f"stopped: {have:,} of {len(names):,} trials are in {out}",
                ExitCode.INTERRUPTED,
                "The same command goes on from there.",
            ) from None
    rows = [row for row in table.read().to_pylist() if row["trial"] in names]
    _show(rows, had, out, json_lines)
    wrong = [row for row in rows if row["error"] or row["complaints"]]
    if wrong:
        first = wrong[0]
        text = f"{len(wrong):,} of {len(rows):,} trials failed; the first: {first['error'] or first['first_complaint']}"
        command = f"braidmq sim -m {first['method']} -p {first['pattern']} --seed {first['seed']}"
        raise CliError(text, hint=f"It happens again with {command} and the other options.")


def _play_on_spark(master: str, play_all: Callable[[Play, int], int]) -> int:
    from braidmq.cli.on_spark import in_thread, own_java

    def work() -> int:
        with _on_spark(master) as (play, cores):
            return play_all(play, cores)

    with Ending() as ending, own_java():
        return in_thread(work, ending)


@contextmanager
def _on_spark(master: str) -> Iterator[tuple[Play, int]]:
    """What plays trials there, and on how many cores."""
    from braidmq.pipeline.trials.table import on_connect, on_spark

    if master.startswith("sc://"):
        from braidmq.pipeline.session import session

        cores = os.cpu_count() or 1
        yield on_connect(session("braidmq sim", master), cores), cores
        return
    from braidmq.pipeline.context import context

    with context("braidmq sim", master) as made:
        yield on_spark(made, made.defaultParallelism), made.defaultParallelism


def _show(rows: list[dict[str, Any]], had: int, out: Path, json_lines: bool) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["error"] is None:
            groups.setdefault(tuple(row[name] for name in GROUPS), []).append(row)
    found = [
        dict(zip(GROUPS, group, strict=True))
        | {
            "trials": len(some),
            "hops_mean": sum(row["hops_mean"] for row in some) / len(some),
            "hops_max": max(row["hops_max"] for row in some),
            "messages": sum(row["messages"] for row in some) / len(some),
            "complaints": sum(row["complaints"] for row in some),
        }
        for group, some in groups.items()
    ]
    if json_lines:
        output.print_json({"table": str(out), "trials": len(rows), "were_there": had, "groups": found})
        return
    from rich.table import Table

    shown = Table(title=f"{len(rows):,} trials in {out}, {had:,} of them from before", title_justify="left")
    for name in (*GROUPS, "trials", "hops", "most", "messages", "complaints"):
        shown.add_column(name, justify="left" if name in GROUPS[:2] else "right")
    for one in found[:SHOWN_MAX]:
        shown.add_row(
            *(str(one[name]) for name in GROUPS[:2]),
            f"{one['nodes']:,}",
            f"{one['trials']:,}",
            f"{one['hops_mean']:.2f}",
            f"{one['hops_max']:,}",
            f"{one['messages']:,.0f}",
            str(one["complaints"]),
        )
    output.console().print(shown)
    if len(found) > SHOWN_MAX:
        output.say(f"and {len(found) - SHOWN_MAX:,} more; read {out} with Spark, pandas or DuckDB.")
