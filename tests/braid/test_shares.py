"""Shared subscriptions over several brokers: each message goes to one member, anywhere in the braid."""

from __future__ import annotations

import shutil
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from braidmq.braid.mirrors.adopting import GONE_S
from braidmq.braid.roaming.drain import DrainOutcome
from braidmq.broker.journal_store import JournalStore
from braidmq.sim.network import Uniform
from tests.braid.draining import drain, leave
from tests.braid.sites import Sites
from tests.braid.test_mirrors import MirroredSites
from tests.conformance import wire
from tests.conformance.pair import V3, V5, Peer, Type, persistent
from tests.conformance.wire import props

SHARED = "$share/workers/jobs/+"


def member(sites: Sites, number: int, name: str, qos: int = 2, topic_filter: str = SHARED, **options: object) -> Peer:
    peer = sites.client(number, name, **options)
    assert peer.subscribe(topic_filter, qos) == qos
    return peer


def acknowledge(peer: Peer, one: wire.Received) -> None:
    """Also where more comes meanwhile."""
    if one.qos == 1:
        peer.acknowledge(one)
    elif one.packet_id:
        peer.send(wire.ack(Type.PUBREC, one.packet_id))
        peer.pick(Type.PUBREL, one.packet_id)
        peer.send(wire.ack(Type.PUBCOMP, one.packet_id))


def done(peer: Peer) -> list[bytes]:
    """What a member has got, and acknowledged, also what comes of that."""
    got: list[bytes] = []
    while received := [one for one in peer.take() if one.type is Type.PUBLISH]:
        for one in received:
            got.append(one.payload)
            acknowledge(peer, one)
    return got


