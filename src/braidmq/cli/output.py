"""What people and scripts see: words and tables through rich, one JSON object a line for scripts, errors on stderr.

rich is imported when something is to be shown in colour, not before: `braidmq version` has to be quick.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


PANEL: Final = "Output"
"""Where help shows the options of what is printed, and how."""


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
        rich_help_panel=PANEL,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, one object a line, for scripts.", rich_help_panel=PANEL)
]


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def table(*columns: str, title: str = "", numbers: Collection[str] = (), wrapping: Collection[str] = ()) -> Table:
    """A table that fits a terminal of 80 columns: only what is in the `wrapping` columns is broken, at words if it has
    any; `numbers` are aligned to the right."""
    from rich.table import Table

    made = Table(title=plain(title) if title else None, title_justify="left")
    for name in columns:
        made.add_column(
            name, justify="right" if name in numbers else "left", no_wrap=name not in wrapping, overflow="fold"
        )
    return made


def print_json(value: Any) -> None:
    """`value` is what JSON has, or a struct."""
    if hasattr(value, "__struct_fields__"):
        import msgspec

        value = msgspec.to_builtins(value)
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def say(text: str, style: str = "") -> None:
    """A line for the reader of stdout."""
    _print(text, style, stderr=False)


def note(text: str, style: str = "") -> None:
    """A line on stderr: progress, warnings, what happens to the connection."""
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
    """The end of a command's help: what for, and the command line that does it."""
    return "\n\n".join(f"# {purpose}\n{command}" for purpose, command in pairs)


def plain(text: str) -> str:
    """Foreign text as it may stand in a table: nothing in it is a style to rich, or a control sequence."""
    return printable(text).replace("[", r"\[")


def printable(text: str) -> str:
    """The same without control sequences; brackets are still styles to rich, unless it is made a Text."""
    return "".join([character if character.isprintable() else "\ufffd" for character in text])
