"""The methods of the paper: RA, NS, OTOS and RELOC with its steps and readings."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from braidmq.placement.clusters import cluster_servers
from braidmq.placement.errors import PlacementError
from braidmq.placement.model import by_topic_and_server, evaluate
from braidmq.placement.problem import Ints, PlacementProblem
from braidmq.placement.relations import Relations
from braidmq.placement.reloc import RelocSettings, Steps, reloc
from braidmq.placement.simple import nearest_homes, one_server_a_topic, random_homes
from tests.placement.problems import paper_field, small_field


def servers_a_topic(problem: PlacementProblem, homes: Ints) -> Ints:
    counts = by_topic_and_server(problem, homes[problem.members.client], problem.members.publishes.astype(float))
    return np.asarray(np.count_nonzero(counts, axis=1), np.int64)


def test_figure_14_at_one_seed() -> None:
    """Its order at σ = 10: RELOC is quickest, NS has the shortest ways, OTOS the least storage and longer ways than
    RELOC, RA is the slowest; nothing is above A under RELOC."""
    problem = paper_field(1, 10).problem
    chance = np.random.default_rng(1)
    by_reloc = evaluate(problem, reloc(problem, RelocSettings(), chance).homes)
    nearest = evaluate(problem, nearest_homes(problem))
    by_topic = evaluate(problem, one_server_a_topic(problem, chance))
    at_random = evaluate(problem, random_homes(problem, chance))
    assert by_reloc.delay_ms < by_topic.delay_ms < nearest.delay_ms < at_random.delay_ms
    assert nearest.distance_ms < min(by_reloc.distance_ms, by_topic.distance_ms, at_random.distance_ms)
    assert by_topic.storage.sum() < min(by_reloc.storage.sum(), nearest.storage.sum())
    assert by_topic.distance_ms > by_reloc.distance_ms
    assert by_reloc.storage.max() <= 640
    assert by_reloc.delay_ms == pytest.approx(1.95, rel=0.1)
    assert nearest.delay_ms == pytest.approx(4.51, rel=0.1)
    assert by_topic.delay_ms == pytest.approx(2.4, rel=0.1)
    assert at_random.delay_ms == pytest.approx(6.7, rel=0.1)


def test_one_server_a_topic_is_that_but_for_clients_of_several() -> None:
    problem = paper_field(2).problem
    homes = one_server_a_topic(problem, np.random.default_rng(2))
    several = np.diff(problem.members.client_starts) > 1
    spread = servers_a_topic(problem, homes) > 1
    for topic in np.flatnonzero(spread):
        assert several[problem.members.client[problem.rows_of_topic(int(topic))]].any()
    assert np.count_nonzero(spread) <= 25


def test_cooperation_keeps_topics_within_servers() -> None:
    problem = paper_field(0, spool_each=3.0).problem
    alone, together = (
        evaluate(problem, one_server_a_topic(problem, np.random.default_rng(5), cooperation=cooperation))
        for cooperation in (False, True)
    )
    assert alone.local_share.min() < together.local_share.min()
    assert together.delay_ms < alone.delay_ms


def test_the_steps_of_reloc() -> None:
    """FIGURE 10: locality puts everybody into their cluster, relations bring topics together, cooperation relieves."""
    problem = paper_field(0, 10, 2.5).problem
    chance = np.random.default_rng(0)
    homes = {}
    for steps in get_args(Steps):
        settings = RelocSettings(steps=steps, start="nearest", relations_when="always")
        homes[steps] = reloc(problem, settings, chance).homes
    clusters = cluster_servers(problem, 4, chance)
    for assigned in homes.values():
        assert np.array_equal(clusters.of_server[assigned], clusters.of_client)
    copies = {steps: int(servers_a_topic(problem, assigned).sum()) for steps, assigned in homes.items()}
    assert copies["relations"] < copies["locality"]
    over = {steps: float(evaluate(problem, assigned).local_share.min()) for steps, assigned in homes.items()}
    assert over["locality"] < over["relations"] < over["cooperation"] == 1.0


@pytest.mark.parametrize(
    "settings",
    [
        RelocSettings(meets_again="anew"),
        RelocSettings(passes_on="topic"),
        RelocSettings(start="emptiest"),
        RelocSettings(relations_from="factors"),
    ],
)
def test_each_reading_is_one_of_its_own(settings: RelocSettings) -> None:
    problem = paper_field(3, 10, 3.0).problem
    found, usual = (reloc(problem, each, np.random.default_rng(3)) for each in (settings, RelocSettings()))
    assert found.homes.min() >= 0
    assert np.array_equal(found.counted, problem.members.publishes)
    assert not np.array_equal(found.homes, usual.homes)


def test_the_slip_of_the_authors_makes_load_vanish() -> None:
    """With a cluster for each server nobody can be passed on: what overflows is no longer counted."""
    problem = paper_field(0, 10).problem
    right, wrong = (
        reloc(problem, RelocSettings(clusters=16, drops_moved_to_itself=slip), np.random.default_rng(0))
        for slip in (False, True)
    )
    assert np.array_equal(right.homes, wrong.homes)
    assert right.counted.all()
    assert not wrong.counted.all()
    assert evaluate(problem, wrong.homes, wrong.counted).delay_ms == pytest.approx(1.45, rel=0.15)
    assert evaluate(problem, right.homes, right.counted).delay_ms == pytest.approx(4.42, rel=0.15)


def test_servers_are_clustered_by_where_they_are() -> None:
    problem = paper_field(0).problem
    clusters = cluster_servers(problem, 4, np.random.default_rng(0))
    assert sorted(np.bincount(clusters.of_server)) == [4, 4, 4, 4]
    assert sorted(map(tuple, [clusters.servers(each).tolist() for each in range(4)]))[0] == (0, 1, 4, 5)
    assert np.array_equal(cluster_servers(problem, 16, np.random.default_rng(0)).of_server, np.arange(16))
    with pytest.raises(PlacementError, match="17 clusters"):
        cluster_servers(problem, 17, np.random.default_rng(0))


def test_relations_are_counted_in_topics() -> None:
    problem = small_field(0).problem
    rows = problem.members
    topics = [set(rows.topic[problem.rows_of_client(client)].tolist()) for client in range(len(problem.clients))]
    for client in range(len(problem.clients)):
        found = Relations(problem, "shared topics", 100).strongest(client).tolist()
        shared = [len(topics[client] & topics[other]) for other in found]
        assert shared == sorted(shared, reverse=True)
        everybody = {other for other in range(len(problem.clients)) if topics[client] & topics[other]} - {client}
        assert set(found) == everybody