def jobs(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_wherever_it_is(qos: int, version: int) -> None:
    sites = Sites(3)
    members = [member(sites, number, f"m{number}", version=version) for number in (1, 2)]
    publisher = sites.client(0, "p", version=version)
    for payload in jobs(20):
        publisher.publish("jobs/a", payload, qos)
    sites.run(3.0)
    shares = [done(peer) for peer in members]
    assert sorted(chain(*shares)) == sorted(jobs(20))
    assert all(shares), "both have some of it"


def test_600_jobs_for_six_members_at_five_brokers() -> None:
    sites = Sites(5)
    where = [0, 0, 1, 2, 3, 4]
    members = [member(sites, site, f"m{number}") for number, site in enumerate(where)]
    publishers = [sites.client(number, f"p{number}") for number in range(5)]
    sites.settle_s = 0.01
    for number, payload in enumerate(jobs(600)):
        publishers[number % 5].send(wire.publish("jobs/a", payload, qos=1, packet_id=1 + number))
    sites.run(5.0)
    got = Counter(chain(*[done(peer) for peer in members]))
    assert got == Counter(jobs(600))


def test_a_member_here_is_nearer_than_one_elsewhere() -> None:
    sites = Sites(2)
    near, far = member(sites, 0, "near"), member(sites, 1, "far")
    sites.sent.clear()
    publisher = sites.client(0, "p")
    for payload in jobs(10):
        publisher.publish("jobs/a", payload, 1)
    assert (len(done(near)), len(done(far))) == (10, 0)
    assert not sites.sent


def test_the_nearest_cluster_comes_first() -> None:
    sites = Sites(4, clusters=["cloud1/edge1", "cloud2/edge9", "cloud1/edge2", "cloud1/edge1"])
    far, above, same = (member(sites, number, f"m{number}") for number in (1, 2, 3))
    publisher = sites.client(0, "p")
    publisher.publish("jobs/a", b"1", 1)
    assert done(same) == [b"1"]
    same.drop()
    publisher.publish("jobs/a", b"2", 1)
    assert done(above) == [b"2"]
    above.drop()
    publisher.publish("jobs/a", b"3", 1)
    assert done(far) == [b"3"]


def test_what_no_member_here_can_take_goes_elsewhere() -> None:
    """It is bound late: to who is free, and not to who is near and busy."""
    sites = Sites(2)
    busy = member(sites, 0, "busy", properties=props(receive_maximum=1))
    free = member(sites, 1, "free", properties=props(receive_maximum=3))
    publisher = sites.client(0, "p")
    for payload in jobs(20):
        publisher.publish("jobs/a", payload, 1)
    assert [one.payload for one in busy.take()] == [b"0"]
    assert sorted(done(free)) == sorted(jobs(19, 1))


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_a_member_that_goes_had_is_for_another(is_kept: bool) -> None:
    sites = Sites(3)
    options = persistent(V5) if is_kept else {}
    first = member(sites, 1, "first", **options)
    publisher = sites.client(0, "p")
    for payload in jobs(10):
        publisher.publish("jobs/a", payload, 1)
    assert len([one for one in first.take() if one.type is Type.PUBLISH]) == 10
    second = member(sites, 2, "second")
    first.drop()
    assert done(second) == jobs(10)


def test_what_waits_for_a_member_that_is_away_is_for_whoever_comes_first() -> None:
    sites = Sites(3)
    member(sites, 1, "away", **persistent(V5)).drop()
    publisher = sites.client(0, "p")
    for payload in jobs(5):
        assert publisher.publish("jobs/a", payload, 1) == 0
    sites.run(100.0)
    other = sites.client(2, "other")
    other.send(wire.subscribe(7, (SHARED, 1)))
    assert done(other) == jobs(5)


def test_nobody_anywhere_is_said_so() -> None:
    sites = Sites(3)
    worker = member(sites, 1, "w")
    publisher = sites.client(0, "p")
    asker = sites.client(2, "asker")
    asker.subscribe("$demand/jobs/a")
    assert [one.payload for one in asker.take() if one.type is Type.PUBLISH][-1:] == [b"1"]
    assert publisher.publish("jobs/a", b"1", 1) == 0
    assert publisher.publish("other/a", b"1", 1) == 0x10
    assert done(worker) == [b"1"]
    worker.unsubscribe(SHARED)
    assert [one.payload for one in asker.take() if one.type is Type.PUBLISH] == [b"0"]
    assert publisher.publish("jobs/a", b"2", 1) == 0x10


def test_plain_subscriptions_and_groups_are_apart() -> None:
    sites = Sites(3)
    plain = sites.client(1, "plain")
    plain.subscribe("jobs/a", 1)
    both = member(sites, 1, "both")
    both.subscribe("jobs/#", 1)
    other = member(sites, 2, "other", topic_filter="$share/others/jobs/a")
    sites.client(0, "p").publish("jobs/a", b"x", 1)
    assert [done(peer) for peer in (plain, both, other)] == [[b"x"], [b"x", b"x"], [b"x"]]


def test_what_is_published_after_the_suback_arrives() -> None:
    """Also at a broker that had never heard of the group."""
    sites = Sites(4)
    publisher, worker = sites.client(0, "p"), sites.client(3, "w")
    sites.settle_s = 0.0
    worker.send(wire.subscribe(7, (SHARED, 1)))
    for _ in range(400):
        sites.run(0.005)
        if worker.take():
            break
    publisher.send(wire.publish("jobs/a", b"x", qos=1, packet_id=1))
    sites.run(1.0)
    assert done(worker) == [b"x"]


def test_what_stays_inside_a_cluster_goes_to_no_member_outside_it() -> None:
    sites = Sites(3, clusters=["east", "east", "west"])
    inside, outside = member(sites, 1, "in"), member(sites, 2, "out")
    publisher = sites.client(2, "p")
    for payload in jobs(4):
        publisher.publish("jobs/a", payload, 1, properties=props(user=[("scope", "east")]))
    publisher.publish("jobs/a", b"all", 1)
    assert (done(inside), done(outside)) == (jobs(4), [b"all"])
    inside.drop()
    assert publisher.publish("jobs/a", b"x", 1, properties=props(user=[("scope", "east")])) == 0x10


def test_a_broker_that_is_cut_off_loses_what_it_was_lent() -> None:
    sites = Sites(3, network=Uniform(0.001, 0.02))
    first = member(sites, 1, "first")
    publisher = sites.client(0, "p")
    for payload in jobs(10):
        publisher.publish("jobs/a", payload, 1)
    assert len(first.take()) == 10
    second = member(sites, 2, "second")
    sites[1].crash()
    sites.run(10.0)
    assert done(second) == jobs(10)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_at_a_broker_that_is_destroyed_is_taken_up_by_its_mirror(tmp_path: Path, qos: int) -> None:
    sites = MirroredSites(tmp_path, 4)
    mirror, _ = sites.copy_of(1)
    home = next(number for number in (0, 2, 3) if number != mirror)
    worker = member(sites, home, "w", properties=props(receive_maximum=2))
    publisher = sites.client(1, "p")
    for payload in jobs(10):
        assert publisher.publish("jobs/a", payload, qos) == 0
    in_hand = [one for one in worker.take() if one.type is Type.PUBLISH]
    assert len(in_hand) == 2
    sites.crash(1)
    shutil.rmtree(tmp_path / "site1")
    sites.run(GONE_S + 30)
    assert sites[mirror].braid.shares.adoption.adopted == (10 if qos == 1 else 8)
    for one in in_hand:
        acknowledge(worker, one)
    assert done(worker) == jobs(8, 2)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_broker_that_comes_back_leaves_to_its_mirror_what_that_has_taken_up(tmp_path: Path, qos: int) -> None:
    sites = MirroredSites(tmp_path, 4)
    mirror, _ = sites.copy_of(1)
    home = next(number for number in (0, 2, 3) if number != mirror)
    worker = member(sites, home, "w")
    worker.unsubscribe(SHARED)
    away = member(sites, home, "away", **persistent(V5))
    away.drop()
    publisher = sites.client(1, "p")
    for payload in jobs(10):
        assert publisher.publish("jobs/a", payload, qos) == 0
    sites.crash(1)
    sites.run(GONE_S + 30)
    assert sites[mirror].braid.shares.adoption.adopted == 10
    worker.send(wire.subscribe(7, (SHARED, 2)))
    assert done(worker) == jobs(10)
    sites.add(1)
    sites.run(100)
    assert done(worker) == []
    assert sites[1].broker.metrics.queued_messages == 0


def test_a_broker_that_starts_again_knows_of_members_that_stay_before_it_meets_the_others(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 3)
    worker = member(sites, 2, "w", **persistent(V5))
    sites.crash(1)
    sites.run(1.0)
    sites.settle_s = 0.0
    sites.add(1)
    publisher = sites[1].peer()
    publisher.send(wire.connect("p"))
    while publisher.connack is None:
        sites.run(0.01)
        publisher.take()
    publisher.send(wire.publish("jobs/a", b"early", qos=1, packet_id=1))
    sites.run(20.0)
    assert [(one.type, one.reason) for one in publisher.take()] == [(Type.PUBACK, 0)]
    sites.settle_s = 1.0
    assert done(worker) == [b"early"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_at_a_broker_that_is_drained_goes_on_elsewhere(qos: int) -> None:
    sites = Sites(4)
    worker = member(sites, 2, "w", properties=props(receive_maximum=2))
    publisher = sites.client(3, "p")
    for payload in jobs(10):
        assert publisher.publish("jobs/a", payload, qos) == 0
    in_hand = [one for one in worker.take() if one.type is Type.PUBLISH]
    assert len(in_hand) == 2
    assert drain(sites, 3) is DrainOutcome.EMPTY
    leave(sites, sites[3])
    sites.run(5.0)
    for one in in_hand:
        acknowledge(worker, one)
    assert done(worker) == jobs(8, 2)


def test_a_broker_whose_own_publishers_are_many_serves_others_too() -> None:
    sites = Sites(2)
    worker = member(sites, 1, "w", properties=props(receive_maximum=1))
    busy, other = sites.client(1, "busy"), sites.client(0, "other")
    for number in range(60):
        busy.publish("jobs/own", b"own%d" % number, 1)
    for payload in jobs(10):
        other.publish("jobs/a", payload, 1)
    sites.settle_s = 0.2
    order = done(worker)
    assert len(order) == len(set(order)) == 70
    theirs = [payload for payload in order if not payload.startswith(b"own")]
    assert theirs == jobs(10)
    assert order.index(b"9") < 60, "they do not come last"


def test_what_was_taken_before_its_broker_crashed_is_not_given_to_another(tmp_path: Path) -> None:
    """[MQTT-4.8.2-5] The answer is lost with the broker; when that is back, it asks before it gives anything away."""
    sites = Sites(3)
    store = JournalStore(tmp_path)
    sites.add(7, store=store)
    sites.run(10.0)
    first, publisher = member(sites, 1, "first"), sites.client(7, "p")
    sites.settle_s = 0.0
    publisher.send(wire.publish("jobs/a", b"x", qos=2, packet_id=1))
    while not first.take():
        sites.run(0.0005)
    store.close()
    sites[7].crash()
    assert sites[1].braid.shares.borrower.taken_count == 1
    sites.settle_s = 1.0
    second = sites.client(2, "second")
    second.send(wire.subscribe(7, (SHARED, 2)))
    first.drop()
    sites.add(7, store=JournalStore(tmp_path))
    assert sites[7].broker.metrics.queued_messages == 1, "it does not know"
    sites.run(30.0)
    assert done(second) == []
    assert sites[7].broker.metrics.queued_messages == 0
    assert sites[1].braid.shares.borrower.taken_count == 0
