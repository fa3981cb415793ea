"""Interest by covers: brokers meet by few keys, know exactly what the others want, and send to nobody else."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from braidmq.host import Address
from braidmq.overlay.flexible import FlexibleGraph
from braidmq.overlay.ranges import Outcome
from braidmq.pubsub.covers import covers
from braidmq.pubsub.covers.covers import HEARTBEAT_S, MEET_AGAIN_S, SWEEP_S, Covers
from braidmq.pubsub.covers.known_wants import IDLE_S, SILENT_S
from braidmq.pubsub.covers.multicast_messages import MulticastCopy
from braidmq.pubsub.covers.rendezvous import KEYS_MAX, LEAVE_AFTER_S
from braidmq.pubsub.covers.told_wants import SPLIT_BELOW
from braidmq.sim.engine import Network
from braidmq.sim.network import Uniform
from tests.simulated import FaultyNetwork, MethodNetwork, flexible_of

SETTLED_S = 5.0


class Brokers(MethodNetwork[FlexibleGraph, Covers]):
    def __init__(
        self, count: int, seed: int = 1, network: Network | None = None, clusters: tuple[str, ...] = ()
    ) -> None:
        self.clusters = dict(enumerate(clusters))
        super().__init__(flexible_of(), self._build, seed, network or Uniform(0.001, 0.02), counted=(MulticastCopy,))
        for address in range(count):
            self.start(address, [self.new_key()])
            self.run(1.0)

    def _build(self, overlay: FlexibleGraph, address: Address) -> Covers:
        cluster = self.clusters.get(int(address), "")
        incarnation = self.sim.hosts[address].incarnation
        return Covers(overlay, f"b{address}", cluster, incarnation=incarnation)

    def want(self, address: Address, filters: Iterable[str]) -> None:
        for one in filters:
            self.subscribe(one, address)

    def offer(self, address: Address, *topics: str) -> None:
        for topic in topics:
            self.advertise(topic, address)
        self.run(SETTLED_S)

    def wanting(self, address: Address, topic: str) -> list[str]:
        return sorted(one.name for one in self.methods[address].known.receivers(topic))


def devices(count: int) -> list[str]:
    return [f"dev/{number:04}/telemetry" for number in range(count)]


def test_a_first_message_goes_to_those_that_want_it_and_takes_nothing_else() -> None:
    brokers = Brokers(4)
    brokers.want(1, ["dev/+/telemetry"])
    brokers.want(2, ["dev/0500/telemetry", "dev/0007/#"])
    brokers.want(3, ["dev/+/state", "cmd/#"])
    brokers.offer(0, *devices(20))
    assert brokers.methods[0].publication_covers == ["dev/+/telemetry"]
    for topic, receivers in (
        ("dev/0999/telemetry", [1]),
        ("dev/0500/telemetry", [1, 2]),
        ("dev/0007/telemetry", [1, 2]),
    ):
        assert brokers.methods[0].knows(topic)
        brokers.publish(topic, 0, seconds=0.5)
        assert brokers.receivers() == receivers
        assert sorted(to for _, to in brokers.sent) == receivers


def test_what_nobody_wants_costs_no_message_and_is_known_to_be_unwanted() -> None:
    brokers = Brokers(3)
    brokers.want(1, ["dev/+/state"])
    brokers.offer(0, *devices(20))
    brokers.run(HEARTBEAT_S)
    brokers.forget()
    assert brokers.methods[0].knows("dev/1234/telemetry")
    assert not brokers.methods[0].is_wanted("dev/1234/telemetry")
    assert not brokers.methods[0].publish("dev/1234/telemetry", b"news")
    brokers.run(0.3)
    assert not brokers.got
    assert not brokers.kinds["MulticastCopy"]


def test_a_fleet_takes_few_keys_on_both_sides() -> None:
    brokers = Brokers(3)
    brokers.want(1, [f"cmd/{number}/#" for number in range(500)])
    brokers.offer(0, *(f"cmd/{number}/go" for number in range(100)))
    brokers.run(LEAVE_AFTER_S + 1.0)
    publisher, subscriber = brokers.methods[0], brokers.methods[1]
    assert subscriber.want_covers == ["cmd/+/#"]
    assert len(subscriber.overlay.view.own) == len(publisher.overlay.view.own) == 2, "its own and one for the fleet"
    assert publisher.wants_known == 500
    assert brokers.wanting(0, "cmd/499/go") == ["b1"]
    assert brokers.wanting(0, "cmd/500/go") == []


def test_a_new_filter_under_a_known_cover_is_one_message_to_each_publisher_that_it_concerns() -> None:
    brokers = Brokers(4)
    brokers.want(1, [f"cmd/{number}/#" for number in range(20)])
    brokers.offer(0, *(f"cmd/{number}/go" for number in range(20)))
    brokers.offer(2, *(f"cmd/{number}/stop" for number in range(20)))
    brokers.offer(3, *devices(20))
    brokers.run(LEAVE_AFTER_S + SETTLED_S)
    brokers.forget()
    took: list[float] = []

    async def subscribe() -> None:
        began_at = brokers.sim.now
        await brokers.methods[1].subscribe("cmd/777/go")
        took.append(brokers.sim.now - began_at)

    brokers.do(1, subscribe())
    brokers.run(0.2)
    assert took
    assert took[0] < 0.05, "there and back"
    assert brokers.wanting(0, "cmd/777/go") == ["b1"]
    assert brokers.methods[2].wants_known == 20, "it does not publish what that matches"


@pytest.mark.parametrize("seed", range(1, 6))
def test_what_is_published_after_a_subscription_returned_arrives(seed: int) -> None:
    brokers = Brokers(5, seed)
    chance = brokers.sim.chance
    published: list[tuple[bytes, list[Address]]] = []
    wanting: dict[str, list[Address]] = {}

    async def subscribe(address: Address, topic: str) -> None:
        await brokers.methods[address].subscribe(topic)
        wanting.setdefault(topic, []).append(address)

    async def publish(address: Address, topic: str, body: bytes) -> None:
        receivers = [one for one in wanting.get(topic, ()) if one != address]
        published.append((body, receivers))
        await brokers.methods[address].advertise(topic)
        brokers.methods[address].publish(topic, body)

    for number in range(200):
        address, topic = chance.randrange(5), f"room/{chance.randrange(12)}/{chance.choice('ab')}"
        if chance.random() < 0.3 and address not in wanting.get(topic, ()):
            brokers.do(address, subscribe(address, topic))
        else:
            brokers.do(address, publish(address, topic, b"%d" % number))
        brokers.run(chance.uniform(0.0, 0.1))
    brokers.run(SETTLED_S)
    arrived = {(address, publication.body) for address, publication in brokers.got}
    assert len(arrived) == len(brokers.got)
    missing = [(body, one) for body, receivers in published for one in receivers if (one, body) not in arrived]
    assert not missing
    assert sum(len(receivers) for _, receivers in published) > 50


def test_a_subscription_that_ends_is_told_and_its_cover_stays_for_a_while() -> None:
    brokers = Brokers(2)
    brokers.want(1, [f"cmd/{number}/#" for number in range(20)])
    brokers.offer(0, *(f"cmd/{number}/go" for number in range(20)))
    for number in range(SPLIT_BELOW, 20):
        brokers.unsubscribe(f"cmd/{number}/#", 1)
    brokers.run(1.0)
    assert brokers.wanting(0, "cmd/7/go") == []
    assert brokers.wanting(0, "cmd/1/go") == ["b1"]
    assert brokers.methods[1].want_covers == ["cmd/+/#"]
    brokers.run(2 * SWEEP_S)
    assert sorted(brokers.methods[1].want_covers) == [f"cmd/{number}/#" for number in range(SPLIT_BELOW)]
    assert brokers.wanting(0, "cmd/1/go") == ["b1"]
    brokers.want(1, ["cmd/19/+"])
    brokers.run(SETTLED_S)
    assert brokers.wanting(0, "cmd/19/go") == ["b1"]


def test_a_broker_with_many_to_greet_is_silent_for_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """It greets some that want nothing of it beside those that do; there are more of all than it greets in a heartbeat,
    and they come one after the other."""
    monkeypatch.setattr(covers, "HEARTBEATS_A_SECOND_MAX", 0.4)
    brokers = Brokers(2)
    brokers.want(0, ["dev/+/telemetry", "x/7"])
    for address in range(2, 14):
        brokers.start(address, [brokers.new_key()])
        brokers.run(1.0)
        brokers.offer(address, "dev/1/telemetry" if address % 3 else "x/6")
        if address % 3 == 0:
            brokers.offer(address, *(f"x/{number}" for number in range(20, 40)))
    publishing = [address for address in range(2, 14) if address % 3]
    for _ in range(400):
        brokers.run(1.0)
        assert [address for address in publishing if brokers.wanting(address, "dev/1/telemetry") != ["b0"]] == []


def test_a_broker_that_falls_silent_makes_no_demand_and_is_remembered() -> None:
    brokers = Brokers(3)
    brokers.want(1, ["dev/+/telemetry"])
    brokers.offer(0, *devices(3))
    assert brokers.methods[0].is_wanted("dev/0001/telemetry")
    brokers.crash(1)
    brokers.run(SILENT_S + 3 * HEARTBEAT_S)
    assert not brokers.methods[0].is_wanted("dev/0001/telemetry")
    assert brokers.methods[0].was_wanted("dev/0001/telemetry")
    assert brokers.methods[0].was_wanted("dev/0002/telemetry")
    brokers.return_one()
    brokers.run(SETTLED_S)
    brokers.want(1, ["dev/0002/+"])
    brokers.run(SETTLED_S)
    assert brokers.wanting(0, "dev/0001/telemetry") == []
    assert brokers.wanting(0, "dev/0002/telemetry") == ["b1"]
    assert not brokers.methods[0].was_wanted("dev/0001/telemetry")


def test_a_restarted_broker_that_wants_nothing_is_not_sent_to_for_long() -> None:
    brokers = Brokers(2)
    brokers.want(1, ["dev/+/telemetry"])
    brokers.offer(0, *devices(3))
    brokers.crash(1)
    brokers.return_one()
    brokers.run(1.0)
    brokers.publish("dev/0001/telemetry", 0, seconds=1.0)
    assert not brokers.methods[0].publish("dev/0001/telemetry", b"more")


def test_what_differs_is_told_anew() -> None:
    brokers = Brokers(2)
    brokers.want(1, ["dev/+/telemetry", "dev/0001/#"])
    brokers.offer(0, *devices(3))
    known = brokers.methods[0].known
    subscriber = known.subscribers[0]
    known._index.discard("dev/+/telemetry", subscriber)
    known._index.add("dev/+/state", subscriber)
    subscriber.digest ^= 1
    brokers.run(3 * HEARTBEAT_S)
    assert sorted(known._index.filters_of(subscriber)) == ["dev/+/telemetry", "dev/0001/#"]
    number = subscriber.number
    brokers.run(3 * HEARTBEAT_S)
    assert subscriber.number == number, "once"


def test_a_publisher_that_covers_more_is_told_more_and_that_covers_less_forgets() -> None:
    brokers = Brokers(2)
    brokers.want(1, ["dev/+/telemetry", "log/#", "cmd/1"])
    brokers.offer(0, "dev/1/telemetry")
    assert brokers.methods[0].wants_known == 1
    brokers.offer(0, "log/a/b")
    assert brokers.methods[0].wants_known == 2
    for _ in range(8):
        brokers.run(IDLE_S / 6)
        assert brokers.methods[0].knows("log/a/b")
    brokers.run(SETTLED_S)
    assert brokers.methods[0].publication_covers == ["log/a/b"]
    brokers.run(3 * HEARTBEAT_S)
    assert brokers.methods[0].wants_known == 1
    assert brokers.wanting(0, "log/a/b") == ["b1"]


def test_many_prefixes_take_a_bounded_number_of_keys_and_all_are_found() -> None:
    brokers = Brokers(3)
    topics = [f"{first}/{second}/x" for first in "abcdefgh" for second in ("1", "2", "3", "4")]
    brokers.want(1, topics)
    brokers.run(30.0)
    brokers.offer(0, *topics)
    brokers.run(30.0)
    for address in (0, 1):
        assert len(brokers.methods[address].overlay.view.own) <= KEYS_MAX + 1
    assert all(brokers.wanting(0, topic) == ["b1"] for topic in topics)


def test_wants_of_many_pages_arrive_over_a_network_that_loses() -> None:
    filters = [f"cmd/{number * 7919:040}/#" for number in range(5000)]
    brokers = Brokers(2, network=FaultyNetwork(0.05, until=100.0))
    brokers.want(1, filters)
    brokers.run(20.0)
    brokers.offer(0, *(f"cmd/{number}/go" for number in range(20)))
    brokers.run(60.0)
    assert brokers.methods[0].wants_known == 5000
    assert brokers.wanting(0, f"cmd/{7919:040}/go") == ["b1"]


def test_brokers_that_were_parted_meet_again() -> None:
    brokers = Brokers(6, network=FaultyNetwork(0.0, split=(20.0, 80.0), until=0.0))
    brokers.run(21.0 - brokers.sim.now)
    brokers.want(1, ["dev/+/telemetry"])
    brokers.offer(0, "dev/1/telemetry")
    brokers.offer(2, "dev/1/telemetry")
    assert brokers.wanting(0, "dev/1/telemetry") == []
    brokers.run(80.0 - brokers.sim.now + 4 * MEET_AGAIN_S)
    assert brokers.wanting(0, "dev/1/telemetry") == ["b1"]
    assert brokers.wanting(2, "dev/1/telemetry") == ["b1"]


def test_a_publication_stays_inside_its_cluster() -> None:
    brokers = Brokers(4, clusters=("eu/a", "eu/a", "eu/b", "us"))
    for address in range(1, 4):
        brokers.want(address, ["dev/#"])
    brokers.offer(0, "dev/1")
    brokers.forget()
    assert brokers.methods[0].publish_within("dev/1", b"here", "eu/a")
    assert brokers.methods[0].publish_within("dev/1", b"nearby", "eu")
    assert brokers.methods[0].may_be_wanted("dev/1", "us")
    assert not brokers.methods[0].may_be_wanted("dev/1", "asia")
    assert not brokers.methods[0].publish_within("dev/1", b"nowhere", "asia")
    brokers.run(1.0)
    assert sorted((int(address), one.body) for address, one in brokers.got) == [
        (1, b"here"),
        (1, b"nearby"),
        (2, b"nearby"),
    ]


def test_publications_of_many_topics_for_the_same_brokers_go_as_one_message() -> None:
    brokers = Brokers(4)
    brokers.want(1, ["dev/+/telemetry"])
    brokers.want(2, ["dev/0003/telemetry"])
    brokers.want(3, ["log/#"])
    brokers.offer(0, *devices(20))
    brokers.forget()
    publications = [(topic, topic.encode() * 100) for topic in devices(100)]
    brokers.methods[0].publish_many(publications)
    brokers.run(0.5)
    assert sorted(brokers.sent) == [(0, 1)] * 4 + [(0, 2)], (
        "one to both; the others take three, of which each has a bound"
    )
    got = {address: {one.topic: one.body for at, one in brokers.got if at == address} for address in range(4)}
    assert got == {
        0: {},
        1: dict(publications),
        2: {"dev/0003/telemetry": dict(publications)["dev/0003/telemetry"]},
        3: {},
    }
    assert len(brokers.got) == 101
    outcomes: list[Outcome] = []
    brokers.forget()
    brokers.methods[0].publish_many_surely(publications[:10], 5.0, outcomes.append)
    brokers.run(1.0)
    assert len(brokers.got) == 11
    assert [outcome.complete for outcome in outcomes] == [True, True]


def test_a_proof_names_those_that_are_missing() -> None:
    brokers = Brokers(3)
    brokers.want(1, ["dev/#"])
    brokers.want(2, ["dev/#"])
    brokers.offer(0, "dev/1")
    outcomes: list[Outcome] = []
    brokers.methods[0].publish_surely("dev/1", b"both", 5.0, outcomes.append)
    brokers.run(1.0)
    brokers.crash(2)
    brokers.methods[0].publish_surely("dev/1", b"one", 5.0, outcomes.append)
    brokers.run(10.0)
    assert [outcome.complete for outcome in outcomes] == [True, False]
    assert len(outcomes[1].gaps) == 1
    assert outcomes[1].gaps[0][0].endswith(b"b2")


def test_with_too_many_proofs_under_way_a_publication_is_told_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.pubsub.covers.multicast.OPEN_MAX", 1)
    brokers = Brokers(2)
    brokers.want(1, ["dev/#"])
    brokers.offer(0, "dev/1")
    outcomes: list[Outcome] = []
    for body in (b"proven", b"told"):
        brokers.methods[0].publish_surely("dev/1", body, 5.0, outcomes.append)
    brokers.run(1.0)
    assert [one.body for _, one in brokers.got] == [b"proven", b"told"]
    assert [outcome.complete for outcome in outcomes] == [False, True]


def test_those_that_want_a_topic_can_be_asked() -> None:
    brokers = Brokers(4)
    brokers.want(1, ["dev/#"])
    brokers.want(2, ["dev/+"])
    brokers.want(3, ["log/#"])
    brokers.run(SETTLED_S)
    for address, method in brokers.methods.items():
        method.on_question = lambda topic, body, address=address: b"%d says %s" % (address, body)  # type: ignore[misc]
    outcomes: list[Outcome] = []
    brokers.methods[1].ask("dev/1", b"hello", 5.0, outcomes.append)
    brokers.run(SETTLED_S)
    assert sorted(outcomes[0].answers.values()) == [b"1 says hello", b"2 says hello"]
    assert outcomes[0].complete


def test_a_broker_that_leaves_is_wanted_for_nothing() -> None:
    brokers = Brokers(3)
    brokers.want(1, ["dev/+/telemetry"])
    brokers.offer(0, *devices(3))
    brokers.do(1, brokers.methods[1].leave())
    brokers.run(SETTLED_S)
    assert not brokers.methods[0].is_wanted("dev/0001/telemetry")
    assert not brokers.methods[0].was_wanted("dev/0001/telemetry")


def test_a_publisher_that_leaves_is_told_nothing_any_more() -> None:
    brokers = Brokers(3)
    brokers.want(1, ["dev/+/telemetry"])
    brokers.offer(0, *devices(3))
    brokers.offer(2, "dev/7/telemetry")
    assert brokers.methods[1].watchers == 2
    brokers.do(0, brokers.methods[0].leave())
    brokers.run(1.0)
    assert brokers.methods[1].watchers == 1
    assert brokers.wanting(2, "dev/7/telemetry") == ["b1"]
