"""Everything that is wrong with a configuration, in words for its author."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

SHOWN_MAX = 80
"""Characters of a value that are shown."""

_SECRET: Final = re.compile(r"(^|\.)(jwt\.key|admin\.token|options)(\.|$)")
_NAMES: Final = {True: "true", False: "false", None: "none"}


def shown(key: str, value: object) -> str:
    """A value as it would be written in the file; secrets are hidden, and long values are cut."""
    text = _literal(key, value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"


def _literal(key: str, value: object) -> str:
    if value is None or isinstance(value, bool):
        return _NAMES[value]
    if _SECRET.search(key):
        return "(secret)"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_literal(f'{key}.{name}', item)}" for name, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_literal(key, item) for item in value) + "]"
    return str(value)


class _Nothing:
    """Stands where there is no value to show."""


NOTHING: Final = _Nothing()


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: the key as in `listeners[1].port`, the value as given, and what was expected."""

    key: str
    value: object
    expected: str
    source: str = ""
    """Where the value came from, if not from the file."""

    def __str__(self) -> str:
        given = "" if self.value is NOTHING else f" = {shown(self.key, self.value)}"
        source = f" (from {self.source})" if self.source else ""
        return f"{self.key}{given}{source}: {self.expected}"


class ConfigError(ValueError):
    """A configuration that cannot be used, with everything that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        super().__init__("\n".join([f"the configuration has {head}:", *(f"  {problem}" for problem in self.problems)]))


class Findings:
    """The problems found so far. Later checks leave out what earlier findings have made meaningless."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, key: str, value: object, expected: str, source: str = "") -> None:
        self.problems.append(Problem(key, value, expected, source))

    def spoiled(self, *keys: str) -> bool:
        """Whether a problem is known of one of these keys, of a part of it, or of what it is part of."""
        return any(_within(key, problem.key) or _within(problem.key, key) for key in keys for problem in self.problems)


def _within(inner: str, outer: str) -> bool:
    return inner.startswith(outer) and inner[len(outer) :][:1] in ("", ".", "[")
