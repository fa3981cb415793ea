"""Two trees of topic levels, one for each direction of the question.

`FilterTree` holds filters and is given a topic: which of them match it? Or it is given a filter: which of them cover
it, and which does it cover? `NameTree` holds topics and is given a filter: which of them does it match? Both walk only
the branches that can match, whatever the number of entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class _Node(Generic[V]):
    __slots__ = ("children", "value")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] = {}
        self.value: V | None = None


class _Tree(Generic[V]):
    """A mapping from level paths to values; a branch without a value in it does not exist."""

    def __init__(self) -> None:
        self._root: _Node[V] = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, path: str) -> V | None:
        node: _Node[V] | None = self._root
        for level in path.split("/"):
            assert node is not None
            node = node.children.get(level)
            if node is None:
                return None
        return node.value if node else None

    def set(self, path: str, value: V) -> None:
        node = self._root
        for level in path.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        if node.value is None:
            self._count += 1
        node.value = value

    def remove(self, path: str) -> V | None:
        """Removes the value, and the branch that was there only for it; None if there was none."""
        node = self._root
        way: list[tuple[_Node[V], str]] = []
        for level in path.split("/"):
            child = node.children.get(level)
            if child is None:
                return None
            way.append((node, level))
            node = child
        value, node.value = node.value, None
        if value is not None:
            self._count -= 1
        for parent, level in reversed(way):
            child = parent.children[level]
            if child.children or child.value is not None:
                break
            del parent.children[level]
        return value

    def values(self) -> Iterator[V]:
        yield from self._below(self._root)

    def _below(self, top: _Node[V]) -> Iterator[V]:
        stack = [top]
        while stack:
            node = stack.pop()
            if node.value is not None:
                yield node.value
            stack.extend(node.children.values())

    def covered(self, topic_filter: str) -> Iterator[V]:
        """The values of all paths, be they topic names or filters, that a filter covers (`topics.covers`)."""
        nodes = [self._root]
        first = True
        for level in ("#",) if topic_filter == "+/#" else topic_filter.split("/"):
            if level == "#":
                for node in nodes:
                    if first:
                        for name, child in node.children.items():
                            if name[:1] != "$":
                                yield from self._below(child)
                    else:
                        yield from self._below(node)
                return
            below: list[_Node[V]] = []
            for node in nodes:
                if level == "+":
                    below.extend(
                        child
                        for name, child in node.children.items()
                        if name != "#" and not (first and name[:1] == "$")
                    )
                elif level in node.children:
                    below.append(node.children[level])
            nodes = below
            first = False
        for node in nodes:
            if node.value is not None:
                yield node.value


class FilterTree(_Tree[V]):
    """Values by topic filter."""

    def match(self, topic: str) -> list[V]:
        """The values of all filters that match the topic name."""
        levels = topic.split("/")
        found: list[V] = []
        nodes = [self._root]
        # [MQTT-4.7.2-1]: a leading wildcard does not match a topic that begins with $.
        hidden = topic[:1] == "$"
        for level in levels:
            below: list[_Node[V]] = []
            for node in nodes:
                children = node.children
                if not hidden:
                    rest = children.get("#")
                    if rest is not None and rest.value is not None:
                        found.append(rest.value)
                    one = children.get("+")
                    if one is not None:
                        below.append(one)
                child = children.get(level)
                if child is not None:
                    below.append(child)
            nodes = below
            if not nodes:
                return found
            hidden = False
        for node in nodes:
            if node.value is not None:
                found.append(node.value)
            rest = node.children.get("#")  # `a/#` matches `a` itself (§4.7.1.2)
            if rest is not None and rest.value is not None:
                found.append(rest.value)
        return found

    def covering(self, topic_filter: str) -> list[V]:
        """The values of all filters that match every topic that a filter matches (`topics.covers`), itself included."""
        found: list[V] = []
        nodes = [self._root]
        hidden = topic_filter[:1] == "$"
        for level in ("+", "#") if topic_filter == "#" else topic_filter.split("/"):  # every topic has a first level
            below: list[_Node[V]] = []
            for node in nodes:
                children = node.children
                rest = None if hidden else children.get("#")
                if rest is not None and rest.value is not None:
                    found.append(rest.value)
                if level != "#":
                    names = (level,) if hidden or level == "+" else ("+", level)
                    below.extend([child for name in names if (child := children.get(name)) is not None])
            nodes = below
            hidden = False
        for node in nodes:
            if node.value is not None:
                found.append(node.value)
            rest = node.children.get("#")
            if rest is not None and rest.value is not None:
                found.append(rest.value)
        return found


class NameTree(_Tree[V]):
    """Values by topic name."""

    def match(self, topic_filter: str) -> Iterator[V]:
        """The values of all topic names that the filter matches."""
        return self.covered(topic_filter)
