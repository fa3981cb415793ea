"""Plans of home servers on Spark: publishers from logs, and candidates as tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from braidmq.pipeline.errors import PipelineError
from braidmq.pipeline.homes.candidates import PlanCandidate, candidates, play, play_all
from braidmq.pipeline.homes.publishers import published_rates
from braidmq.placement.observed import ObservedPublisher
from tests.pipeline.test_library import at, read, row, write
from tests.placement.problems import random_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_publishers_are_counted_over_the_logs_of_all_brokers(spark: SparkSession, tmp_path: Path) -> None:
    here = [row("bus/1", "abcd", second, client="ada") for second in range(5)]
    here += [row("bus/2", "ab", 1, client="ada"), row("bus/2", "nobody", 2)]
    there = [row("bus/1", "abcdefgh", 20, client="bob")]
    logs = [write(tmp_path / "a", here, "site1"), write(tmp_path / "b", there, "site2")]
    rows = read(spark, logs[0]).union(read(spark, logs[1]))
    found = published_rates(rows)
    assert found.period_s == 20.0
    assert found.publishers == [
        ObservedPublisher("bus/1", "ada", 5, 4.0),
        ObservedPublisher("bus/1", "bob", 1, 8.0),
        ObservedPublisher("bus/2", "ada", 1, 2.0),
    ]
    later = published_rates(rows, at(3))
    assert [(one.topic, one.client, one.messages) for one in later.publishers] == [
        ("bus/1", "ada", 2),
        ("bus/1", "bob", 1),
    ]
    with pytest.raises(PipelineError, match="no publication whose client is known"):
        published_rates(rows, at(21))


def test_candidates_on_spark_are_those_that_are_played_here_the_best_first(spark: SparkSession) -> None:
    problem = random_problem(1)
    wanted = candidates(["nearest", "topic", "refined"], [2], [1, 2])
    assert [(one.method, one.seed) for one in wanted] == [
        ("nearest", 1),
        ("topic", 1),
        ("topic", 2),
        ("refined", 1),
        ("refined", 2),
    ]
    played = play_all(spark, problem, wanted)
    assert [one.delay_ms for one in played] == sorted(one.delay_ms for one in played)
    assert {one.candidate for one in played} == {*wanted}
    for one in played:
        here = play(problem, one.candidate)
        assert one.delay_ms == here.delay_ms
        assert np.array_equal(one.homes, here.homes)
    assert played[0].candidate.method == "refined"


def test_only_reloc_is_tried_with_each_number_of_clusters() -> None:
    assert candidates(["reloc", "topic"], [2, 3], [1]) == [
        PlanCandidate("reloc", 2, 1),
        PlanCandidate("reloc", 3, 1),
        PlanCandidate("topic", 2, 1),
    ]
