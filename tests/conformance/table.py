"""docs/conformance.md: each normative statement of MQTT beside the tests that show it.

    python -m tests.conformance.table            writes the file
    python -m tests.conformance.table --check    fails if it is out of date

The statements are those of statements.toml; a test counts if it carries `@pytest.mark.statement("5.0:MQTT-3.1.2-24")`,
wherever in tests/ it stands.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATEMENTS = Path(__file__).with_name("statements.toml")
DOCUMENT = ROOT / "docs" / "conformance.md"

WHO = {
    "server": "no test yet",
    "both": "no test yet",
    "client": "binds the client",
    "transport": "no test yet",
}
"""Why a statement without a test has none, where it does not say itself."""

HEAD = """# Conformance

Each normative statement of MQTT 3.1.1 and MQTT 5.0, in a few words of our own, and the tests that show it on this
broker. The numbers are those of the specifications' appendix B; read there what exactly each one says. A statement that
binds the client is listed with the tests that show what the broker does to a client that breaks it. Test files without
a folder are in `tests/conformance`.

This file is generated: `python -m tests.conformance.table` rewrites it from the markers of the tests, and a test fails
where it is out of date.
"""


def statements() -> dict[str, tuple[str, str, str]]:
    """By "version:number": whom it binds, what it asks for, and why it may have no test."""
    found = {}
    for version, entries in tomllib.loads(STATEMENTS.read_text()).items():
        for number, (who, text, *reason) in entries.items():
            found[f"{version}:{number}"] = (who, text, reason[0] if reason else WHO[who])
    return found


def collect() -> dict[str, set[str]]:
    """By "version:number": the tests that carry it, read from the source of every test file."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        shown = path.relative_to(ROOT).as_posix().removeprefix("tests/conformance/")
        for name, marker in _marked(ast.parse(path.read_text())):
            for argument in marker.args:
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                    sys.exit(f"{path.relative_to(ROOT)}:{argument.lineno}: the marker takes plain strings")
                found[argument.value].add(f"{shown}::{name}")
    return found


def _marked(module: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Each test function with each of its statement markers, those inside parametrize among them."""
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith("test_"):
            for decorator in function.decorator_list:
                for node in ast.walk(decorator):
                    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.statement":
                        yield function.name, node


def _lines(known: dict[str, tuple[str, str, str]], tests: dict[str, set[str]]) -> Iterator[str]:
    yield HEAD
    for version in ("3.1.1", "5.0"):
        mine = {key: entry for key, entry in known.items() if key.startswith(f"{version}:")}
        shown = [key for key in mine if tests.get(key)]
        yield f"## MQTT {version}: {len(shown)} of {len(mine)} statements have a test"
        yield ""
        yield "| statement | binds | in short | tests |"
        yield "|---|---|---|---|"
        for key in shown:
            who, text, _ = mine[key]
            yield f"| {_number(key)} | {who} | {text} | {'<br>'.join(f'`{name}`' for name in sorted(tests[key]))} |"
        yield ""
        yield f"### Without a test ({len(mine) - len(shown)})"
        yield ""
        yield "| statement | binds | in short | why |"
        yield "|---|---|---|---|"
        for key, (who, text, reason) in mine.items():
            if key not in shown:
                yield f"| {_number(key)} | {who} | {text} | {reason} |"
        yield ""


def _number(key: str) -> str:
    return key.partition(":")[2]


def document() -> str:
    """The text that docs/conformance.md should have."""
    known, tests = statements(), collect()
    strangers = {key: names for key, names in tests.items() if key not in known}
    if strangers:
        lines = (f"  {key} in {', '.join(sorted(names))}" for key, names in sorted(strangers.items()))
        sys.exit("no such statement in statements.toml:\n" + "\n".join(lines))
    return "\n".join(_lines(known, tests))


def main(arguments: list[str]) -> None:
    text = document()
    if "--check" not in arguments:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(text)
        print(f"{DOCUMENT.relative_to(ROOT)}: written")
    elif not DOCUMENT.exists() or DOCUMENT.read_text() != text:
        sys.exit(f"{DOCUMENT.relative_to(ROOT)} is out of date; run: python -m tests.conformance.table")


if __name__ == "__main__":
    main(sys.argv[1:])
