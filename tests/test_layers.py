"""The layers of the house: who may import whom, read from the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import braidmq

ROOT = Path(braidmq.__file__).parent
FLOORS = (
    ("bounded", "host", "keys", "mqtt"),
    ("overlay",),
    ("pubsub",),
    ("select",),
    ("net", "sim", "admin"),
    ("log",),
    ("processors",),
    ("security",),
    ("broker",),
    ("config",),
    ("braid", "processing"),
    ("server",),
    ("pipeline",),
    ("experiments",),
    ("cli", "web"),
)
"""From the ground up: a layer may import itself and the floors below its own, not its neighbours."""
LAYERS = tuple(
    layer
    for floor in FLOORS
    for layer in floor
    if (ROOT / layer / "__init__.py").exists() or (ROOT / f"{layer}.py").exists()
)
"""Those that have something in them yet."""
PURE = tuple(layer for layer in LAYERS if layer in ("bounded", "host", "keys", "mqtt", "overlay", "pubsub", "select"))

WORLDLY = {"asyncio", "time", "random", "secrets", "socket", "ssl", "select", "selectors", "threading", "uvloop"}
"""Clocks, chance, sockets and loops: what the sans-IO layers must not know."""


def sources(layer: str) -> list[Path]:
    found = sorted((ROOT / layer).rglob("*.py")) or [ROOT / f"{layer}.py"]
    assert all(path.exists() for path in found), f"no layer {layer}"
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
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__", "__main__"}
    assert packages | modules == set(LAYERS), "a new layer belongs into FLOORS, at its place"


@pytest.mark.parametrize("layer", PURE)
def test_the_ground_floors_know_no_world(layer: str) -> None:
    worldly = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(layer)
        for line, name in imports(path)
        if name.split(".")[0] in WORLDLY
    ]
    assert not worldly


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_stands_below_it(layer: str) -> None:
    level = next(number for number, floor in enumerate(FLOORS) if layer in floor)
    forbidden = [other for floor in FLOORS[level:] for other in floor if other != layer]
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(layer)
        for line, name in imports(path)
        for upper in forbidden
        if name == f"braidmq.{upper}" or name.startswith(f"braidmq.{upper}.")
    ]
    assert not wrong


CORE = (
    *(
        "admission",
        "backlog",
        "broker",
        "connection",
        "fast_path",
        "handshake",
        "message",
        "publishing",
        "retained",
        "router",
    ),
    *("session", "shares", "connection_state", "store", "subscribing", "timers", "wills"),
)


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
