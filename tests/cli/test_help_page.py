"""Help as people see it: on narrow and wide terminals, with colours and without, of every command."""

from __future__ import annotations

import re
from typing import Any

import pytest

import braidmq
from tests.cli.commands import in_process
from tests.command_lines import check_line, commands

NARROW = 80
WIDE = 200
PAGES = {" ".join(words): (words, command, context) for words, command, context in commands()}


def page(words: list[str], columns: int, *, color: bool = False) -> str:
    env = {"COLUMNS": str(columns)} | ({"FORCE_COLOR": "1"} if color else {"NO_COLOR": "1"})
    done = in_process(*words, "--help", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def words_of(text: str) -> str:
    return " ".join(text.split())


def examples_of(command: Any) -> list[str]:
    return [line for line in command.epilog.splitlines() if line and not line.startswith("#")]


def test_all_commands_are_found() -> None:
    assert {"", "up", "demo", "log read", "process move", "pipeline run", "version"} <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_all_that_was_written_is_shown(name: str) -> None:
    """No word in brackets is taken for a style, and nothing is cut off where the terminal is narrow."""
    words, command, context = PAGES[name]
    for columns in (NARROW, WIDE):
        shown = page(words, columns)
        assert max(map(len, shown.splitlines())) <= columns
        flat = words_of(shown)
        assert words_of(command.help) in flat
        for param in command.get_params(context):
            if param.param_type_name == "option":
                assert all(option in flat for option in [*param.opts, *param.secondary_opts])
            assert param.help, f"{param.name} is not explained"
            assert words_of(param.help) in flat


@pytest.mark.parametrize("name", PAGES)
def test_flags_have_no_type(name: str) -> None:
    words, command, context = PAGES[name]
    shown = page(words, NARROW)
    assert not re.search(r"<(bool|int|float|str|path|list)\b", shown)
    for param in command.get_params(context):
        if getattr(param, "is_flag", False):
            last = (param.secondary_opts or param.opts)[-1]
            assert re.search(rf"{last}(  |\n)", shown), f"{last} has something behind it"


@pytest.mark.parametrize("name", [name for name, (_, command, _) in PAGES.items() if hasattr(command, "list_commands")])
def test_groups_name_their_commands(name: str) -> None:
    words, command, context = PAGES[name]
    shown = page(words, NARROW)
    for one in command.list_commands(context):
        assert re.search(rf"^  {one}  +\S", shown, re.MULTILINE), f"{one} is not named"


@pytest.mark.parametrize("name", PAGES)
def test_examples_can_be_pasted(name: str) -> None:
    """However narrow the terminal is, and they are command lines that the program takes."""
    words, command, _ = PAGES[name]
    _, shown = page(words, NARROW).split("\nExamples\n")
    pasted = [words_of(line) for line in re.sub(r" \\\n", "", shown).splitlines() if line and "# " not in line[:4]]
    assert pasted == [words_of(line) for line in examples_of(command)]
    for line in examples_of(command):
        check_line(line)


@pytest.mark.parametrize("name", PAGES)
def test_colours_change_no_word(name: str) -> None:
    words, _, _ = PAGES[name]
    coloured = page(words, NARROW, color=True)
    assert "\x1b[" in coloured
    plain = page(words, NARROW)
    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_version() -> None:
    done = in_process("--version")
    assert (done.returncode, done.stdout) == (0, f"braidmq {braidmq.__version__}\n")


def test_command_lines_that_are_wrong_are_found() -> None:
    for wrong in ("up --no-such", "nothing", "process nothing", "up --port x", "up --port", "version | braidmq no"):
        with pytest.raises(AssertionError):
            check_line(f"braidmq {wrong}")
