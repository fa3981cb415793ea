"""The command `braidmq`. Each subcommand is imported when it is asked for, so all of them start quickly."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any, Final

import typer

import braidmq
from braidmq.cli import output
from braidmq.cli.base_commands import BaseCommand, BaseGroup
from braidmq.cli.ending import heed_ctrl_c
from braidmq.cli.errors import CliError, ExitCode
from braidmq.pipeline.errors import PipelineError

COMMANDS: Final = {
    "up": "braidmq.cli.up",
    "demo": "braidmq.cli.demo.command",
    "pub": "braidmq.cli.mqtt_client.publish",
    "sub": "braidmq.cli.mqtt_client.subscribe",
    "ring": "braidmq.cli.braid.ring",
    "topics": "braidmq.cli.braid.topics",
    "demand": "braidmq.cli.braid.demand",
    "trace": "braidmq.cli.braid.trace",
    "components": "braidmq.cli.braid.components",
    "select": "braidmq.cli.braid.select",
    "reserve": "braidmq.cli.braid.reserve",
    "release": "braidmq.cli.braid.release",
    "drain": "braidmq.cli.braid.drain",
    "process": "braidmq.cli.process.command",
    "flow": "braidmq.cli.flow.command",
    "place": "braidmq.cli.place.command",
    "log": "braidmq.cli.log",
    "pipeline": "braidmq.cli.pipeline.command",
    "passwd": "braidmq.cli.passwd",
    "bench": "braidmq.cli.benchmark.command",
    "sim": "braidmq.cli.sim.command",
    "doctor": "braidmq.cli.doctor.command",
    "version": "braidmq.cli.version",
}

HELP: Final = (
    "An MQTT broker, and tools to speak with any.\n\n"
    "Exit codes: 0 done; 1 refused, disconnected or messages lost; 2 wrong usage or configuration; "
    "3 cannot start or connect; 4 the time was up; 130 interrupted."
)
EXAMPLES: Final = output.examples(
    ("A broker on this machine, with its store in ./data", "braidmq up"),
    ("In a second terminal: listen", "braidmq sub 'sensors/#'"),
    ("In a third: speak", "braidmq pub sensors/kitchen 21.5"),
    ("All options of a command, with more examples", "braidmq sub --help"),
)


class Commands(BaseGroup):
    """The subcommands by name. An expected failure ends with a message and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        app: typer.Typer = importlib.import_module(COMMANDS[cmd_name]).app
        for command in app.registered_commands:
            command.cls = BaseCommand
        return typer.main.get_command(app)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as error:
            output.show_error(error.text, error.hint)
            raise typer.Exit(error.code) from None
        except PipelineError as error:
            output.show_error(error.text, error.hint)
            raise typer.Exit(ExitCode.UNAVAILABLE) from None
        except BrokenPipeError:
            # The reader of the output has what it wanted (`braidmq sub … | head -1`). Nothing more can be written, not
            # even by the interpreter when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.OK) from None


def _show_version(is_asked: bool) -> None:
    if is_asked:
        output.say(f"braidmq {braidmq.__version__}")
        raise typer.Exit


def build(*, completion: bool) -> typer.Typer:
    """The command line. `completion` adds the options that set up the shell's TAB key, which are slow to build."""
    app = typer.Typer(
        cls=Commands,
        epilog=EXAMPLES,
        help=HELP,
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def tools(
        version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        pass  # makes a group of it; its commands come from COMMANDS

    return app


def run() -> None:
    """The entry point. Ctrl-C ends with 130, unless the command handles it."""
    heed_ctrl_c()
    subcommand = len(sys.argv) > 1 and not sys.argv[1].startswith("-")
    build(completion=not subcommand or "_BRAIDMQ_COMPLETE" in os.environ)(prog_name="braidmq")
