"""From what a braid says of itself to the problem that it poses."""

from __future__ import annotations

import numpy as np
import pytest

from braidmq.placement.errors import PlacementError
from braidmq.placement.observed import (
    ObservedBraid,
    ObservedClient,
    ObservedProcessor,
    ObservedPublisher,
    ObservedSite,
    pose_observed,
)

SITES = [
    ObservedSite("a", 1000.0, 100.0, {"b": 10.0, "c": None}),
    ObservedSite("b", 2000.0, 200.0, {"a": 12.0, "c": 6.0}),
    ObservedSite("c", 3000.0, 300.0, {"b": 8.0}),
]
CLIENTS = [
    ObservedClient("bus1", "a"),
    ObservedClient("bus2", "b", can_move=False),
    ObservedClient("watcher", "c", ["bus/+/frames"]),
    ObservedClient("alarmed", "a", ["alerts", "$share/g/bus/1/frames"]),
    ObservedClient("stranger", "a", ["weather"]),
]
PUBLISHERS = [
    ObservedPublisher("bus/1/frames", "bus1", 60, 100.0),
    ObservedPublisher("bus/1/frames", "bus2", 20, 300.0),
    ObservedPublisher("tide", "bus1", 10, 50.0),
    ObservedPublisher("bus/9/frames", "gone", 10, 50.0),
]


def braid(**changed: object) -> ObservedBraid:
    given = {
        "sites": SITES,
        "clients": CLIENTS,
        "publishers": PUBLISHERS,
        "processors": [ObservedProcessor("bus/#", 5, "alerts")],
        "period_s": 10.0,
        "cloud_ms": 7.0,
    }
    return ObservedBraid(**(given | changed))  # type: ignore[arg-type]


def test_topics_have_their_publishers_with_rates_their_subscribers_and_spools() -> None:
    posed = pose_observed(braid())
    problem = posed.problem
    assert problem.topics == ("bus/1/frames", "tide")
    assert problem.clients == ("bus1", "bus2", "watcher", "alarmed")
    rows = problem.members
    assert [(problem.clients[c], float(r)) for c, r in zip(rows.client[:4], rows.rate[:4], strict=True)] == [
        ("bus1", 6.0),
        ("bus2", 2.0),
        ("watcher", 0.0),
        ("alarmed", 0.0),
    ]
    assert rows.subscribes[:4].tolist() == [False, False, True, True]
    assert problem.spool.tolist() == [5.0, 1.0]
    assert problem.stored.tolist() == [5 * (60 * 100 + 20 * 300) / 80, 50.0]
    assert (problem.storage.tolist(), problem.compute.tolist()) == ([1000.0, 2000.0, 3000.0], [100.0, 200.0, 300.0])
    assert posed.now == {"bus1": "a", "bus2": "b", "watcher": "c", "alarmed": "a"}
    assert problem.fixed.tolist() == [-1, 1, -1, -1], "plans are made around it"


def test_rules_go_before_plans_and_rules_of_a_client_before_those_of_its_topics() -> None:
    pinned = [*CLIENTS[:2], ObservedClient("watcher", "c", ["bus/+/frames"], pinned_to="b"), *CLIENTS[3:]]
    problem = pose_observed(braid(clients=pinned, topic_homes=[("bus/#", "c"), ("#", "a")])).problem
    found = dict(zip(problem.clients, problem.fixed.tolist(), strict=True))
    assert found == {"bus1": 2, "bus2": 1, "watcher": 1, "alarmed": -1}, "bus2 cannot be told"
    with pytest.raises(PlacementError, match="at sites that are not there: atlantis"):
        pose_observed(braid(topic_homes=[("#", "atlantis")]))


def test_distances_are_halves_of_the_shorter_round_trip_or_go_by_a_third_site() -> None:
    delays = pose_observed(braid()).problem.latencies
    assert delays.server_ms.tolist() == [[0, 5, 8], [5, 0, 3], [8, 3, 0]]
    assert delays.cloud_ms.tolist() == [7, 7, 7]
    assert delays.client_ms[0].tolist() == [0, 5, 8], "as by way of the site that it is at"


def test_distances_of_clients_that_are_known_count() -> None:
    known = {("bus1", "a"): 4.0, ("bus1", "c"): 1.0, ("nobody", "a"): 1.0, ("bus1", "atlantis"): 1.0}
    delays = pose_observed(braid(client_ms=known)).problem.latencies
    assert delays.client_ms[0].tolist() == [4.0, 9.0, 1.0]
    assert np.all(delays.client_ms[1] == [5, 0, 3])


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"sites": []}, "no site can be reached"),
        ({"publishers": []}, "the logs have no publication with a client id"),
        ({"clients": [ObservedClient("bus1", "atlantis")]}, "at sites that cannot be reached: atlantis"),
        ({"sites": [*SITES, ObservedSite("d", 1.0, 1.0, {})]}, "no round trip between a and d"),
        ({"sites": [ObservedSite("a", 0.0, 1.0, {}), *SITES[1:]]}, "the storage of server a has to be"),
        ({"clients": CLIENTS[2:]}, "none of the clients that have published has a session"),
        ({"clients": CLIENTS[:2]}, "nobody publishes to anybody"),
    ],
)
def test_what_is_missing_is_said(changed: dict[str, object], told: str) -> None:
    with pytest.raises(PlacementError, match=told):
        pose_observed(braid(**changed))
