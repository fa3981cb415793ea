"""The pace of a connection: a reader that falls behind, and who is made to wait for it.

QoS 1 and 2 wait in the session. With QoS 0 the publishers are held up for a moment, so that a reader that is merely
slower than a burst loses nothing. One that needs longer than that is too slow: QoS 0 for it is dropped, and it holds
nobody up again until it has kept up for a while. A client that does not take its own answers is read no further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from braidmq.broker.connection_state import State

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.timers import Timer

STALL_S = 0.2
"""How long a reader that has fallen behind may hold up the publishers of what it is sent at QoS 0."""

KEPT_UP_S = 10.0
"""How long a reader that was too slow must keep up before it may hold up anybody again."""


class Link(Protocol):
    """What a connection needs of its transport; an asyncio transport has it."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Flow:
    """What a connection knows of its socket: whether it takes more, and whether it is read."""

    __slots__ = (
        "_answers_hold",
        "_stall_timer",
        "broker",
        "held_by",
        "link",
        "stalled",
        "state",
        "too_slow",
        "unread_bytes",
        "writable",
        "writable_since",
    )

    def __init__(self, broker: Broker, link: Link) -> None:
        self.broker = broker
        self.link = link
        self.state = State.CONNECTING
        self.writable = True
        self.writable_since = 0.0
        self.too_slow = False
        self.stalled: list[Flow] | None = None
        """The publishers that wait for this reader; None while it may hold up nobody."""
        self.held_by = 0
        """How many reasons there are not to read from this client."""
        self.unread_bytes = 0
        """Answers that the client has not taken since its socket was full."""
        self._answers_hold = False
        self._stall_timer: Timer | None = None

    def pause_writing(self) -> None:
        self.writable = False
        if self.too_slow and self.broker.clock() - self.writable_since < KEPT_UP_S:
            return
        self.too_slow = False
        self.stalled = []
        self._stall_timer = self.broker.timers.at(self.broker.now() + STALL_S, self._too_slow)

    def stalls(self, publisher: Flow | None) -> bool:
        """Whether one more read of this publisher may still wait for the client; then it is the last for a while."""
        if self.stalled is None or publisher is None:
            return False
        if publisher is not self and publisher not in self.stalled:
            self.stalled.append(publisher)
            publisher.hold_reading()
        return True

    def _too_slow(self) -> None:
        self.too_slow = True
        self.end_stall()

    def end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        held, self.stalled = self.stalled, None
        for publisher in held or ():
            publisher.release_reading()

    def resume_writing(self) -> None:
        self.writable = True
        self.writable_since = self.broker.clock()
        self.end_stall()
        self.unread_bytes = 0
        if self._answers_hold:
            self._answers_hold = False
            self.release_reading()

    def count_unread(self, size: int) -> None:
        """A client that does not take its answers is not asked for more: TCP makes it wait."""
        self.unread_bytes += size
        if self.unread_bytes > self.broker.limits.outbound_bytes_max and not self._answers_hold:
            self._answers_hold = True
            self.hold_reading()

    def hold_reading(self) -> None:
        """Reads no further until it is released as often as it was held."""
        self.held_by += 1
        if self.held_by == 1 and self.state is not State.CLOSED:
            self.link.pause_reading()

    def release_reading(self) -> None:
        self.held_by -= 1
        if not self.held_by and self.state is not State.CLOSED:
            self.link.resume_reading()
