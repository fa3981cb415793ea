"""What a page of Markdown tells its reader to do: its blocks of code, in order, and the marks for its test.

A mark is an HTML comment on lines of its own, which no reader sees:

- `<!-- test: not run: why -->`: the next block is not run, only its command lines are read. With words in quotes after
  `not run`, this goes only for lines of the block that contain these words.
- `<!-- test: each alone -->`: the commands of the next block are alternatives; what one starts ends before the next.
- `<!-- test: stop -->`: what earlier blocks have started ends, as by Ctrl-C.
- `<!-- test: run`, lines of shell, `-->`: what the reader is taken to have done by then.
- `<!-- test: shows`, lines, `-->`: what the last command in the background prints then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

Kind = Literal["shell", "output", "python", "toml", "text", "stop"]

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in ("braid", "cli", "configuration", "flows", "log", "pipelines", "processors", "spark")
    ),
    *(
        f"docs/{name}.md"
        for name in ("benchmarks", "fleet", "overlays", "papers", "placement", "selection", "simulation", "store")
    ),
    "ARCHITECTURE.md",
)
PROGRAMS: Final = (
    "braidmq",
    ".venv/bin/",
    "python",
    "make",
    "curl",
    "tail",
    "printf",
    "pip",
    "openssl",
    "(umask",
    "source",
    "$ ",
)
"""A block without a language is for a shell if it begins with one of these; else it is text."""
_LANGUAGES: Final[dict[str, Kind]] = {"sh": "shell", "python": "python", "toml": "toml"}
_NOT_RUN: Final = re.compile(r'not run(?: "(?P<words>[^"]+)")?: (?P<why>.+)', re.DOTALL)


@dataclass(frozen=True)
class Mark:
    """A mark that something is not run."""

    line: int
    words: str
    """The words in the lines that are meant; empty if all are."""
    why: str


@dataclass(frozen=True)
class Command:
    """A command line, and what the page shows of its output."""

    line: int
    text: str
    output: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Block:
    kind: Kind
    line: int
    text: str
    marks: tuple[Mark, ...] = ()
    is_each_alone: bool = False
    is_hidden: bool = False

    @property
    def commands(self) -> list[Command]:
        """Those of a shell block, with `$ ` before them if the block shows output, too. A backslash joins lines."""
        found: list[Command] = []
        has_output = any(line.startswith("$ ") for line in self.text.splitlines())
        going_on = False
        for number, line in enumerate(self.text.splitlines(), self.line):
            if going_on:
                found[-1] = Command(found[-1].line, f"{found[-1].text}\n{line}")
            elif has_output and not line.startswith("$ "):
                found[-1].output.append(line)
                continue
            elif line.strip() and not line.startswith("#"):
                found.append(Command(number, line.removeprefix("$ ")))
            going_on = line.endswith("\\")
        return found

    def is_run(self, command: Command) -> bool:
        return not any(mark.words in command.text for mark in self.marks)

    @property
    def file_name(self) -> str:
        """The file that the block says it is, in its first line: `# alerts.py`."""
        found = re.match(r"# ([\w.-]+\.(?:py|toml))\n", self.text)
        return found[1] if found else ""


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page."""
    marks: list[Mark] = []
    each_alone = False
    for found in _PARTS.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["comment"] is not None:
            comment = found["comment"].strip()
            not_run = _NOT_RUN.fullmatch(comment)
            if not_run:
                marks.append(Mark(line, not_run["words"] or "", not_run["why"]))
            elif comment == "each alone":
                each_alone = True
            elif comment == "stop":
                yield Block("stop", line, "")
            elif comment.startswith("run\n"):
                yield Block("shell", line + 1, comment.removeprefix("run\n"), is_hidden=True)
            elif comment.startswith("shows\n"):
                yield Block("output", line + 1, comment.removeprefix("shows\n"), is_hidden=True)
            else:
                raise ValueError(f"line {line}: what is <!-- {comment} -->?")
            continue
        if found["fence"] is not None:
            body = found["fence"]
            kind = _LANGUAGES.get(found["language"]) or _kind(body)
            if kind == "text" and found["language"] == "console":
                kind = "output"
            line += 1
        else:
            body = "\n".join(each[4:] for each in found["indented"].splitlines()).rstrip() + "\n"
            kind = _kind(body)
        yield Block(kind, line, body, tuple(marks), each_alone)
        marks, each_alone = [], False


def _kind(body: str) -> Kind:
    lines = [line for line in body.splitlines() if line]
    return "shell" if lines and lines[0].startswith(PROGRAMS) else "text"


_PARTS: Final = re.compile(
    r"^<!-- test:(?P<comment>.*?)-->$"
    r"|^```(?P<language>\w*)\n(?P<fence>.*?)^```$"
    r"|(?<=\n\n)(?P<indented>(?: {4}[^\n]*\n|\n(?= {4}))+)",
    re.MULTILINE | re.DOTALL,
)
