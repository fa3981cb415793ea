"""`braidmq release`: gives a reservation back."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import AdminOptions
from braidmq.cli.errors import CliError
from braidmq.cli.option_groups import with_option_groups

app = typer.Typer(add_completion=False)

HELP: Final = (
    "Release a reservation before its lease is over: one's own, or one that a client has.\n\n"
    "`braidmq components` shows their ids. A client whose reservation is taken from it is told so."
)
EXAMPLES: Final = output.examples(
    ("One of them", "braidmq release 8262cdc556b2a3e4@site2"),
    ("What is there to release?", "braidmq components --json | jq -r '.reservations[].id'"),
)


@app.command("release", help=HELP, epilog=EXAMPLES)
@with_option_groups
def release(
    *,
    reservation: Annotated[str, typer.Argument(metavar="ID", help="Of the reservation.")],
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    answer = at.broker().ask(lambda client: client.release(reservation))
    if json_lines:
        output.print_json(answer)
    if not answer.ok:
        raise CliError(answer.text)
    if not json_lines:
        output.say(f"{answer.id} is free.")
