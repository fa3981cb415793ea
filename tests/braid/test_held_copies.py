"""The copies that a broker holds of others' journals: how many, how large, for how long, and when they are on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from braidmq.braid.mirrors import held_copies
from braidmq.braid.mirrors.held_copies import HeldCopies
from braidmq.braid.mirrors.messages import (
    AskMirror,
    BeginCopy,
    CopyBegun,
    CopyBlocks,
    CopyHeartbeat,
    CopyHeld,
    CopyRefused,
    MirrorOffer,
)
from braidmq.journal.contents import read_contents
from braidmq.journal.journal import Journal
from braidmq.journal.operation import PUT
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Uniform


class Mirror:
    """A broker that holds copies, and owners whose journals are real."""

    def __init__(self, folder: Path, is_synced: bool = False) -> None:
        self.sim = Simulator(1, Uniform(0.001, 0.002))
        self.folder = folder / "mirrors"
        self.held = HeldCopies(self.sim.host(0), self.folder, is_synced, "mirror", "here", "")
        self.told: list[Any] = []
        self.sim.on_message = lambda _sender, _to, message, _hops: self.told.append(message)
        self._owners = folder / "owners"
        self.sim.host(1)

    def refusal(self, owner: str, size: int = 0) -> str:
        offer = self.held.on_ask_mirror(1, AskMirror(owner, size))
        assert isinstance(offer, MirrorOffer)
        return offer.refusal

    def hold(self, owner: str, rows: int = 1) -> Journal:
        """A copy of a journal with so many rows, each of a kilobyte."""
        (self._owners / owner).mkdir(parents=True)
        journal = Journal(self._owners / owner)
        begun = self.held.on_begin_copy(1, BeginCopy(owner, journal.journal_id, journal.epoch, is_fresh=True))
        assert isinstance(begun, CopyBegun), begun

        def copy(begin: int, block: bytes) -> None:
            self.held.on_copy_blocks(1, CopyBlocks(owner, 0, begin, block))

        journal.on_commit = copy
        for number in range(rows):
            journal.commit([(PUT, 1, 0, number, bytes(1000))])
        return journal

    def run(self, seconds: float) -> None:
        self.sim.run(self.sim.now + seconds)


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path)


def test_so_many_and_no_more(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_copies, "COPIES_HELD_MAX", 2)
    mirror.hold("a")
    assert mirror.refusal("b") == ""
    mirror.hold("b")
    assert mirror.refusal("c") == "it holds 2 copies already"
    refused = mirror.held.on_begin_copy(1, BeginCopy("c", 1, 0, is_fresh=True))
    assert refused == CopyRefused("c", "it holds 2 copies already")
    assert mirror.refusal("a") == "", "one that is here may go on"
    assert sorted(one.owner for one in mirror.held) == ["a", "b"]


def test_one_whose_owner_was_silent_for_long_gives_way(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_copies, "COPIES_HELD_MAX", 2)
    mirror.hold("a")
    mirror.hold("b")
    for _ in range(2):
        mirror.run(held_copies.SILENT_S_MAX / 2 - 1)
        mirror.held.on_copy_heartbeat(1, CopyHeartbeat("b", 0, 0))
    assert mirror.refusal("c") == "it holds 2 copies already"
    mirror.run(10)
    assert mirror.refusal("c") == ""
    mirror.hold("c")
    assert sorted(one.owner for one in mirror.held) == ["b", "c"]
    assert sorted(one.name for one in mirror.folder.iterdir()) == ["b", "c"]
    mirror.held.on_copy_blocks(1, CopyBlocks("a", 0, 0, b""))
    mirror.run(1)
    assert CopyRefused("a", "it has no copy") in mirror.told


def test_so_many_bytes_and_no_more(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_copies, "HELD_BYTES_MAX", 100_000)
    mirror.hold("a", rows=60)
    assert 60_000 < mirror.held.size < 70_000
    assert mirror.refusal("b", 30_000) == ""
    assert mirror.refusal("b", 45_000) == "its copies take up all the room that they may"
    assert mirror.refusal("a", 45_000) == "", "one that is here may go on"


def test_some_of_the_disk_stays_free(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mirror.refusal("a", 1000) == ""
    monkeypatch.setattr(held_copies, "FREE_BYTES_MIN", 1 << 60)
    assert mirror.refusal("a", 1000) == "its disk is full"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "mirrors").write_text("a file")
    assert Mirror(tmp_path).refusal("a", 1000).startswith("it cannot write: ")


def test_a_mirror_that_ends_takes_nobody_up_again(mirror: Mirror) -> None:
    mirror.hold("a")
    mirror.held.say_farewell()
    mirror.run(1)
    assert CopyRefused("a", "it ends", is_farewell=True) in mirror.told
    assert mirror.refusal("a") == mirror.refusal("b") == "it ends"


@pytest.mark.parametrize("is_synced", [False, True])
def test_with_sync_full_a_copy_is_on_the_disk_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_synced: bool
) -> None:
    mirror = Mirror(tmp_path, is_synced)
    happened: list[tuple[str, int]] = []
    held = mirror.held
    fdatasync = os.fdatasync

    def sync(file: int) -> None:
        fdatasync(file)
        if os.readlink(f"/proc/self/fd/{file}").startswith(str(mirror.folder)):
            happened.append(("synced", os.fstat(file).st_size))

    def note(_sender: Any, _to: Any, message: Any, *_: Any) -> None:
        if isinstance(message, CopyHeld):
            happened.append(("told", message.position))

    monkeypatch.setattr(os, "fdatasync", sync)
    mirror.sim.on_send = note
    mirror.hold("a", rows=3)
    copy = held.get("a")
    assert copy is not None
    kinds = [kind for kind, _ in happened]
    assert kinds == (["synced", "told"] * 3 if is_synced else ["told"] * 3)
    assert happened[-1][1] == copy.position
    assert list(read_contents(copy.folder).tables.group(1)) == [0, 1, 2]
