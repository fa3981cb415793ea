"""Names that explain themselves: words that only the project's own past understands do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_layers import LAYERS, ROOT, parsed, sources

OLD_WORDS = {
    "arcs": "hash ranges",
    "crew": "task limiter",
    "haunted": "what has ended there",
    "inlet": "inbound stream",
    "innocent": "bystander",
    "keeper": "holder, or retained replica",
    "lane": "cut-through, or column",
    "mould": "frame template",
    "outlet": "outbound topic",
    "portion": "write buffer",
    "shelf": "segment files",
    "shelves": "segment files",
    "spot": "topic assignment",
    "station": "processor runner",
    "stray": "displaced session",
    "weather": "fault schedule",
}
"""Old word, and what to say instead. Words that also have a plain meaning (standing, filling, place) are not here."""


def defined(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of what a module defines: itself, classes, functions, arguments, variables and attributes."""
    yield 1, path.stem
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def words(name: str) -> set[str]:
    """In singular: `OutboundTopics` and `outbound_topics` are both made of outbound and topic."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return {part.lower() for part in parts} | {part.lower().removesuffix("s") for part in parts}


@pytest.mark.parametrize("layer", LAYERS)
def test_old_words_do_not_come_back(layer: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {name}: say {OLD_WORDS[word]}"
        for path in sources(layer)
        for line, name in defined(path)
        for word in sorted(words(name) & OLD_WORDS.keys())
    ]
    assert not wrong, "\n".join(wrong)


SHARED = {
    "OutboundShortcut": "the same path, as the core calls it and, with what makes it hold, as the braid keeps it",
    "Message": "what travels, in the terms of each layer; that of `processors` is in the functions that people write",
    "Method": "of publish/subscribe, and of enhanced authentication (MQTT 5 §4.12); plug-ins know it by this name",
    "Refused": "the answer of a host that will not, in both worlds",
}
"""Class names that more than one module has, and why."""


def test_one_name_one_class() -> None:
    found: dict[str, list[str]] = {}
    for layer in LAYERS:
        for path in sources(layer):
            for node in parsed(path).body:
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = [f"{name}: {', '.join(paths)}" for name, paths in sorted(found.items()) if len(paths) > 1]
    wrong = [each for each in twice if each.partition(":")[0] not in SHARED]
    assert not wrong, "\n".join(wrong)
