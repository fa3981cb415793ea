"""Aggregates: what many nodes have in common with one number, or a few labels.

A value has a label, and the label's last part names how values are put together: `cpu:min`, `slots:sum`,
`members:count`, `clusters:union`. Reducers are known by name on both sides; no code crosses the wire. What is told of
components has labels of `{topic}|{cluster}` (`label_of`; Ishihara et al. 2021, Table 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

Value = int | float | tuple[str, ...]
Aggregate = dict[str, Value]

REDUCERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "sum": lambda a, b: a + b,
    "count": lambda a, b: a + b,
    "min": min,
    "max": max,
    "union": lambda a, b: tuple(sorted({*a, *b})),
}


def label_of(topic: str, cluster: str, reducer: str = "sum", attribute: str = "") -> str:
    """The label of what the components of a topic in a cluster add up to: free ones, or an attribute of theirs."""
    if reducer not in REDUCERS:
        raise ValueError(f"there is no reducer {reducer!r}; there are {', '.join(REDUCERS)}")
    return f"{topic}|{cluster}{'|' if attribute else ''}{attribute}:{reducer}"


def merged(parts: Iterable[Aggregate]) -> Aggregate:
    """All of them together, label by label. A label with an unknown reducer is an error where it was made."""
    whole: Aggregate = {}
    for part in parts:
        for label, value in part.items():
            if label in whole:
                whole[label] = REDUCERS[label.rpartition(":")[2]](whole[label], value)
            else:
                whole[label] = value
    return whole


def cut_to(labels: tuple[str, ...] | None, aggregate: Aggregate) -> Aggregate:
    """Only these labels of an aggregate; all of them if None."""
    if labels is None:
        return aggregate
    return {label: aggregate[label] for label in labels if label in aggregate}
