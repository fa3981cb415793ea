"""The layers of the house: who may import whom, read from the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import braidmq

ROOT = Path(braidmq.__file__).parent
LAYERS = ("mqtt", "broker", "cli")
"""From the ground up: each may import itself and what stands before it."""

WORLDLY = {"asyncio", "time", "random", "secrets", "socket", "ssl", "select", "selectors", "threading", "uvloop"}
"""Clocks, chance, sockets and loops: what the sans-IO codec must not know."""


def sources(layer: str) -> list[Path]:
    found = sorted((ROOT / layer).rglob("*.py"))
    assert found, f"no layer {layer}"
    return found


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of everything that a module imports, wherever in it and under whatever condition."""
    package = ("braidmq", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            yield node.lineno, module
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
            if isinstance(node.args[0], ast.Constant):  # a plug-in's name is not known here, and no layer
                yield node.lineno, str(node.args[0].value)


def test_the_layers_are_all_there_is() -> None:
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert packages == set(LAYERS), "a new package belongs into LAYERS, at its place"


@pytest.mark.parametrize("path", sources("mqtt"), ids=lambda path: path.name)
def test_the_codec_knows_no_world(path: Path) -> None:
    worldly = [(line, name) for line, name in imports(path) if name.split(".")[0] in WORLDLY]
    assert not worldly


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_stands_below_it(layer: str) -> None:
    forbidden = LAYERS[LAYERS.index(layer) + 1 :]
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(layer)
        for line, name in imports(path)
        for upper in forbidden
        if name == f"braidmq.{upper}" or name.startswith(f"braidmq.{upper}.")
    ]
    assert not wrong


CORE = (
    ("backlog", "broker", "connection", "fast_path", "handshake", "message", "publishing", "retained", "router")
    + ("session", "shares", "state", "store", "subscribing", "timers")
)  # fmt: skip


@pytest.mark.parametrize("name", CORE)
def test_the_core_of_the_broker_is_given_its_time_and_its_sockets(name: str) -> None:
    """It runs the same in memory, over virtual time: no clock, loop or socket of its own."""
    worldly = {name for _, name in imports(ROOT / "broker" / f"{name}.py")} & (WORLDLY - {"secrets"})
    assert not worldly


@pytest.mark.parametrize("layer", LAYERS)
def test_no_module_keeps_mutable_state(layer: str) -> None:
    """Two brokers fit one process: at the top of a module nothing is empty and waits to be filled."""
    wrong = []
    for path in sources(layer):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            value = node.value
            empty = (isinstance(value, ast.Dict) and not value.keys) or (
                isinstance(value, ast.List | ast.Set) and not value.elts
            )
            made = isinstance(value, ast.Call) and ast.unparse(value.func) in (
                "dict", "list", "set", "deque", "defaultdict", "Counter", "OrderedDict", "bytearray", "count"
            )  # fmt: skip
            if empty or (made and isinstance(value, ast.Call) and not value.args):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
    assert not wrong


@pytest.mark.parametrize("layer", LAYERS)
def test_no_function_changes_a_module(layer: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(layer)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Global)
    ]
    assert not wrong
