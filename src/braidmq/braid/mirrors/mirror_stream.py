"""The way of this broker's journal to one of its mirrors.

A mirror goes on where its copy is, if that is a part of this journal; if not, it is sent the newest snapshot, part by
part. Then it is fed: with what is in the files, a few pieces at a time, until it has caught up, and from then on with
each block as it is committed. It says how far it is; what was lost on the way is sent again from there.
"""

from __future__ import annotations

import os
from typing import Final

from braidmq.braid.mirrors.messages import (
    BeginCopy,
    CopyBegun,
    CopyBlocks,
    CopyHeartbeat,
    CopyHeld,
    CopyRefused,
    SnapshotPart,
    SnapshotTaken,
)
from braidmq.braid.mirrors.mirror_set import Mirror
from braidmq.host import Host, Message, ask
from braidmq.journal.errors import PositionGoneError
from braidmq.journal.files import files_of
from braidmq.journal.journal import Journal
from braidmq.journal.journal_reader import JournalReader

PIECE_BYTES: Final = 256 * 1024
"""What one message carries of a snapshot, or of the stream to a copy that is behind; a block up to this size is sent as
it was written."""
CATCH_UP_BYTES: Final = 4 * PIECE_BYTES
"""What may be under way to a copy that is behind."""
LIVE_BYTES: Final = 8 * 1024 * 1024
"""What may be under way to one that has caught up; above it, it is behind."""
CAUGHT_UP_BYTES: Final = 256 * 1024
"""A copy that lacks no more than this has caught up."""
RESEND_S: Final = 0.3
"""What was not acknowledged for so long is sent again."""
CALL_S: Final = 1.0
CALL_TRIES: Final = 3
"""How long an answer may take while a copy begins, and how often it is asked for."""


class StreamFailed(Exception):
    """The mirror cannot be fed; the text says why."""


