"""`braidmq select`: which instance of a component a request would get, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import AdminOptions
from braidmq.cli.braid.selecting import ComponentArgument, WantedOptions
from braidmq.cli.errors import CliError
from braidmq.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    from braidmq.admin.selection_contract import ComponentChoice, SelectAnswer

app = typer.Typer(add_completion=False)

HELP: Final = (
    "Show which instance of a component a request at this broker would get; nothing is reserved.\n\n"
    "With --explain: all candidates, what speaks against them, which brokers are asked in which order, and how many "
    "messages are on the way. The exit code is 1 if none would be reserved."
)
EXAMPLES: Final = output.examples(
    ("Which one?", "braidmq select detector"),
    ("Why this one?", "braidmq select detector --explain --where 'cpu <= 50'"),
    ("What is in the way?", "braidmq select detector --json | jq '.candidates[] | {instance, problem}'"),
)


@app.command("select", help=HELP, epilog=EXAMPLES)
@with_option_groups
def select(
    *,
    component: ComponentArgument,
    explain: Annotated[bool, typer.Option("-x", "--explain", help="Show all candidates, and why.")] = False,
    wanted: WantedOptions,
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    request = wanted.request(component)
    answer = at.broker().ask(lambda client: client.select(request))
    best = next((one for one in answer.candidates if not one.problem), None)
    if json_lines:
        output.print_json(answer)
    elif explain:
        _show(answer, best)
    elif best is not None:
        output.say(f"{best.instance} at {best.broker}: {answer.why}.")
    if best is None:
        raise CliError(answer.why)


def _show(answer: SelectAnswer, best: ComponentChoice | None) -> None:
    table = output.table(
        *("", "instance", "broker", "free", "load", "steps", "score", "asked in", "problem"),
        title=f"{answer.component}: {output.counted(len(answer.candidates), 'candidate')}",
        numbers=("free", "steps", "score"),
        wrapping=("instance", "broker", "load", "problem"),
    )
    for one in answer.candidates:
        load = ", ".join(f"{name} {value:g}" for name, value in sorted(one.load.items()))
        table.add_row(
            "[green]▶[/green]" if one is best else "",
            output.plain(one.instance),
            output.plain(one.broker),
            str(one.free),
            output.plain(load),
            str(one.steps),
            "" if one.score is None else f"{one.score:g}",
            "" if one.group is None else output.plain(one.group or "the braid"),
            output.plain(one.problem),
        )
    output.console().print(table)
    for cluster, broker in answer.delegates.items():
        asked = f"{broker} is asked" if broker else "nobody has any"
        output.say(f"In {f'the cluster {cluster}' if cluster else 'the braid'} {asked}.")
    if best is not None:
        output.say(f"{best.instance}, after {output.counted(answer.hops or 0, 'hop')}: {answer.why}.")
