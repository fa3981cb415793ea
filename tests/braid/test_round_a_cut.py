"""Two brokers that do not reach each other, while a third reaches both: what is published goes round by the third.

Each test is a seeded run in virtual time, with real brokers and clients in memory. The pair that is cut is given, and
so is the direction; the third broker is never told what to do.
"""

from __future__ import annotations

from random import Random

import pytest
from msgspec import UNSET

from braidmq.admin.ring_contract import RingAnswer, Unreached
from braidmq.host import Address
from braidmq.sim.network import Network, Uniform
from tests.braid.sites import Sites, payloads

NOTICED_S = 5.0
"""Time enough to notice a cut, and to find a broker that both reach."""

PAIRS = [(1, 2), (0, 1), (2, 0)]
"""Publisher's and subscriber's site; the third is in between. Site 0 is the one by which the others entered."""

NO_SUBSCRIBERS = 0x10


class Path(Network):
    """A network in which one pair is cut when a test says so, in both directions or in one."""

    def __init__(self) -> None:
        self._under = Uniform(0.001, 0.02)
        self.cut: dict[tuple[Address, Address], None] = {}

    def cut_pair(self, one: int, other: int) -> None:
        self.cut = {(one, other): None, (other, one): None}

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return () if (source, to) in self.cut else self._under.delays(chance, source, to, now)


def braid(seed: int = 1, method: str = "") -> tuple[Sites, Path]:
    path = Path()
    return Sites(3, seed, network=path, method=method), path


def numbers(first: int, end: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, end)]


