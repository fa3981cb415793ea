"""What a changed configuration means for a running broker: what holds at once, and what waits for a restart.

Sockets, the store and the admin port stay as they are until the restart. A listener keeps its socket as long as name,
kind and address are the same; everything else about it can change. Files that the configuration names (passwords, keys,
certificates) are read again at each reload, whether or not a key changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeGuard

import msgspec

from braidmq.config.check import check_openness
from braidmq.config.problems import ConfigError, Findings, Problem, shown
from braidmq.config.settings import Config, Listener

_RESTART_KEYS: Final = ("name", "data", "store", "admin", "braid", "share")
"""The top-level keys that need a restart."""

_RESTART_LOG_KEYS: Final = ("format", "folder", "partitions", "segment_bytes")
"""The keys of `log` that need one."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key with its old and new value; None where it is not there."""

    key: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.key}: {shown(self.key, self.old)} -> {shown(self.key, self.new)}"


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    applied: list[Change]
    """What the broker takes over now."""
    restart: list[Change]
    """What it takes over at the next start."""
    effective: Config
    """What holds until then: the new configuration with the old values of all that waits."""


def reload_plan(old: Config, new: Config) -> ReloadPlan:
    """Compares the configuration in use with a new one.

    Both may be safe, and what holds until the restart may not be: authentication is dropped together with the listener
    that is open to all, which stays open. Then a ConfigError is raised, and the broker keeps what it has.
    """
    kept = {listener.name: listener for listener in new.listeners if _keeps_socket(listener, old)}
    effective = msgspec.structs.replace(
        new,
        **{key: getattr(old, key) for key in _RESTART_KEYS},
        log=msgspec.structs.replace(new.log, **{key: getattr(old.log, key) for key in _RESTART_LOG_KEYS}),
        listeners=tuple(kept.get(listener.name, listener) for listener in old.listeners),
    )
    findings = Findings()
    check_openness(effective, findings)
    if findings.problems:
        note = "this listener stays open until the broker is restarted, and then: "
        raise ConfigError([Problem(each.key, each.value, note + each.expected) for each in findings.problems])
    applied: list[Change] = []
    restart: list[Change] = []
    for change in _changes(old, new):
        table, _, key = change.key.partition(".")
        waits = table in _RESTART_KEYS or (table == "log" and key in _RESTART_LOG_KEYS)
        (restart if waits else applied).append(change)
    for name, changes in _listener_changes(old, new):
        (applied if name in kept else restart).extend(changes)
    return ReloadPlan(applied, restart, effective)


def _keeps_socket(new: Listener, old: Config) -> bool:
    return any(listener.name == new.name and _address(listener) == _address(new) for listener in old.listeners)


def _address(listener: Listener) -> tuple[object, ...]:
    if listener.kind == "unix":
        return listener.kind, listener.path
    return listener.kind, listener.host, listener.port


def _changes(old: Config, new: Config) -> Iterator[Change]:
    for name in Config.__struct_fields__:
        if name != "listeners":
            yield from _differences(name, getattr(old, name), getattr(new, name))


def _listener_changes(old: Config, new: Config) -> Iterator[tuple[str, list[Change]]]:
    """By name: the position in the file means nothing. The keys are those of the new file where it has the listener."""
    before = {listener.name: listener for listener in old.listeners}
    for index, listener in enumerate(new.listeners):
        key = f"listeners[{index}]"
        if listener.name in before:
            yield listener.name, list(_differences(key, before.pop(listener.name), listener))
        else:
            yield listener.name, [Change(key, None, _summary(listener))]
    for index, listener in enumerate(old.listeners):
        if listener.name in before:
            yield listener.name, [Change(f"listeners[{index}]", _summary(listener), None)]


def _summary(listener: Listener) -> str:
    return f"{listener.kind} on {listener.address}"


def _differences(key: str, old: object, new: object) -> Iterator[Change]:
    """Down to single values where both sides have the same structs, else as a whole."""
    if old == new:
        return
    if isinstance(old, msgspec.Struct) and type(old) is type(new):
        for name in old.__struct_fields__:
            yield from _differences(f"{key}.{name}", getattr(old, name), getattr(new, name))
    elif _is_table_list(old) and _is_table_list(new):
        for index in range(max(len(old), len(new))):
            pair = [items[index] if index < len(items) else None for items in (old, new)]
            yield from _differences(f"{key}[{index}]", *pair)
    else:
        yield Change(key, old, new)


def _is_table_list(value: object) -> TypeGuard[tuple[msgspec.Struct, ...]]:
    return isinstance(value, tuple) and all(isinstance(item, msgspec.Struct) for item in value)
