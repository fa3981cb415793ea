"""Many clients ask for their sessions when their broker is gone: its copy is read once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import SupportsIndex, TypeVar

import msgspec
import pytest

from braidmq.braid.mirrors import held_copy
from braidmq.braid.roaming.epochs import EPOCH
from braidmq.broker.journal_store import read_copy
from braidmq.broker.store import Snapshot
from braidmq.broker.subscription import Subscribed
from tests.braid.test_mirrors import MirroredSites

CLIENTS = 10_000
ASKING = 200
"""Of these the sessions are taken up, too."""

T = TypeVar("T")


class Counted(list[T]):
    """Rows that know how many of them were looked at, one after the other."""

    looked_at = 0

    def __iter__(self) -> Iterator[T]:
        self.looked_at += len(self)
        return super().__iter__()

    def __getitem__(self, index: SupportsIndex | slice, /) -> T:  # type: ignore[override]
        self.looked_at += 1
        return super().__getitem__(index)  # type: ignore[return-value]


def test_a_copy_is_read_once_for_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Snapshot] = []

    def read_counted(folder: Path) -> Snapshot:
        found = read_copy(folder)
        found.sessions, found.cursors = Counted(found.sessions), Counted(found.cursors)
        read.append(found)
        return found

    monkeypatch.setattr(held_copy, "read_copy", read_counted)
    sites = MirroredSites(tmp_path, 3)
    store, owner = sites.stores[1], sites[1].braid.identity
    for number in range(CLIENTS):
        row, client_id = store.next_row(), f"client{number}"
        store.save_session(row, client_id, 3600, None, "")
        store.save_subscription(row, f"to/{number}", Subscribed(qos=1))
        store.save_cursor(EPOCH + client_id, msgspec.msgpack.encode((1000 + number, 10)))
    sites[1].broker.flush()
    sites.run(1)
    (mirror,) = sites.own(1).mirrors
    assert isinstance(mirror, int)
    sites.crash(1)
    sites.run(3)
    adoptions = sites[mirror].braid.adoptions
    for number in range(CLIENTS):
        (copy,) = [one for one in adoptions.copies_of(f"client{number}") if one.owner == owner]
        assert copy.epoch == 1000 + number
    sites.run(0.5)  # meanwhile it is found out that the broker answers nobody
    for number in range(ASKING):
        adoptions.begin(owner, f"client{number}")
    sites.run(3)
    assert adoptions.adopted == ASKING
    (snapshot,) = [one for one in read if len(one.sessions) > 1]
    rows = (snapshot.sessions, snapshot.cursors)
    assert sum(one.looked_at for one in rows if isinstance(one, Counted)) < 10 * CLIENTS