@pytest.mark.parametrize(("here", "there"), PAIRS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publication_goes_round(here: int, there: int, qos: int) -> None:
    sites, path = braid()
    subscriber, publisher = sites.client(there), sites.client(here, "pub")
    subscriber.subscribe("meter/+", qos)
    publisher.publish("meter/1", b"before", qos)
    assert payloads(subscriber) == [b"before"]
    path.cut_pair(here, there)
    sites.run(NOTICED_S)
    reasons = [publisher.publish("meter/1", text, qos) for text in numbers(0, 60)]
    assert NO_SUBSCRIBERS not in reasons
    assert payloads(subscriber) == numbers(0, 60), "in order, and once"


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_what_is_on_its_way_when_a_cut_begins_arrives_once_and_in_order(here: int, there: int) -> None:
    sites, path = braid()
    sites.settle_s = 0.1
    subscriber, publisher = sites.client(there), sites.client(here, "pub")
    subscriber.subscribe("meter/#", 2)
    sites.run(2.0)
    for number in range(200):
        if number == 50:
            path.cut_pair(here, there)
        reason = publisher.publish(f"meter/{number % 3}", str(number).encode(), 1 + number % 2)
        assert reason != NO_SUBSCRIBERS
        if number == 150:
            path.cut.clear()
    sites.run(NOTICED_S)
    got = payloads(subscriber)
    assert sorted(got, key=int) == numbers(0, 200)
    for topic in range(3):
        assert [one for one in got if int(one) % 3 == topic] == numbers(0, 200)[topic::3]


@pytest.mark.parametrize(("here", "there"), PAIRS)
@pytest.mark.parametrize("is_known", [True, False], ids=["topic in use", "topic new"])
@pytest.mark.parametrize("topic_filter", ["meter/1", "meter/+", "#"])
def test_a_subscription_made_during_a_cut_takes_effect(
    here: int, there: int, is_known: bool, topic_filter: str
) -> None:
    sites, path = braid()
    publisher, subscriber = sites.client(here, "pub"), sites.client(there)
    if is_known:
        publisher.publish("meter/1", b"before", 1)
    path.cut_pair(here, there)
    sites.run(NOTICED_S)
    subscriber.subscribe(topic_filter)
    reasons = [publisher.publish("meter/1", text, number % 3) for number, text in enumerate(numbers(0, 9))]
    assert NO_SUBSCRIBERS not in reasons
    assert payloads(subscriber) == numbers(0, 9)


@pytest.mark.parametrize(("from_", "to"), [(1, 2), (2, 1)], ids=["to the subscriber", "to the publisher"])
def test_a_cut_in_one_direction(from_: int, to: int) -> None:
    sites, path = braid()
    publisher, subscriber = sites.client(1, "pub"), sites.client(2)
    subscriber.subscribe("meter/1", 2)
    path.cut = {(from_, to): None}
    sites.run(NOTICED_S)
    late = sites.client(2, "late")
    late.subscribe("meter/+")
    for number, text in enumerate(numbers(0, 30)):
        assert publisher.publish("meter/1", text, number % 3) != NO_SUBSCRIBERS
    assert payloads(subscriber) == numbers(0, 30)
    assert payloads(late) == numbers(0, 30)


def test_nothing_of_qos_0_is_lost_when_a_cut_heals_and_the_direct_way_is_taken_again() -> None:
    sites, path = braid()
    sites.settle_s = 0.1
    publisher, subscriber = sites.client(1, "pub"), sites.client(2)
    subscriber.subscribe("meter/1")
    publisher.publish("meter/1", b"before")
    path.cut_pair(1, 2)
    sites.run(30.0)
    payloads(subscriber)
    for number, text in enumerate(numbers(0, 60)):
        if number == 20:
            path.cut.clear()
        publisher.publish("meter/1", text)
    sites.run(1.0)
    assert payloads(subscriber) == numbers(0, 60)
    sites.sent.clear()
    publisher.publish("meter/1", b"direct")
    assert payloads(subscriber) == [b"direct"]
    assert sites.sent == [(1, 2)]


def test_a_cut_that_nobody_can_go_round_does_not_mean_that_nobody_wants_it() -> None:
    sites, path = braid()
    publisher, subscriber = sites.client(1, "pub"), sites.client(2)
    subscriber.subscribe("meter/1", 1)
    publisher.publish("meter/1", b"before", 1)
    payloads(subscriber)
    path.cut = {(one, other): None for one in range(3) for other in range(3) if (one == 2) != (other == 2)}
    for _ in range(6):
        sites.run(10.0)
        assert publisher.publish("meter/1", b"kept", 1) == 0
    assert publisher.publish("nobody/wants", b"", 1) == NO_SUBSCRIBERS
    path.cut.clear()
    sites.run(2.0)
    publisher.publish("meter/1", b"at once")
    sites.run(30.0)
    got = payloads(subscriber)
    assert sorted(got) == [b"at once", *6 * [b"kept"]]
    assert publisher.publish("nobody/wants", b"", 1) == NO_SUBSCRIBERS


def test_the_pair_that_is_cut_is_named() -> None:
    sites, path = braid()
    path.cut_pair(1, 2)
    sites.run(30.0)
    seen: list[RingAnswer] = []

    async def look() -> None:
        seen.append(await sites[0].braid.status.ring())

    sites[0].host.spawn(look())
    sites.run(5.0)
    path.cut.clear()
    sites.run(5.0)
    sites[0].host.spawn(look())
    sites.run(5.0)
    cut, healed = seen
    assert [(one.name, one.unreached, one.is_healthy) for one in cut.brokers] == [
        ("site0", UNSET, True),
        ("site1", [Unreached("site2", "site0")], True),
        ("site2", [Unreached("site1", "site0")], True),
    ]
    assert cut.is_whole
    assert [one.unreached for one in healed.brokers] == [UNSET, UNSET, UNSET]


def test_a_broker_that_passes_on_and_dies_is_replaced() -> None:
    path = Path()
    sites = Sites(4, network=path)
    publisher, subscriber = sites.client(1, "pub"), sites.client(2)
    subscriber.subscribe("meter/1", 1)
    path.cut_pair(1, 2)
    sites.run(NOTICED_S)
    passing = dict(sites[1].braid.detours.ways)[2]
    assert passing in (0, 3)
    sites[int(passing)].crash()
    sites.run(2 * NOTICED_S)
    assert dict(sites[1].braid.detours.ways)[2] == 3 - int(passing)
    for text in numbers(0, 10):
        assert publisher.publish("meter/1", text, 0) != NO_SUBSCRIBERS
    assert payloads(subscriber) == numbers(0, 10)


def test_nothing_is_pinged_when_nothing_is_sent_and_nobody_goes_round_when_nothing_is_cut() -> None:
    sites, _ = braid()
    publisher, subscriber = sites.client(1, "pub"), sites.client(2)
    subscriber.subscribe("meter/1")
    for _ in range(30):
        publisher.publish("meter/1", b"news")
    assert [dict(site.braid.detours.ways) for site in sites] == [{}, {}, {}]
    assert len(payloads(subscriber)) == 30
