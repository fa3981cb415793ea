"""Mirrors in virtual time: brokers with real journals, whose copies are read after their owners are destroyed."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from braidmq.braid.mirrors import mirror_stream
from braidmq.braid.mirrors.own_copies import LACK_S, OwnCopies
from braidmq.braid.mirrors.settings import CopySettings
from braidmq.broker.journal_store import JournalStore, read_copy
from braidmq.broker.store import Snapshot
from braidmq.journal.compaction import compact
from braidmq.journal.journal import Journal
from braidmq.sim.network import Loss, Network, Partition, Reordering, Uniform
from tests.conformance import wire
from tests.conformance.pair import V5, Type, persistent

from .sites import Site, Sites


class MirroredSites(Sites):
    """Brokers with journals in a folder."""

    def __init__(self, folder: Path, count: int, seed: int = 1, **options: Any) -> None:
        self.folder = folder
        self.copying = options.pop("copying", CopySettings())
        self.stores: dict[int, JournalStore] = {}
        super().__init__(count, seed, **options)

    def add(self, number: int, **options: Any) -> Site:
        self.stores[number] = options["store"] = JournalStore(self.folder / f"site{number}")
        options.setdefault("copying", self.copying)
        return super().add(number, **options)

    def own(self, number: int) -> OwnCopies:
        own = self[number].braid.mirrors.own
        assert own is not None
        return own

    def copy_of(self, number: int) -> tuple[int, Snapshot]:
        """Where the copy of a broker's journal is, and what is in it."""
        owner = self[number].braid.identity
        (mirror,) = self.own(number).mirrors
        assert isinstance(mirror, int)
        held = self[mirror].braid.mirrors.held.get(owner)
        assert held is not None
        return mirror, held.snapshot()

    def crash(self, number: int) -> None:
        """A broker ends without a word; its folder stays."""
        site = self[number]
        site.crash()
        site.braid.mirrors.close()
        self.close(number)

    def close(self, number: int) -> None:
        """The store of a broker that has ended."""
        self.stores.pop(number).close()


def queued(snapshot: Snapshot, client_id: str) -> list[bytes]:
    """What waits for a client in a store."""
    (session,) = [one for one in snapshot.sessions if one.client_id == client_id]
    return [one.delivery.message.payload for one in session.deliveries]


def test_every_broker_with_a_journal_gets_a_mirror(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 3)
    for number in range(3):
        own = sites.own(number)
        assert own.count == 2
        assert own.lack is None
        mirror, _ = sites.copy_of(number)
        assert mirror != number
        held = sites[mirror].braid.mirrors.held.get(sites[number].braid.identity)
        assert held is not None
        assert held.is_streaming
        assert held.address == number
        assert held.term == own.term > 0


def test_what_was_acknowledged_is_in_the_copy(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 3)
    sites.client(1, "reader", **persistent(V5)).subscribe("a/#", 2)
    sites[1].settle()
    reader = sites.client(1, "other", **persistent(V5))
    reader.drop()
    sites.client(1, "reader", **persistent(V5)).drop()
    publisher = sites.client(1, "publisher")
    for number in range(5):
        assert publisher.publish(f"a/{number}", b"%d" % number, qos=1 + number % 2) == 0
    mirror, snapshot = sites.copy_of(1)
    owner = sites[1].braid.identity
    sites.crash(1)
    shutil.rmtree(tmp_path / "site1")
    assert queued(snapshot, "reader") == [b"%d" % number for number in range(5)]
    folder = tmp_path / f"site{mirror}" / "mirrors" / owner
    assert queued(read_copy(folder), "reader") == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("copies", [1, 2])
def test_an_acknowledgement_costs_a_round_trip_to_the_mirror(tmp_path: Path, copies: int) -> None:
    sites = MirroredSites(tmp_path, 2, network=Uniform(0.05, 0.05), copying=CopySettings(copies))
    sites.client(1, "reader", **persistent(V5)).subscribe("a", 1)
    publisher = sites.client(1, "publisher")
    sites.settle_s = 0.01
    publisher.send(publish(7))
    times = []
    for _ in range(20):
        if publisher.take():
            break
        times.append(sites.sim.now)
        sites.run(0.01)
    waited = len(times) * 0.01
    assert waited == pytest.approx(0.0 if copies == 1 else 0.1, abs=0.02)


# Faults


def publish(packet_id: int, qos: int = 1) -> bytes:
    return wire.publish("a", b"%d" % packet_id, version=V5, qos=qos, packet_id=packet_id)