class MirrorStream:
    def __init__(self, host: Host, journal: Journal, owner: str, mirror: Mirror, is_near: bool) -> None:
        """`is_near` if the mirror may fail together with this broker, since it is on the same machine."""
        self._host = host
        self._journal = journal
        self._owner = owner
        self._reader = JournalReader(journal.folder)
        self.mirror = mirror
        self.is_near = is_near
        self.is_fed = False
        """Whether the copy has begun, and is a part of this journal."""
        self.term = 0
        """What the mirror is told of it; 0 while its copy does not count."""
        self.told_term = 0
        """The last that the mirror said it knows."""
        self.sent = 0
        self.acknowledged = 0
        """How far the stream was sent, and how far the copy is."""
        self._received = 0
        """How far the stream has come there: a block may be larger than what may be under way."""
        self.heard_at = self.told_at = self._moved_at = host.now()
        """When the mirror was heard, told something, and came further."""
        self.bytes = 0
        """That were sent."""

    @property
    def has_caught_up(self) -> bool:
        return self.is_fed and self._journal.position - self.acknowledged <= CAUGHT_UP_BYTES

    # Beginning

    async def begin(self) -> CopyBegun:
        """Finds out where the copy is, or has it begin; then it is fed. Raises StreamFailed."""
        journal = self._journal
        begun = await self._call(BeginCopy(self._owner, journal.journal_id, journal.epoch))
        known_term = begun.term
        if not self._is_part_of_journal(begun):
            begun = await self._begin_anew()
        self.sent = self.acknowledged = self._received = begun.position
        self.is_fed = True
        self.heard_at = self._moved_at = self._host.now()
        self.pump()
        return CopyBegun(begun.journal_id, begun.position, begun.head, known_term)

    def _is_part_of_journal(self, begun: CopyBegun) -> bool:
        """A journal that lost its end in a power cut may have gone on otherwise than its copy says."""
        journal = self._journal
        if begun.journal_id != journal.journal_id or begun.position > journal.position:
            return False
        if not begun.head:
            return begun.position == journal.snapshot_position
        return self._reader.has_block(begun.head, begun.position)

    async def _begin_anew(self) -> CopyBegun:
        snapshots = files_of(self._journal.folder, "snapshot")
        if snapshots:
            position, path = snapshots[-1]
            try:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise StreamFailed(f"the snapshot cannot be read: {error.strerror}") from error
            try:
                return await self._send_snapshot(file, position)
            finally:
                os.close(file)
        return await self._call(BeginCopy(self._owner, self._journal.journal_id, self._journal.epoch, is_fresh=True))

    async def _send_snapshot(self, file: int, position: int) -> CopyBegun:
        """One part after the other; the loop has its turn between them."""
        size, offset = os.fstat(file).st_size, 0
        while True:
            part = SnapshotPart(self._owner, position, size, offset, os.pread(file, PIECE_BYTES, offset))
            answer = await self._ask(part)
            self.bytes += len(part.data)
            if isinstance(answer, CopyBegun):
                return answer
            if not isinstance(answer, SnapshotTaken) or not offset < answer.offset < size:
                raise StreamFailed("it did not take the snapshot")
            offset = answer.offset

    async def _call(self, request: Message) -> CopyBegun:
        answer = await self._ask(request)
        if not isinstance(answer, CopyBegun):
            raise StreamFailed("it did not say where its copy is")
        return answer

    async def _ask(self, request: Message) -> CopyBegun | SnapshotTaken:
        kinds = (CopyBegun, SnapshotTaken, CopyRefused)
        answer = await ask(self._host, self.mirror.address, request, kinds, timeout_s=CALL_S, tries=CALL_TRIES)
        if answer is None:
            raise StreamFailed("it does not answer")
        if isinstance(answer, CopyRefused):
            raise StreamFailed(answer.reason)
        return answer

    # Feeding

    def feed(self, begin: int, block: bytes) -> None:
        """A block was committed; it leaves at once, unless the copy is behind."""
        if self.sent == begin and len(block) <= PIECE_BYTES and begin - self.acknowledged < LIVE_BYTES:
            self._send(begin, block)
        else:
            self.pump()

    def pump(self) -> None:
        """Sends what the copy lacks, within the bound of what may be under way. Raises StreamFailed."""
        end = self._journal.position
        try:
            while self.sent < end and self.sent - self._received < CATCH_UP_BYTES:
                self._send(self.sent, self._reader.read(self.sent, end, PIECE_BYTES))
        except (PositionGoneError, OSError) as error:
            raise StreamFailed(str(error)) from error

    def _send(self, position: int, data: bytes) -> None:
        now = self._host.now()
        if self.sent == self._received:
            self._moved_at = now
        self.told_at = now
        self.sent = position + len(data)
        self.bytes += len(data)
        self._host.send(self.mirror.address, CopyBlocks(self._owner, self.term, position, data))

    def send_heartbeat(self) -> None:
        self.told_at = self._host.now()
        self._host.send(self.mirror.address, CopyHeartbeat(self._owner, self.term, self._journal.position))

    def on_held(self, held: CopyHeld) -> None:
        """The mirror says how far it is. Raises StreamFailed."""
        now = self._host.now()
        self.heard_at = now
        self.told_term = held.term
        if held.position > self._journal.position:
            raise StreamFailed("its copy has what this journal has not")
        self.acknowledged = max(self.acknowledged, held.position)
        received = max(held.position, held.received)
        if received > self._received:
            self._moved_at = now
        self._received = max(received, self.acknowledged)
        if held.has_gap:
            self.sent = received
        self.sent = max(self.sent, self._received)
        if self.sent < self._journal.position:
            self.pump()

    def resend(self) -> None:
        """Sends again what was not acknowledged in time. Raises StreamFailed."""
        now = self._host.now()
        if self.sent > self._received and now - self._moved_at > RESEND_S:
            self._moved_at = now
            self.sent = self._received
            self.pump()

    def close(self) -> None:
        self._reader.close()
