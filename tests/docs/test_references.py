"""What the pages and the source refer to exists: files, modules, classes, pages, papers. Nothing lies outside."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT
from tests.test_layers import LAYERS, modules, parsed

SOURCE = ROOT / "src" / "braidmq"
FOLDERS = ("src", "tests", "docs", "bench")
PAGES = (*(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")), *sorted(ROOT.glob("docs/*.md")))
PRESENT = tuple(page for page in PAGES if page.name != "CHANGELOG.md")
"""Those that tell how things are, not how they were."""
SUFFIXES = (".py", ".md", ".toml", ".c", ".mjs")


def texts() -> Iterator[Path]:
    """All files that people write."""
    for folder in FOLDERS:
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES)
    yield from (path for path in sorted(ROOT.iterdir()) if path.suffix in SUFFIXES or path.name == "Makefile")


def named_paths(text: str) -> set[str]:
    """`broker/session.py`, `overlay/suzaku`, `tests/docs`: what begins with a layer or a folder of the repository."""
    first = "|".join((*LAYERS, *FOLDERS))
    return {found.rstrip("/") for found in re.findall(rf"(?<![\w/$.:<-])(?:{first})/(?:[\w/]|\.(?=\w))*", text)}


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Of the source, by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def members(name: str) -> set[str]:
    """Of a class and its bases: methods, fields, and what is set on `self` in it."""
    found: set[str] = set()
    for node in classes().get(name, ()):
        found.update(_members(node))
        for base in node.bases:
            found |= members(ast.unparse(base).partition("[")[0].rpartition(".")[2])
    return found


def _members(of: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(of):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_files_and_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    if page.name != "ARCHITECTURE.md":  # elsewhere most of what looks like a path is a topic
        text = "\n".join(re.findall(r"`[^`\n]*(?:\.py|/)`|`(?:overlay|pubsub|sim|tests)/[^`\n]*`", text))
    missing = [path for path in named_paths(text) if not _exists(path)]
    missing += [name for name in set(re.findall(r"braidmq(?:\.[a-z_]+)+", text)) if name not in modules()]
    missing += [name for name in set(re.findall(r"(?<![\w/*-])\w+\.py\b", text)) if not list(ROOT.glob(f"*/**/{name}"))]
    assert not missing, sorted(missing)


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_imports_on_a_page_work(page: Path) -> None:
    """Also where the page is not run."""
    for module, names in re.findall(r"^from (braidmq[\w.]*) import ([\w, ]+)$", page.read_text(), re.MULTILINE):
        tree = parsed(modules()[module])
        there = {name for node in tree.body for name in _bound(node)}
        assert {name.strip() for name in names.split(",")} <= there, f"{module} has no {names}"


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


def _exists(path: str) -> bool:
    candidates = (ROOT / path, SOURCE / path, SOURCE / f"{path}.py")
    return any(candidate.exists() for candidate in candidates)


def test_rooms_in_the_picture_of_the_layers_exist() -> None:
    """`interest/` below `braid`: as they stand there, without what is above them; and the layers themselves."""
    picture = re.findall(r"^```\n(.*?)^```$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    rooms = set(re.findall(r"(?<![\w/])(\w+)/(?!\w)", picture))
    assert rooms
    assert not {room for room in rooms if not list(SOURCE.glob(f"*/{room}/__init__.py"))}
    layers = {name for line in picture.splitlines() for name in re.findall(r"\w+", line[2:24]) if line[2:3].isalpha()}
    assert layers == set(LAYERS)


def test_classes_and_methods_that_the_architecture_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"\b([A-Z][a-z]\w*)\.([a-z_]\w*)\b(?!/)", text)
    missing = [f"{name}.{member}" for name, member in named if member not in members(name)]
    assert not missing, missing


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_bounds_that_a_page_names_exist(page: Path) -> None:
    """`HISTORY_S`, `HISTORY_BYTES_MAX`: constants of the source."""
    named = set(re.findall(r"`([A-Z][A-Z0-9_]+_(?:S|MAX|MIN|FULL))`", page.read_text()))
    assert not {name for name in named - constants() if not name.startswith("BRAIDMQ_")}


@cache
def constants() -> set[str]:
    """What modules of the source define at their top."""
    return {name for path in SOURCE.rglob("*.py") for node in parsed(path).body for name in _bound(node)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            broken.append(target)
    assert not broken


def _anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_pages_that_are_mentioned_exist() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {page}"
        for path in texts()
        for page in re.findall(r"(?<![\w/])docs/\w+\.md", path.read_text())
        if not (ROOT / page).exists()
    ]
    assert not missing


CITATION = re.compile(r"\b([A-Z]\w+(?: et al\.| and [A-Z]\w+)),? \(?((?:19|20)\d\d)\b")


def test_papers_that_are_cited_are_listed() -> None:
    listed = {f"{authors} {year}" for authors, year in CITATION.findall((ROOT / "docs" / "papers.md").read_text())}
    unknown = [
        f"{path.relative_to(ROOT)}: {authors} {year}"
        for path in texts()
        for authors, year in CITATION.findall(re.sub(r"\s+(?:# )?", " ", path.read_text()))
        if f"{authors} {year}" not in listed
    ]
    assert not unknown, "\n".join(unknown)


OUTSIDE = re.compile(
    r"\bseed 0\d|\bseeds?/0|\bALGORITHMS(?: §|\.md)|\bDESIGN(?: decision|\.md| §)"
    r"|\b(?:STYLE|SPARK|BRIEF|ISSUE)\.(?:md|txt)|/work/(?:shared|main)|\bissue \d+\b(?!\))"
)
"""Notes that are not in the repository, under the names that they have had."""


def test_nothing_refers_to_files_outside_the_repository() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number} {found[0]}"
        for path in texts()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := OUTSIDE.search(line))
    ]
    assert not wrong, "\n".join(wrong)
