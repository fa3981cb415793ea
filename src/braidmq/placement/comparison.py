"""Methods side by side on the paper's field: what Figs 10 to 16 are made of (Tanaka et al. 2021, §7).

A trial is one method on one field, and a field is given by its seed: so trials can run anywhere, one by one or as
tasks, and give the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from braidmq.placement.bound import lower_bound
from braidmq.placement.field import Field, FieldSettings, scattered
from braidmq.placement.model import evaluate
from braidmq.placement.planning import Assignment, assign
from braidmq.placement.progress import Progress
from braidmq.placement.reloc import RelocSettings
from braidmq.placement.social import PAPER_SHAPE, GraphShape, Topics, made_up


@dataclass(frozen=True, slots=True)
class PlacementCase:
    """A field and a seed: everything that does not depend on the method."""

    seed: int
    field: FieldSettings = field(default_factory=FieldSettings)
    shape: GraphShape = PAPER_SHAPE
    topics: Topics | None = None
    """Who has which topics; made up in this shape if it is not known."""

    def build(self) -> Field:
        chance = np.random.default_rng(self.seed)
        return scattered(self.topics or made_up(self.shape, chance), self.field, chance)


@dataclass(frozen=True, slots=True)
class PlacementTrial:
    """What a method has come to on one field."""

    method: str
    seed: int
    clients: int
    delay_ms: float
    """Y."""
    distance_ms: float
    """Y1."""
    resource_ms: float
    """Y2."""
    storage_mean: float
    storage_max: float
    compute_mean: float
    compute_max: float
    local_share_min: float
    """The smallest θ."""
    home_km: float
    """The mean way from a client to its home."""
    bound_ms: float | None = None
    """No method can be below."""

    @property
    def gap(self) -> float | None:
        return self.delay_ms / self.bound_ms - 1 if self.bound_ms else None


def compare(
    case: PlacementCase,
    methods: Sequence[str],
    settings: RelocSettings,
    *,
    has_bound: bool = False,
    progress: Progress | None = None,
) -> list[PlacementTrial]:
    """All methods on one field; with the bound, which begins at the best of their plans."""
    problem = case.build().problem
    found: list[tuple[Assignment, PlacementTrial]] = []
    for number, method in enumerate(methods):
        made = assign(method, problem, np.random.default_rng([case.seed, number]), settings, progress)
        what = evaluate(problem, made.homes, made.counted)
        trial = PlacementTrial(
            method,
            case.seed,
            len(problem.clients),
            what.delay_ms,
            what.distance_ms,
            what.resource_ms,
            float(what.storage.mean()),
            float(what.storage.max()),
            float(what.compute.mean()),
            float(what.compute.max()),
            float(what.local_share.min()),
            float(what.distances_ms.mean()) / case.field.ms_per_km,
        )
        found.append((made, trial))
    if not has_bound or not found:
        return [trial for _, trial in found]
    best, trial = min(found, key=lambda each: each[1].delay_ms)
    bound = lower_bound(problem, best.homes, best.prices, known_ms=trial.delay_ms, progress=progress).delay_ms
    return [replace(trial, bound_ms=bound) for _, trial in found]


@dataclass(frozen=True, slots=True)
class TrialMean:
    """A figure over all seeds, with half the width of its 95 % confidence interval."""

    mean: float
    error: float
    least: float
    most: float


def mean_of(values: Sequence[float]) -> TrialMean:
    data = np.asarray(values, np.float64)
    error = 1.96 * float(data.std(ddof=1)) / math.sqrt(data.size) if data.size > 1 else 0.0
    return TrialMean(float(data.mean()), error, float(data.min()), float(data.max()))
