"""`braidmq components`: what can be reserved in the braid, and who has reserved it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import AdminOptions, duration
from braidmq.cli.errors import CliError
from braidmq.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    from braidmq.admin.selection_contract import ComponentsAnswer

app = typer.Typer(add_completion=False)

HELP: Final = (
    "Show the components of the braid: clients that have a shared subscription $share/NAME/… are instances of the "
    "component NAME, and can be reserved.\n\n"
    "All brokers are asked. The load is what instances say of themselves on $load/NAME. The exit code is 1 if not all "
    "brokers have answered."
)
EXAMPLES: Final = output.examples(
    ("All of them", "braidmq components"),
    ("The detectors", "braidmq components detector"),
    ("How many are free?", "braidmq components detector --json | jq '[.instances[] | .slots - .taken] | add'"),
)


@app.command("components", help=HELP, epilog=EXAMPLES)
@with_option_groups
def components(
    *,
    component: Annotated[str, typer.Argument(metavar="[COMPONENT]", help="Only this one.")] = "",
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    answer = at.broker().ask(lambda client: client.components(component))
    if json_lines:
        output.print_json(answer)
    else:
        _show_instances(answer)
        _show_reservations(answer)
    if answer.silent:
        raise CliError(f"{', '.join(answer.silent)} did not answer in time: there may be more")


def _show_instances(answer: ComponentsAnswer) -> None:
    if not answer.instances:
        output.say("No client has such a shared subscription: there is nothing to reserve.")
        return
    names = dict.fromkeys(one.component for one in answer.instances)
    title = f"{output.counted(len(names), 'component')}, {output.counted(len(answer.instances), 'instance')}"
    table = output.table(
        *("component", "instance", "broker", "cluster", "slots", "taken", "load"),
        title=title,
        numbers=("slots", "taken"),
        wrapping=("component", "instance", "broker", "cluster", "load"),
    )
    for one in sorted(answer.instances, key=lambda one: (one.component, one.broker, one.instance)):
        load = ", ".join(f"{name} {value:g}" for name, value in sorted(one.load.items()))
        table.add_row(
            f"[bold]{output.plain(one.component)}[/bold]",
            output.plain(one.instance),
            output.plain(one.broker),
            output.plain(one.cluster),
            str(one.slots) if one.slots else "[dim]away[/dim]",
            str(one.taken),
            output.plain(load),
        )
    output.console().print(table)


def _show_reservations(answer: ComponentsAnswer) -> None:
    if not answer.reservations:
        return
    table = output.table(
        *("reservation", "component", "instance", "by", "left"),
        title=output.counted(len(answer.reservations), "reservation"),
        numbers=("left",),
        wrapping=("reservation", "component", "instance", "by"),
    )
    for one in sorted(answer.reservations, key=lambda one: (one.component, one.broker, one.instance, one.id)):
        table.add_row(
            output.plain(one.id),
            output.plain(one.component),
            output.plain(one.instance),
            output.plain(one.by) if one.by else "[dim]operator[/dim]",
            duration(one.left_s),
        )
    output.console().print(table)
