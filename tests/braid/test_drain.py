"""A broker that is drained: sessions and clients go to other brokers, and nothing is lost on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from braidmq.braid.membership.broker_records import ClientListener
from braidmq.braid.roaming import drain as draining
from braidmq.braid.roaming.drain import DrainOutcome
from braidmq.braid.roaming.messages import GiveUp, NotTaken, TakeSession
from tests.conformance import wire
from tests.conformance.pair import Peer, persistent
from tests.conformance.wire import V3, V5, Type, Will

from .draining import advertise, come, drain, leave, where
from .roamer import Roamer
from .sites import Sites, payloads

VERSIONS = pytest.mark.parametrize("version", [V3, V5])


@VERSIONS
@pytest.mark.parametrize("method", ["covers", "relayfree", "suzaku"])
def test_a_session_is_given_away_with_all_that_waits(method: str, version: int) -> None:
    sites = Sites(4, method=method)
    old = come(sites, 0, version=version)
    old.subscribe("tide/+", 2)
    old.drop()
    publisher = sites.client(3, "pub")
    for number in range(5):
        publisher.publish("tide/west", b"%d" % number, 1 + number % 2)
    assert drain(sites, 0) is DrainOutcome.EMPTY
    (taker,) = where(sites)
    assert taker != 0
    publisher.publish("tide/west", b"5", 2)
    leave(sites, sites[0])
    publisher.publish("tide/west", b"6", 1)
    elsewhere = next(number for number in (1, 2, 3) if number != taker)
    sites.settle_s = 4.0 if method == "suzaku" else 0.5  # its fingers still lead to the broker that has left
    new = come(sites, elsewhere, version=version)
    assert new.connack is not None
    assert new.connack.session_present
    assert payloads(new) == [b"%d" % number for number in range(7)]
    assert where(sites) == [elsewhere]


@VERSIONS
def test_a_client_is_told_of_the_broker_that_gets_its_session(version: int) -> None:
    sites = Sites(4)
    advertise(sites)
    peer = come(sites, 0, version=version)
    peer.subscribe("tide", 1)
    assert drain(sites, 0) is DrainOutcome.EMPTY
    (taker,) = where(sites)
    assert peer.link.closed
    if version == V5:
        told = peer.expect(Type.DISCONNECT, reason=0x9C)
        assert told.properties["server_reference"] == f"host{taker}:1883"
    new = come(sites, taker, version=version)
    assert new.connack is not None
    assert new.connack.session_present


def test_without_references_clients_are_told_that_the_server_goes() -> None:
    sites = Sites(3)
    peer = come(sites, 0)
    assert drain(sites, 0) is DrainOutcome.EMPTY
    peer.expect_closed(0x8B)


@VERSIONS
def test_clients_that_come_are_sent_on(version: int) -> None:
    sites = Sites(3)
    advertise(sites)
    sites[0].braid.drain.start(60)
    sites.run(2)
    peer = sites[0].peer(version)
    peer.send(wire.connect("bob", version=version))
    refused = peer.expect(Type.CONNACK, reason=0x9C if version == V5 else 3)
    if version == V5:
        assert refused.properties["server_reference"] in ("host1:1883", "host2:1883")
    assert peer.link.closed
    assert where(sites, "bob") == []


def test_a_listener_of_the_same_name_is_preferred_and_the_kind_must_be_the_same() -> None:
    sites = Sites(2)
    listeners = [
        ClientListener("inner", "tls", "inner:8883"),
        ClientListener("local", "tls", "outer:8883"),
        ClientListener("plain", "tcp", "plain:1883"),
    ]
    sites[1].braid.membership.records.set_listeners(listeners)
    sites[1].braid.announce()
    sites.run(2)
    mine = sites[0].braid.drain
    sites[0].braid.sending.listener_kinds = {"local": "tls", "other": "tls", "web": "ws"}
    mine.start(60)
    sites.run(1)
    assert mine.server_reference("local") == "outer:8883"
    assert mine.server_reference("other") == "inner:8883"
    assert mine.server_reference("web") is None


def test_nothing_is_moved_before_load_balancers_can_know() -> None:
    sites = Sites(3)
    peer = come(sites, 0)
    began_at = sites.sim.now
    sites[0].braid.drain.start(60)
    while not peer.link.closed:
        sites.run(0.05)
        assert sites[0].braid.drain.is_on
    assert sites.sim.now - began_at >= draining.NOTICE_S


def test_clients_go_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "CLIENTS_A_SECOND", 100)
    sites = Sites(3)
    sites.settle_s = 0.2
    peers = [come(sites, 0, f"c{number}", clean=True) for number in range(60)]
    sites[0].braid.drain.start(60)
    counts = []
    for _ in range(40):
        sites.run(0.1)
        counts.append(sum(peer.link.closed for peer in peers))
    assert counts[-1] == len(peers)
    assert max(after - before for before, after in pairwise(counts)) <= 15


def test_few_sessions_are_under_way_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "SESSIONS_AT_ONCE", 4)
    sites = Sites(3)
    sites.settle_s = 0.2
    for number in range(40):
        come(sites, 0, f"c{number}").drop()
    most = 0
    sites[0].braid.drain.start(60)
    while sites[0].braid.drain.outcome is None:
        sites.run(0.02)
        most = max(most, sites[0].braid.roaming.pusher.under_way)
    assert sites[0].braid.drain.outcome is DrainOutcome.EMPTY
    assert most == 4
    shares = Counter(number for client in range(40) for number in where(sites, f"c{client}"))
    assert sum(shares.values()) == 40
    assert min(shares[1], shares[2]) >= 15, "they are shared out"


def test_those_of_the_same_cluster_get_it() -> None:
    sites = Sites(4, clusters=["north/a", "south", "north/b", "north/b"])
    for number in range(6):
        come(sites, 0, f"c{number}").drop()
    assert drain(sites, 0) is DrainOutcome.EMPTY
    assert {number for client in range(6) for number in where(sites, f"c{client}")} == {2, 3}


def test_a_broker_that_is_drained_itself_takes_nothing() -> None:
    sites = Sites(3)
    come(sites, 0).drop()
    sites[1].braid.drain.start(60)
    assert drain(sites, 0) is DrainOutcome.EMPTY
    assert where(sites) == [2]


def test_alone_there_is_nobody_to_take_anything() -> None:
    sites = Sites(1)
    come(sites, 0).drop()
    assert drain(sites, 0) is DrainOutcome.NOBODY
    assert where(sites) == [0]
    sites[0].braid.drain.cancel()
    again = come(sites, 0)
    assert again.connack is not None
    assert again.connack.session_present


def test_it_is_over_when_time_is_up() -> None:
    sites = Sites(3)
    for site in (sites[1], sites[2]):
        site.host.serve(Lazy())
    come(sites, 0).drop()
    assert drain(sites, 0, 5.0) is DrainOutcome.TIME_UP
    assert where(sites) == [0]


class Lazy:
    """A broker that says that it takes sessions, and does not."""

    handlers: ClassVar = {TakeSession: "on_take_session"}

    def on_take_session(self, _origin: Any, _asked: TakeSession) -> None:
        return None


def test_a_drain_that_is_taken_back_serves_as_before() -> None:
    sites = Sites(3)
    advertise(sites)
    for number in range(3):
        come(sites, 0, f"c{number}").drop()
    sites[0].braid.drain.start(60)
    sites.run(0.5)
    sites[0].braid.drain.cancel()
    sites.run(5)
    assert [where(sites, f"c{number}") for number in range(3)] == [[0]] * 3
    come(sites, 0, "bob").expect_open()
    assert drain(sites, 1) is DrainOutcome.EMPTY, "others know that it takes sessions again"
    assert all(not one.is_draining for one in sites[2].braid.membership.records if one.name == "site0")


def test_a_client_that_comes_elsewhere_meanwhile_keeps_its_session() -> None:
    """The taker never takes a session from the broker to which its client has come."""
    for seed in range(12):
        sites = Sites(4, seed)
        old = come(sites, 0, version=V3)
        old.subscribe("tide", 2)
        publisher = sites.client(3, "pub")
        sites[0].braid.drain.start(60)
        while not old.link.closed:
            sites.run(0.01)
        sites.settle_s = 0.002 * seed
        new = sites[1 + seed % 2].peer(V3)
        new.send(wire.connect("ada", version=V3, **persistent(V3)))
        sites.settle_s = 1.0
        publisher.publish("tide", b"x", 2)
        sites.run(10)
        assert new.expect(Type.CONNACK, reason=0).session_present, f"seed {seed}"
        assert payloads(new) == [b"x"], f"seed {seed}"
        assert where(sites) == [1 + seed % 2], f"seed {seed}"
        new.expect_open()


# What runs out while the client is away


@pytest.mark.parametrize("is_back", [True, False])
def test_a_will_that_waits_moves_along(is_back: bool) -> None:
    sites = Sites(4)
    watcher = sites.client(3, "watcher")
    watcher.subscribe("will")
    will = Will(properties=wire.props(will_delay=30))
    come(sites, 0, clean=False, will=will, properties=wire.props(session_expiry=1000))
    assert drain(sites, 0) is DrainOutcome.EMPTY
    leave(sites, sites[0])
    assert payloads(watcher) == []
    if is_back:
        elsewhere = next(number for number in (1, 2, 3) if number not in where(sites))
        come(sites, elsewhere)
    for _ in range(40):
        sites.run(1)
    assert payloads(watcher) == ([] if is_back else [b"gone"])


def test_a_will_without_a_delay_is_due_at_once() -> None:
    """[MQTT-3.1.2-8]: the connection is closed, and the client has not said DISCONNECT."""
    sites = Sites(3)
    watcher = sites.client(2, "watcher")
    watcher.subscribe("will")
    come(sites, 0, clean=False, will=Will(), properties=wire.props(session_expiry=1000))
    assert drain(sites, 0) is DrainOutcome.EMPTY
    assert payloads(watcher) == [b"gone"]


def test_the_time_of_a_session_runs_on() -> None:
    sites = Sites(3)
    peer = come(sites, 0, clean=False, properties=wire.props(session_expiry=60))
    peer.drop()
    sites.run(40)
    assert drain(sites, 0) is DrainOutcome.EMPTY
    (taker,) = where(sites)
    sites.run(10)
    assert where(sites) == [taker]
    sites.run(15)
    assert where(sites) == []


# When something goes wrong


@pytest.mark.parametrize("when", [TakeSession, GiveUp])
def test_a_taker_that_dies_leaves_the_session_to_another(when: type) -> None:
    sites = Sites(4)
    old = come(sites, 0)
    old.subscribe("tide", 1)
    old.drop()
    publisher = sites.client(0, "pub", clean=True)
    publisher.publish("tide", b"1", 1)
    count = sites.sim.on_message
    dead: list[int] = []

    def watch(sender: Any, to: Any, message: Any, hops: int) -> None:
        if isinstance(message, when) and not dead:
            dead.append(to if when is TakeSession else sender)
            sites.sim.at(sites.sim.now, sites[dead[0]].crash)
        if count is not None:
            count(sender, to, message, hops)

    sites.sim.on_message = watch
    assert drain(sites, 0) is DrainOutcome.EMPTY
    (taker,) = where(sites)
    assert taker not in (0, *dead)
    sites.settle_s = 3.0
    elsewhere = next(number for number in (1, 2, 3) if number not in (taker, *dead))
    new = come(sites, elsewhere)
    assert new.connack is not None
    assert new.connack.session_present
    assert payloads(new) == [b"1"]


def test_a_session_that_was_not_taken_is_claimed_back() -> None:
    sites = Sites(3)
    come(sites, 0).drop()
    taker = sites[1].braid.roaming.taker

    async def fail(*_: Any) -> bool:
        return False

    for site in (sites[1], sites[2]):
        site.braid.roaming.incoming.bring = fail  # type: ignore[assignment,method-assign]
    told: list[Any] = []
    count = sites.sim.on_message

    def watch(sender: Any, to: Any, message: Any, hops: int) -> None:
        told.append(message)
        if count is not None:
            count(sender, to, message, hops)

    sites.sim.on_message = watch
    assert taker.has_room
    assert drain(sites, 0, 8.0) is DrainOutcome.TIME_UP
    assert any(isinstance(one, NotTaken) for one in told)
    sites[0].braid.drain.cancel()
    assert where(sites) == [0]
    sites.run(60)
    assert not sites[0].braid.roaming.clients.displaced, "the directory knows that it is here"
    new = come(sites, 0)
    assert new.connack is not None
    assert new.connack.session_present


# Rolling restarts


@pytest.mark.parametrize(("seed", "method"), [(0, "covers"), (0, "relayfree")])
def test_a_rolling_restart_loses_nothing(seed: int, method: str) -> None:
    """All sites but the first, one after the other, while it publishes; clients follow references, or go anywhere."""
    sites = Sites(4, seed, method=method)
    advertise(sites)
    sites.settle_s = 0.0
    publisher = sites[0].peer(V5)
    publisher.send(wire.connect("pub"))
    roamers = [Roamer(sites, f"r{number}", V5 if number % 2 else V3) for number in range(6)]
    for number, roamer in enumerate(roamers):
        roamer.connect(1 + number % 3)
        sites.run(0.5)
        roamer.read()
        roamer.subscribe("tide", 1 + number // 2 % 2)
        sites.run(0.5)
    sent: list[bytes] = []
    for number in (1, 2, 3):
        drained = sites[number].braid.drain
        drained.start(60)
        while drained.outcome is None:
            _roam(sites, publisher, roamers, sent, number, _for(sites, 0.05))
        assert drained.outcome is DrainOutcome.EMPTY, f"seed {seed}, site {number}"
        leave(sites, sites[number])
        _roam(sites, publisher, roamers, sent, number, _for(sites, 0.3))
        site = sites.add(number)
        sites.run(2)
        listener = ClientListener("local", "tcp", f"host{number}:1883")
        site.braid.membership.records.set_listeners([listener])
        site.braid.announce()
        _roam(sites, publisher, roamers, sent, -1, _for(sites, 0.5))
    _roam(sites, publisher, roamers, [], -1, _for(sites, 60.0), is_publishing=False)
    for number, roamer in enumerate(roamers):
        count = Counter(roamer.got)
        assert [one for one in sent if one not in count] == [], f"lost at r{number}, seed {seed}"
        firsts = list(dict.fromkeys(roamer.got))
        assert firsts == sorted(firsts), f"order at r{number}, seed {seed}"
        if number // 2 % 2:
            assert max(count.values()) == 1, f"twice at r{number}, seed {seed}"
        assert not roamer.sessions_lost, f"r{number}, seed {seed}"
        assert roamer.connects > 1


def _for(sites: Sites, seconds: float) -> Callable[[], bool]:
    ends_at = sites.sim.now + seconds
    return lambda: sites.sim.now >= ends_at


def _roam(
    sites: Sites,
    publisher: Peer,
    roamers: list[Roamer],
    sent: list[bytes],
    drained: int,
    is_enough: Callable[[], bool],
    is_publishing: bool = True,
) -> None:
    """Lets time pass: something is published every few milliseconds, and clients that are away come back somewhere."""
    chance = sites.sim.chance
    while not is_enough():
        if is_publishing:
            sent.append(b"%05d" % len(sent))
            publisher.send(wire.publish("tide", sent[-1], qos=2, packet_id=1 + len(sent)))
            publisher.send(wire.ack(Type.PUBREL, 1 + len(sent)))
            publisher.take()
        sites.run(0.01)
        for roamer in roamers:
            roamer.read()
            if roamer.is_away and chance.random() < 0.3:
                others = [site.number for site in sites if site.number != drained]
                told = roamer.reference
                roamer.connect(int(told[4]) if told is not None else chance.choice(others))
