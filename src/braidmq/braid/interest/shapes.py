"""Shapes of wildcard filters: how a publisher knows which filters could match its topic, without knowing them.

A filter's text is its subscribers' key, so a publisher must know the text to reach them. Texts are many, but the shapes
of the filters in use are few: which levels are `+`, how many there are, whether it ends in `#`. Every broker knows the
shapes (they are announced to all). Applied to the topic `a/b/c`, the shape of `x/+/#` gives `a/+/#`: the one text of
that shape that matches the topic. So the segments addressed by a publication are the matching filters in use.

A shape is written as a filter whose plain levels are `.`: `./+/#`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from braidmq.mqtt.topics import has_wildcard

SHAPES_MAX = 512
"""Shapes that a braid may use at a time: each costs a publisher one more segment to look for."""

SHAPE_KEPT_S = 1800.0
"""How long a shape is kept after it was last announced."""

Shape = str


def shape_of(topic_filter: str) -> Shape | None:
    """The shape of a filter; None if it has no wildcard."""
    if not has_wildcard(topic_filter):
        return None
    return "/".join([level if level in ("+", "#") else "." for level in topic_filter.split("/")])


def apply_shape(shape: Shape, levels: list[str]) -> str | None:
    """The filter of this shape that matches a topic, given as its levels; None if none can."""
    pattern = shape.split("/")
    if levels[0][:1] == "$" and pattern[0] != ".":  # [MQTT-4.7.2-1]
        return None
    if pattern[-1] == "#":
        pattern = pattern[:-1]
        if len(levels) < len(pattern):  # `a/#` matches `a` itself (§4.7.1.2)
            return None
        rest = ["#"]
    elif len(levels) != len(pattern):
        return None
    else:
        rest = []
    return "/".join([*("+" if wild == "+" else level for wild, level in zip(pattern, levels, strict=False)), *rest])


class Shapes:
    """The shapes in use anywhere, each with the time until which it is kept."""

    def __init__(self) -> None:
        self.on_new: Callable[[Shape], None] = _ignore
        """Called with a shape that was not in use before."""
        self._kept_until: dict[Shape, float] = {}

    def __iter__(self) -> Iterator[Shape]:
        return iter(self._kept_until)

    def __len__(self) -> int:
        return len(self._kept_until)

    def learn(self, shapes: Iterable[Shape], now: float) -> None:
        """Keeps shapes that were announced, within the bound."""
        new = []
        for shape in shapes:
            if shape not in self._kept_until:
                if len(self._kept_until) >= SHAPES_MAX:
                    continue
                new.append(shape)
            self._kept_until[shape] = now + SHAPE_KEPT_S
        for shape in new:
            self.on_new(shape)

    def expire(self, now: float) -> list[Shape]:
        """Drops those that nobody has announced for long; which."""
        old = [shape for shape, until in self._kept_until.items() if until <= now]
        for shape in old:
            del self._kept_until[shape]
        return old

    def filters_for(self, topic: str) -> tuple[str, ...]:
        """Every filter in use that could match a topic: itself, and one for each shape that fits."""
        levels = topic.split("/")
        made = [apply_shape(shape, levels) for shape in self._kept_until]
        return (topic, *dict.fromkeys(one for one in made if one is not None))


def _ignore(_shape: Shape) -> None:
    """Nobody wants to know."""
