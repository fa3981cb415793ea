"""What `--help` shows, in place of typer's own page: help texts as they were written, flags without a type, and
examples whose command lines can be pasted however narrow the terminal is.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from braidmq.cli import output

if TYPE_CHECKING:
    from rich.text import Text

LEFT_MAX: Final = 26
"""Columns for the names of options and commands; what explains a longer name begins below it."""
WIDTH_MAX: Final = 100
"""Columns of the page: longer lines are hard to read."""
CHOICES_MAX: Final = 18
"""Columns up to which the choices of an option stand beside its name, else in its words."""

_INDENT: Final = "  "
_STUCK: Final = "\0"
"""A space at which a line is not broken."""
_WORDS: Final = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
"""The words of a command line, with their quotes."""
_ARGUMENTS: Final = "Arguments"
_OPTIONS: Final = "Options"

Entry = tuple[str, str]
"""A name, and what explains it."""


def show(command: Any, ctx: Any) -> None:
    """Prints the page of a command, or of a group of commands."""
    console = output.console()
    width = min(console.width, WIDTH_MAX)
    for line in _page(command, ctx, width):
        console.print(line)


def _page(command: Any, ctx: Any, width: int) -> Iterator[Text]:
    from rich.text import Text

    yield Text.assemble(("Usage: ", "yellow"), (_usage(command, ctx), "bold"))
    for paragraph in (command.help or "").split("\n\n"):
        yield Text()
        yield from map(Text, _filled(paragraph, width))
    for title, entries in _sections(command, ctx):
        yield Text()
        yield Text(title, "bold")
        left = max((len(name) for name, _ in entries if len(name) <= LEFT_MAX), default=LEFT_MAX)
        for name, words in entries:
            yield from _entry(name, words, left, width)
    if command.epilog:
        yield Text()
        yield Text("Examples", "bold")
        for line in command.epilog.splitlines():
            is_comment = line.startswith("#")
            for part in _filled_comment(line, width) if is_comment else folded(line, width - len(_INDENT)):
                yield Text(f"{_INDENT}{part}" if part else "", "dim" if is_comment else "cyan")


def _usage(command: Any, ctx: Any) -> str:
    arguments = [param for param in command.get_params(ctx) if param.param_type_name == "argument"]
    words = [ctx.command_path, "[OPTIONS]", *map(_argument, arguments)]
    return " ".join([*words, "COMMAND [ARGS]..."] if hasattr(command, "list_commands") else words)


def _sections(command: Any, ctx: Any) -> Iterator[tuple[str, list[Entry]]]:
    """Commands and arguments, then options by their panels, those about the output last."""
    if hasattr(command, "list_commands"):
        found = [(name, command.get_command(ctx, name)) for name in command.list_commands(ctx)]
        yield "Commands", [(name, _first_sentence(one.help or "")) for name, one in found if not one.hidden]
    panels: dict[str, list[Entry]] = {_ARGUMENTS: [], _OPTIONS: []}
    for param in command.get_params(ctx):
        if getattr(param, "hidden", False):
            continue
        if param.param_type_name == "argument":
            panels[_ARGUMENTS].append((_argument(param), _words(param)))
        else:
            panels.setdefault(getattr(param, "rich_help_panel", None) or _OPTIONS, []).append(
                (_option(param), _words(param))
            )
    panels[output.PANEL] = panels.pop(output.PANEL, [])
    for title, entries in panels.items():
        if entries:
            yield title, entries


def _argument(param: Any) -> str:
    name = param.metavar or _choices(param) or param.name.upper()
    return name if param.required or name.startswith("[") else f"[{name}]"


def _option(param: Any) -> str:
    names = ", ".join(sorted(param.opts, key=lambda name: name.startswith("--")))
    if param.is_flag:
        return " / ".join([names, *param.secondary_opts])
    return f"{names} {param.metavar or _value(param)}"


def _value(param: Any) -> str:
    kind = param.type_descriptor
    choices = _choices(param)
    if 0 < len(choices) <= CHOICES_MAX:
        return choices
    if choices:
        return str(param.opts[-1]).lstrip("-").rpartition("-")[2].upper()
    return "PATH" if kind.is_path else "N" if kind.annotation in (int, float) or kind.is_ranged else "TEXT"


def _choices(param: Any) -> str:
    choices = param.type_descriptor.choices if param.type_descriptor.is_choice else ()
    return "|".join(str(getattr(choice, "value", choice)) for choice in choices)


def _words(param: Any) -> str:
    """What an option is for, and what holds if it is not given."""
    notes = []
    choices = _choices(param)
    if param.param_type_name == "option" and len(choices) > CHOICES_MAX and not param.metavar:
        notes.append(choices.replace("|", ", "))
    bounds = [getattr(param, name, None) for name in ("min", "max")]
    if None not in bounds:
        notes.append("{} to {}".format(*bounds))
    if getattr(param, "envvar", None):
        notes.append(f"variable: {param.envvar}")
    default = param.default
    if getattr(param, "is_flag", False):
        default = (param.opts if default else param.secondary_opts)[-1] if param.secondary_opts else None
    if param.required:
        notes.append("required")
    elif default is not None and getattr(param, "show_default", True):
        notes.append(f"default: {f'{default:g}' if isinstance(default, float) else getattr(default, 'value', default)}")
    return " ".join([*filter(None, [param.help]), *(f"[{note}]".replace(" ", _STUCK) for note in notes)])


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def _entry(name: str, words: str, left: int, width: int) -> Iterator[Text]:
    from rich.text import Text

    margin = " " * (len(_INDENT) + left + 2)
    lines = [line.replace(_STUCK, " ") for line in textwrap.wrap(words, width - len(margin), break_on_hyphens=False)]
    first = f"{margin[len(_INDENT) + len(name) :]}{lines.pop(0)}" if lines and len(name) <= left else ""
    yield Text.assemble((f"{_INDENT}{name}", "cyan"), first)
    for line in lines:
        yield Text(f"{margin}{line}")


def _filled(paragraph: str, width: int) -> Sequence[str]:
    return textwrap.wrap(paragraph, width, break_on_hyphens=False, break_long_words=False)


def _filled_comment(line: str, width: int) -> Sequence[str]:
    return textwrap.wrap(line, width - len(_INDENT), subsequent_indent="# ", break_on_hyphens=False)


def folded(command: str, width: int) -> list[str]:
    """A command line in lines that can be pasted: broken before an option or a pipe, with a backslash at the end."""
    pieces: list[str] = []
    for word in _WORDS.findall(command):
        if not pieces or word.startswith(("-", "|")):
            pieces.append(word)
        else:
            pieces[-1] += f" {word}"
    lines = pieces[:1]
    for piece in pieces[1:]:
        if len(lines[-1]) + 1 + len(piece) > width - 2:
            lines.append(f"{_INDENT}{piece}")
        else:
            lines[-1] += f" {piece}"
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]
