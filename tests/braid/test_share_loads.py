"""What members of shared subscriptions say of themselves (`$load/<group>`), and what they get because of it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from braidmq.braid.shares.group_announcing import SAY_LOAD_S
from braidmq.broker.proportions import Proportions
from braidmq.broker.share_policies import SharePolicy
from tests.braid.sites import Sites
from tests.braid.test_share_policies import PolicySites
from tests.braid.test_shares import SHARED, acknowledge, done, jobs, member
from tests.conformance.pair import Peer, Type
from tests.conformance.wire import Received

POLICIES = ("near", "balanced", "least-loaded", "round-robin", "hash")


def says(peer: Peer, **load: float) -> None:
    assert peer.publish("$load/workers", json.dumps(load).encode(), 1) in (None, 0)


def sites_with(policy: Any, count: int = 2) -> Sites:
    return PolicySites(count, SharePolicy(name=policy))


def received(peer: Peer) -> list[Received]:
    """What has come and is not acknowledged."""
    return [one for one in peer.take() if one.type is Type.PUBLISH]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("qos", [1, 2])
def test_a_member_has_no_more_than_its_slots(policy: str, qos: int) -> None:
    sites = sites_with(policy, 1)
    worker, publisher = member(sites, 0, "worker"), sites.client(0, "p")
    says(worker, slots=2)
    for payload in jobs(5):
        publisher.publish("jobs/a", payload, qos)
    first = received(worker)
    assert [one.payload for one in first] == jobs(2)
    for one in first:
        acknowledge(worker, one)
    assert sorted(done(worker)) == jobs(5)[2:]


@pytest.mark.parametrize("policy", POLICIES)
def test_other_brokers_lend_no_more_than_slots(policy: str) -> None:
    sites = sites_with(policy)
    worker, publisher = member(sites, 1, "worker"), sites.client(0, "p")
    says(worker, slots=2)
    sites.run(2 * SAY_LOAD_S)
    sites.settle_s = 0.1
    for payload in jobs(5):
        publisher.publish("jobs/a", payload, 1)
    lender = sites[0].braid.shares.lender
    first = received(worker)
    assert ([one.payload for one in first], lender.assigned, lender.returned) == (jobs(2), 2, 0)
    for one in first:
        worker.acknowledge(one)
    assert done(worker) == jobs(5)[2:]
    assert lender.returned == 0


def test_a_member_without_slots_gets_nothing_until_it_has_some() -> None:
    sites = sites_with("near", 3)
    worker, far, publisher = member(sites, 1, "worker"), member(sites, 2, "far"), sites.client(0, "p")
    for peer in (worker, far):
        says(peer, slots=0)
    for payload in jobs(4):
        publisher.publish("jobs/a", payload, 1)
    publisher.publish("jobs/a", b"unsure", 0)
    assert received(worker) == received(far) == []
    says(worker, slots=4)
    assert sorted(done(worker)) == jobs(4)
    assert received(far) == []


def test_slots_are_those_of_all_filters_of_a_name() -> None:
    sites = sites_with("near", 1)
    worker, publisher = member(sites, 0, "worker"), sites.client(0, "p")
    says(worker, slots=3)
    assert worker.subscribe("$share/workers/errands", 1) == 1
    for payload in jobs(4):
        publisher.publish("jobs/a", payload, 1)
        publisher.publish("errands", payload, 1)
    assert len(received(worker)) == 3


@pytest.mark.parametrize("sites_count", [1, 3])
def test_least_loaded_goes_by_what_is_left_of_a_processor(sites_count: int) -> None:
    sites = sites_with("least-loaded", sites_count)
    busy, idle = (member(sites, number % sites_count, name) for number, name in ((0, "busy"), (2, "idle")))
    publisher = sites.client(0, "p")
    for peer, cpu in ((busy, 90), (idle, 20)):
        says(peer, slots=10, cpu=cpu)
    sites.run(2 * SAY_LOAD_S)
    got: Counter[str] = Counter()
    for payload in jobs(8):
        publisher.publish("jobs/a", payload, 1)
        got.update(busy=len(done(busy)), idle=len(done(idle)))
    assert (got["busy"], got["idle"]) == (0, 8)
    says(busy, cpu=0)
    says(idle, cpu=60)
    sites.run(2 * SAY_LOAD_S)
    publisher.publish("jobs/a", b"now", 1)
    assert (done(busy), done(idle)) == ([b"now"], [])


@pytest.mark.parametrize("sites_count", [1, 3])
@pytest.mark.parametrize("qos", [0, 1])
def test_balanced_divides_by_slots_and_processor(sites_count: int, qos: int) -> None:
    sites = sites_with("balanced", sites_count)
    small, large = (member(sites, number % sites_count, name) for number, name in ((1, "small"), (2, "large")))
    publisher = sites.client(0, "p")
    says(small, slots=5, cpu=50)
    says(large, slots=10, cpu=0)
    sites.run(2 * SAY_LOAD_S)
    got: Counter[str] = Counter()
    for payload in jobs(20):
        publisher.publish("jobs/a", payload, qos)
        got.update(small=len(done(small)), large=len(done(large)))
    assert sum(got.values()) == 20
    assert 3 <= got["small"] <= 5


def test_all_brokers_are_told_seldom_how_busy_members_are() -> None:
    sites = sites_with("least-loaded")
    worker = member(sites, 1, "worker")
    records = sites[0].braid.shares.records
    sites.settle_s = 0.1
    told = set()
    for cpu in range(0, 100, 2):
        says(worker, cpu=cpu)
        told.add(next(iter(records.members_of(SHARED))).at)
    sites.run(2 * SAY_LOAD_S)
    assert next(iter(records.members_of(SHARED))).idle == 0.05
    assert 2 <= len(told) <= 2 + 50 * 0.2 / SAY_LOAD_S


def test_what_a_member_said_ends_with_its_subscription() -> None:
    sites = sites_with("near", 1)
    worker, publisher = member(sites, 0, "worker"), sites.client(0, "p")
    says(worker, slots=1)
    worker.unsubscribe(SHARED)
    assert worker.subscribe(SHARED, 1) == 1
    for payload in jobs(3):
        publisher.publish("jobs/a", payload, 1)
    assert len(received(worker)) == 3


def test_what_comes_is_divided_in_proportion() -> None:
    proportions: Proportions[str] = Proportions()
    one_by_one = Counter(proportions.next({"a": 1.0, "b": 3.0}) for _ in range(40))
    assert one_by_one == {"a": 10, "b": 30}
    assert proportions.divide(40, {"a": 1.0, "b": 3.0}) == {"a": 10, "b": 30}
    assert proportions.divide(7, {"c": 0.5}) == {"c": 7}
