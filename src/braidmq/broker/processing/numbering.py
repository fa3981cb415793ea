"""The log's offsets, known as soon as a publication is handed over to it.

Rows are written later, but in the order in which they were handed over, so their offsets can be counted beforehand. A
write that fails uses offsets up, and then the count is not the log's any more. So where it must be exact (a change of
hands) it is first waited until all up to there is written, and no write has failed; after a failure, the next moment
in which nothing waits sets the count right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from braidmq.log.errors import LogError

if TYPE_CHECKING:
    from braidmq.broker.log_recorder import LogRecorder
    from braidmq.broker.message import Message

NOT_LOGGED: Final = -1
"""The offset of a publication whose topic is not logged."""
LOST: Final = -2
"""The offset of one that the log should have, and had no room for."""


class NumberedRecorder:
    """A recorder that also says which offsets its rows get. It must be the only one that hands rows over."""

    def __init__(self, inner: LogRecorder) -> None:
        self.inner = inner
        self._begin()
        self.last = LOST
        """The offset of what was handed over last, of a run that of the first; LOST if it was dropped."""
        self.at = 0.0
        """When that was received, as its row says it."""

    def _begin(self) -> None:
        """Nothing waits to be written: counts from here."""
        self._base = self.inner.log.next_offset
        self._base_rows = self.inner.log.rows
        self._failures = self.inner.failures
        self._handed = 0

    @property
    def origin(self) -> str:
        """The broker's name in the rows."""
        return self.inner.log.broker

    @property
    def next_offset(self) -> int:
        """What the next row gets, unless a write fails."""
        return self._base + self._handed

    def is_written(self, offset: int) -> bool:
        """Whether all rows below an offset are written, each with the offset that was counted for it; a LogError if
        that cannot be said any more."""
        written = self.inner.log.rows - self._base_rows
        if self.inner.failures != self._failures:
            if written == self._handed:
                self._begin()
            raise LogError("the log could not be written just now: try again")
        return self._base + written >= offset

    # What a recorder does

    @property
    def dirty(self) -> bool:
        return self.inner.dirty

    @dirty.setter
    def dirty(self, is_dirty: bool) -> None:
        self.inner.dirty = is_dirty

    def wants(self, topic: str) -> bool:
        return self.inner.wants(topic)

    def take_run(self, topic: bytes, client: str, at: float, run: bytes, count: int, head: int, size: int) -> None:
        dropped = self.inner.dropped
        self.inner.take_run(topic, client, at, run, count, head, size)
        self._count(count, at, dropped)

    def take_plain(self, topic: bytes, client: str, at: float, payload: bytes, qos: int) -> None:
        dropped = self.inner.dropped
        self.inner.take_plain(topic, client, at, payload, qos)
        self._count(1, at, dropped)

    def take(self, message: Message, at: float) -> None:
        dropped = self.inner.dropped
        self.inner.take(message, at)
        self._count(1, at, dropped)

    def commit(self) -> None:
        self.inner.commit()

    def _count(self, rows: int, at: float, dropped_before: int) -> None:
        if self.inner.dropped != dropped_before:
            self.last = LOST
            return
        self.last = self._base + self._handed
        self.at = int(at * 1e6) / 1e6
        self._handed += rows
