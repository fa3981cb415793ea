"""A broker is destroyed with its store: its mirror takes its sessions up, and clients find them wherever they come.

The copy is the journal of the broker itself, as it was when it was destroyed; how copies come about is shown elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.braid.mirrors.adopting import GONE_S, Adoptions
from braidmq.braid.mirrors.copied_sessions import CopiedSessions
from braidmq.braid.roaming.messages import GiveUpAnswer
from braidmq.braid.roaming.reaching import THERE_S
from braidmq.braid.round_trips import LOOK_S
from braidmq.broker.journal_store import JournalStore, read_copy
from braidmq.broker.store import Snapshot
from braidmq.sim.network import Partition
from tests.braid.sites import Sites, payloads
from tests.conformance import wire
from tests.conformance.pair import V3, V5, Peer, Type, persistent

VERSIONS = pytest.mark.parametrize("version", [V3, V5])


class CopyOfSite:
    """What a site had that is gone."""

    def __init__(self, sites: Sites, number: int, folder: Path) -> None:
        self.owner = sites[number].braid.identity
        self._sites = sites
        self._number = number
        self._folder = folder
        self.heard_at = sites.sim.now
        self.address = number
        self.term = 1

    @property
    def is_streaming(self) -> bool:
        return self._number in self._sites.all

    def snapshot(self) -> Snapshot:
        return read_copy(self._folder)

    def sessions(self) -> CopiedSessions:
        return CopiedSessions(self.owner, self.snapshot())


class CopiesOf:
    def __init__(self, *copies: CopyOfSite) -> None:
        self._copies = {copy.owner: copy for copy in copies}

    def get(self, owner: str) -> CopyOfSite | None:
        return self._copies.get(owner)

    def __iter__(self) -> Iterator[CopyOfSite]:
        return iter(self._copies.values())


class Braid4:
    """Four sites; the last has a journal, and the second a copy of it."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.folder = folder
        self.sites = Sites(3, seed)
        self.store = JournalStore(folder)
        self.sites.add(7, store=self.store)
        self.sites.run(10)
        self.copy = CopyOfSite(self.sites, 7, self.store.path)
        self.adoptions: Adoptions = self.sites[1].braid.act_for(CopiesOf(self.copy))
        self.sites[7].braid.roaming.directory.mirrors = lambda: (1,)

    def destroy(self) -> None:
        self.store.close()
        self.sites[7].crash()
        self.copy.heard_at = self.sites.sim.now


@pytest.fixture
def braid(tmp_path: Path) -> Braid4:
    return Braid4(tmp_path / "site7")


def come(sites: Sites, number: int, version: int = V5, client_id: str = "ada") -> Peer:
    return sites.client(number, client_id, version=version, **persistent(version))


def publish(peer: Peer, numbers: range, qos: int, topic: str = "tide") -> None:
    for number in numbers:
        peer.publish(topic, b"%d" % number, qos)


