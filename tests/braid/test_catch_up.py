"""QoS 1 and 2 across brokers that crash, come back, and are cut off: nothing acknowledged is lost or comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.braid.catch_up import reconcile
from braidmq.braid.catch_up.history import HISTORY_S
from braidmq.broker.journal_store import JournalStore
from braidmq.sim.engine import Constant
from braidmq.sim.network import Faults, Uniform
from tests.conformance import wire
from tests.conformance.pair import Peer, persistent
from tests.conformance.wire import V3, V5

from .sites import Sites, payloads

pytestmark = pytest.mark.usefixtures("both_kinds")


def start(sites: Sites, number: int, folder: Path) -> JournalStore:
    """A site with a store on disk."""
    store = JournalStore(folder / f"site{number}")
    sites.add(number, store=store)
    sites.run(10)
    return store


def restart(sites: Sites, number: int, store: JournalStore, folder: Path) -> JournalStore:
    """As `kill -9` and a new process: what was not committed is gone."""
    store.close()
    sites[number].crash()
    sites.run(30)
    return start(sites, number, folder)


def publish(publisher: Peer, numbers: range, qos: int) -> None:
    for number in numbers:
        assert publisher.publish("tide", b"%d" % number, qos) is not None


def texts(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [V3, V5])
def test_a_site_that_was_down_gets_what_it_has_missed(tmp_path: Path, qos: int, version: int) -> None:
    sites = Sites(3)
    store = start(sites, 7, tmp_path)
    subscriber = sites.client(7, "ada", version=version, **persistent(version))
    subscriber.subscribe("tide", qos)
    publisher = sites.client(1)
    publish(publisher, range(5), qos)
    assert payloads(subscriber) == texts(range(5))
    store.close()
    sites[7].crash()
    sites.run(60)
    publish(publisher, range(5, 15), qos)
    sites.run(5)
    store = start(sites, 7, tmp_path)
    publish(publisher, range(15, 20), qos)
    sites.run(60)
    subscriber = sites.client(7, "ada", version=version, **persistent(version))
    assert subscriber.connack is not None
    assert subscriber.connack.session_present
    assert payloads(subscriber) == texts(range(5, 20))
    publish(publisher, range(20, 25), qos)
    assert payloads(subscriber) == texts(range(20, 25))
    store.close()


def test_what_is_on_its_way_is_not_fetched_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker meets streams in their middle, and asks for what was before. More is published meanwhile than a page
    holds: it comes by itself, and who ran after it would fetch most of it as well."""
    monkeypatch.setattr(reconcile, "PAGE_BYTES_MAX", 1000)
    sites = Sites(3, network=Constant(0.05))
    publisher = sites.client(1)
    publish(publisher, range(5), 1)
    subscriber = sites.client(2)
    for topic in ("wave", "wind"):
        subscriber.subscribe(topic, 1)
    for number in range(1, 401):
        for topic, packet_id in (("wave", number), ("wind", 1000 + number)):
            publisher.connection.receive(wire.publish(topic, b"%d" % number, qos=1, packet_id=packet_id))
        sites.run(0.002)
    sites.run(10)
    got = [one for one in subscriber.take() if one.topic]
    for topic in ("wave", "wind"):
        assert [one.payload for one in got if one.topic == topic] == texts(range(1, 401))
    assert sites[2].braid.catch_up.reconciler.fetched < 200


def test_an_offline_session_gets_all_though_its_site_was_down(tmp_path: Path) -> None:
    sites = Sites(3)
    store = start(sites, 7, tmp_path)
    subscriber = sites.client(7, "ada", **persistent(V5))
    subscriber.subscribe("tide/#", 1)
    subscriber.drop()
    publisher = sites.client(1)
    publisher.publish("tide/high", b"0", 1)
    store.close()
    sites[7].crash()
    sites.run(60)
    publisher.publish("tide/high", b"1", 1)
    publisher.publish("tide/low", b"2", 1)
    store = start(sites, 7, tmp_path)
    sites.run(60)
    assert sorted(payloads(sites.client(7, "ada", **persistent(V5)))) == [b"0", b"1", b"2"]
    store.close()


def test_the_publisher_s_site_comes_back_and_goes_on_from_its_history(tmp_path: Path) -> None:
    """The subscriber was away when it was published, and the publisher's site when the subscriber came back."""
    sites = Sites(3)
    here, there = start(sites, 7, tmp_path), start(sites, 8, tmp_path)
    subscriber = sites.client(8, "ada", **persistent(V5))
    subscriber.subscribe("tide", 1)
    publisher = sites.client(7)
    publish(publisher, range(3), 1)
    assert payloads(subscriber) == texts(range(3))
    there.close()
    sites[8].crash()
    publish(publisher, range(3, 6), 1)
    here.close()
    sites[7].crash()
    sites.run(60)
    there = start(sites, 8, tmp_path)
    sites.run(30)
    here = start(sites, 7, tmp_path)
    sites.run(60)
    assert payloads(sites.client(8, "ada", **persistent(V5))) == texts(range(3, 6))
    here.close()
    there.close()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_cut_that_heals_loses_nothing(qos: int) -> None:
    sites = Sites(6)
    subscriber = sites.client(5, "ada")
    subscriber.subscribe("tide", qos)
    publisher = sites.client(0)
    publish(publisher, range(5), qos)
    assert payloads(subscriber) == texts(range(5))
    whole = sites.sim.network
    now = sites.sim.now
    sites.sim.network = Faults.parse(f"partition={now}-{now + 120}").over(whole)
    sites.run(100)
    publish(publisher, range(5, 15), qos)
    sites.run(20)
    sites.sim.network = whole
    sites.run(180)
    publish(publisher, range(15, 20), qos)
    sites.run(60)
    got = payloads(subscriber)
    assert sorted(got, key=int) == texts(range(5, 20))
    if qos == 2:
        assert len(got) == len({*got})


@pytest.mark.parametrize("seed", range(6))
def test_losses_between_sites_do_not_show(seed: int) -> None:
    sites = Sites(5, seed, Faults.parse("loss=0.05,dup=0.05,reorder=0.1").over(Uniform(0.001, 0.02)))
    sites.settle_s = 8.0
    subscribers = [sites.client(number, f"s{number}") for number in (2, 3, 4)]
    for one in subscribers:
        one.subscribe("tide", 2)
    publisher = sites.client(0)
    sites.settle_s = 1.0
    for number in range(30):
        publisher.publish("tide", b"%d" % number, 1 + number % 2)
    sites.run(90)
    for one in subscribers:
        assert payloads(one) == texts(range(30)), f"seed {seed}"


def test_what_was_published_before_a_subscription_is_not_fetched() -> None:
    sites = Sites(3)
    sites.client(2, "early").subscribe("tide", 1)
    publisher = sites.client(0)
    publish(publisher, range(5), 1)
    late = sites.client(2, "late")
    late.subscribe("+", 1)
    sites.run(90)
    assert payloads(late) == []
    other = sites.client(1, "other")
    other.subscribe("tide", 1)
    sites.run(90)
    assert payloads(other) == []


def test_the_history_is_bounded_in_time() -> None:
    sites = Sites(2)
    sites.client(1).subscribe("tide", 1)
    publish(sites.client(0), range(5), 1)
    assert len(sites[0].braid.catch_up.history) == 5
    sites.run(HISTORY_S + 60)
    assert len(sites[0].braid.catch_up.history) == 1, "the newest one stays, so that no offset is used twice"
