"""The command line as it is declared: all its commands, and whether it would take given words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import typer

from braidmq.cli.main import build


def commands() -> Iterator[tuple[list[str], Any, Any]]:
    """(words, command, context) of the program, of its commands and of theirs."""
    root = typer.main.get_command(build(completion=True))
    yield from _below([], root, _context(root, "braidmq", None))


def _below(words: list[str], command: Any, context: Any) -> Iterator[tuple[list[str], Any, Any]]:
    yield words, command, context
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from _below([*words, name], below, _context(below, name, context))


def _context(command: Any, name: str, parent: Any) -> Any:
    return command.make_context(name, [], parent=parent, resilient_parsing=True)


def check_line(line: str) -> int:
    """The same for what a shell gets: each `braidmq` of a pipe, behind variables; how many there are."""
    count = 0
    words: list[str] = []
    for word in [*shlex.split(line, comments=True), "|"]:
        if word not in ("|", "&&", "&"):
            words.append(word)
            continue
        programs = [number for number, each in enumerate(words) if each.rpartition("/")[2] == "braidmq"]
        if programs:
            check(words[programs[0] + 1 :])
            count += 1
        words = []
    return count


def check(words: list[str]) -> None:
    """Fails if `braidmq` has no such command or option, or if a value is not one that the option takes."""
    command: Any = typer.main.get_command(build(completion=True))
    context, rest = None, list(words)
    name = "braidmq"
    try:
        while hasattr(command, "list_commands") and rest and not rest[0].startswith("-"):
            context = command.make_context(name, [rest[0]], parent=context, resilient_parsing=True)
            name, command, _ = command.resolve_command(context, rest)
            rest = rest[1:]
        command.make_context(name, rest, parent=context)
    except typer.Exit:
        pass  # --help, --version
    except Exception as error:  # of a module that is not typer's to show
        raise AssertionError(f"{' '.join(['braidmq', *words])}: {error}") from error
