"""Fleets: who wants what, and what it takes."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from braidmq.mqtt.topics import matches
from braidmq.sim.trials.fleet import quantile_of
from braidmq.sim.trials.fleet_plan import FleetPlan
from braidmq.sim.trials.trial import Trial, TrialError, TrialReport, play


def trial(method: str, pattern: str, nodes: int, **more: object) -> TrialReport:
    return play(msgspec.convert({"method": method, "pattern": pattern, "nodes": nodes, **more}, Trial))


# Who wants what


@pytest.mark.parametrize("brokers", [8, 60])
def test_those_who_want_a_topic_are_those_whose_filters_match_it(brokers: int) -> None:
    plan = FleetPlan(brokers, 20, 10, seed=1)
    wanted = {
        broker: [*plan.wanted_by_applications(broker), *plan.wanted_by_devices(broker)] for broker in range(brokers)
    }

    def wanting(topic: str, mine: int) -> Counter[int]:
        """Once for each filter that matches: no broker has two of them."""
        return Counter(
            broker for broker, filters in wanted.items() for one in filters if broker != mine and matches(one, topic)
        )

    for site in range(brokers):
        for device in range(20):
            assert wanting(plan.telemetry(site, device), site) == Counter(plan.wanting_telemetry(site, device))
        assert wanting(plan.alarm(site, 1), site) == Counter(plan.wanting_alarm(site))
        for other, device in plan.commanded[site]:
            assert wanting(plan.command(other, device), site) == {other: 1}


def test_few_sites_are_looked_at_by_many() -> None:
    plan = FleetPlan(500, 10, 10, seed=3)
    counts = Counter(site for sites in plan.sites_watched for site in sites)
    assert sum(counts.values()) == 3 * (500 - len(plan.cloud))
    assert counts.most_common()[0][1] > 100
    assert sorted(counts.values())[len(counts) // 2] < 5


def test_a_plan_is_a_function_of_its_seed() -> None:
    first, second, other = (FleetPlan(50, 10, 10, seed).sites_watched for seed in (1, 1, 2))
    assert first == second != other


def test_each_filter_that_matches_a_topic_is_among_the_keys_of_its_publisher() -> None:
    plan = FleetPlan(30, 10, 10, seed=1)
    for broker in range(30):
        filters = [*plan.wanted_by_applications(broker), *plan.wanted_by_devices(broker)]
        for topic in (plan.telemetry(3, 4), plan.command(3, 4), plan.alarm(3, 4)):
            assert {one for one in filters if matches(one, topic)} <= {*plan.keys_published(topic)}


# What it takes


def test_covers_take_few_keys_however_many_devices_there_are() -> None:
    few, many = (trial("covers", pattern, 12, publications=60).figures for pattern in ("fleet20x20", "fleet300x300"))
    for figures in (few, many):
        assert (figures.missed, figures.duplicates, figures.bothered) == (0, 0, 0)
        assert figures.deliveries > 100
        assert figures.fleet is not None
    assert few.fleet is not None
    assert many.fleet is not None
    assert many.fleet.keys_max < 40
    assert many.fleet.upkeep_messages_per_s < 1.5 * few.fleet.upkeep_messages_per_s
    assert many.fleet.first_p99_s <= 0.03
    assert many.fleet.effect_p50_s <= 0.1


@pytest.mark.parametrize("method", ["covers", "relayfree"])
def test_a_fleet_gets_what_it_wants_and_the_checkers_are_content(method: str) -> None:
    report = trial(method, "fleet8x8", 8, publications=40)
    assert report.complaints == []
    assert report.figures.missed == report.figures.duplicates == 0
    assert report.figures.fleet is not None
    assert report.figures.fleet.grown_s > 0
    assert "8 topics and 8 command filters of devices at each broker" in report.notes


def test_a_key_a_topic_takes_more_keys_the_more_devices_there_are() -> None:
    fleet = trial("relayfree", "fleet30x30", 8, publications=20).figures.fleet
    assert fleet is not None
    assert fleet.keys_mean > 60


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "relayfree", "pattern": "fleet", "nodes": 1000}, "a key a topic, here 20,000,000"),
        ({"method": "scribe", "pattern": "fleet10x10", "nodes": 20}, "keys in order"),
        ({"method": "covers", "pattern": "fleet10x10", "nodes": 20, "faults": "loss=0.1"}, "without faults"),
    ],
)
def test_what_makes_no_sense_is_told(given: dict[str, object], words: str) -> None:
    with pytest.raises(TrialError, match=words):
        play(msgspec.convert(given, Trial))


def test_quantiles() -> None:
    assert quantile_of([], 0.5) == 0.0
    assert quantile_of([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile_of([float(number) for number in range(1, 101)], 0.99) == 99.0