def texts(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def all_of(peer: Peer) -> list[bytes]:
    got: list[bytes] = []
    while some := payloads(peer):
        got += some
    return got


@VERSIONS
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_finds_its_session_wherever_it_comes(braid: Braid4, at: int, qos: int, version: int) -> None:
    sites = braid.sites
    ada = come(sites, 7, version)
    ada.subscribe("tide", qos)
    publisher = sites.client(2)
    publish(publisher, range(3), qos)
    assert all_of(ada) == texts(range(3))
    ada.drop()
    publish(publisher, range(3, 6), qos)
    braid.destroy()
    publish(publisher, range(6, 9), qos)
    ada = come(sites, at, version)
    assert ada.connack is not None
    assert ada.connack.session_present
    publish(publisher, range(9, 12), qos)
    assert all_of(ada) == texts(range(3, 12))
    sites.run(60)
    assert all_of(ada) == []


def test_what_a_publisher_that_roamed_has_published_comes_in_its_order(braid: Braid4) -> None:
    sites = braid.sites
    ada = come(sites, 7)
    ada.subscribe("tide", 1)
    sites.run(1)
    ada.drop()
    braid.destroy()
    for number in range(9):
        publisher = come(sites, number % 3, client_id="pub")
        publish(publisher, range(2 * number, 2 * number + 2), 1)
        publisher.drop()
    assert all_of(come(sites, 0)) == texts(range(18))


def test_the_client_waits_no_longer_than_a_moment(braid: Braid4) -> None:
    sites = braid.sites
    come(sites, 7).subscribe("tide", 1)
    braid.destroy()
    sites.settle_s = 0.001
    peer = sites[0].peer(V5)
    began = sites.sim.now
    peer.connection.receive(wire.connect("ada", version=V5, **persistent(V5)))
    sites[0].settle()
    while peer.connack is None and sites.sim.now < began + 5:
        sites.run(0.01)
        peer._read()
    assert peer.connack is not None
    assert peer.connack.session_present
    assert sites.sim.now - began < 0.34, "a round trip of 40 ms, and 300 ms"


@VERSIONS
def test_half_done_exchanges_go_on(braid: Braid4, version: int) -> None:
    """What the client has of QoS 2 is not sent again."""
    sites = braid.sites
    ada = come(sites, 7, version)
    ada.subscribe("tide", 2)
    publish(sites.client(0), range(2), 2)
    first, second = [one for one in ada.take() if one.type is Type.PUBLISH]
    ada.send(bytes((0x50, 2)) + (first.packet_id or 0).to_bytes(2))
    assert ada.expect(Type.PUBREL).packet_id == first.packet_id
    ada.drop()
    braid.destroy()
    ada = come(sites, 2, version)
    got = ada.take()
    assert [one.packet_id for one in got if one.type is Type.PUBREL] == [first.packet_id]
    again = [one for one in got if one.type is Type.PUBLISH]
    assert [(one.packet_id, one.payload, one.dup) for one in again] == [(second.packet_id, b"1", True)]


@VERSIONS
def test_what_is_sent_again_is_not_published_again(braid: Braid4, version: int) -> None:
    sites = braid.sites
    ada = come(sites, 7, version)
    watcher = sites.client(2, "watcher")
    watcher.subscribe("from/ada", 2)
    once = wire.publish("from/ada", b"once", version=version, qos=2, packet_id=77)
    ada.send(once)
    ada.expect(Type.PUBREC, packet_id=77)
    assert all_of(watcher) == [b"once"]
    ada.drop()
    braid.destroy()
    ada = come(sites, 0, version)
    ada.send(bytes((once[0] | 0x08,)) + once[1:])
    ada.expect(Type.PUBREC, packet_id=77)
    ada.send(wire.ack(Type.PUBREL, 77))
    ada.expect(Type.PUBCOMP, packet_id=77, reason=0)
    sites.run(60)
    assert all_of(watcher) == []


def test_a_mirror_does_not_act_for_a_broker_that_is_there(braid: Braid4) -> None:
    sites = braid.sites
    come(sites, 7).drop()
    adopt = braid.adoptions.begin
    assert adopt(braid.copy.owner, "ada") is GiveUpAnswer.BUSY, "it is asked whether it is there"
    sites.run(0.1)
    assert adopt(braid.copy.owner, "ada") is GiveUpAnswer.THERE
    braid.destroy()
    sites.run(THERE_S)
    assert adopt(braid.copy.owner, "ada") is GiveUpAnswer.BUSY
    sites.run(2 * LOOK_S)
    assert "ada" not in sites[1].broker.sessions
    assert adopt(braid.copy.owner, "ada") is GiveUpAnswer.BUSY
    sites.run(2)
    assert "ada" in sites[1].broker.sessions


def test_what_was_taken_up_is_here_though_its_broker_is_back_at_once(
    braid: Braid4, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = braid.sites
    come(sites, 7).drop()
    braid.destroy()
    sites.run(1)
    sessions = sites[1].broker.sessions
    monkeypatch.setattr(sites[1].braid.roaming.reach, "is_there", lambda _name, _address: "ada" in sessions)
    answers: list[GiveUpAnswer | None] = []

    async def adopt() -> None:
        answers.append(await braid.adoptions.adopt_here(braid.copy.owner, "ada"))

    sites[1].host.spawn(adopt())
    sites.run(2)
    assert answers == [GiveUpAnswer.GIVEN]


def test_sessions_that_nobody_asks_for_are_taken_up_after_a_while(braid: Braid4) -> None:
    """Else what is published for them would be forgotten with the histories, and their entries in the directory."""
    sites = braid.sites
    ada = come(sites, 7)
    ada.subscribe("tide", 1)
    ada.drop()
    braid.adoptions.start()
    braid.destroy()
    publisher = sites.client(2)
    publish(publisher, range(3), 1)
    sites.run(GONE_S + 60)
    assert braid.adoptions.adopted == 1
    publish(publisher, range(3, 5), 1)
    sites.run(600)
    ada = come(sites, 0)
    assert ada.connack is not None
    assert ada.connack.session_present
    assert all_of(ada) == texts(range(5))


def test_its_history_is_answered_for(braid: Braid4, tmp_path: Path) -> None:
    """A broker was away when something was published, and the broker where that was is gone when it comes back."""
    sites = braid.sites
    store = JournalStore(tmp_path / "site5")
    sites.add(5, store=store)
    sites.run(10)
    come(sites, 5, client_id="bob").subscribe("tide", 1)
    publisher = sites.client(7, "publisher")
    publish(publisher, range(2), 1)
    store.close()
    sites[5].crash()
    sites.settle_s = 3.0  # it was a mirror of the publisher's broker, which waits for it at first
    publish(publisher, range(2, 5), 1)
    braid.destroy()
    sites.run(30)
    store = JournalStore(tmp_path / "site5")
    sites.add(5, store=store)
    sites.run(60)
    assert all_of(come(sites, 5, client_id="bob")) == texts(range(5))
    store.close()


def test_the_mirror_itself_gets_what_it_has_missed(braid: Braid4) -> None:
    sites = braid.sites
    bob = come(sites, 1, client_id="bob")
    bob.subscribe("tide", 1)
    publisher = sites.client(7, "publisher")
    publish(publisher, range(2), 1)
    now = sites.sim.now
    sites.sim.network = Partition([[7]], now, now + 120, sites.sim.network)
    publish(publisher, range(2, 4), 1)
    braid.destroy()
    sites.run(60)
    assert all_of(bob) == texts(range(4))


def test_its_retained_messages_are_kept(braid: Braid4) -> None:
    sites = braid.sites
    braid.adoptions.start()
    publisher = sites.client(7, "publisher")
    publisher.publish("level", b"3", 1, retain=True)
    publisher.publish("old", b"1", 1, retain=True)
    sites.client(2, "other").publish("old", b"2", 1, retain=True)
    braid.destroy()
    sites.run(GONE_S + 30)
    late = sites.client(0, "late")
    late.subscribe("#", 1)
    assert sorted(all_of(late)) == [b"2", b"3"]


def test_a_broker_that_comes_back_gives_way(braid: Braid4) -> None:
    """It was cut off, not destroyed: its client has its session elsewhere, and gets nothing twice."""
    sites = braid.sites
    ada = come(sites, 7)
    ada.subscribe("tide", 2)
    publisher = sites.client(2)
    publish(publisher, range(2), 2)
    ada.drop()
    braid.destroy()
    ada = come(sites, 0)
    publish(publisher, range(2, 4), 2)
    assert all_of(ada) == texts(range(4))
    store = JournalStore(braid.folder)
    sites.add(7, store=store)
    sites.run(60)
    publish(publisher, range(4, 6), 2)
    assert all_of(ada) == texts(range(4, 6))
    sites.run(120)
    assert all_of(ada) == []
    assert "ada" not in sites[7].broker.sessions
    store.close()
