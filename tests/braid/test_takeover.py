"""Clients that come to another broker: one connection remains, and the session follows with all that is in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from braidmq.braid.roaming.directory_entries import REGISTER_S
from braidmq.braid.roaming.directory_messages import Claim
from braidmq.braid.roaming.marks import Horizon
from braidmq.braid.roaming.messages import FetchState, GiveUp, SessionStored
from braidmq.braid.roaming.sessions import RoamingSession
from braidmq.braid.roaming.tail import TAIL_S
from braidmq.broker.journal_store import JournalStore
from braidmq.sim.network import Faults, Partition, Uniform
from tests.conformance import wire
from tests.conformance.pair import Peer, persistent
from tests.conformance.wire import V3, V5, Received, Type, Will

from .sites import Sites, payloads

VERSIONS = pytest.mark.parametrize("version", [V3, V5])


def come(sites: Sites, number: int, version: int = V5, client_id: str = "ada", **options: Any) -> Peer:
    """The client comes to a site, with a session that stays unless the options say otherwise."""
    return sites.client(number, client_id, version=version, **(options or persistent(version)))


def later(sites: Sites, after_s: float, peer: Peer, packet: bytes) -> None:
    """The peer sends a packet while the others do what they do."""
    sites.sim.at(sites.sim.now + after_s, lambda: peer.connection.receive(packet))


def published(peer: Peer) -> list[bytes]:
    """All publications that have come, without acknowledging them."""
    return [one.payload for one in peer.take() if one.type is Type.PUBLISH and not one.dup]


def where(sites: Sites, client_id: str = "ada") -> list[int]:
    return [site.number for site in sites if client_id in site.broker.sessions]


# Take-over


@VERSIONS
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("method", ["covers", "relayfree", "suzaku"])
def test_a_live_connection_is_taken_over(method: str, version: int, clean: bool) -> None:
    sites = Sites(4, method=method)
    old = come(sites, 0, version, clean=clean)
    new = come(sites, 2, version, clean=clean)
    old.expect_closed(0x8E)
    assert new.connack is not None
    assert new.connack.session_present is (version == V3 and not clean)
    new.expect_open()
    sites.run(2)
    assert where(sites) == [2]
    again = come(sites, 0, version, clean=clean)
    new.expect_closed(0x8E)
    again.expect_open()


def test_the_same_broker_takes_over_as_ever() -> None:
    sites = Sites(3)
    old = come(sites, 1)
    old.subscribe("tide", 1)
    new = come(sites, 1)
    old.expect_closed(0x8E)
    assert new.connack is not None
    assert new.connack.session_present
    assert where(sites) == [1]


@VERSIONS
def test_a_will_is_published_if_the_session_ends_with_the_take_over(version: int) -> None:
    sites = Sites(4)
    watcher = sites.client(3, "watcher")
    watcher.subscribe("will")
    come(sites, 0, version, clean=True, will=Will())
    come(sites, 2, version, clean=True)
    sites.run(1)
    assert payloads(watcher) == [b"gone"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_will_with_a_delay_is_off_if_the_session_goes_on(clean: bool) -> None:
    sites = Sites(4)
    watcher = sites.client(3, "watcher")
    watcher.subscribe("will")
    will = Will(properties=wire.props(will_delay=5))
    come(sites, 0, clean=False, will=will, properties=wire.props(session_expiry=1000))
    new = come(sites, 2, clean=clean, properties=wire.props(session_expiry=1000))
    assert new.connack is not None
    assert new.connack.session_present is not clean
    for _ in range(10):
        sites.run(1)
    assert payloads(watcher) == ([b"gone"] if clean else [])


def test_a_clean_start_ends_the_session_at_the_other_broker() -> None:
    sites = Sites(4)
    old = come(sites, 0)
    old.subscribe("tide", 1)
    old.drop()
    new = come(sites, 2, clean=True)
    assert new.connack is not None
    assert not new.connack.session_present
    sites.run(2)
    assert where(sites) == [2]
    sites.client(1, "pub").publish("tide", b"x", 1)
    new.expect_open()


def test_two_brokers_that_get_the_same_client_at_once_agree() -> None:
    for seed in range(8):
        sites = Sites(4, seed)
        first = come(sites, 3)
        first.subscribe("tide", 1)
        first.drop()
        sites.client(0, "pub").publish("tide", b"x", 1)
        peers = [sites[number].peer(V5) for number in (1, 2)]
        for index, peer in enumerate(peers):
            later(sites, 0.002 * index, peer, wire.connect("ada", **persistent(V5)))
        sites.run(8)
        open_peers = [peer for peer in peers if not peer.link.closed]
        assert len(open_peers) == 1, f"seed {seed}"
        assert open_peers[0].expect(Type.CONNACK, reason=0).session_present, f"seed {seed}"
        assert published(open_peers[0]) == [b"x"], f"seed {seed}"
        assert len(where(sites)) == 1, f"seed {seed}"


# Sessions


@VERSIONS
def test_a_session_moves_with_its_subscriptions_and_what_waits(version: int) -> None:
    sites = Sites(4)
    old = come(sites, 0, version)
    old.subscribe("tide/+", 2)
    old.subscribe("wind", 1)
    old.drop()
    publisher = sites.client(3, "pub")
    for number in range(5):
        publisher.publish("tide/west", b"%d" % number, 1 + number % 2)
    new = come(sites, 2, version)
    assert new.connack is not None
    assert new.connack.session_present
    assert payloads(new) == [b"0", b"1", b"2", b"3", b"4"]
    publisher.publish("wind", b"w", 1)
    publisher.publish("tide/east", b"t", 2)
    assert payloads(new) == [b"w", b"t"]
    assert where(sites) == [2]
    sites.run(TAIL_S + 10)
    publisher.publish("wind", b"w", 1)
    assert payloads(new) == [b"w"]
    assert "wind" not in sites[0].broker.router.filters()
    assert new.unsubscribe("wind").reasons in ([0], [])
    assert publisher.publish("wind", b"nobody", 1) == 0x10


def test_the_options_of_a_subscription_move_along() -> None:
    sites = Sites(3)
    old = come(sites, 0)
    old.subscribe("tide", 1, options=0x04 | 0x08, properties=wire.props(subscription_id=7))
    new = come(sites, 2)
    new.publish("tide", b"mine", 1)
    sites.client(1, "pub").publish("tide", b"theirs", 1, retain=True)
    got = new.expect(Type.PUBLISH, payload=b"theirs")
    assert got.retain
    assert got.properties["subscription_id"] == [7]
    new.expect_nothing()


@VERSIONS
def test_exchanges_that_are_half_done_are_finished_at_the_other_broker(version: int) -> None:
    sites = Sites(4)
    old = come(sites, 0, version)
    old.subscribe("tide", 2)
    publisher = sites.client(3, "pub")
    for number in range(3):
        publisher.publish("tide", b"%d" % number, 2)
    released, unanswered, refused = [one for one in old.take() if one.type is Type.PUBLISH]
    assert released.packet_id
    assert unanswered.packet_id
    old.send(wire.ack(Type.PUBREC, released.packet_id))
    old.expect(Type.PUBREL, packet_id=released.packet_id)
    old.acknowledge(refused)
    old.send(wire.publish("wind", b"up", version=version, qos=2, packet_id=9))
    old.expect(Type.PUBREC, packet_id=9)
    old.drop()
    publisher.publish("tide", b"3", 1)
    watcher = sites.client(1, "watcher")
    watcher.subscribe("wind", 2)

    new = come(sites, 2, version)
    new.expect(Type.PUBREL, packet_id=released.packet_id)
    again = new.expect_publish("tide", b"1", dup=True, packet_id=unanswered.packet_id, qos=2)
    waiting = new.expect_publish("tide", b"3", dup=False, qos=1)
    new.send(wire.ack(Type.PUBCOMP, released.packet_id))
    new.acknowledge(again)
    new.acknowledge(waiting)
    new.send(wire.publish("wind", b"up", version=version, qos=2, packet_id=9, dup=True))
    new.expect(Type.PUBREC, packet_id=9)
    new.send(wire.ack(Type.PUBREL, 9))
    new.expect(Type.PUBCOMP, packet_id=9, reason=0)
    new.send(wire.publish("wind", b"next", version=version, qos=2, packet_id=9))
    new.expect(Type.PUBREC, packet_id=9)
    assert payloads(watcher) == [b"next"]
    new.expect_nothing()


def test_a_large_session_moves_in_parts() -> None:
    sites = Sites(3)
    old = come(sites, 0)
    for number in range(40):
        old.subscribe(f"tide/{number}", 1)
    old.drop()
    publisher = sites.client(1, "pub")
    for number in range(40):
        publisher.publish(f"tide/{number}", b"%02d" % number + bytes(200_000), 1)
    new = come(sites, 2)
    assert [one[:2] for one in published(new)] == [b"%02d" % number for number in range(40)]


def test_a_client_that_roams_has_its_session_everywhere() -> None:
    sites = Sites(5)
    peer = come(sites, 0)
    peer.subscribe("tide", 2)
    publisher = sites.client(4, "pub")
    got: list[bytes] = []
    for number in range(12):
        publisher.publish("tide", b"%d" % number, 2)
        got += payloads(peer)
        peer = come(sites, (number + 1) % 4)
    got += payloads(peer)
    assert got == [b"%d" % number for number in range(12)]
    sites.run(TAIL_S + REGISTER_S)
    assert len(where(sites)) == 1
    assert [site.number for site in sites if "tide" in site.broker.router.filters()] == where(sites)


# Publications during the move


def stream(sites: Sites, qos: int, seconds: float, period_s: float) -> list[bytes]:
    """Clients at all sites publish one after the other, while something else goes on; the payloads."""
    sent: list[bytes] = []
    peers = [sites.client(site.number, f"pub{site.number}") for site in sites]
    for number in range(int(seconds / period_s)):
        peer = peers[number % len(peers)]
        payload = b"%d:%04d" % (number % len(peers), number)
        packet = wire.publish("tide", payload, qos=qos, packet_id=1000 + number)
        later(sites, number * period_s, peer, packet)
        sent.append(payload)
    return sent


def check(got: list[bytes], sent: list[bytes], qos: int, note: str = "") -> None:
    count = Counter(got)
    assert [one for one in sent if one not in count] == [], f"lost {note}"
    if qos == 2:
        assert [one for one in count if count[one] > 1] == [], f"twice {note}"


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_live", [True, False])
def test_what_is_published_during_the_move_arrives(qos: int, is_live: bool) -> None:
    for seed in range(3):
        sites = Sites(4, seed)
        old = come(sites, 0)
        old.subscribe("tide", qos)
        if not is_live:
            old.drop()
        sent = stream(sites, qos, 2.0, 0.005)
        sites.run(0.2)
        sites.settle_s = 4.0
        new = come(sites, 2)
        assert new.connack is not None
        assert new.connack.session_present
        sites.run(40)
        got = published(old) + published(new) if is_live else published(new)
        check(got, sent, qos, f"seed {seed}")
        for origin in range(4):
            own = [one for one in got if one[:1] == b"%d" % origin]
            assert own == sorted(own), f"order, seed {seed}"


def test_a_broker_that_registers_while_its_session_is_claimed_keeps_it_in_its_place() -> None:
    """It learns from the directory that the client is elsewhere, before it is asked for the session."""
    sites = Sites(4, seed=26)
    old = come(sites, 0)
    old.subscribe("tide", 1)
    old.drop()
    sent = stream(sites, 1, 1.0, 0.004)
    sites.run(0.2)
    count, registered = sites.sim.on_message, False

    def watch(sender: Any, to: Any, message: Any, hops: int) -> None:
        nonlocal registered
        if isinstance(message, Claim) and not registered:
            registered = True
            sites.sim.at(sites.sim.now, lambda: sites[0].host.spawn(sites[0].braid.roaming.displaced._register()))
        if count is not None:
            count(sender, to, message, hops)

    sites.sim.on_message = watch
    sites.settle_s = 4.0
    new = come(sites, 2)
    sites.run(60)
    assert registered
    check(published(new), sent, 1)


@pytest.mark.parametrize("seed", range(5))
def test_losses_between_brokers_do_not_show(seed: int) -> None:
    sites = Sites(4, seed, Faults.parse("loss=0.02,dup=0.02").over(Uniform(0.001, 0.02)))
    sites.run(20)
    sites.settle_s = 5.0
    peer = come(sites, 0)
    peer.subscribe("tide", 2)
    sent = stream(sites, 2, 20.0, 0.05)
    seen: dict[bytes, int] = {}
    for number in (2, 1, 3, 0):
        _note(peer, seen)
        peer = come(sites, number)
        assert peer.connack is not None
        assert peer.connack.session_present, f"seed {seed}"
    sites.run(60)
    _note(peer, seen)
    assert [one for one in sent if one not in seen] == [], f"lost, seed {seed}"
    assert len(where(sites)) == 1


def _note(peer: Peer, seen: dict[bytes, int]) -> None:
    """Every QoS 2 publication comes under one packet id, however often it is sent."""
    for one in [one for one in peer.take() if one.type is Type.PUBLISH]:
        assert one.packet_id is not None
        assert seen.setdefault(one.payload, one.packet_id) == one.packet_id, f"{one.payload!r} came twice"


# Brokers that are down


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_that_was_cut_off_closes_the_old_connection(seed: int) -> None:
    sites = Sites(4, seed, Partition([[0]], 30, 60, Uniform(0.001, 0.02)))
    old = come(sites, 0)
    old.subscribe("tide", 1)
    publisher = sites.client(1, "pub")
    sites.run(32 - sites.sim.now)
    sites.settle_s = 9.5
    new = come(sites, 2)
    assert new.connack is not None
    assert not new.connack.session_present
    new.subscribe("tide", 1)
    sites.settle_s = 0.5
    assert not old.link.closed, "nobody can tell it"
    sites.run(180 - sites.sim.now)
    old.take()
    assert old.link.closed
    assert where(sites) == [2]
    publisher.publish("tide", b"x", 1)
    assert payloads(new) == [b"x"]


class Disks:
    """Sites with a store on disk."""

    def __init__(self, sites: Sites, folder: Path) -> None:
        self.sites = sites
        self.folder = folder
        self.stores: dict[int, JournalStore] = {}

    def start(self, number: int) -> None:
        self.stores[number] = JournalStore(self.folder / f"site{number}")
        self.sites.add(number, store=self.stores[number])
        self.sites.run(8)

    def kill(self, number: int) -> None:
        self.stores.pop(number).close()
        self.sites[number].crash()


def test_a_client_begins_anew_if_its_broker_is_down_and_gets_what_was_left_behind(tmp_path: Path) -> None:
    sites = Sites(3)
    disks = Disks(sites, tmp_path)
    disks.start(7)
    old = come(sites, 7)
    old.subscribe("tide", 1)
    old.subscribe("wind", 1)
    old.drop()
    publisher = sites.client(1, "pub")
    publisher.publish("tide", b"1", 1)
    publisher.publish("wind", b"2", 1)
    disks.kill(7)
    sites.settle_s = 6.0
    new = come(sites, 2)
    assert new.connack is not None
    assert not new.connack.session_present
    new.subscribe("tide", 1)
    publisher.publish("tide", b"3", 1)
    sites.settle_s = 0.5
    disks.start(7)
    publisher.publish("tide", b"4", 1)
    for _ in range(20):
        sites.run(1)
    got = {*payloads(new)}  # QoS 1: a copy may come twice
    assert got == {b"1", b"3", b"4"}, "what it subscribes to now, and nothing else"
    assert where(sites) == [2]
    publisher.publish("tide", b"5", 1)
    assert payloads(new) == [b"5"]


def test_a_session_of_a_broker_that_was_down_waits_for_its_client(tmp_path: Path) -> None:
    sites = Sites(3)
    disks = Disks(sites, tmp_path)
    disks.start(7)
    old = come(sites, 7)
    old.subscribe("tide", 1)
    old.drop()
    publisher = sites.client(1, "pub")
    publisher.publish("tide", b"1", 1)
    disks.kill(7)
    sites.run(30)
    disks.start(7)
    publisher.publish("tide", b"2", 1)
    new = come(sites, 0)
    assert new.connack is not None
    assert new.connack.session_present
    assert payloads(new) == [b"1", b"2"]


@pytest.mark.parametrize("when", [GiveUp, FetchState, SessionStored])
@pytest.mark.parametrize("who", ["giver", "taker"])
def test_a_crash_in_the_middle_loses_nothing(tmp_path: Path, when: type, who: str) -> None:
    sites = Sites(3)
    disks = Disks(sites, tmp_path)
    disks.start(7)
    disks.start(8)
    old = come(sites, 7)
    old.subscribe("tide", 2)
    old.drop()
    publisher = sites.client(1, "pub")
    for number in range(5):
        publisher.publish("tide", b"%d" % number, 2)
    dying = 7 if who == "giver" else 8
    count, is_dead = sites.sim.on_message, False

    def watch(sender: Any, to: Any, message: Any, hops: int) -> None:
        nonlocal is_dead
        if isinstance(message, when) and not is_dead:  # it is handled, and answered
            is_dead = True
            sites.sim.at(sites.sim.now, lambda: disks.kill(dying))
        if count is not None:
            count(sender, to, message, hops)

    sites.sim.on_message = watch
    peer = sites[8].peer(V5)
    later(sites, 0.0, peer, wire.connect("ada", **persistent(V5)))
    sites.run(8)
    assert is_dead
    publisher.publish("tide", b"5", 2)
    sites.run(20)
    disks.start(dying)
    sites.run(REGISTER_S + 30)
    sites.settle_s = 6.0
    new = come(sites, 0)
    assert new.connack is not None
    got: list[Received] = [one for one in new.take() if one.type is Type.PUBLISH]
    assert new.connack.session_present
    wanted = [b"%d" % number for number in range(6)]
    if who == "giver" and when is GiveUp:
        wanted = []  # the client began anew and has not subscribed: it wants nothing
    assert [one.payload for one in got] == wanted
    sites.run(REGISTER_S)
    assert len(where(sites)) == 1


def test_what_a_session_has_had_since_it_came_is_known_after_a_crash(tmp_path: Path) -> None:
    """So that the next broker, to which the same may come on another way, knows it too."""
    sites = Sites(3)
    disks = Disks(sites, tmp_path)
    disks.start(7)
    disks.start(8)
    old = come(sites, 7)
    old.subscribe("tide", 2)
    new = come(sites, 8)
    publisher = sites.client(1, "pub")
    for number in range(3):
        publisher.publish("tide", b"%d" % number, 2)
    assert published(new) == [b"0", b"1", b"2"]
    braid = sites[1].braid
    disks.kill(8)
    disks.start(8)
    session = sites[8].broker.sessions["ada"]
    assert isinstance(session, RoamingSession)
    horizon = Horizon(session.horizon)
    assert all(horizon.covers((braid.identity, offset)) for offset in range(1, 4))
    assert not horizon.covers((braid.identity, 4))
