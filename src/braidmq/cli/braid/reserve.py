"""`braidmq reserve`: reserves one of a component's instances."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import AdminOptions
from braidmq.cli.braid.selecting import ComponentArgument, WantedOptions
from braidmq.cli.errors import CliError
from braidmq.cli.option_groups import with_option_groups

app = typer.Typer(add_completion=False)

HELP: Final = (
    "Reserve one instance of a component, as a client does on $reserve/NAME: near, free, and fitting.\n\n"
    "It is held until the lease is over or it is released, whatever becomes of this command. With --renew a "
    "reservation is held for its whole lease again. The exit code is 1 if none is free."
)
EXAMPLES: Final = output.examples(
    ("The nearest, for a minute", "braidmq reserve detector"),
    ("One with room, for an hour", "braidmq reserve detector --where 'cpu <= 50' --lease 3600"),
    ("Publish to it", "braidmq pub \"$(braidmq reserve detector --json | jq -r .topic)\" 'frame 1'"),
)


@app.command("reserve", help=HELP, epilog=EXAMPLES)
@with_option_groups
def reserve(
    *,
    component: ComponentArgument,
    lease_s: Annotated[float, typer.Option("-l", "--lease", metavar="SECONDS", help="For so long.")] = 60.0,
    key: Annotated[
        str, typer.Option("--key", help="The same key again is the same reservation, while it is held.")
    ] = "",
    renew: Annotated[bool, typer.Option("--renew", help="COMPONENT is the id of a reservation.")] = False,
    wanted: WantedOptions,
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    broker = at.broker()
    if renew:
        answer = broker.ask(lambda client: client.renew(component))
    else:
        request = wanted.request(component, lease_s, key)
        answer = broker.ask(lambda client: client.reserve(request))
    if json_lines:
        output.print_json(answer)
    if not answer.ok:
        hint = "" if answer.expected_in is None else f"One is expected to be free in {answer.expected_in:.0f} s."
        raise CliError(answer.text, hint=hint)
    if not json_lines and renew:
        output.say(f"{answer.id} is held for {answer.lease:g} s from now on.")
    elif not json_lines:
        output.say(f"{answer.instance} at {answer.broker} is reserved for {answer.lease:g} s: {answer.id}")
        output.say(f"Its topic is {answer.topic}, the fencing number {answer.fence}.")
