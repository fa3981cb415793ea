"""Filters by what they match: those of other brokers, and a broker's own.

Both sets rest on the *shapes* of filters: which levels are `+`, how many there are, whether it ends in `#`. Filters are
many, shapes few. A shape and a topic give the one filter of that shape that matches the topic, so all brokers that want
a topic are found with one look-up in a dict for each shape in use, however many filters there are. A shape is written
as what makes that filter of the plain levels of a topic: `%s/+/#`.

The other way round, a cover and a shape say which levels of a filter must be as in the cover. In a sorted list, filters
of the shape that begin alike are neighbours; so those that a cover overlaps are mostly a slice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Generic, TypeVar

from braidmq.mqtt.topics import HIDDEN, has_wildcard
from braidmq.mqtt.trees import FilterTree

B = TypeVar("B", bound=Hashable)

SHAPES_MAX = 32
"""Shapes that a topic is compared with one by one. Filters of further shapes are found in a tree."""

PLAIN = "%s"


def _shape_of(topic_filter: str) -> str:
    """The filter with `%s` in place of its plain levels."""
    return "/".join([level if level in ("+", "#") else PLAIN for level in topic_filter.split("/")])


class _Several(tuple[B, ...]):
    """The brokers of one filter, if they are more than one. A type of its own: a broker may be a tuple as well."""

    __slots__ = ()


class _Shape:
    """How to make the filter of one shape that matches a topic."""

    __slots__ = ("count", "levels", "pick", "text", "wild")

    def __init__(self, text: str) -> None:
        self.text = text
        self.count = 0
        self.levels = text.split("/")
        self.wild = self.levels[0] != PLAIN
        plain = [depth for depth, level in enumerate(self.levels) if level == PLAIN]
        self.pick: Callable[[list[str]], Any] = itemgetter(*plain) if plain else _nothing
        """Of the levels of a topic, those that the filter has too; what `%` takes."""

    def fits(self, levels: int) -> bool:
        """Whether filters of this shape match topics of so many levels."""
        if self.levels[-1] == "#":
            return levels >= len(self.levels) - 1  # `a/#` matches `a` itself (§4.7.1.2)
        return levels == len(self.levels)


def _nothing(_levels: list[str]) -> tuple[()]:
    return ()


class WantIndex(Generic[B]):
    """Which brokers want what: filters, each with the brokers that have it."""

    def __init__(self) -> None:
        self._brokers: dict[str, B | _Several[B]] = {}
        self._filters: dict[B, dict[str, None]] = {}
        self._shapes: dict[str, _Shape] = {}
        """Those of all filters with wildcards that are not in the tree, at most SHAPES_MAX."""
        self._tree: FilterTree[str] = FilterTree()
        self._fitting: dict[tuple[int, bool], tuple[tuple[str, Callable[[list[str]], Any]], ...]] = {}
        """By how many levels a topic has, and whether it begins with `$`: the shapes of filters that can match it."""
        self._depth_max = 0
        """Topics with more levels than this have the same fitting shapes, whatever their number."""

    def __len__(self) -> int:
        """Filters, whoever wants them."""
        return len(self._brokers)

    def brokers(self, topic: str) -> list[B]:
        """Those that want a topic, each once."""
        found = self._brokers.get(topic)
        hits = [] if found is None else [found]
        if self._shapes:
            get = self._brokers.get
            levels = topic.split("/")
            for shape, pick in self._shapes_for(len(levels), topic[:1] == "$"):
                found = get(shape % pick(levels))
                if found is not None:
                    hits.append(found)
        if len(self._tree):
            hits.extend([self._brokers[one] for one in self._tree.match(topic)])
        return _each_once(hits) if hits else []

    def filters(self, topic: str) -> list[str]:
        """The filters by which a topic is wanted, each once."""
        levels = topic.split("/")
        made = [shape % pick(levels) for shape, pick in self._shapes_for(len(levels), topic[:1] == "$")]
        return list(dict.fromkeys([*[one for one in (topic, *made) if one in self._brokers], *self._tree.match(topic)]))

    def filters_of(self, broker: B) -> Iterator[str]:
        """What a broker wants, in the order in which it was added; the index may change meanwhile."""
        return iter(list(self._filters.get(broker, ())))

    def add(self, topic_filter: str, broker: B) -> bool:
        """Whether the broker did not want this before."""
        wanted = self._filters.get(broker)
        if wanted is None:
            wanted = self._filters[broker] = {}
        elif topic_filter in wanted:
            return False
        wanted[topic_filter] = None
        present = self._brokers.get(topic_filter)
        if present is None:
            self._brokers[topic_filter] = broker
            if has_wildcard(topic_filter):
                self._add_wildcard(topic_filter)
        elif isinstance(present, _Several):
            self._brokers[topic_filter] = _Several((*present, broker))
        else:
            self._brokers[topic_filter] = _Several((present, broker))
        return True

    def discard(self, topic_filter: str, broker: B) -> bool:
        """Whether the broker wanted this until now."""
        wanted = self._filters.get(broker)
        if wanted is None or topic_filter not in wanted:
            return False
        del wanted[topic_filter]
        if not wanted:
            del self._filters[broker]
        self._forget(topic_filter, broker)
        return True

    def drop(self, broker: B) -> list[str]:
        """Forgets what a broker wants; what that was."""
        filters = list(self._filters.pop(broker, ()))
        for topic_filter in filters:
            self._forget(topic_filter, broker)
        return filters

    def _forget(self, topic_filter: str, broker: B) -> None:
        present = self._brokers[topic_filter]
        if isinstance(present, _Several):
            left = tuple(one for one in present if one != broker)
            self._brokers[topic_filter] = left[0] if len(left) == 1 else _Several(left)
            return
        del self._brokers[topic_filter]
        if has_wildcard(topic_filter):
            self._discard_wildcard(topic_filter)

    def _add_wildcard(self, topic_filter: str) -> None:
        text = _shape_of(topic_filter)
        shape = self._shapes.get(text)
        if shape is None:
            if len(self._shapes) >= SHAPES_MAX:
                self._tree.set(topic_filter, topic_filter)
                return
            shape = self._shapes[text] = _Shape(text)
            self._on_shapes()
        shape.count += 1

    def _discard_wildcard(self, topic_filter: str) -> None:
        if len(self._tree) and self._tree.remove(topic_filter) is not None:
            return
        text = _shape_of(topic_filter)
        shape = self._shapes[text]
        shape.count -= 1
        if not shape.count:
            del self._shapes[text]
            self._on_shapes()

    def _on_shapes(self) -> None:
        self._fitting.clear()
        self._depth_max = max((len(shape.levels) for shape in self._shapes.values()), default=0)

    def _shapes_for(self, levels: int, hidden: bool) -> tuple[tuple[str, Callable[[list[str]], Any]], ...]:
        levels = min(levels, self._depth_max + 1)
        fitting = self._fitting.get((levels, hidden))
        if fitting is None:
            fitting = self._fitting[levels, hidden] = tuple(
                (shape.text, shape.pick)
                for shape in self._shapes.values()
                if shape.fits(levels) and not (hidden and shape.wild)  # [MQTT-4.7.2-1]
            )
        return fitting


def _each_once(hits: list[B | _Several[B]]) -> list[B]:
    if len(hits) == 1:
        hit = hits[0]
        return list(hit) if isinstance(hit, _Several) else [hit]
    found: dict[B, None] = {}
    for hit in hits:
        if isinstance(hit, _Several):
            found.update(dict.fromkeys(hit))
        else:
            found[hit] = None
    return list(found)


class FilterSet:
    """Filters, as a broker's own: which of them can match what a cover covers?

    The other way round it serves as well: of many covers (HIDDEN may be one), which overlap a filter?
    """

    def __init__(self) -> None:
        self._filters: dict[str, None] = {}
        self._groups: dict[str, _Group] = {}
        """By shape; a filter without a wildcard has one too."""

    def __contains__(self, topic_filter: object) -> bool:
        return topic_filter in self._filters

    def __iter__(self) -> Iterator[str]:
        return iter(self._filters)

    def __len__(self) -> int:
        return len(self._filters)

    def add(self, topic_filter: str) -> bool:
        """Whether it was not in the set."""
        if topic_filter in self._filters:
            return False
        self._filters[topic_filter] = None
        shape = HIDDEN if topic_filter == HIDDEN else _shape_of(topic_filter)
        group = self._groups.get(shape)
        if group is None:
            group = self._groups[shape] = _Group(shape)
        group.add(topic_filter)
        return True

    def discard(self, topic_filter: str) -> bool:
        """Whether it was in the set."""
        if topic_filter not in self._filters:
            return False
        del self._filters[topic_filter]
        shape = HIDDEN if topic_filter == HIDDEN else _shape_of(topic_filter)
        group = self._groups[shape]
        group.discard(topic_filter)
        if not group.count:
            del self._groups[shape]
        return True

    def overlapping(self, covers: Sequence[str]) -> list[str]:
        """The filters that overlap at least one of the covers, each once."""
        found: list[str] = []
        for group in self._groups.values():
            ordered = group.ordered()
            parts = [part for cover in covers if (part := _overlapping(ordered, group.levels, cover))]
            found.extend(parts[0] if len(parts) == 1 else dict.fromkeys(chain.from_iterable(parts)))
        return found


class _Group:
    """The filters of one shape. They are sorted when they are asked for, not at each change."""

    __slots__ = ("_added", "_gone", "_ordered", "levels")

    def __init__(self, shape: str) -> None:
        self.levels = shape.split("/")
        self._ordered: list[str] = []
        self._added: dict[str, None] = {}
        self._gone: set[str] = set()

    @property
    def count(self) -> int:
        return len(self._ordered) + len(self._added) - len(self._gone)

    def add(self, topic_filter: str) -> None:
        if topic_filter in self._gone:
            self._gone.remove(topic_filter)
        else:
            self._added[topic_filter] = None

    def discard(self, topic_filter: str) -> None:
        if topic_filter in self._added:
            del self._added[topic_filter]
        else:
            self._gone.add(topic_filter)

    def ordered(self) -> list[str]:
        if self._gone:
            gone = self._gone
            self._ordered = [one for one in self._ordered if one not in gone]
            self._gone = set()
        if self._added:
            self._ordered.extend(self._added)
            self._ordered.sort()
            self._added = {}
        return self._ordered


def _overlapping(ordered: list[str], shape: list[str], cover: str) -> Sequence[str]:
    """Of sorted filters of one shape, those that overlap a cover."""
    if shape[0] == HIDDEN:
        return ordered if cover[:1] == "$" else ()
    hidden = _between(ordered, "$", "%")
    if cover == HIDDEN:
        return ordered[hidden] if shape[0] == PLAIN else ()
    wanted = cover.split("/")
    if (cover[:1] == "$" and shape[0] != PLAIN) or not _lengths_meet(wanted, shape):
        return ()
    fixed = {
        depth: asked
        for depth, (asked, level) in enumerate(zip(wanted, shape, strict=False))
        if level == PLAIN and asked not in ("+", "#")
    }
    start = []
    for depth, level in enumerate(shape):
        if level == PLAIN and depth not in fixed:
            break
        start.append(fixed.pop(depth, level))
    if not start:
        whole = ordered
        if wanted[0] in ("+", "#"):  # [MQTT-4.7.2-1]
            whole = ordered[: hidden.start] + ordered[hidden.stop :]
        return _with_levels(whole, fixed, len(shape))
    if len(start) == len(shape):
        text = "/".join(start)
        return ordered[_between(ordered, text, text + "\0")]
    text = "/".join(start)
    return _with_levels(ordered[_between(ordered, text + "/", text + "0")], fixed, len(shape))  # 0 comes after /


def _lengths_meet(wanted: list[str], shape: list[str]) -> bool:
    """Whether both can match topics of the same number of levels."""
    if wanted[-1] == "#":
        return len(shape) >= len(wanted) - 1 or shape[-1] == "#"
    if shape[-1] == "#":
        return len(wanted) >= len(shape) - 1
    return len(wanted) == len(shape)


def _between(ordered: list[str], low: str, high: str) -> slice:
    start = bisect_left(ordered, low)
    return slice(start, bisect_left(ordered, high, start))


def _with_levels(filters: list[str], fixed: dict[int, str], levels: int) -> list[str]:
    """Those that have these levels at these depths. All have the same number of levels."""
    if not fixed:
        return filters
    if list(fixed) == list(range(levels - len(fixed), levels)):
        end = "/" + "/".join(fixed.values())
        return [one for one in filters if one.endswith(end)]
    tail = tuple(fixed.values())
    depths = tuple(fixed)
    if len(depths) == 1:
        depth, level = depths[0], tail[0]
        return [one for one in filters if one.split("/")[depth] == level]
    pick = itemgetter(*depths)
    return [one for one in filters if pick(one.split("/")) == tail]
