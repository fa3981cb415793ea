"""What brokers tell of shared subscriptions: who wants a topic, and whom the next message goes to, and why."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.admin.contract import TraceAnswer
from braidmq.admin.share_contract import GroupChoice
from braidmq.broker.share_policies import SharePolicy
from tests.braid.test_inspect import Watched
from tests.braid.test_shares import SHARED, done, member
from tests.conformance.wire import props

from .sites import Site


class PolicySites(Watched):
    """Three brokers, of which the first two have the same cluster."""

    def __init__(self, policy: Any = "near") -> None:
        self._policy = SharePolicy(name=policy)
        super().__init__(3)

    def add(self, number: int, **options: Any) -> Site:
        self.clusters = {0: "cloud/edge1", 1: "cloud/edge1", 2: "cloud/edge2"}
        return super().add(number, share_policies={"workers": self._policy}, **options)

    def trace(self, number: int = 0) -> TraceAnswer:
        return self.ask(number, self.status[number].trace("jobs/a", surely=True))

    def choice(self) -> GroupChoice:
        (choice,) = self.trace().groups
        return choice


@pytest.mark.parametrize("policy", ["near", "balanced", "least-loaded", "round-robin", "hash"])
def test_a_message_goes_where_a_trace_said_it_would(policy: str) -> None:
    sites = PolicySites(policy)
    members = {f"m{number}": member(sites, number, f"m{number}") for number in range(3)}
    members["other"] = member(sites, 2, "other")
    publisher = sites.client(0, "p")
    for number in range(6):
        first, again = sites.choice(), sites.choice()
        assert (first.member, first.broker) == (again.member, again.broker)
        publisher.publish("jobs/a", b"%d" % number, 1)
        assert [name for name, peer in members.items() if done(peer)] == [first.member]


def test_near_says_why() -> None:
    sites = PolicySites()
    far = member(sites, 2, "far")
    choice = sites.choice()
    assert (choice.member, choice.broker) == ("far", "site2")
    assert "one level up" in choice.why
    near = member(sites, 1, "near", properties=props(receive_maximum=1))
    assert sites.choice().broker == "site1"
    sites.client(0, "p").publish("jobs/a", b"job", 1)
    sites.run(3.0)
    choice = sites.choice()
    assert choice.broker == "site2"
    assert next((one.broker, one.levels_up, one.free) for one in choice.places) == ("site1", 0, 0)
    here = member(sites, 0, "here")
    assert sites.choice().why == "a member here is free"
    assert sites.trace(1).groups[0].broker in ("site0", "site1")
    assert [done(peer) for peer in (near, here, far)] == [[b"job"], [], []]


def test_where_all_are_busy_or_away_it_waits() -> None:
    sites = PolicySites()
    busy = member(sites, 1, "busy", properties=props(receive_maximum=1, session_expiry=900))
    publisher = sites.client(0, "p")
    publisher.publish("jobs/a", b"1", 1)
    publisher.publish("jobs/a", b"2", 1)
    choice = sites.choice()
    assert (choice.broker, choice.member, choice.waiting) == ("", "", 1)
    assert choice.why == "one message waits here before it"
    assert done(busy) == [b"1", b"2"]
    busy.disconnect()
    assert "no member is connected" in sites.choice().why


def test_topics_and_demand_name_groups() -> None:
    sites = PolicySites()
    member(sites, 1, "m1")
    member(sites, 2, "m2", topic_filter="$share/log/#")
    sites.client(0, "p").publish("jobs/a", b"job", 1)
    answer = sites.ask(0, sites.status[0].topics())
    assert {one.topic: one.groups for one in answer.published} == {"jobs/a": ["$share/log/#", SHARED]}
    assert [(one.group, one.brokers, one.members) for one in answer.groups] == [
        ("$share/log/#", ["site2"], 0),
        (SHARED, ["site1"], 0),
    ]
    wanting = sites.ask(0, sites.status[0].demand("jobs/a"))
    assert [(one.name, one.filters) for one in wanting.brokers] == [("site1", [SHARED]), ("site2", ["$share/log/#"])]
    assert sites.ask(0, sites.status[0].demand("other")).brokers[0].filters == ["$share/log/#"]
