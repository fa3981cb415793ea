from __future__ import annotations

import numpy as np
import pytest

from braidmq.placement.errors import PlacementError
from braidmq.placement.model import evaluate
from braidmq.placement.problem import HomeServer, Latencies, ManagedTopic, PlacementProblem, pose
from tests.placement.problems import literal_delays, local_shares_one_by_one, random_problem, small_field


def figure_5(storage: float = 10, compute: float = 20) -> PlacementProblem:
    """FIGURE 5: c1, c2 and c3 publish t1, c3 publishes t2, c4 subscribes to both; c1 and c2 are at home at s1."""
    return pose(
        [HomeServer("s1", storage, compute), HomeServer("s2", storage, compute)],
        ["c1", "c2", "c3", "c4"],
        [
            ManagedTopic("t1", {"c1": 1.0, "c2": 1.0, "c3": 1.0}, ["c4"], 8),
            ManagedTopic("t2", {"c3": 1.0}, ["c4"], 6),
        ],
        Latencies(
            np.array([[0.1, 0.4], [0.2, 0.5], [0.6, 0.3], [0.7, 0.1]]),
            np.array([[0, 0.5], [0.5, 0]]),
            np.array(5.0),
        ),
    )


def test_figure_5_of_the_paper() -> None:
    found = evaluate(figure_5(), np.array([0, 0, 1, 1]))
    assert found.storage.tolist() == [8, 14]
    assert found.compute.tolist() == [16, 14]
    assert found.local_share.tolist() == [1, 10 / 14]


def test_delays_of_figure_5_by_hand() -> None:
    """Two messages go s1 → s2; two stay at s2, which sends 4 of 14 to the cloud."""
    found = evaluate(figure_5(), np.array([0, 0, 1, 1]))
    assert found.distance_ms == pytest.approx((0.1 + 0.2 + 0.3 + 0.3 + 4 * 0.1) / 4)
    assert found.resource_ms == pytest.approx((2 * 0.5 + 2 * 10 * 4 / 14) / 4)
    assert found.delay_ms == pytest.approx(found.distance_ms + found.resource_ms)


def test_computation_can_be_what_is_short() -> None:
    found = evaluate(figure_5(storage=100, compute=7), np.array([0, 0, 1, 1]))
    assert found.local_share.tolist() == [7 / 16, 0.5]


@pytest.mark.parametrize("seed", range(6))
def test_equations_agree_with_those_written_out(seed: int) -> None:
    problem = random_problem(seed)
    homes = np.random.default_rng(seed).integers(0, len(problem.servers), len(problem.clients))
    found = evaluate(problem, homes)
    assert (found.delay_ms, found.distance_ms, found.resource_ms) == pytest.approx(literal_delays(problem, homes))
    assert found.local_share == pytest.approx(np.array(local_shares_one_by_one(problem, homes)))


def test_clients_of_several_topics_agree_too() -> None:
    problem = small_field(3).problem
    homes = np.random.default_rng(1).integers(0, 4, len(problem.clients))
    assert evaluate(problem, homes).delay_ms == pytest.approx(literal_delays(problem, homes)[0])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"storage": 0}, "the storage of server s1 has to be a number above 0"),
        ({"storage": float("nan")}, "the storage of server s1"),
        ({"compute": 0}, "the computation of server s1"),
    ],
)
def test_servers_without_capacity_are_refused(change: dict[str, float], told: str) -> None:
    with pytest.raises(PlacementError, match=told):
        figure_5(**change)


def test_delays_that_are_none_are_refused() -> None:
    servers, topics = [HomeServer("s1", 1, 1)], [ManagedTopic("t", {"c": 1.0}, ["c", "d"], 1)]
    for client_ms, told in (
        (np.array([[np.nan], [1]]), "negative, infinite or no number"),
        (np.array([[1.0]]), r"\(2, 1\) are wanted"),
    ):
        with pytest.raises(PlacementError, match=told):
            pose(servers, ["c", "d"], topics, Latencies(client_ms, np.zeros((1, 1)), np.ones(1)))
    with pytest.raises(PlacementError, match="to itself"):
        pose(servers, ["c", "d"], topics, Latencies(np.ones((2, 1)), np.ones((1, 1)), np.ones(1)))


def test_members_and_homes_that_are_unknown_are_refused() -> None:
    problem = figure_5()
    with pytest.raises(PlacementError, match="unknown server: s9"):
        problem.homes_of({"c1": "s1", "c2": "s9", "c3": "s1", "c4": "s2"})
    with pytest.raises(PlacementError, match="no home for c4"):
        problem.homes_of({"c1": "s1", "c2": "s1", "c3": "s1"})
    with pytest.raises(PlacementError, match="not there: c9"):
        problem.homes_of({"c1": "s1", "c2": "s1", "c3": "s1", "c4": "s1", "c9": "s1"})
    with pytest.raises(PlacementError, match="unknown server"):
        evaluate(problem, np.array([0, 0, 1, 2]))
    with pytest.raises(PlacementError, match="not among the clients: x"):
        pose([HomeServer("s", 1, 1)], ["c"], [ManagedTopic("t", {"x": 1.0}, ["c"], 1)], problem.latencies)


def test_homes_that_are_fixed_are_known() -> None:
    problem = figure_5()
    servers = [HomeServer(name, 10, 20) for name in problem.servers]
    topics = [ManagedTopic("t1", {"c1": 1.0}, ["c4"], 8)]
    posed = pose(servers, problem.clients, topics, problem.latencies, {"c4": "s2"})
    assert posed.fixed.tolist() == [-1, -1, -1, 1]
    assert posed.movable.tolist() == [0]
    for fixed, told in (({"c4": "s9"}, "unknown server: s9"), ({"c9": "s1"}, "not there: c9")):
        with pytest.raises(PlacementError, match=told):
            pose(servers, problem.clients, topics, problem.latencies, fixed)


def test_names_go_both_ways() -> None:
    problem = figure_5()
    homes = np.array([0, 1, 1, 0])
    assert problem.homes_of(problem.named(homes)).tolist() == homes.tolist()
