"""The pages are true: every command in them is run as it stands, what they show is what comes, and configuration and
Python in them work. What cannot be run here is marked on the page, and counted."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.command_lines import check_line, commands
from tests.docs.markdown import PAGES, ROOT, Block, Command, blocks
from tests.docs.page import is_shown
from tests.docs.world import COMMAND, is_possible

PAGE_S = 1200
"""For a page with Spark on a busy machine."""
MARKS_MAX = 20
"""Things that are not run, on all pages."""
LEFT_OUT_MAX = 40
"""Command lines in these."""

LONG_PAGES = ("docs/pipelines.md", "docs/processors.md", "docs/spark.md")
"""Pages that start Spark again and again: `make pages` follows them, too."""

FOUND = {page: list(blocks((ROOT / page).read_text())) for page in PAGES}
RUN = [
    page
    for page, found in FOUND.items()
    if any(block.kind in ("shell", "python", "toml") for block in found)
    and (page not in LONG_PAGES or os.environ.get("ALL_PAGES"))
]
COMMANDS = [
    pytest.param(command, id=f"{page}:{command.line}")
    for page, found in FOUND.items()
    for block in found
    if block.kind == "shell" and not block.is_hidden
    for command in block.commands
]


def left_out(block: Block) -> list[Command]:
    return [command for command in block.commands if not block.is_run(command)] if block.kind == "shell" else []


@pytest.mark.skipif(not is_possible(), reason="needs a network namespace: unshare, and the right to use it")
@pytest.mark.timeout(PAGE_S)
@pytest.mark.parametrize("page", RUN)
def test_the_page_can_be_followed(page: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, sys.executable, "-m", "tests.docs.page", page, tmp_path],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{page}:\n{done.stdout[-20_000:]}"
    assert "all done" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist(command: Command) -> None:
    """Even of commands that are not run: the program, its subcommands and options, the target of make, the module."""
    text = command.text.replace("\\\n", " ")
    words = shlex.split(text, comments=True)
    if "braidmq" in {word.rpartition("/")[2] for word in words} and "cProfile" not in words:
        assert check_line(text) >= 1
    elif words[0] == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [word for word in words[1:] if "=" not in word and word not in targets] == []
    elif words[1:2] == ["-m"] and words[2] not in ("pstats", "cProfile"):
        options = {word for word in words[3:] if word.startswith("-")}
        assert options <= set(re.findall(r"(?<![\w-])--?[\w-]+", help_of(words[2])))


@cache
def help_of(module: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", FOUND)
def test_options_within_the_text_exist(page: str) -> None:
    """`braidmq …` in a sentence or a table: a command that exists, with options that it has."""
    known = {
        " ".join(words): {option for param in command.get_params(context) for option in param.opts}
        for words, command, context in commands()
    }
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`braidmq ([a-z][^`]*)`", text.replace("\n", " ")):
        words = re.findall(r"[^\s,|]+", code)
        name = next((each for each in (" ".join(words[:2]), words[0]) if each in known), None)
        assert name is not None, f"{page}: there is no `braidmq {code}`"
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in known[name], f"{page}: `braidmq {name}` has no {word}"


def test_little_is_left_out_and_the_page_says_why() -> None:
    marks = [mark for found in FOUND.values() for block in found for mark in block.marks]
    assert all(mark.why.strip() for mark in marks)
    assert 0 < len(marks) <= MARKS_MAX
    lines = [command.text for found in FOUND.values() for block in found for command in left_out(block)]
    assert 0 < len(lines) <= LEFT_OUT_MAX
    for found in FOUND.values():
        for block in found:
            for mark in block.marks:
                assert mark.words in block.text, f"line {mark.line}: nothing below has {mark.words!r} in it"


def test_pages_are_all_pages() -> None:
    generated = {"docs/conformance.md"}
    there = {str(path.relative_to(ROOT)) for path in (*ROOT.glob("docs/*.md"), ROOT / "README.md")}
    assert there - generated == set(PAGES) - {"ARCHITECTURE.md"}


# The tests of the test: what it would not let pass.


def test_blocks_and_marks() -> None:
    found = list(
        blocks(
            "# A page\n\n    braidmq up\n    $ not a command\n\nText\n\n"
            '<!-- test: not run "--slow": takes long -->\n<!-- test: each alone -->\n\n'
            "```sh\nbraidmq sim --slow\nbraidmq version \\\n  --json\n```\n"
            "<!-- keys: begin -->\n<!-- test: stop -->\n<!-- test: run\ntouch x\n-->\n"
            "```console\n$ braidmq version\nbraidmq  …\n```\n```console\nmore\n```\n"
            '```toml\n# a.toml\nname = \'x\'\n```\n    {"no": 1}\n\n    {"no": 1}\n'
        )
    )
    assert [block.kind for block in found] == ["shell", "shell", "stop", "shell", "shell", "output", "toml", "text"]
    assert [command.text for command in found[1].commands] == ["braidmq sim --slow", "braidmq version \\\n  --json"]
    assert [found[1].is_run(command) for command in found[1].commands] == [False, True]
    assert found[1].is_each_alone
    assert found[3].is_hidden
    assert found[4].commands[0].output == ["braidmq  …"]
    assert found[6].file_name == "a.toml"
    with pytest.raises(ValueError, match="what is"):
        list(blocks("<!-- test: perhaps -->\n"))


@pytest.mark.parametrize(
    ("lines", "printed", "is_so"),
    [
        (["a", "b"], "x\na\nb\n", True),
        (["a", "b"], "a\nx\nb\n", False),
        (["a", "…", "b"], "a\nx\ny\nb", True),
        (["port …, really"], "port 1883, really\n", True),
        (["took 0.22 ms"], "took 17.3 ms\n", True),
        (["127.0.0.1:1883"], "127.0.1.1:1883\n", False),
        (["3 sites"], "4 sites\n", False),
        (["a"], "ab\n", False),
    ],
)
def test_what_counts_as_shown(lines: list[str], printed: str, is_so: bool) -> None:
    assert is_shown(lines, printed) is is_so


@pytest.mark.skipif(not is_possible(), reason="needs a network namespace: unshare, and the right to use it")
@pytest.mark.parametrize(
    "text",
    [
        "    braidmq sub nowhere -p 1 -C 1 -W 1\n",
        "    $ braidmq version\n    braidmq  99.0\n",
        "    braidmq no-such-command\n",
        "```toml\n[log]\ntopicz = []\n```\n",
        "```python\nraise SystemExit(3)\n```\n",
        "    braidmq up --port 0\n\n```console\nsomething else\n```\n<!-- test: stop -->\n",
    ],
)
def test_a_page_that_is_wrong_is_found(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{text}")
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setenv("PAGE_OUTPUT_S", "1")
    command = [*COMMAND, sys.executable, "-m", "tests.docs.page", str(page), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode != 0, done.stdout
    assert "all done" not in done.stdout
