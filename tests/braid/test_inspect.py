"""What brokers tell of their braid, in virtual time: the ring, which brokers want a topic, the way of a probe."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from braidmq.braid.catch_up.reconcile import Missed
from braidmq.braid.inspect import status
from braidmq.braid.inspect.answers import Unanswerable
from braidmq.braid.inspect.probes import MARK
from braidmq.braid.inspect.ring import AskStatus
from braidmq.braid.transfer.accounting import weigh
from braidmq.braid.transfer.batch import PublicationBatch, pack
from braidmq.keys import Role, segment
from braidmq.overlay.ranges import Deliver, Plan
from braidmq.pubsub.covers.multicast_messages import CopyReceived, MulticastCopy
from braidmq.pubsub.relay_free.signals import MESSAGE, QUESTION, RESUME
from tests.conformance import wire
from tests.conformance.wire import V5

from .sites import Sites, payloads
from .slow_paths import SlowPaths

T = TypeVar("T")

METHODS = pytest.mark.parametrize("method", ["covers", "relayfree", "suzaku"])


class Watched(Sites):
    """Sites that can be asked."""

    def __init__(self, count: int, method: str = "") -> None:
        super().__init__(count, method=method, clusters=[f"cluster{number}" for number in range(count)])
        self.status = {number: site.braid.status for number, site in self.all.items()}

    def ask(self, number: int, question: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
        answers: list[T | Unanswerable] = []

        async def run() -> None:
            try:
                answers.append(await question)
            except Unanswerable as error:
                answers.append(error)

        self[number].host.spawn(run())
        for _ in range(int(seconds)):
            self.run(1.0)
            if answers:
                break
        (answer,) = answers
        if isinstance(answer, Unanswerable):
            raise answer
        return answer


@METHODS
def test_a_whole_ring_is_healthy_whichever_is_asked(method: str) -> None:
    sites = Watched(6, method)
    for number in (0, 3, 5):
        answer = sites.ask(number, sites.status[number].ring())
        assert answer.is_whole
        assert [(one.name, one.cluster) for one in answer.brokers] == [
            (f"site{index}", f"cluster{index}") for index in range(6)
        ]
        assert all(one.is_healthy for one in answer.brokers)


def test_distances_are_measured_and_who_is_silent_has_none() -> None:
    sites = Watched(4)
    network = SlowPaths(sites.sim.network)
    sites.sim.network = network
    network.slower_s = {(0, 2): 0.03, (2, 0): 0.05}
    sites[3].crash()
    answer = sites.ask(0, sites.status[0].distances())
    found = {one.broker: one.round_trip_ms for one in answer.distances}
    assert answer.broker == "site0"
    assert found["site3"] is None
    assert found["site1"] is not None
    assert found["site2"] == pytest.approx(found["site1"] + 80, abs=5)


def test_a_crash_shows_until_the_ring_is_mended() -> None:
    sites = Watched(5)
    sites[2].crash()
    rows = {one.name: one for one in sites.ask(0, sites.status[0].ring()).brokers}
    assert not all(row.is_healthy for row in rows.values())
    assert not rows["site1"].is_healthy
    sites.run(90.0)
    mended = sites.ask(0, sites.status[0].ring())
    assert mended.is_whole
    assert [(one.name, one.is_healthy) for one in mended.brokers] == [(f"site{index}", True) for index in (0, 1, 3, 4)]


@METHODS
def test_a_probe_goes_where_a_publication_goes_and_no_client_gets_it(method: str) -> None:
    sites = Watched(7, method)
    wanted = {1: "tide/+/high", 3: "tide/#", 4: "tide/#", 6: "tide/west/high"}
    clients = {number: sites.client(number) for number in wanted}
    for number, topic_filter in wanted.items():
        clients[number].subscribe(topic_filter, 1)
    sites.run(5.0)
    answer = sites.ask(0, sites.status[0].trace("tide/west/high"))
    if method == "covers":  # a publication goes to brokers, not to filters
        wanted = dict.fromkeys(wanted, "tide/west/high")
    assert sorted(answer.filters) == sorted({*wanted.values()})
    assert {hop.to: hop.filter for hop in answer.hops if hop.receives} == {
        f"site{number}": topic_filter for number, topic_filter in wanted.items()
    }
    assert answer.receivers == 4
    by_filter = {hop.filter: {"site0"} for hop in answer.hops}
    for hop in answer.hops:  # in order: each comes from where it was before
        assert hop.sender in by_filter[hop.filter]
        by_filter[hop.filter].add(hop.to)
    for client in clients.values():
        assert payloads(client) == []

    sites.sent.clear()
    publisher = sites.client(0)
    publisher.publish("tide/west/high", b"real", 0)
    taken = sorted(f"site{to}" for _, to in sites.sent)
    assert taken == sorted(hop.to for hop in answer.hops)
    for client in clients.values():
        assert payloads(client) == [b"real"]


@METHODS
def test_demand_names_all_and_only_those_who_want_a_topic(method: str) -> None:
    sites = Watched(5, method)
    for number, topic_filter in ((1, "tide/+"), (2, "tide/high"), (4, "wind/#")):
        sites.client(number).subscribe(topic_filter, 1)
    sites.run(5.0)
    answer = sites.ask(0, sites.status[0].demand("tide/high"))
    assert {one.name: one.filters for one in answer.brokers} == {"site1": ["tide/+"], "site2": ["tide/high"]}
    assert answer.is_complete
    assert sites.ask(0, sites.status[0].demand("rain")).brokers == []


@pytest.mark.parametrize("topic", ["", "tide/#", "$SYS/broker/uptime", "$braid/dir"])
def test_what_is_not_passed_on_has_no_demand_and_no_way(topic: str) -> None:
    sites = Watched(2)
    for question in (sites.status[0].demand(topic), sites.status[0].trace(topic)):
        with pytest.raises(Unanswerable):
            sites.ask(0, question)


def test_a_probe_that_cannot_be_read_harms_nobody() -> None:
    sites = Watched(2)
    client = sites.client(1)
    client.subscribe("tide", 1)
    publisher = sites.client(0)
    publisher.publish("tide", b"1", 0)
    sites[0].braid.method.publish("tide", MARK + b"\xc1")
    sites.run(1.0)
    publisher.publish("tide", b"2", 0)
    assert payloads(client) == [b"1", b"2"]


def test_publications_are_told_from_upkeep() -> None:
    def deliver(topic: str, body: bytes) -> Deliver:
        return Deliver(1, 1, 0, (segment(topic, Role.SUBSCRIBER),), 1, body, Plan())

    body = MESSAGE + pack(PublicationBatch("a", 1, "tide", 1, 1, 5, b"x" * 100, ()))
    assert weigh(deliver("tide", body)) > len(body)
    assert weigh(Missed((b"x" * 100,), 1, 1)) > 100
    copy = MulticastCopy(1, 1, "tide", 1, (), False, body)
    listed = MulticastCopy(1, 1, "tide", 1, (("10.0.0.7:7883", "eu"),), False, body)
    assert weigh(listed) > weigh(copy) > len(body)
    for upkeep in (
        deliver("", body),
        deliver("$braid/keep", body),
        deliver("tide", QUESTION + b"who"),
        deliver("tide", RESUME),
        MulticastCopy(1, 1, "", 1, (), False, body),
        MulticastCopy(1, 1, "$braid/keep", 1, (), True, body),
        CopyReceived(1),
        AskStatus(),
        Missed((), 1, 1),
    ):
        assert weigh(upkeep) == 0


def test_many_topics_and_filters_are_told_in_order_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LOOKED_AT_ONCE", 10)
    sites = Watched(2)
    publisher, subscriber = sites.client(0, "p"), sites.client(1, "s")
    for number in range(25):
        subscriber.connection.receive(wire.subscribe(1 + number, (f"cmd/{number:02}/+", 0), version=V5))
        for _ in range(1 + number % 5):
            publisher.connection.receive(wire.publish(f"dev/{number:02}/up", b"", version=V5))
    sites.run(20)
    told = sites.ask(0, sites.status[0].topics("dev/#", 7))
    busiest = [f"dev/{number:02}/up" for number in (4, 9, 14, 19, 24, 3, 8)]
    assert [(one.topic, one.publications) for one in told.published] == list(
        zip(busiest, [5, 5, 5, 5, 5, 4, 4], strict=True)
    )
    assert told.published_in_all == 25
    told = sites.ask(1, sites.status[1].topics("#", 7))
    assert [one.filter for one in told.interest] == [f"cmd/{number:02}/+" for number in range(7)]
    assert all(one.stands and one.is_effective for one in told.interest)
    assert told.interest_in_all == 25
    assert sites.ask(1, sites.status[1].topics("cmd/07/#")).interest_in_all == 1


def test_topics_that_nobody_wants_are_counted_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "COUNTED_AT_ONCE", 10)
    sites = Watched(2)
    sites.client(1, "s").subscribe("dev/+/up", 0)
    publisher = sites.client(0, "p")
    for number in range(25):
        for topic in ("up", "down"):
            publisher.connection.receive(wire.publish(f"dev/{number}/{topic}", b"", version=V5))
    sites.run(30)
    counts = [sites.status[0].suspended for _ in range(15)]
    assert counts == [0, 0, 0, 0, *[25] * 11]


def test_covers_are_told_where_the_method_has_them() -> None:
    sites = Watched(3, "covers")
    subscriber = sites.client(1, "s")
    for number in range(200):
        subscriber.connection.receive(wire.subscribe(1 + number, (f"cmd/{number}/#", 0), version=V5))
    sites.run(5)
    sites.client(0, "p").publish("cmd/7/go", b"x", 1)
    sites.run(5)
    publishing, wanting = sites.status[0].describe().covers, sites.status[1].describe().covers
    assert publishing is not None
    assert wanting is not None
    assert (publishing.publications, publishing.subscribers, publishing.wants_known) == (["cmd/7/go"], 1, 1)
    assert (wanting.wants, wanting.watchers) == (["cmd/+/#"], 1)
    assert sites.ask(0, sites.status[0].topics()).published[0].wanted == ["cmd/7/#"]
    assert Watched(1, "adaptive").status[0].covers is None
