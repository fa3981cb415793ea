"""`braidmq place auto`: plans again and again, a few moves at a time, as clients come, go and roam."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.errors import CliError, UsageError
from braidmq.cli.option_groups import with_option_groups
from braidmq.cli.place.applying import RATE, carried_out, check_rate, report
from braidmq.cli.place.braid_options import BraidOptions
from braidmq.cli.place.making import AskedPlan, PlanOptions, logs_of, make
from braidmq.cli.place.observing import observe
from braidmq.cli.place.planning import show_plan

AUTO_EXAMPLES: Final = output.examples(
    ("What would it do?", "braidmq place auto -d data --every 10m --budget 50"),
    ("Do it", "braidmq place auto -d data --every 10m --budget 50 --apply"),
)
BUDGET: Final = 50
"""Moves of a round, if no budget is given."""
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


@with_option_groups
def auto(
    *,
    braid: BraidOptions,
    options: PlanOptions,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="As in 30s, 10m, 2h.")] = "10m",
    times: Annotated[int | None, typer.Option("--times", help="So many rounds; until Ctrl-C, if not given.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Carry each plan out; without it nobody is moved.")] = False,
    rate: Annotated[float, typer.Option("--rate", help="Clients that are sent home in a second.")] = RATE,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    """Plan in a loop, at most so many moves each time, and with --apply carry it out."""
    from braidmq.cli.ending import Ending

    period_s = _seconds(every)
    check_rate(rate)
    if options.moves_max is None:
        options = replace(options, moves_max=BUDGET)
    asked = options.checked()
    moved_before: set[str] = set()
    rounds = 0
    with Ending() as ending:
        while times is None or rounds < times:
            if rounds and ending.wait(period_s):
                break
            rounds += 1
            try:
                moved_before = _round(braid, options, asked, moved_before, apply, rate, json_lines)
            except CliError as error:
                if times is not None:
                    raise
                output.note(f"{error.text}; the next try is in {every}.", "yellow")


def _round(
    braid: BraidOptions,
    options: PlanOptions,
    asked: AskedPlan,
    moved_before: set[str],
    apply: bool,
    rate: float,
    json_lines: bool,
) -> set[str]:
    """One plan, and who is moved by it."""
    brokers = braid.brokers()
    seen = observe(brokers)
    made = make(seen, asked, options, logs_of(braid, brokers, options), moved_before)
    show_plan(made, json_lines)
    if not apply:
        return set()
    if made.moves:
        report(made, carried_out(made, seen, rate), json_lines)
    return {move.client for move in made.moves}


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None or not float(found[1]):
        raise UsageError(f"--every {text}", "Give a number and a unit: 30s, 10m or 2h.")
    return float(found[1]) * _UNITS[found[2]]
