"""Where a configuration comes from: the TOML file, over it the environment, over that the flags; read as a whole.

The sources are merged into one tree of plain values. The tree is read against the structs of `settings`, value by
value, so that every wrong one is reported and not only the first; a wrong value counts as not given. Last come the
checks that look at several values.
"""

from __future__ import annotations

import copy
import difflib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from braidmq.config.check import check
from braidmq.config.problems import NOTHING, ConfigError, Findings
from braidmq.config.settings import Config
from braidmq.config.words import item_of, struct_of, words
from braidmq.security.settings import Plugin

ENVIRONMENT_PREFIX: Final = "BRAIDMQ_"
CONFIG_VARIABLE: Final = "BRAIDMQ_CONFIG"
"""Names the configuration file, for the command line; it is not a key."""

# Kubernetes gives each container such variables for a service that is called "braidmq"; they are no keys of ours.
_SERVICE_VARIABLE: Final = re.compile(r"BRAIDMQ_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
_KEY_PART: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")

AnyStruct = TypeVar("AnyStruct", bound=msgspec.Struct)


def load(
    path: str | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object],
    defaults: Mapping[str, object] = MappingProxyType({}),
) -> Config:
    """Reads the configuration from a file (if any), `BRAIDMQ_…` variables and flags; a ConfigError has all problems.

    `overrides` has dotted keys such as "limits.receive_max" or "listeners[0].port"; None means that it was not given.
    `defaults` has keys of tables ("admin.port"), and what they are where nothing else says so.
    """
    findings = Findings()
    tree = _read(path, findings) if path is not None else {}
    if findings.problems:
        raise ConfigError(findings.problems)
    for key, value in defaults.items():
        table, _, name = key.rpartition(".")
        if isinstance(tree.setdefault(table, {}), dict):
            tree[table].setdefault(name, value)
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or _SERVICE_VARIABLE.fullmatch(variable):
            continue
        if variable != CONFIG_VARIABLE:
            parts = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            _put(tree, parts, _Given(_parsed(text), text, f"the variable {variable}"), findings)
    for key, value in overrides.items():
        if value is not None:
            raw = value if isinstance(value, str) else None
            given = _Given(copy.deepcopy(value) if raw is None else _parsed(raw), raw, "a flag")
            _put(tree, [index or name for index, name in _KEY_PART.findall(key)], given, findings)
    config = _read_struct(Config, tree, "", findings)
    if config is not None:
        check(config, findings)
    if findings.problems or config is None:
        raise ConfigError(findings.problems)
    return config


@dataclass(frozen=True, slots=True)
class _Given:
    """A value from outside the file. Text is read as a TOML value where that fits, else as plain text."""

    value: object
    text: str | None
    source: str


def _read(path: str, findings: Findings) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        findings.add(path, NOTHING, f"cannot read the configuration file: {error.strerror}")
    except tomllib.TOMLDecodeError as error:
        findings.add(path, NOTHING, f"is not valid TOML: {error}")
    except UnicodeDecodeError as error:
        findings.add(path, NOTHING, f"is not UTF-8 text: byte {error.start} is wrong")
    return {}


def _parsed(text: str) -> object:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


# Merging


def _put(tree: dict[str, Any], parts: list[str], given: _Given, findings: Findings) -> None:
    """Sets one value in the tree, and makes the tables and list items on the way that are not there yet."""
    node: Any = tree
    key = ""
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        slot: Any = part
        if isinstance(node, list):
            if not part.isdecimal() or int(part) > len(node):
                findings.add(f"{key}[{part}]", given.value, _index_words(key, len(node)), given.source)
                return
            slot = int(part)
            key = f"{key}[{part}]"
            if slot == len(node):
                node.append({})
        elif isinstance(node, dict):
            key = _join(key, part)
        else:
            findings.add(key, given.value, f'is not a table, so "{part}" cannot be set in it', given.source)
            return
        if following is None:
            node[slot] = given
        elif isinstance(node, dict) and slot not in node:
            node[slot] = [] if following.isdecimal() else {}
        node = node[slot].value if isinstance(node[slot], _Given) and following is not None else node[slot]


