"""`braidmq place`: which clients should be at home at which servers."""

from __future__ import annotations

from typing import Final

import typer

from braidmq.cli import output
from braidmq.cli.base_commands import BaseCommand, BaseGroup
from braidmq.cli.place import applying, automatic, comparing, planning

HELP: Final = (
    "Home servers: where clients should be connected, so that notifications are quick and no server runs out.\n\n"
    "`plan` makes a plan for a running braid on Spark, `show` and `approve` are for people, `apply` carries it out. "
    "`model` compares methods by the model that plans are made with; it needs no broker."
)
EXAMPLES: Final = output.examples(
    ("A plan for the braid of a folder", "braidmq place plan -d data"),
    ("Carry it out", "braidmq place approve && braidmq place apply -d data"),
    ("How good are plans? All methods on a field of 900 clients", "braidmq place model"),
)

app = typer.Typer(add_completion=False, cls=BaseGroup, help=HELP, epilog=EXAMPLES, no_args_is_help=True)


@app.callback()
def place() -> None:
    pass  # makes a group of it


app.command("model", cls=BaseCommand, help=comparing.MODEL_HELP, epilog=comparing.MODEL_EXAMPLES)(comparing.model)
app.command("plan", cls=BaseCommand, epilog=planning.PLAN_EXAMPLES)(planning.plan)
app.command("show", cls=BaseCommand, epilog=planning.SHOW_EXAMPLES)(planning.show)
app.command("approve", cls=BaseCommand, epilog=planning.APPROVE_EXAMPLES)(planning.approve)
app.command("apply", cls=BaseCommand, epilog=applying.APPLY_EXAMPLES)(applying.apply)
app.command("status", cls=BaseCommand, epilog=applying.STATUS_EXAMPLES)(applying.status)
app.command("cancel", cls=BaseCommand, epilog=applying.CANCEL_EXAMPLES)(applying.cancel)
app.command("auto", cls=BaseCommand, epilog=automatic.AUTO_EXAMPLES)(automatic.auto)
