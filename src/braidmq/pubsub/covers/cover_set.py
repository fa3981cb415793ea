"""Few covers for many names: what a broker stands for in the overlay.

A *cover* is a topic or filter that covers every name (topic or filter) that it was made for. At first a name is its own
cover. Where many names differ in one level only, that level says nothing that they have in common, so it becomes `+`:
ten thousand `cmd/<id>/#` are `cmd/+/#`. If there are still too many covers, those that share most are joined first,
deep levels before high ones; the first level last, since a cover without a plain first level concerns every broker.

Covers only ever become broader, so that whatever was added stays covered; no name is remembered. A set that has become
broader than what is left of its names is made anew from these (`rebuilt`).

A wildcard in the first level does not match what begins with `$` [MQTT-4.7.2-1]: such names are joined among
themselves, and if their first levels are too many, all of them are covered by HIDDEN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from braidmq.mqtt.topics import HIDDEN

COVERS_MAX = 64
"""Covers in a set."""
COVERS_LEAST = 2
"""What all names can be covered with: `#` and HIDDEN."""
SIBLINGS_MAX = 16
"""Levels that may follow the same levels in different covers: more are joined into `+`."""
FIRST_LEVELS_MAX = 32
"""First levels in a set, and first levels with `$`: more are joined. There may be more of them than of others."""
COVER_LEVELS_MAX = 16
"""Levels of a cover: what is deeper is cut to `#`."""
COVER_LENGTH_MAX = 512
"""Characters of a cover: what is longer is cut to `#`, unless it is a first level with `$`."""

Levels = tuple[str, ...]


class CoverSet:
    """At most `covers_max` covers, of all names that were added."""

    def __init__(self, covers_max: int = COVERS_MAX) -> None:
        if covers_max < COVERS_LEAST:
            raise ValueError(f"a set needs room for {COVERS_LEAST} covers, not for {covers_max}")
        self.covers_max = covers_max
        self._covers: list[Levels] = []
        self._root = _CoverNode()

    def __iter__(self) -> Iterator[str]:
        return iter(["/".join(levels) for levels in self._covers])

    def __len__(self) -> int:
        return len(self._covers)

    def __contains__(self, cover: object) -> bool:
        return isinstance(cover, str) and self.cover_of(cover) == cover

    def cover_of(self, name: str) -> str | None:
        """A cover that covers this topic or filter; None if none does."""
        return _found(self._root, name.split("/"))

    def add(self, name: str) -> str | None:
        """None if a cover covers the name already, else the new cover that does now.

        Covers that a new one covers are gone. Where a bound is met others become broader too, so whoever follows them
        compares all covers with those before.
        """
        levels = name.split("/")
        if _found(self._root, levels) is not None:
            return None
        self._covers, self._root = _joined([*self._covers, _within_bounds(levels)], self.covers_max)
        cover = _found(self._root, levels)
        assert cover is not None
        return cover

    def rebuilt(self, names: Iterable[str]) -> CoverSet:
        """A set of its own, with the same bound, of these names alone."""
        fresh = CoverSet(self.covers_max)
        for name in names:
            fresh.add(name)
        return fresh


def literal_prefix(cover: str) -> Levels:
    """The levels before the first wildcard. Of covers that overlap, one has a prefix that the other's begins with."""
    levels = tuple(cover.split("/"))
    wild = next((depth for depth, level in enumerate(levels) if level in ("+", "#", HIDDEN)), len(levels))
    return levels[:wild]


class _CoverNode:
    """Covers by their levels. `ends` is the cover that ends here, `rest` the one that has `#` next."""

    __slots__ = ("children", "ends", "one", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _CoverNode] = {}
        self.one: _CoverNode | None = None
        self.rest: str | None = None
        self.ends: str | None = None

    def place(self, cover: Levels, text: str | None) -> None:
        """Notes a cover, or that it is there no longer."""
        node = self
        for level in cover:
            if level == "#":
                node.rest = text
                return
            if level == "+":
                node.one = node.one or _CoverNode()
                node = node.one
            else:
                node = node.children.setdefault(level, _CoverNode())
        node.ends = text


def _found(root: _CoverNode, levels: Sequence[str]) -> str | None:
    """A cover of the name that has these levels."""
    first = levels[0]
    if first[:1] == "$":
        child = root.children.get(first)
        cover = None if child is None else _found_below(child, levels, 1)
        if cover is None and (hidden := root.children.get(HIDDEN)) is not None:
            return hidden.ends
        return cover
    return _found_below(root, levels, 0)