class Watched:
    """A publisher at broker 1 for a subscriber that is away, and what it was told while there were two copies."""

    def __init__(self, sites: MirroredSites) -> None:
        self.sites = sites
        reader = sites.client(1, "reader", **persistent(V5))
        reader.subscribe("a", 2)
        reader.drop()
        self.publisher = sites.client(1, "publisher", **persistent(V5))
        self.sent = 0
        self.told: set[int] = set()
        """While the set of mirrors was as it is now."""
        self.all_told: set[int] = set()
        self.term = 0
        sites.settle_s = 0.01

    def step(self) -> None:
        """Something is published, and a hundredth of a second passes."""
        term, had_copy = self.sites.own(1).term, bool(self.sites.own(1).mirrors)
        self.sent += 1
        self.publisher.send(publish(self.sent, 1 + self.sent % 2))
        acknowledged = [one for one in self.publisher.take() if one.type in (Type.PUBACK, Type.PUBREC)]
        for one in acknowledged:
            assert one.reason in (0, 0x10)
            if one.type is Type.PUBREC:
                self.publisher.send(wire.ack(Type.PUBREL, one.packet_id or 0))
        own = self.sites.own(1)
        if own.term != self.term:
            self.told.clear()
            self.term = own.term
        numbers = {one.packet_id or 0 for one in acknowledged}
        self.all_told |= numbers
        if had_copy and term == own.term:
            self.told |= numbers

    def check(self) -> None:
        """The broker is destroyed: what it said while it had two copies is in the other one."""
        if not self.sites.own(1).mirrors:
            return
        mirror, snapshot = self.sites.copy_of(1)
        owner = self.sites[1].braid.identity
        self.sites.crash(1)
        shutil.rmtree(self.sites.folder / "site1")
        on_disk = read_copy(self.sites.folder / f"site{mirror}" / "mirrors" / owner)
        for copy in (snapshot, on_disk):
            found = queued(copy, "reader")
            assert self.told <= {int(one) for one in found}
            assert len(found) == len(set(found))


@pytest.mark.parametrize("seed", range(8))
def test_the_copy_has_what_was_acknowledged_whatever_happens(tmp_path: Path, seed: int) -> None:
    sites = MirroredSites(tmp_path, 4, seed)
    watched = Watched(sites)
    chance = Random(seed)
    whole = sites.sim.network
    for _ in range(6):
        fault = chance.choice(["loss", "cut", "crash", "none"])
        mirrors = sites.own(1).mirrors
        if fault == "loss":
            sites.sim.network = Loss(0.1, Reordering(0.1, whole))
        elif fault == "cut":
            sites.sim.network = Partition([[1]], sites.sim.now, sites.sim.now + 2.0, whole)
        elif fault == "crash" and mirrors and isinstance(mirrors[0], int):
            sites.crash(mirrors[0])
        for _ in range(chance.randrange(60, 200)):
            watched.step()
        sites.sim.network = whole
        for number in {0, 1, 2, 3} - set(sites.all):
            sites.add(number)
        for _ in range(chance.randrange(20, 300)):
            watched.step()
    assert len(watched.all_told) > watched.sent / 2
    watched.check()


@pytest.mark.parametrize("network", [None, Loss(0.05, Reordering(0.1, Uniform(0.001, 0.02)))], ids=["whole", "lossy"])
def test_a_block_larger_than_what_may_be_under_way_comes_through(tmp_path: Path, network: Network | None) -> None:
    sites = MirroredSites(tmp_path, 3)
    assert sites.own(1).count == 2
    if network is not None:
        sites.sim.network = network
    publisher = sites.client(1, "pub")
    payload = bytes(range(256)) * (2 * mirror_stream.CATCH_UP_BYTES // 256)
    publisher.send(wire.publish("large", payload, qos=1, packet_id=7, retain=True))
    sites.run(20)
    publisher.expect(Type.PUBACK, packet_id=7)
    sites.sim.network = Uniform(0.001, 0.02)
    sites.run(20)
    assert sites.own(1).count == 2
    _, copy = sites.copy_of(1)
    assert [one.payload for one in copy.retained if one.topic == "large"] == [payload]


def test_a_mirror_that_says_good_bye_is_missed_only_if_no_other_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "braidmq.braid")
    sites = MirroredSites(tmp_path, 2)
    assert sites.own(1).count == 2
    caplog.clear()
    sites[0].braid.mirrors.held.say_farewell()
    sites.run(0.1)
    sites.crash(0)
    assert sites.own(1).count == 1
    sites.run(LACK_S - 1)
    assert caplog.text == ""
    sites.run(2)
    assert "1 of 2 copies of this broker's store are there" in caplog.text


