"""Which element a search goes on to: by chance, with weights that a strategy sets (Ishihara et al. 2021, Algorithm 2).

`many` prefers elements with many free components, `few` those with few, which are smaller and nearer, `close` those of
low levels, whose aggregates are newest. `random` knows no aggregates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from braidmq.host import Chance
from braidmq.select.elements import Element

RANDOM: Final = "random"

Weights = Callable[[Sequence[Element], int], list[float]]


def _many(elements: Sequence[Element], level_max: int) -> list[float]:
    return [element.free for element in elements]


def _few(elements: Sequence[Element], level_max: int) -> list[float]:
    most = max(element.free for element in elements)
    return [most + 1 - element.free for element in elements]


def _close(elements: Sequence[Element], level_max: int) -> list[float]:
    """The highest level is that of the whole range, not of these elements: the paper's figures come out so."""
    return [max(1, level_max + 1 - element.level) for element in elements]


def _equal(elements: Sequence[Element], level_max: int) -> list[float]:
    return [1.0] * len(elements)


STRATEGIES: Final[Mapping[str, Weights]] = {"random": _equal, "many": _many, "few": _few, "close": _close}


def choose(chance: Chance, strategy: str, elements: Sequence[Element], level_max: int) -> Element:
    """One of them; at least one must be there."""
    weights = STRATEGIES[strategy](elements, level_max)
    left = chance.random() * sum(weights)
    for element, weight in zip(elements, weights, strict=True):
        left -= weight
        if left < 0:
            return element
    return elements[-1]
