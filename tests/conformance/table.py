"""docs/conformance.md: each normative statement of MQTT beside the tests that show it.

    python -m tests.conformance.table            writes the file
    python -m tests.conformance.table --check    fails if it is out of date

The statements are those of statements.toml; the tests are asked for by pytest's own collection, so that whatever
carries `@pytest.mark.statement("5.0:MQTT-3.1.2-24", …)` counts, wherever in tests/ it stands.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

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


class Collected:
    """A pytest plug-in that notes which test carries which statement."""

    def __init__(self) -> None:
        self.tests: dict[str, set[str]] = defaultdict(set)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            path = item.path.relative_to(ROOT).as_posix().removeprefix("tests/conformance/")
            name = f"{path}::{getattr(item, 'originalname', item.name)}"
            for marker in item.iter_markers("statement"):
                for statement in marker.args:
                    self.tests[statement].add(name)


def statements() -> dict[str, tuple[str, str, str]]:
    """By "version:number": whom it binds, what it asks for, and why it may have no test."""
    found = {}
    for version, entries in tomllib.loads(STATEMENTS.read_text()).items():
        for number, (who, text, *reason) in entries.items():
            found[f"{version}:{number}"] = (who, text, reason[0] if reason else WHO[who])
    return found


def collect() -> dict[str, set[str]]:
    """By "version:number": the tests that carry it."""
    plugin = Collected()
    said = io.StringIO()
    arguments = ["--rootdir", str(ROOT), "--collect-only", "-q", "-p", "no:cacheprovider", str(ROOT / "tests")]
    with contextlib.redirect_stdout(said):
        code = pytest.main(arguments, plugins=[plugin])
    if code != pytest.ExitCode.OK:
        sys.exit(f"the tests cannot be collected:\n{said.getvalue()[-2000:]}")
    return plugin.tests


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
