"""Trials: what they measure, that they repeat, and that their checkers notice what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from braidmq.host import Address, Message
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.checkers.pubsub import (
    each_got_it_once,
    nobody_else_was_bothered,
    suspended_only_without_subscribers,
)
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Constant, Faults, FaultsError
from braidmq.sim.trials import fault_schedule
from braidmq.sim.trials.brokers import TrialBrokers
from braidmq.sim.trials.figures import OF_THE_MACHINE, Figures
from braidmq.sim.trials.meter import BODY_BYTES, Meter, Tally, number_of
from braidmq.sim.trials.methods import TRIAL_METHODS, Options
from braidmq.sim.trials.patterns import parse
from braidmq.sim.trials.trial import Trial, TrialError, TrialReport, play

KNOWING = [name for name, kind in TRIAL_METHODS.items() if kind.entry.knows_demand]
ROUGH = "loss=0.02,dup=0.02,reorder=0.05,partition=20-40,churn=1"


def trial(method: str, pattern: str = "delta", nodes: int | None = 200, **more: object) -> TrialReport:
    return play(msgspec.convert({"method": method, "pattern": pattern, "nodes": nodes, **more}, Trial))


def protocol_figures(figures: Figures) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(figures).items() if name not in OF_THE_MACHINE}


@pytest.mark.parametrize("method", TRIAL_METHODS)
def test_every_subscriber_gets_everything_once(method: str) -> None:
    report = trial(method)
    figures = report.figures
    assert report.complaints == []
    assert (figures.publications, figures.publications_of, figures.suspended) == (20, 20, 0)
    assert (figures.deliveries, figures.missed, figures.duplicates) == (180, 0, 0)
    assert 0 < figures.hops_p50 <= figures.hops_p99 <= figures.hops_max
    assert 1 <= figures.hops_mean <= figures.hops_max
    assert figures.messages >= 180
    assert figures.bytes > figures.messages * BODY_BYTES
    assert 1 <= figures.children_max <= figures.forwards_max
    assert figures.delay_mean_s == pytest.approx(figures.hops_mean * 0.01, rel=0.2)
    if TRIAL_METHODS[method].entry.is_relay_free or method == "suzaku":
        assert figures.bothered == 0
    else:
        assert figures.bothered > 0


@pytest.mark.parametrize("method", TRIAL_METHODS)
def test_what_nobody_wants_is_not_sent_if_the_method_knows(method: str) -> None:
    report = trial(method, "2x0x20", None)
    figures = report.figures
    assert report.complaints == []
    assert (figures.publications, figures.deliveries) == (40, 0)
    if method in KNOWING:
        assert (figures.suspended, figures.messages) == (40, 0)
    else:
        assert figures.suspended == 0
        assert figures.messages == figures.messages_without_subscribers > 0


def test_mrf_forwards_twice_at_most_and_sfb_takes_fewer_hops() -> None:
    mrf, sfb = (trial("relayfree", "1x99x2", None, cut=cut).figures for cut in ("mrf", "sfb"))
    assert mrf.forwards_max == mrf.children_max == 2
    assert sfb.forwards_max > 2
    assert sfb.hops_mean < mrf.hops_mean


def test_a_large_enough_table_reaches_everybody_in_one_hop() -> None:
    small, large = (trial("adaptive", "subs60", 400, table_size=size) for size in (20, 120))
    assert large.figures.hops_max == 1
    assert large.figures.children_max == 60
    assert small.figures.hops_mean > 1
    assert (small.parameters["table_size"], small.parameters["cut"]) == (20, "sfb")


def test_tables_that_are_learnt_come_close_to_those_that_are_laid_out() -> None:
    plain, learnt = (trial("adaptive", "subs60", 300, learn_s=learn_s).figures for learn_s in (0, 20))
    laid_out = trial("adaptive", "subs60", 300, ideal=True).figures
    assert plain.hops_mean > 2 * laid_out.hops_mean
    assert learnt.hops_mean < 1.2 * laid_out.hops_mean
    assert learnt.build_messages > 1000
    assert plain.build_messages == laid_out.build_messages == 0


@pytest.mark.parametrize("method", ["relayfree", "scribe"])
def test_a_trial_is_a_function_of_its_parameters(method: str) -> None:
    first, second, other = (trial(method, network="wan", seed=seed).figures for seed in (7, 7, 8))
    assert protocol_figures(first) == protocol_figures(second) != protocol_figures(other)


def test_some_publishers_stand_for_all() -> None:
    report = trial("relayfree", "epsilon", publications=10)
    assert (report.figures.publications, report.figures.publications_of) == (10, 100)
    assert report.figures.deliveries == 50
    assert any("10 of 100 publishers" in note for note in report.notes)


def test_delegates_cross_into_each_cluster_once() -> None:
    report = trial("locality", "3x12x10", 30, clusters=4)
    assert report.complaints == []
    assert (report.figures.deliveries, report.figures.bothered) == (360, 0)
    assert report.parameters["clusters"] == 4
    assert 0 < report.figures.crossings <= 4 * report.figures.publications
    assert trial("suzaku", "3x12x10", 30, clusters=4).figures.crossings > report.figures.crossings


@pytest.mark.parametrize("method", ["suzaku", "relayfree", "adaptive"])
def test_lookups_end_at_owners(method: str) -> None:
    report = trial(method, "lookups", 64, publications=500)
    assert report.complaints == []
    assert (report.figures.deliveries, report.figures.missed) == (500, 0)
    assert 1 < report.figures.hops_mean < 6
    assert report.figures.simulated_messages > 500


@pytest.mark.parametrize("method", ["relayfree", "adaptive"])
def test_a_network_that_had_a_rough_time_is_as_good_as_before(method: str) -> None:
    report = trial(method, nodes=24, faults=ROUGH, seed=3)
    assert report.complaints == []
    assert report.figures.missed == report.figures.duplicates == report.figures.bothered == 0
    assert report.figures.deliveries > 0
    assert report.figures.rough is not None
    assert 0 < report.figures.rough.deliveries < report.figures.rough.expected


def test_demand_is_right_after_a_rough_time() -> None:
    report = trial("relayfree", "2x1x8", 24, faults=ROUGH, seed=5)
    assert report.complaints == []


def test_after_a_rough_time_the_measured_topic_is_measured_and_all_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[set[str]] = []
    publish_all = TrialBrokers.publish_all

    def note(brokers: TrialBrokers, publications: Sequence[tuple[str, int]], *more: Any) -> None:
        published.append({topic for topic, _ in publications})
        publish_all(brokers, publications, *more)

    monkeypatch.setattr(TrialBrokers, "publish_all", note)
    report = trial("relayfree", "subs10", 30, faults="loss=0.02")
    assert report.complaints == []
    assert (report.figures.publications, report.figures.publications_of) == (1, 1)
    assert (report.figures.deliveries, report.figures.messages) == (10, 10)
    measured, others = published
    assert len(measured) == 1
    assert len(others) > 1
    assert not measured & others


def test_a_rough_time_may_leave_nothing_to_measure() -> None:
    report = trial("relayfree", "subs10", 30, faults="churn=1", seed=16)
    assert report.complaints == []
    assert (report.figures.publications, report.figures.publications_of) == (0, 0)
    assert any("nobody is left" in note for note in report.notes)
    with pytest.raises(TrialError, match="nothing to draw: nobody is left"):
        trial("relayfree", "subs10", 30, faults="churn=1", seed=16, trace=True)


def test_a_laid_out_network_has_faults_without_churn() -> None:
    report = trial("relayfree", nodes=600, faults="loss=0.1,churn=1", publications=20)
    assert report.complaints == []
    assert any("no churn" in note for note in report.notes)
    assert report.figures.rough is not None
    assert report.figures.rough.deliveries < report.figures.rough.expected
    assert report.figures.missed == 0


def test_a_publication_is_drawn() -> None:
    report = trial("relayfree", nodes=30, trace=True)
    assert report.picture is not None
    assert report.picture.startswith("<svg")
    assert report.picture.count("<path") >= 9
    assert report.figures.publications == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "carrier-pigeon"}, "suzaku .*relayfree"),
        ({"network": "lan"}, "constant, uniform, wan"),
        ({"cut": "mrf", "method": "suzaku"}, "splits by right"),
        ({"cut": "mrf", "method": "scribe"}, "does not split"),
        ({"table_size": 60}, "only the method adaptive"),
        ({"table_size": 1, "method": "adaptive"}, "from 8"),
        ({"learn_s": 10}, "only the tables of the method adaptive"),
        ({"learn_s": 1e9, "method": "adaptive"}, "from 0 to"),
        ({"learn_s": 10, "method": "adaptive", "ideal": True}, "either ideal or learnt"),
        ({"learn_s": 10, "method": "adaptive", "pattern": "lookups"}, "nobody learns"),
        ({"ideal": True}, "only the tables of the method adaptive"),
        ({"ideal": True, "method": "adaptive", "nodes": 20, "faults": "loss=0.1"}, "network that grows"),
        ({"clusters": 0}, "from 1"),
        ({"pattern": "lookups", "method": "scribe"}, "no ordered overlay"),
        ({"pattern": "lookups", "faults": "loss=0.1"}, "without faults"),
        ({"pattern": "alpha", "nodes": 1000, "trace": True, "publications": 2}, "makes no picture"),
        ({"pattern": "1x0x1", "trace": True}, "nothing to draw"),
    ],
)
def test_what_makes_no_sense_is_told(given: dict[str, object], words: str) -> None:
    with pytest.raises(TrialError, match=words):
        trial(**{"method": "relayfree", "pattern": "delta", **given})  # type: ignore[arg-type]


# Checkers


def test_checkers_say_who_did_not_get_it_and_who_should_not_have() -> None:
    assert each_got_it_once("p", [1, 2, 3], [3, 1, 2]) == []
    assert each_got_it_once("p", [1, 2, 3], [1, 2, 2, 9]) == [
        "p did not reach broker 3",
        "p came more than once to broker 2",
        "p was handed to the clients of broker 9",
    ]
    assert each_got_it_once("p", range(9), []) == ["p did not reach brokers 0, 1, 2, 3, 4 and 4 more"]
    assert nobody_else_was_bothered("p", [1, 2], [2, 1, 2]) == []
    assert nobody_else_was_bothered("p", [1, 2], [7, 1, 7]) == ["p bothered broker 7"]
    assert suspended_only_without_subscribers("t", {1: True, 2: True}, True) == []
    assert suspended_only_without_subscribers("t", {1: True, 2: False}, True) == [
        "topic t has subscribers, but suspended: broker 2"
    ]
    assert suspended_only_without_subscribers("t", {1: True}, False) == [
        "topic t has no subscribers, but publishing: broker 1"
    ]


def staged(method: str, pattern: str) -> TrialBrokers:
    found = parse(pattern)
    brokers = TrialBrokers(Simulator(1), TRIAL_METHODS[method], Options())
    assert brokers.lay_out(found.deal(found.nodes_default, Random(1)), lambda _part: None) == []
    return brokers


def test_a_subscriber_that_is_silent_is_missed() -> None:
    brokers = staged("relayfree", "1x4x1")
    topic, (publishers, subscribers) = next(iter(brokers.members.items()))
    silent = next(iter(subscribers))
    brokers.sim.hosts[silent].crash()  # and nobody knows
    tally, complaints = Tally(), Complaints()
    brokers.publish_all([(topic, next(iter(publishers)))], tally, complaints, lambda _part: None)
    assert tally.missed >= 1
    assert complaints.count >= 1
    assert "did not reach" in complaints.first[0]
    assert str(silent) in complaints.first[0]


def test_a_publisher_that_knows_the_wrong_thing_is_found() -> None:
    brokers = staged("relayfree", "2x2x1")
    topic, (publishers, _) = next(iter(brokers.members.items()))
    assert brokers.wrong_demand() == []
    brokers.roles[next(iter(publishers))].demand[topic] = False
    assert len(brokers.wrong_demand()) == 1


def test_complaints_are_counted_when_there_are_too_many() -> None:
    complaints = Complaints()
    complaints.add(f"complaint {number}" for number in range(100))
    assert complaints.count == 100
    assert len(complaints.first) == 20


class Letter(Message, frozen=True, array_like=True, gc=False):
    body: bytes


class Notice(Message, frozen=True, array_like=True, gc=False):
    text: str


def test_the_meter_counts_what_carries_the_body_and_nothing_else() -> None:
    sim = Simulator(1)
    hosts = [sim.host(address) for address in range(3)]
    meter, tally = Meter(sim), Tally()
    body = meter.begin("t", 0, (1,), (0, 1))
    hosts[0].send(1, Letter(b"prefix" + body))
    hosts[0].send(1, Letter(b"something else"))
    hosts[0].send(1, Notice("hello"))
    hosts[1].send(2, Letter(body))
    hosts[1].send(2, Letter(body))
    meter.close(tally, None, relay_free=True)
    assert (tally.messages, tally.forwards_max, tally.children_max) == (3, 2, 1)
    assert (tally.expected, tally.missed, tally.bothered) == (1, 1, 1)
    assert 3 * BODY_BYTES < tally.bytes < 3 * (BODY_BYTES + 30)
    assert number_of(body) == 1
    assert number_of(b"short") is None


# The rough time


def test_the_weather_is_rough_for_a_while() -> None:
    schedule = fault_schedule.FaultSchedule(Constant(0.01), Faults(loss=1.0), 0.0)
    source: Address = 1
    delays = [bool(schedule.delays(Random(1), source, 2, now)) for now in (0.0, 10.0)]
    until_s = schedule.begin(20.0)
    delays += [bool(schedule.delays(Random(1), source, 2, now)) for now in (20.0, until_s - 1, until_s)]
    assert delays == [True, True, False, False, True]


def test_partitions_count_from_the_beginning_of_the_rough_time() -> None:
    faults, churn = fault_schedule.parse("partition=100-200, churn=0.5,loss=0.1")
    assert churn == 0.5
    assert (faults.partitions, faults.loss) == (((100.0, 200.0),), 0.1)
    assert fault_schedule.length_s(faults) == 230.0
    assert fault_schedule.length_s(Faults()) == 100.0


@pytest.mark.parametrize(
    ("text", "words"),
    [("churn=often", "no number"), ("churn=-1", "from 0"), ("storm=1", "churn="), ("loss=2", "loss=")],
)
def test_faults_that_are_none_are_told(text: str, words: str) -> None:
    with pytest.raises(FaultsError, match=words):
        fault_schedule.parse(text)