def _index_words(key: str, length: int) -> str:
    return f"expected the number of one of the {length} items of {key}, or {length} to add one"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


# Reading


def _read_struct(cls: type[AnyStruct], value: object, key: str, findings: Findings) -> AnyStruct | None:
    """The struct in a table. Wrong values count as not given; None if one is missing that has no default."""
    value, source = _unwrapped(value)
    if cls is Plugin and isinstance(value, str):
        value = {"use": value}
    if not isinstance(value, dict):
        findings.add(key, value, f"expected {words(cls)}", source)
        return None
    fields = {field.name: field for field in msgspec.structs.fields(cls)}
    for name in value:
        if name not in fields:
            # The value means nothing, and could be a secret under a mistyped name.
            _, source = _unwrapped(value[name])
            findings.add(_join(key, str(name)), NOTHING, _unknown_words(str(name), key, list(fields)), source)
    found: dict[str, Any] = {}
    complete = True
    for name, field in fields.items():
        if name in value:
            read = _read_value(field.type, value[name], _join(key, name), findings)
            if read is not NOTHING:
                found[name] = read
        elif field.required:
            findings.add(_join(key, name), NOTHING, f"is missing; expected {words(field.type)}")
        complete = complete and (name in found or not field.required)
    return cls(**found) if complete else None


def _read_value(kind: Any, value: object, key: str, findings: Findings) -> Any:
    """The value as the type wants it, or NOTHING after a problem was reported."""
    cls = struct_of(kind)
    if cls is not None:
        struct = _read_struct(cls, value, key, findings)
        return NOTHING if struct is None else struct
    item = item_of(kind)
    if item is not None:
        return _read_list(kind, *item, value, key, findings)
    plain, source = _unwrapped(_plain(value) if isinstance(value, dict) else value)
    attempts = [plain] if not isinstance(value, _Given) or value.text is None else [plain, value.text]
    for attempt in attempts:
        try:
            read = msgspec.convert(attempt, kind)
        except msgspec.ValidationError:
            continue
        if not isinstance(read, float) or math.isfinite(read):
            return read
    findings.add(key, plain, f"expected {words(kind)}", source)
    return NOTHING


def _read_list(kind: Any, item: Any, length_min: int, value: object, key: str, findings: Findings) -> Any:
    value, source = _unwrapped(value)
    if not isinstance(value, list | tuple) or len(value) < length_min:
        findings.add(key, value, f"expected {words(kind)}", source)
        return NOTHING
    read = [_read_value(item, each, f"{key}[{index}]", findings) for index, each in enumerate(value)]
    return NOTHING if any(each is NOTHING for each in read) else tuple(read)


def _unwrapped(value: object) -> tuple[object, str]:
    return (value.value, value.source) if isinstance(value, _Given) else (value, "")


def _plain(value: Any) -> Any:
    """Free-form tables (a plug-in's options) may hold values from the environment inside."""
    if isinstance(value, _Given):
        return value.value
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _unknown_words(name: str, key: str, siblings: list[str]) -> str:
    elsewhere = [known for known in _keys(Config, "") if known.rpartition(".")[2] == name]
    near = difflib.get_close_matches(name, siblings, n=1)
    if near:
        return f"is not a known key; did you mean {_join(key, near[0])}?"
    if elsewhere:
        return f"is not a known key here; did you mean {' or '.join(elsewhere)}?"
    return f"is not a known key; {key or 'the top level'} has {', '.join(siblings)}"


def _keys(cls: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    for field in msgspec.structs.fields(cls):
        key = _join(prefix, field.name)
        yield key
        item = item_of(field.type)
        inner = struct_of(field.type) or (struct_of(item[0]) if item else None)
        if inner is not None:
            yield from _keys(inner, f"{key}[0]" if item else key)
