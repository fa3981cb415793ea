"""`braidmq version`: what is installed, for a bug report or a script."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import typer

import braidmq
from braidmq.cli import output
from braidmq.cli.base_commands import BaseCommand

app = typer.Typer(add_completion=False)

EXAMPLES: Final = output.examples(
    ("For people", "braidmq version"),
    ("For scripts", "braidmq version --json"),
    ("The number alone", "braidmq version --json | jq -r .braidmq"),
)


@app.command("version", cls=BaseCommand, epilog=EXAMPLES)
def show(json_lines: output.JsonOption = False) -> None:
    """Show the versions of BraidMQ and of what it stands on."""
    versions = {
        "braidmq": braidmq.__version__,
        "python": platform.python_version(),
        "uvloop": _installed("uvloop"),
        "msgspec": _installed("msgspec"),
    }
    if json_lines:
        output.print_json(versions)
    else:
        for name, number in versions.items():
            output.say(f"{name:8} {number}")


def _installed(package: str) -> str:
    """From its metadata: importing it takes longer than all the rest."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
