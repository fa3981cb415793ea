"""How far the copies of this broker's journal are, and which mirrors have them.

A mirror counts, and is waited for, once its copy has caught up and it has said that it knows the term in which it
counts. One whose acknowledgement is missing for too long is given up: what waited goes on with fewer copies, which is
said, and another is chosen.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from braidmq.braid.mirrors.messages import CopyHeld, CopyRefused
from braidmq.braid.mirrors.mirror_set import MirrorSet, save_mirrors, saved_mirrors
from braidmq.braid.mirrors.mirror_stream import MirrorStream, StreamFailed
from braidmq.braid.mirrors.settings import CopySettings
from braidmq.braid.mirrors.standstill import BEAT_S, Standstill
from braidmq.broker.broker import Broker
from braidmq.host import Address, Host, Reply, Service, handles
from braidmq.journal.journal import Journal

SILENCE_S: Final = 1.0
"""A mirror whose acknowledgement is missing for longer is given up."""
HEARTBEAT_S: Final = 0.5
"""How often a mirror is told something if there is nothing to tell."""
LACK_S: Final = 10.0
"""How long after a mirror has said good-bye it is told that copies are missing: another may be found meanwhile."""
FINISH_S: Final = 1.0
"""How long a broker that ends waits for its mirrors."""

_log = logging.getLogger("braidmq.braid")


class OwnCopies(Service):
    """What `broker.store_copies.StoreCopies` asks for."""

    def __init__(self, broker: Broker, host: Host, journal: Journal, settings: CopySettings) -> None:
        self._broker = broker
        self._host = host
        self._journal = journal
        self.settings = settings
        self.set: MirrorSet = saved_mirrors(broker)
        """As it is kept; before the first mirror counts, it is that of an earlier process."""
        self.streams: dict[str, MirrorStream] = {}
        """To mirrors, by identity; not all of them count."""
        self._counting: dict[str, MirrorStream] = {}
        self.last_term = self.set.term
        """The highest that any mirror was told."""
        self.end = self.position = journal.position
        """Of the journal, and of what all mirrors have that count."""
        self._pending: deque[tuple[int, float]] = deque()
        """Ends of blocks that are waited for, and when they were written."""
        self.standstill = Standstill(broker, host, lambda: self.mirrors)
        self._streamed_bytes = 0
        self._is_closed = False
        self.on_changed: Callable[[], None] = lambda: None
        """Called when there are more copies, or fewer."""
        self.on_surplus: Callable[[], None] = lambda: None
        """Called when one more counts than before, which may be more than are wanted."""
        self.on_lack: Callable[[], None] = lambda: None
        """Called when another mirror is needed."""
        host.serve(self)
        journal.on_commit = self._on_commit
        broker.tick.copies = self
        self._require()

    # What others may know

    @property
    def is_behind(self) -> bool:
        return self.position < self.end

    @property
    def mirrors(self) -> tuple[Address, ...]:
        """Those that are in sync."""
        return tuple(stream.mirror.address for stream in self._counting.values())

    @property
    def term(self) -> int:
        """Of the set of mirrors; it is raised with each change."""
        return self.set.term

    @property
    def count(self) -> int:
        """StoreCopies that there are, its own included."""
        return 1 + len(self._counting)

    @property
    def bytes_sent(self) -> int:
        return self._streamed_bytes + sum(stream.bytes for stream in self.streams.values())

    @property
    def lack(self) -> str | None:
        """That there are fewer copies than are wanted; None if there are enough."""
        if self.count >= self.settings.copies:
            return None
        return f"{self.count} of {self.settings.copies} copies of this broker's store are there"

    # What the journal writes

    def _on_commit(self, begin: int, block: bytes) -> None:
        self.end = begin + len(block)
        for stream in list(self.streams.values()):
            if stream.is_fed:
                try:
                    stream.feed(begin, block)
                except StreamFailed as error:
                    self.drop(stream, str(error))
        if self._counting:
            self._pending.append((self.end, self._host.now()))
        else:
            self.position = self.end

    # What mirrors say

    @handles(CopyHeld)
    def on_copy_held(self, origin: Address, held: CopyHeld) -> Reply:
        stream = self._at(origin)
        if stream is None or not stream.is_fed:
            return None
        try:
            stream.on_held(held)
        except StreamFailed as error:
            self.drop(stream, str(error))
            return None
        if stream.mirror.identity in self._counting:
            self._advance()
        else:
            self._consider(stream)
        return None

    @handles(CopyRefused)
    def on_copy_refused(self, origin: Address, told: CopyRefused) -> Reply:
        stream = self._at(origin)
        if stream is not None:
            if told.is_farewell:
                self._part_with(stream)
            else:
                self.drop(stream, told.reason)
        return None

    def _part_with(self, stream: MirrorStream) -> None:
        """A mirror ends in good order: that is no incident, unless no other one is found."""
        was_counting = stream.mirror.identity in self._counting
        self.drop(stream)
        if was_counting:
            _log.info("%s ends, and had a copy of this broker's store (%s)", stream.mirror.identity, self.text)
            self._host.spawn(self._tell_lack_later())

    async def _tell_lack_later(self) -> None:
        await self._host.sleep(LACK_S)
        if self.lack is not None and not self._is_closed:
            _log.warning("%s", self.lack)

    def _at(self, address: Address) -> MirrorStream | None:
        return next((one for one in self.streams.values() if one.mirror.address == address), None)

    def _advance(self) -> None:
        """What the copies have need not be waited for."""
        position = min((one.acknowledged for one in self._counting.values()), default=self.end)
        if position > self.position:
            self.position = position
            pending = self._pending
            while pending and pending[0][0] <= position:
                pending.popleft()
            self._broker.tick.on_copied(position)

    # Which of them count

    def _consider(self, stream: MirrorStream) -> None:
        """A copy that has caught up counts once its mirror knows the term: one that nobody else was told."""
        if not stream.has_caught_up:
            return
        if stream.term > self.term and stream.told_term == stream.term:
            self._counting[stream.mirror.identity] = stream
            if not self._pending:
                self.position = self.end  # what it lacks now, nobody was told to wait for
            self._change(stream.term)
            _log.info("%s holds a copy of this broker's store (%s)", stream.mirror.identity, self.text)
            self.on_surplus()
        elif stream.term <= self.term:
            stream.term = self._new_term()
            stream.send_heartbeat()

    def _new_term(self) -> int:
        self.last_term += 1
        return self.last_term

    def learn_term(self, term: int) -> None:
        """A mirror was told of it by an earlier process."""
        self.last_term = max(self.last_term, term)

    def _change(self, term: int) -> None:
        """The set is another one: that is kept, and told to all that are in it."""
        self.set = self.set.changed(tuple(one.mirror for one in self._counting.values()), term)
        save_mirrors(self._broker, self.set)
        for stream in self._counting.values():
            stream.term = term
            stream.send_heartbeat()
        self._require()
        self.on_changed()

    def _require(self) -> None:
        lack = self.count < self.settings.required
        text = f"{self.text}, and braid.copies_required is {self.settings.required}"
        self._broker.tick.require_copies(text if lack else "")

    @property
    def text(self) -> str:
        return f"{self.count} of {self.settings.copies} copies"

    def forget_former(self, identity: str) -> None:
        """A former mirror has no copy any more."""
        self.set = self.set.without_former(identity)
        save_mirrors(self._broker, self.set)

    def drop(self, stream: MirrorStream, why: str = "") -> None:
        """A mirror is one no longer; if it was not this broker's own wish, that is said."""
        identity = stream.mirror.identity
        if self.streams.get(identity) is not stream:
            return
        del self.streams[identity]
        self._streamed_bytes += stream.bytes
        stream.close()
        if self._counting.pop(identity, None) is not None:
            self._change(self._new_term())
            if why:
                _log.warning("%s has no copy of this broker's store any more: %s (%s)", identity, why, self.text)
            self._advance()
        self.on_lack()

    def make_sure(self) -> bool:
        self.standstill.beat()
        return self.standstill.is_unsure

    def give_up(self, why: str) -> None:
        for stream in list(self._counting.values()):
            if stream.acknowledged < self.end:
                self.drop(stream, why)

    # Time

    async def keep_watch(self) -> None:
        """Tells mirrors that this broker is here, and gives up those that do not answer."""
        while True:
            await self._host.sleep(BEAT_S)
            now = self._host.now()
            self.standstill.beat()
            for stream in list(self.streams.values()):
                if stream.is_fed:
                    self._look_at(stream, now)

    def _look_at(self, stream: MirrorStream, now: float) -> None:
        went_on_at = self.standstill.went_on_at  # answers from before may be here, and not have been read
        is_silent = now - max(stream.heard_at, went_on_at) > SILENCE_S + HEARTBEAT_S
        if stream.mirror.identity in self._counting and self._pending:
            end, since = self._pending[0]
            is_silent = is_silent or (stream.acknowledged < end and now - max(since, went_on_at) > SILENCE_S)
        if is_silent:
            self.drop(stream, f"it has not answered for {SILENCE_S:g} s")
            return
        try:
            stream.resend()
        except StreamFailed as error:
            self.drop(stream, str(error))
            return
        if now - stream.told_at >= HEARTBEAT_S:
            stream.send_heartbeat()

    # The end

    async def finish(self) -> None:
        """This broker ends: its mirrors get what they lack, if they take it soon, and are not waited for any more."""
        self._broker.flush()
        copied = self._host.event()
        self._broker.tick.when_copied(copied.set)
        await copied.wait(FINISH_S)
        self.close()

    def close(self) -> None:
        self._is_closed = True
        self._journal.on_commit = None
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        self._counting.clear()
        self._broker.tick.be_sure(inf)
        self._advance()
