"""Mirrors in virtual time: brokers with real journals, whose copies are read after their owners are destroyed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from braidmq.braid.mirrors.own_copies import OwnCopies
from braidmq.braid.mirrors.settings import CopySettings
from braidmq.broker.journal_store import JournalStore, read_copy
from braidmq.broker.store import Snapshot
from braidmq.sim.network import Uniform
from tests.conformance.pair import V5, persistent

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
    publisher.send(wire_publish(7))
    times = []
    for _ in range(20):
        if publisher.take():
            break
        times.append(sites.sim.now)
        sites.run(0.01)
    waited = len(times) * 0.01
    assert waited == pytest.approx(0.0 if copies == 1 else 0.1, abs=0.02)


def wire_publish(packet_id: int) -> bytes:
    from tests.conformance import wire

    return wire.publish("a", b"x", version=V5, qos=1, packet_id=packet_id)
