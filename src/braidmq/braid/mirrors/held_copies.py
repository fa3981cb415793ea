"""The copies of other brokers' journals that this broker holds.

Each is in a folder of its own, named by its owner, in the journal's own format. What cannot be held is refused, and the
owner finds another mirror.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from braidmq.braid.mirrors.copied_sessions import ends_of
from braidmq.braid.mirrors.held_copy import (
    INCOMING,
    CopyAbout,
    CopyUnusable,
    HeldCopy,
    IncomingSnapshot,
    read_about,
    write_about,
)
from braidmq.braid.mirrors.messages import (
    AskMirror,
    AskTakenUp,
    BeginCopy,
    CopyBegun,
    CopyBlocks,
    CopyDropped,
    CopyHeartbeat,
    CopyHeld,
    CopyRefused,
    DropCopy,
    MirrorOffer,
    SnapshotPart,
    SnapshotTaken,
    TakenUp,
)
from braidmq.host import Address, Host, Reply, Service, handles
from braidmq.journal.errors import JournalDamaged, JournalFormatError
from braidmq.journal.journal_copy import CopyStart, JournalCopy

FOLDER_NAME: Final = "mirrors"
"""In the data folder."""
COPIES_HELD_MAX: Final = 16
"""Brokers whose journals are copied here."""
HELD_BYTES_MAX: Final = 64 * 1024**3
"""Of all copies together."""
FREE_BYTES_MIN: Final = 256 * 1024**2
"""What must stay free on the disk."""
SILENT_S_MAX: Final = 7 * 86_400.0
"""A copy whose owner was silent for so long gives way to another one, if there is no room."""
GAP_AGAIN_S: Final = 0.2
"""How long after it was asked for something that is missing is asked for again."""
NAME_BYTES_MAX: Final = 200
"""Of a folder."""

_UNUSABLE: Final = (OSError, JournalDamaged, JournalFormatError, CopyUnusable)
_log = logging.getLogger("braidmq.braid")


class HeldCopies(Service):
    def __init__(
        self, host: Host, folder: Path | None, is_synced: bool, identity: str, machine: str, failure_domain: str
    ) -> None:
        """`folder` is where copies are kept; None if none are."""
        self._host = host
        self._folder = folder
        self._is_synced = is_synced
        self._identity, self._machine, self._failure_domain = identity, machine, failure_domain
        self._copies: dict[str, HeldCopy] = {}
        self._incoming: dict[str, IncomingSnapshot] = {}
        self._is_ending = False
        self.on_changed: Callable[[], None] = lambda: None
        """Called when there is a copy more, or one less."""
        self.taken_up: Callable[[str, float], tuple[tuple[str, int], ...]] = lambda _owner, _seconds: ()
        """Which sessions of a broker were taken up here, in so many seconds: their client ids and epochs."""
        if folder is not None and folder.is_dir():
            for each in sorted(folder.iterdir()):
                self._restore(each)
        host.serve(self)

    def _restore(self, folder: Path) -> None:
        """Opens a copy that an earlier process had."""
        try:
            if folder.name.endswith(INCOMING):
                shutil.rmtree(folder)
                return
            about = read_about(folder)
            self._copies[about.owner] = HeldCopy(folder, about, JournalCopy(folder, self._is_synced), self._host.now)
        except (*_UNUSABLE, msgspec.MsgspecError) as error:
            _log.error("the copy in %s cannot be used, and is left alone: %s", folder, error)

    def get(self, owner: str) -> HeldCopy | None:
        """The copy of a broker's journal, by its identity."""
        return self._copies.get(owner)

    def __iter__(self) -> Iterator[HeldCopy]:
        return iter(list(self._copies.values()))

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def size(self) -> int:
        """About how many bytes all of them have."""
        return sum(copy.journal.size for copy in self._copies.values())

    def close(self) -> None:
        for copy in self._copies.values():
            copy.close()
        for incoming in self._incoming.values():
            incoming.close()

    # Whether there is room

    @handles(AskMirror)
    def on_ask_mirror(self, _origin: Address, asked: AskMirror) -> Reply:
        copy = self._copies.get(asked.owner)
        refusal = self._refusal(asked.owner, asked.size)
        position = 0 if copy is None else copy.position
        return MirrorOffer(self._identity, self._machine, self._failure_domain, refusal, position)

    def _refusal(self, owner: str, size: int) -> str:
        """Why there cannot be a copy of so many bytes; empty if there can."""
        if self._folder is None:
            return "it keeps nothing"
        if self._is_ending:
            return "it ends"
        if owner == self._identity:
            return "it is the same broker"
        if owner in self._copies:
            return ""
        if len(self._copies) >= COPIES_HELD_MAX and self._silent() is None:
            return f"it holds {COPIES_HELD_MAX} copies already"
        if self.size + size > HELD_BYTES_MAX:
            return "its copies take up all the room that they may"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            return f"it cannot write: {error.strerror}"
        return "" if free - size >= FREE_BYTES_MIN else "its disk is full"

    def _silent(self) -> HeldCopy | None:
        """The copy that may go."""
        now = self._host.now()
        silent = [copy for copy in self._copies.values() if now - copy.heard_at > SILENT_S_MAX]
        return min(silent, key=lambda copy: copy.heard_at, default=None)

    # Beginning

    @handles(BeginCopy)
    def on_begin_copy(self, origin: Address, asked: BeginCopy) -> Reply:
        if refusal := self._refusal(asked.owner, 0):
            return CopyRefused(asked.owner, refusal)
        copy = self._copies.get(asked.owner)
        try:
            if asked.is_fresh:
                folder = self._folder_of(asked.owner)
                incoming = folder.with_name(folder.name + INCOMING)
                shutil.rmtree(incoming, ignore_errors=True)
                incoming.mkdir(mode=0o700, parents=True)
                copy = self._replace(asked.owner, origin, CopyStart(asked.journal_id, epoch=asked.epoch))
            elif copy is not None:
                copy.hear(origin, 0)
        except _UNUSABLE as error:
            return self._give_up(asked.owner, error)
        return CopyBegun(0, 0, b"", 0) if copy is None else self._begun(copy)

    @staticmethod
    def _begun(copy: HeldCopy) -> CopyBegun:
        journal = copy.journal
        return CopyBegun(journal.journal_id, journal.position, journal.last_head, copy.term)

    @handles(SnapshotPart)
    def on_snapshot_part(self, origin: Address, part: SnapshotPart) -> Reply:
        owner = part.owner
        try:
            incoming = self._incoming.get(owner)
            copy = self._copies.get(owner)
            if incoming is None and copy is not None and part.offset and copy.begins_with(part.position):
                return self._begun(copy)  # the last part, for the second time
            if part.offset == 0 or incoming is None or (incoming.position, incoming.size) != (part.position, part.size):
                if refusal := self._refusal(owner, part.size):
                    return CopyRefused(owner, refusal)
                self._stop_incoming(owner)
                incoming = self._incoming[owner] = IncomingSnapshot(self._folder_of(owner), part.position, part.size)
            incoming.add(part.offset, part.data)
            if not incoming.is_whole:
                return SnapshotTaken(incoming.offset)
            return self._begun(self._replace(owner, origin, self._incoming.pop(owner).finish()))
        except _UNUSABLE as error:
            self._stop_incoming(owner)
            return CopyRefused(owner, str(error))

    def _stop_incoming(self, owner: str) -> None:
        incoming = self._incoming.pop(owner, None)
        if incoming is not None:
            incoming.close()

    def _replace(self, owner: str, address: Address, start: CopyStart) -> HeldCopy:
        """What has come takes the place of the copy that was there. It does not count yet."""
        folder = self._folder_of(owner)
        copy = self._copies.get(owner)
        if copy is not None and copy.journal.is_compacting:
            raise CopyUnusable("the copy that is there is being compacted")
        if copy is None and len(self._copies) >= COPIES_HELD_MAX and (silent := self._silent()) is not None:
            self._drop(silent)
        if copy is not None:
            copy.close()
            del self._copies[owner]
        about = CopyAbout(owner, address, 0)
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name(folder.name + INCOMING).rename(folder)
        write_about(folder, about)
        copy = HeldCopy(folder, about, JournalCopy(folder, self._is_synced, start), self._host.now)
        copy.hear(address, 0)
        self._copies[owner] = copy
        self.on_changed()
        return copy

    def _folder_of(self, owner: str) -> Path:
        assert self._folder is not None
        name = quote(owner, safe="#")
        if len(name) > NAME_BYTES_MAX:
            name = f"{name[: NAME_BYTES_MAX - 16]}{sha256(owner.encode()).hexdigest()[:16]}"
        return self._folder / name

    # The stream

    @handles(CopyBlocks)
    def on_copy_blocks(self, origin: Address, told: CopyBlocks) -> Reply:
        copy = self._copies.get(told.owner)
        if copy is None:
            self._host.send(origin, CopyRefused(told.owner, "it has no copy"))
            return None
        try:
            copy.hear(origin, told.term)
            self._acknowledge(origin, copy, has_gap=not copy.take(told.position, told.data))
        except _UNUSABLE as error:
            self._host.send(origin, self._give_up(told.owner, error))
        return None

    @handles(CopyHeartbeat)
    def on_copy_heartbeat(self, origin: Address, told: CopyHeartbeat) -> Reply:
        copy = self._copies.get(told.owner)
        if copy is None:
            self._host.send(origin, CopyRefused(told.owner, "it has no copy"))
            return None
        try:
            copy.hear(origin, told.term)
        except OSError as error:
            self._host.send(origin, self._give_up(told.owner, error))
            return None
        self._acknowledge(origin, copy, has_gap=copy.received < told.end)
        return None

    @handles(AskTakenUp)
    def on_ask_taken_up(self, origin: Address, asked: AskTakenUp) -> Reply:
        """No session is taken up behind this answer, while the owner is heard."""
        copy = self._copies.get(asked.owner)
        if copy is None:
            return CopyRefused(asked.owner, "it has no copy")
        try:
            copy.hear(origin, 0)
            taken_up = self.taken_up(asked.owner, asked.seconds)
            if asked.has_started and taken_up:
                return TakenUp(taken_up, *ends_of(copy.snapshot()))
            return TakenUp(taken_up)
        except OSError as error:
            return self._give_up(asked.owner, error)

    def _acknowledge(self, owner: Address, copy: HeldCopy, has_gap: bool) -> None:
        """Says how far the copy is; that something is missing, not again and again."""
        if has_gap:
            position, told_at = copy.gap_told
            now = self._host.now()
            if position == copy.received and now - told_at < GAP_AGAIN_S:
                return
            copy.gap_told = (copy.received, now)
        self._host.send(owner, CopyHeld(copy.owner, copy.term, copy.position, has_gap, copy.received))

    def _give_up(self, owner: str, error: Exception) -> CopyRefused:
        """The copy cannot go on. What it has stays as it is."""
        _log.error("the copy of the journal of %s cannot go on: %s", owner, error)
        return CopyRefused(owner, str(error))

    # The end

    def say_farewell(self) -> None:
        """This broker ends: owners that are here need not find out by its silence, and it is nobody's mirror again."""
        self._is_ending = True
        for copy in self._copies.values():
            if copy.is_streaming:
                self._host.send(copy.address, CopyRefused(copy.owner, "it ends", is_farewell=True))

    @handles(DropCopy)
    def on_drop_copy(self, _origin: Address, told: DropCopy) -> Reply:
        copy = self._copies.get(told.owner)
        if copy is not None and copy.term <= told.term:
            if copy.journal.is_compacting:
                return None  # it is asked again
            self._drop(copy)
        return CopyDropped()

    def _drop(self, copy: HeldCopy) -> None:
        copy.close()
        del self._copies[copy.owner]
        self._stop_incoming(copy.owner)
        shutil.rmtree(copy.folder, ignore_errors=True)
        self.on_changed()
