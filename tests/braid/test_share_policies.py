"""The policies of shared subscriptions over several brokers: who gets what, where several could take it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from braidmq.broker.share_policies import SharePolicy
from tests.braid.sites import Site, Sites
from tests.braid.test_shares import done, jobs, member
from tests.conformance import wire
from tests.conformance.pair import Peer, Type
from tests.conformance.wire import props


class PolicySites(Sites):
    """All brokers have one policy for the group."""

    def __init__(self, count: int, policy: SharePolicy) -> None:
        self.policy = policy
        super().__init__(count)

    def add(self, number: int, **options: Any) -> Site:
        return super().add(number, share_policies={"workers": self.policy}, **options)


def sites_with(name: Any, key: str = "topic") -> tuple[Sites, list[Peer], Peer]:
    """Three brokers with a member each, and a publisher at the first."""
    sites = PolicySites(3, SharePolicy(name=name, key=key))
    members = [member(sites, number, f"m{number}") for number in range(3)]
    return sites, members, sites.client(0, "p")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_round_robin_gives_each_broker_as_much(qos: int) -> None:
    _, members, publisher = sites_with("round-robin")
    for payload in jobs(30):
        publisher.publish("jobs/a", payload, qos)
    shares = [done(peer) for peer in members]
    assert sorted(chain(*shares)) == sorted(jobs(30))
    assert [len(share) for share in shares] == [10, 10, 10]


def test_balanced_follows_what_members_can_take() -> None:
    sites = PolicySites(3, SharePolicy(name="balanced"))
    small = member(sites, 1, "small", properties=props(receive_maximum=5))
    large = member(sites, 2, "large", properties=props(receive_maximum=20))
    publisher = sites.client(0, "p")
    sites.settle_s = 0.001
    for number, payload in enumerate(jobs(25)):
        publisher.send(wire.publish("jobs/a", payload, qos=1, packet_id=1 + number))
    sites.settle_s = 1.0
    sites.run(5.0)
    shares = [[one for one in peer.take() if one.type is Type.PUBLISH] for peer in (small, large)]
    assert [len(share) for share in shares] == [5, 20]


def test_least_loaded_gives_to_who_can_take_most() -> None:
    sites = PolicySites(3, SharePolicy(name="least-loaded"))
    small = member(sites, 0, "small", properties=props(receive_maximum=5))
    large = member(sites, 2, "large", properties=props(receive_maximum=50))
    publisher = sites.client(0, "p")
    publisher.publish("jobs/a", b"first", 1)
    assert done(large) + done(small) == [b"first"]
    for payload in jobs(20):
        publisher.publish("jobs/a", payload, 1)
    assert (done(small), len(done(large))) == ([], 20)


def by_topic(number: int) -> dict[str, Any]:
    return {"topic": f"jobs/{number % 7}"}


def by_client(_number: int) -> dict[str, Any]:
    return {"topic": "jobs/a"}


def by_property(number: int) -> dict[str, Any]:
    return {"topic": "jobs/a", "properties": props(user=[("bus", f"bus{number % 7}")])}


@pytest.mark.parametrize(("key", "made"), [("topic", by_topic), ("client", by_client), ("bus", by_property)])
@pytest.mark.parametrize("qos", [0, 1])
def test_hash_gives_one_key_to_one_member(key: str, made: Callable[[int], dict[str, Any]], qos: int) -> None:
    sites, members, publisher = sites_with("hash", key)
    second = member(sites, 1, "second")
    other = sites.client(2, "p2")
    seen: dict[bytes, set[str]] = {}
    for number in range(42):
        options = made(number)
        who = (publisher, other)[number % 2]
        name = options["topic"].encode() + options.get("properties", b"") if key != "client" else b"%d" % (number % 2)
        who.publish(payload=name, qos=qos, **options)
    sites.run(5.0)
    for peer in (*members, second):
        for payload in done(peer):
            seen.setdefault(payload, set()).add(str(id(peer)))
    assert len(seen) == (2 if key == "client" else 7)
    assert all(len(who) == 1 for who in seen.values())
    assert key == "client" or len(set().union(*seen.values())) > 1


def test_hash_waits_for_its_member_and_others_overtake() -> None:
    sites = PolicySites(2, SharePolicy(name="hash"))
    one, two = (member(sites, number, f"m{number}", properties=props(receive_maximum=1)) for number in (0, 1))
    publisher = sites.client(0, "p")
    for round_number in range(3):
        for topic in range(8):
            publisher.publish(f"jobs/{topic}", b"%d/%d" % (topic, round_number), 1)
    first = [peer.take() for peer in (one, two)]
    assert [len(each) for each in first] == [1, 1], "each has one in hand"
    two.acknowledge(first[1][0])
    got = [first[1][0].payload, *done(two)]
    one.acknowledge(first[0][0])
    rest = [first[0][0].payload, *done(one)]
    assert sorted(got + rest) == sorted(b"%d/%d" % (topic, number) for topic in range(8) for number in range(3))
    topics = [{payload.split(b"/")[0] for payload in each} for each in (got, rest)]
    assert not topics[0] & topics[1]
    for each in (got, rest):
        for topic in range(8):
            own = [payload for payload in each if payload.startswith(b"%d/" % topic)]
            assert own == sorted(own), "in order"
