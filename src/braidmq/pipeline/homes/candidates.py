"""Candidate plans as tasks of Spark: each method, number of clusters and seed is one, and the best of them is taken.

What a task does depends on its seed alone, so the plan is the same on one core and on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from braidmq.pipeline.errors import MissingExtra
from braidmq.placement.model import evaluate
from braidmq.placement.planning import assign
from braidmq.placement.problem import Ints, PlacementProblem
from braidmq.placement.reloc import RelocSettings

try:
    from pyspark.sql import functions as f
except ImportError as error:
    raise MissingExtra(error.name) from None

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    method: str
    clusters: int
    """K, for methods that divide servers into clusters."""
    seed: int


@dataclass(frozen=True, slots=True)
class PlayedCandidate:
    candidate: PlanCandidate
    delay_ms: float
    homes: Ints


def candidates(methods: Iterable[str], clusters: Iterable[int], seeds: Iterable[int]) -> list[PlanCandidate]:
    """All combinations; the number of clusters counts for RELOC alone."""
    ks, numbers = list(clusters), list(seeds)
    return [
        PlanCandidate(method, k, seed)
        for method in methods
        for k in (ks if method == "reloc" else ks[:1])
        for seed in (numbers[:1] if method == "nearest" else numbers)
    ]


def play(problem: PlacementProblem, candidate: PlanCandidate) -> PlayedCandidate:
    chance = np.random.default_rng(candidate.seed)
    made = assign(candidate.method, problem, chance, RelocSettings(clusters=candidate.clusters))
    return PlayedCandidate(candidate, evaluate(problem, made.homes).delay_ms, made.homes)


def play_all(spark: SparkSession, problem: PlacementProblem, wanted: Sequence[PlanCandidate]) -> list[PlayedCandidate]:
    """The best first; of equals, the one that was named first."""

    def play_some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch.column("id").to_pylist()):
            played = play(problem, wanted[number])
            homes = played.homes.astype(np.int32).tobytes()
            yield pa.RecordBatch.from_pydict({"number": [number], "delay_ms": [played.delay_ms], "homes": [homes]})

    numbers = spark.range(0, len(wanted), 1, len(wanted))
    rows = numbers.mapInArrow(play_some, "number long, delay_ms double, homes binary")
    rows = rows.orderBy(f.col("delay_ms"), f.col("number"))
    return [
        PlayedCandidate(wanted[row.number], row.delay_ms, np.frombuffer(row.homes, np.int32).astype(np.int64))
        for row in rows.collect()
    ]
