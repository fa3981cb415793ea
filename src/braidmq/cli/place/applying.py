"""`braidmq place apply`, `status` and `cancel`: an approved plan on the running braid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.errors import CliError, UsageError
from braidmq.cli.option_groups import with_option_groups
from braidmq.cli.place.approval import PLAN_FILE, PlanFile, check_approved, read_plan_file
from braidmq.cli.place.braid_options import BraidOptions
from braidmq.cli.progress import Bar

if TYPE_CHECKING:
    from braidmq.cli.place.carrying_out import CarriedOut
    from braidmq.cli.place.observing import ObservedSites
    from braidmq.placement.plan import HomePlan

RATE: Final = 20.0
"""Clients that are sent home in a second, by default."""

APPLY_EXAMPLES: Final = output.examples(
    ("Ten clients a second", "braidmq place apply plan.json -d data --rate 10"),
    ("Back to how it was", "braidmq place apply plan.json -d data --back"),
)


@with_option_groups
def apply(
    file: PlanFile = PLAN_FILE,
    *,
    braid: BraidOptions,
    rate: Annotated[float, typer.Option("--rate", help="Clients that are sent home in a second.")] = RATE,
    back: Annotated[bool, typer.Option("--back", help="Send everybody back to where the plan began.")] = False,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    """Carry out an approved plan: clients are told to go home, and their sessions go with them."""
    from braidmq.cli.place.carrying_out import check_braid
    from braidmq.cli.place.observing import observe
    from braidmq.placement.errors import PlacementError
    from braidmq.placement.plan import reversed_plan

    check_rate(rate)
    found = read_plan_file(file)
    check_approved(file, found)
    if back:
        try:
            found = reversed_plan(found)
        except PlacementError as error:
            raise CliError(str(error)) from None
    seen = observe(braid.brokers())
    check_braid(found, seen)
    if not found.moves:
        output.say(f"The plan {found.id} moves nobody.")
        return
    report(found, carried_out(found, seen, rate), json_lines)


def check_rate(rate: float) -> None:
    if not 0 < rate <= 1000:
        raise UsageError(f"--rate {rate:g}", "Give clients a second, above 0 and up to 1000.")


def carried_out(plan: HomePlan, seen: ObservedSites, rate: float) -> CarriedOut:
    from braidmq.cli.place.carrying_out import carry_out

    with Bar("Moving") as bar:
        return carry_out(plan, seen, rate, bar.show if bar.is_shown else lambda _part, _words: None)


def report(plan: HomePlan, done: CarriedOut, json_lines: bool) -> None:
    if json_lines:
        told = {"plan": plan.id, "moves": len(plan.moves), "outcomes": dict(done.outcomes), "arrived": done.arrived}
        output.print_json(told | {"elsewhere": done.elsewhere, "absent": done.absent})
        return
    sent = done.outcomes["sent"]
    output.say(f"{done.arrived:,} of {output.counted(sent, 'client')} that were sent home have arrived.")
    for words, count in (
        ("came back and are served where they are", done.elsewhere),
        ("have not connected again yet", done.absent),
        *((f"not sent: {outcome}", count) for outcome, count in sorted(done.outcomes.items()) if outcome != "sent"),
    ):
        if count:
            output.say(f"  {count:,} {words}")


STATUS_EXAMPLES: Final = output.examples(("Of all sites of a folder", "braidmq place status -d data"))


@with_option_groups
def status(
    *,
    braid: BraidOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    """Show which plan holds at each site, and how many clients were sent home."""
    import msgspec

    from braidmq.placement.plan import ID_LENGTH

    told = [one.ask(lambda client: client.homes()) for one in braid.brokers()]
    if json_lines:
        for one in told:
            output.print_json(msgspec.to_builtins(one))
        return
    counts = ("homes", "sent", "stay", "refused")
    table = output.table("site", "plan", *counts, numbers=counts)
    for one in told:
        numbers = (one.homes, one.sent, one.staying, one.refused)
        table.add_row(one.broker, one.plan[:ID_LENGTH] or "none", *(f"{number:,}" for number in numbers))
    output.console().print(table)


CANCEL_EXAMPLES: Final = output.examples(("No plan holds any more", "braidmq place cancel -d data"))


@with_option_groups
def cancel(
    *,
    braid: BraidOptions,
    json_lines: output.JsonOption = False,
) -> None:
    """End the plan that holds: nobody is sent home any more. Who has moved stays."""
    for one in braid.brokers():
        told = one.ask(lambda client: client.assign_homes("", {}))
        if json_lines:
            output.print_json({"site": told.broker, "plan": told.plan})
        else:
            output.say(f"{told.broker}: no plan.")