def test_a_mirror_that_falls_silent_is_given_up_and_another_one_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sites = MirroredSites(tmp_path, 3)
    watched = Watched(sites)
    (mirror,) = sites.own(1).mirrors
    term = sites.own(1).term
    assert isinstance(mirror, int)
    sites.crash(mirror)
    for _ in range(200):
        watched.step()
    assert "has not answered for 1 s (1 of 2 copies)" in caplog.text
    assert len(watched.all_told) > 40, "it goes on with fewer"
    for _ in range(400):
        watched.step()
    assert sites.own(1).mirrors
    assert sites.own(1).mirrors != (mirror,)
    assert sites.own(1).term > term
    assert {watched.sent - 50, *range(1, 20)} <= watched.all_told
    held = sites[int(sites.own(1).mirrors[0])].braid.mirrors.held.get(sites[1].braid.identity)
    assert held is not None
    assert len(queued(held.snapshot(), "reader")) > watched.sent - 10
    watched.check()


def test_a_former_mirror_drops_its_copy_when_it_is_back(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 3)
    owner = sites[1].braid.identity
    (mirror,) = sites.own(1).mirrors
    assert isinstance(mirror, int)
    sites.crash(mirror)
    sites.run(10)
    assert sites.own(1).mirrors
    assert (tmp_path / f"site{mirror}" / "mirrors" / owner).exists()
    sites.add(mirror)
    sites.run(90)
    assert sites[mirror].braid.mirrors.held.get(owner) is None
    assert not (tmp_path / f"site{mirror}" / "mirrors" / owner).exists()
    assert not sites.own(1).set.former


def test_a_broker_that_restarts_goes_on_with_its_mirror(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 4)
    sites.run(60)
    (mirror,), term = sites.own(1).mirrors, sites.own(1).term
    sent = sites.own(1).bytes_sent
    sites.crash(1)
    sites.run(5)
    sites.add(1)
    sites.run(10)
    assert sites.own(1).mirrors == (mirror,)
    assert sites.own(1).term > term
    assert sites.own(1).bytes_sent < sent + 5000, "it goes on where the copy was"


def test_a_copy_begins_with_a_snapshot_if_the_journal_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_stream, "PIECE_BYTES", 1000)
    sites = MirroredSites(tmp_path, 2, copying=CopySettings(1))
    reader = sites.client(1, "reader", **persistent(V5))
    reader.subscribe("a", 1)
    reader.drop()
    sites.client(1, "publisher").send(*[publish(number) for number in range(1, 61)])
    sites.crash(1)
    journal = sites.folder / "site1" / "journal"
    opened = Journal(journal)
    opened.seal()
    compact(journal, opened.sealed_position)
    opened.close()
    sites.add(1, copying=CopySettings(2))
    sites.run(30)
    mirror, snapshot = sites.copy_of(1)
    assert len(queued(snapshot, "reader")) == 60
    assert list((tmp_path / f"site{mirror}" / "mirrors").rglob("*.snapshot"))


def test_a_copy_that_is_not_of_this_journal_is_begun_anew(tmp_path: Path) -> None:
    """A power cut took the end of the owner's journal, which then went on otherwise."""
    sites = MirroredSites(tmp_path, 2)
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "site1" / "journal", saved)
    watched = Watched(sites)
    for _ in range(30):
        watched.step()
    sites.crash(1)
    shutil.rmtree(tmp_path / "site1" / "journal")
    shutil.copytree(saved, tmp_path / "site1" / "journal")
    sites.add(1)
    sites.run(10)
    sites.settle_s = 1.0
    watched = Watched(sites)
    for _ in range(10):
        watched.step()
    sites.run(10)
    _, snapshot = sites.copy_of(1)
    assert len(queued(snapshot, "reader")) == 10
    watched.check()


# Choosing


def test_domains_are_kept_apart_strictly(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 0)
    for number, domain in enumerate(["", "rack1", "rack1", "rack2"]):
        sites.add(number, copying=CopySettings(failure_domain=domain))
        sites.run(2)
    sites.run(30)
    assert sites.own(1).mirrors == sites.own(2).mirrors == (3,)
    assert sites.own(3).mirrors in ((1,), (2,))
    assert sites.own(0).mirrors


def test_with_too_few_copies_it_refuses_if_it_is_told_to(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 1, copying=CopySettings(2, required=2))
    client = sites.client(0, "early")
    assert client.publish("a", b"x", qos=1) == 0x97
    sites.add(1)
    sites.run(10)
    assert client.publish("a", b"x", qos=1) in (0, 0x10)
    sites.crash(1)
    sites.run(5)
    assert client.publish("a", b"x", qos=1) == 0x97


def test_brokers_without_a_journal_neither_have_nor_are_mirrors(tmp_path: Path) -> None:
    sites = Sites(0)
    for number in range(2):
        sites.add(number, copying=CopySettings(2))
    sites.add(2, store=JournalStore(tmp_path), copying=CopySettings(2))
    sites.run(30)
    assert sites[0].braid.mirrors.own is None
    own = sites[2].braid.mirrors.own
    assert own is not None
    assert not own.mirrors
    assert own.lack == "1 of 2 copies of this broker's store are there"
    assert not own.is_behind
