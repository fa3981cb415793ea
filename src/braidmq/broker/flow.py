"""The pace of a connection: a reader that falls behind, and which publishers are made to wait for it.

QoS 1 and 2 wait in the session. With QoS 0 the publishers are held up for a moment, so that a reader that is merely
slower than a burst loses nothing. One that needs longer than that is too slow: QoS 0 for it is dropped, and it holds
nobody up again until it has kept up for a while. A client that does not take its own answers is read no further.
"""

from __future__ import annotations

from braidmq.broker.tick import Tick
from braidmq.broker.timers import Timer
from braidmq.broker.transport import Transport

STALL_S = 0.2
"""How long a reader that has fallen behind may hold up the publishers of what it is sent at QoS 0."""

KEPT_UP_S = 10.0
"""How long a reader that was too slow must keep up before it may hold up anybody again."""


class Flow:
    """Whether a client is read, and for how long publishers wait for it."""

    __slots__ = (
        "_answers_hold",
        "_held_by",
        "_is_closed",
        "_stall_timer",
        "_stalled",
        "_tick",
        "_too_slow",
        "_unread_bytes",
        "_writable_since",
        "link",
    )

    def __init__(self, tick: Tick, link: Transport) -> None:
        self._tick = tick
        self.link = link
        self._is_closed = False
        self._writable_since = 0.0
        self._too_slow = False
        self._stalled: list[Flow] | None = None
        """The publishers that wait for this reader; None while it may hold up none."""
        self._held_by = 0
        """How many reasons there are not to read from this client."""
        self._unread_bytes = 0
        """Answers that the client has not taken since its socket was full."""
        self._answers_hold = False
        self._stall_timer: Timer | None = None

    def on_full(self) -> None:
        """The socket takes no more."""
        if self._too_slow and self._tick.clock() - self._writable_since < KEPT_UP_S:
            return
        self._too_slow = False
        self._stalled = []
        self._stall_timer = self._tick.timers.at(self._tick.now() + STALL_S, self._give_up)

    def on_drained(self) -> None:
        """The socket takes more."""
        self._writable_since = self._tick.clock()
        self._end_stall()
        self._unread_bytes = 0
        if self._answers_hold:
            self._answers_hold = False
            self.release_reading()

    def stalls(self, publisher: Flow | None) -> bool:
        """Whether one more read of this publisher may still wait for the client; then it is the last for a while."""
        if self._stalled is None or publisher is None:
            return False
        if publisher is not self and publisher not in self._stalled:
            self._stalled.append(publisher)
            publisher.hold_reading()
        return True

    def _give_up(self) -> None:
        self._too_slow = True
        self._end_stall()

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        held, self._stalled = self._stalled, None
        for publisher in held or ():
            publisher.release_reading()

    def count_unread(self, size: int, bytes_max: int) -> None:
        """A client that does not take its answers is not asked for more: TCP makes it wait."""
        self._unread_bytes += size
        if self._unread_bytes > bytes_max and not self._answers_hold:
            self._answers_hold = True
            self.hold_reading()

    def hold_reading(self) -> None:
        """Reads no further until it is released as often as it was held."""
        self._held_by += 1
        if self._held_by == 1 and not self._is_closed:
            self.link.pause_reading()

    def release_reading(self) -> None:
        self._held_by -= 1
        assert self._held_by >= 0, "released more often than it was held"
        if not self._held_by and not self._is_closed:
            self.link.resume_reading()

    def close(self) -> None:
        """The connection is over: publishers wait for it no longer."""
        self._is_closed = True
        self._end_stall()
