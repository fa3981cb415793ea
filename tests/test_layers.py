"""The layers of the house, read from the source itself: which may import which, and how large a piece of it may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import braidmq

ROOT = Path(braidmq.__file__).parent
FLOORS = (
    ("bounded", "host", "keys", "mqtt", "system"),
    ("detours",),
    ("overlay",),
    ("pubsub", "select"),
    ("net", "sim", "admin"),
    ("log", "journal"),
    ("processors", "placement"),
    ("flows",),
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
WORLDS = next(number for number, floor in enumerate(FLOORS) if "net" in floor)
PROTOCOLS = tuple(layer for floor in FLOORS[:WORLDS] for layer in floor if layer in LAYERS)
"""What `net` and `sim` drive: they know a `Host`, and no world."""

WORLD = {"asyncio", "time", "random", "secrets", "socket", "ssl", "select", "selectors", "threading", "uvloop"}
"""Clocks, chance, sockets and loops: what the sans-IO layers must not know."""


def sources(layer: str) -> list[Path]:
    found = sorted((ROOT / layer).rglob("*.py")) or [ROOT / f"{layer}.py"]
    assert all(path.exists() for path in found), f"no layer {layer}"
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, absolute name) of everything that a module imports, wherever in it and under whatever condition."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    package = ("braidmq", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(parsed(path)):
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


def offences(paths: list[Path], forbidden: set[str]) -> list[str]:
    """Imports of these names, or of anything below them."""
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in paths
        for line, name in imports(path)
        if any(name == each or name.startswith(f"{each}.") for each in forbidden)
    ]


def test_the_layers_are_all_there_is() -> None:
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__", "__main__"}
    assert packages | modules == set(LAYERS), "a new layer belongs into FLOORS, on its floor"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_stands_below_it(layer: str) -> None:
    level = next(number for number, floor in enumerate(FLOORS) if layer in floor)
    above = {f"braidmq.{other}" for floor in FLOORS[level:] for other in floor if other != layer}
    assert offences(sources(layer), above) == []


@pytest.mark.parametrize("layer", PROTOCOLS)
def test_protocols_know_no_world(layer: str) -> None:
    assert offences(sources(layer), WORLD) == []


def test_the_core_of_the_broker_is_given_its_time_and_its_sockets() -> None:
    """It runs the same in memory, over virtual time: no clock, loop or socket of its own. It does make up client ids
    that cannot be guessed."""
    assert offences(sources("broker"), WORLD - {"secrets"}) == []


def test_what_joins_brokers_runs_in_virtual_time_too() -> None:
    """All of `braid` but the one module that makes a host of TCP links out of a configuration."""
    assert offences([path for path in sources("braid") if path.name != "node.py"], WORLD) == []


def test_plans_are_made_from_what_is_given() -> None:
    """The same plan on one machine and as tasks on Spark: no clock, no chance but the generators that are passed in."""
    assert offences(sources("placement"), WORLD | {"pyspark"}) == []


def test_brokers_read_plans_without_numpy() -> None:
    """A broker that carries out a plan needs none of what made it."""
    read = [path for path in sources("placement") if path.name in ("__init__.py", "errors.py", "plan.py")]
    assert len(read) == 3
    others = {f"braidmq.placement.{path.stem}" for path in sources("placement") if path not in read}
    assert offences(read, {"numpy", "scipy"} | others) == []


def modules() -> dict[str, Path]:
    """All modules and packages by name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ("braidmq", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_modules(path: Path, known: dict[str, Path]) -> set[str]:
    """Of this project. `from package import name` reads the package's `__init__` unless the name is a module's."""
    named = {name for _, name in imports(path)} & known.keys()
    packages: dict[str | None, bool] = {}
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            is_way = all(f"{node.module}.{alias.name}" in known for alias in node.names)
            packages[node.module] = packages.get(node.module, True) and is_way
    return named - {package for package, is_only_way in packages.items() if is_only_way}


def test_no_modules_import_each_other() -> None:
    """Not in a circle either, however long, and not for types alone."""
    known = modules()
    left = {name: imported_modules(path, known) - {name} for name, path in known.items()}
    while free := [name for name, below in left.items() if not below & left.keys()]:
        for name in free:
            del left[name]
    while unused := left.keys() - {each for below in left.values() for each in below}:
        for name in unused:
            del left[name]
    circles = [f"{name} imports {', '.join(sorted(below & left.keys()))}" for name, below in sorted(left.items())]
    assert not circles, "\n".join(circles)


@pytest.mark.parametrize("layer", LAYERS)
def test_no_module_keeps_mutable_state(layer: str) -> None:
    """Two brokers fit one process: at the top of a module nothing is empty and waits to be filled."""
    wrong = []
    for path in sources(layer):
        for node in parsed(path).body:
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
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Global)
    ]
    assert not wrong


LINES_MAX = 450
"""Of a module."""
FUNCTION_LINES_MAX = 80


@pytest.mark.parametrize("layer", LAYERS)
def test_modules_and_functions_are_of_a_size_to_be_read(layer: str) -> None:
    too_long = []
    for path in sources(layer):
        lines = path.read_text().count("\n")
        if lines > LINES_MAX:
            too_long.append(f"{path.relative_to(ROOT)} has {lines} lines")
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if node.end_lineno - first + 1 > FUNCTION_LINES_MAX:
                    too_long.append(f"{path.relative_to(ROOT)}:{first} {node.name} has {node.end_lineno - first + 1}")
    assert not too_long, "\n".join(too_long)
