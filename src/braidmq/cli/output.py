"""What people and scripts see: words and tables through rich, one JSON object a line for scripts, errors on stderr.

rich is imported when something is to be shown in colour, not before: `braidmq version` has to be quick.
"""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


class Color(StrEnum):
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def _apply_color(color: Color) -> Color:
    """rich and typer both follow these variables, help and usage errors included."""
    if color is Color.NEVER:
        os.environ["NO_COLOR"] = "1"
        os.environ.pop("FORCE_COLOR", None)
    elif color is Color.ALWAYS:
        os.environ["FORCE_COLOR"] = "1"
        os.environ.pop("NO_COLOR", None)
    return color


ColorOption = Annotated[
    Color,
    typer.Option(
        "--color",
        callback=_apply_color,
        is_eager=True,
        help="Colours: on a terminal (auto), always or never. NO_COLOR=1 works too.",
        rich_help_panel="Output",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, one object a line, for scripts.", rich_help_panel="Output")
]


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def say(text: str, style: str = "") -> None:
    """A line for the reader of stdout."""
    _print(text, style, stderr=False)


def note(text: str, style: str = "") -> None:
    """A line beside the output: progress, warnings, what happens to the connection."""
    _print(text, style, stderr=True)


def _print(text: str, style: str, *, stderr: bool) -> None:
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty() or os.environ.get("FORCE_COLOR"):
        from rich.text import Text

        console(stderr=stderr).print(Text(text, style))
    else:
        print(text, file=stream, flush=True)


def counted(number: int, noun: str) -> str:
    """ "1 message", "2 messages"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def show_error(text: str, hint: str = "") -> None:
    first, *rest = text.splitlines() or [""]
    note(f"Error: {first}", "bold red")
    for line in rest:
        note(line)
    if hint:
        note(hint, "cyan")


def examples(*pairs: tuple[str, str]) -> str:
    """The end of a command's help: what one wants, and the command line that does it."""
    lines = ["[bold]Examples[/bold]"]
    for purpose, command in pairs:
        lines += [f"[dim]# {_escape(purpose)}[/dim]\n[cyan]{_escape(command)}[/cyan]"]
    return "\n\n".join(lines)


def plain(text: str) -> str:
    """Text of others as it may stand in a table: nothing in it is a style to rich, or an order to the terminal."""
    return _escape("".join([character if character.isprintable() else "\ufffd" for character in text]))


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