def _found_below(node: _CoverNode, levels: Sequence[str], depth: int) -> str | None:
    if node.rest is not None:
        return node.rest
    if depth == len(levels):
        return node.ends
    level = levels[depth]
    child = node.children.get(level)
    if child is not None and (cover := _found_below(child, levels, depth + 1)) is not None:
        return cover
    if node.one is not None and level != "#":
        return _found_below(node.one, levels, depth + 1)
    return None


def _within_bounds(levels: Sequence[str]) -> Levels:
    """The narrowest cover of a name that is neither too deep nor too long."""
    length = 0
    for depth, level in enumerate(levels):
        length += len(level) + 1
        if length > COVER_LENGTH_MAX or (depth == COVER_LEVELS_MAX - 1 and len(levels) > COVER_LEVELS_MAX):
            if depth == 0 and level[:1] == "$":
                return (level, "#") if len(levels) > 1 else (level,)
            return (*levels[:depth], "#")
    return _simplest(tuple(levels))


def _simplest(cover: Levels) -> Levels:
    """`+/#` is `#`, since every topic has a first level."""
    return ("#",) if cover == ("+", "#") else cover


def _joined(covers: list[Levels], covers_max: int) -> tuple[list[Levels], _CoverNode]:
    """The same covers or broader ones, within all bounds, none covered by another; and the tree of them."""
    while True:
        covers, root = _without_narrower(covers)
        siblings = _siblings(covers)
        crowded = next((prefix for prefix, levels in siblings.items() if len(levels) > _siblings_max(prefix)), None)
        if crowded is not None:
            covers = _with_wild_level(covers, crowded)
        elif len(covers) > covers_max:
            covers = _fewer(covers, siblings)
        else:
            return covers, root


def _without_narrower(covers: list[Levels]) -> tuple[list[Levels], _CoverNode]:
    """Those that no other one covers, each once; and the tree of them."""
    root = _CoverNode()
    covers = list(dict.fromkeys(covers))
    for cover in covers:
        root.place(cover, "/".join(cover))
    left = []
    for cover in covers:
        root.place(cover, None)
        if _found(root, cover) is None:
            root.place(cover, "/".join(cover))
            left.append(cover)
    return left, root


def _siblings(covers: list[Levels]) -> dict[Levels, dict[str, None]]:
    """By prefix: the levels, without `#`, that follow it. First levels that begin with `$` follow HIDDEN."""
    found: dict[Levels, dict[str, None]] = {}
    for cover in covers:
        for depth, level in enumerate(cover):
            if level != "#":
                prefix = (HIDDEN,) if depth == 0 and level[:1] == "$" else cover[:depth]
                found.setdefault(prefix, {})[level] = None
    return found


def _siblings_max(prefix: Levels) -> int:
    return FIRST_LEVELS_MAX if prefix in ((), (HIDDEN,)) else SIBLINGS_MAX


def _with_wild_level(covers: list[Levels], prefix: Levels) -> list[Levels]:
    """`+` in place of every level that follows a prefix."""
    if prefix == (HIDDEN,):
        return [prefix if cover[0][:1] == "$" else cover for cover in covers]
    depth = len(prefix)
    return [
        _simplest((*prefix, "+", *cover[depth + 1 :]))
        if cover[:depth] == prefix and len(cover) > depth and cover[depth] != "#" and (depth or cover[0][:1] != "$")
        else cover
        for cover in covers
    ]


def _fewer(covers: list[Levels], siblings: dict[Levels, dict[str, None]]) -> list[Levels]:
    """Broader covers by one step, where least is lost: the deepest branching, and of these the widest.

    Branches are joined first; if there are none, covers of different length are cut to `#`; first levels come last.
    """
    joinable = [prefix for prefix, levels in siblings.items() if len(levels) > 1 and prefix not in ((), (HIDDEN,))]
    if joinable:
        return _with_wild_level(covers, max(joinable, key=lambda prefix: (len(prefix), len(siblings[prefix]), prefix)))
    below: dict[Levels, int] = {}
    for cover in covers:
        for depth in range(1, len(cover) + 1):
            if cover[depth - 1] not in ("#", HIDDEN):
                below[cover[:depth]] = below.get(cover[:depth], 0) + 1
    divided = [prefix for prefix, count in below.items() if count > 1]
    if divided:
        prefix = max(divided, key=lambda prefix: (len(prefix), below[prefix], prefix))
        cut = _simplest((*prefix, "#"))
        return [cut if cover[: len(prefix)] == prefix else cover for cover in covers]
    return _with_wild_level(covers, (HIDDEN,) if len(siblings.get((HIDDEN,), {})) > 1 else ())
