"""What a host keeps for another: what waits to be sent, the link if there is one, and when to dial next.

send ──> batch ──(end of the tick)──> the link, in one write
                               └────> waiting, while there is no link: dropped after `wait_s_max`
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Protocol

from braidmq.host import Chance
from braidmq.net.bounds import Bounds
from braidmq.net.counters import Counters
from braidmq.net.frames import Codec, Envelope, FrameBatch
from braidmq.net.hello import Hello

Unsent = tuple[float, int, int, int, list[bytearray]]
"""(since when, messages, those of them that are publications, their bytes, the frames that they are in)"""


class PeerLink(Protocol):
    """What is asked of the link to a peer."""

    nonce: bytes
    opened_at: float
    has_greeted: bool
    dialled: PeerState | None

    @property
    def unsent_bytes(self) -> int: ...

    @property
    def unread_bytes(self) -> int: ...

    def send(self, frames: Sequence[bytes | bytearray]) -> int: ...
    def close(self, why: str, deadline: float) -> None: ...
    def abort(self, why: str) -> None: ...


class PeerState:
    __slots__ = (
        "_backlog",
        "_backoff_s",
        "_batch",
        "_bounds",
        "_publication_bytes",
        "_publications",
        "_waiting_bytes",
        "address",
        "by",
        "counters",
        "dial",
        "dial_at",
        "greeting",
        "has_left",
        "heard_at",
        "is_lost",
        "link",
        "linked_before",
        "looked_at",
        "names",
        "question",
        "refusal",
        "silent_since",
        "told_at",
        "trying",
        "waiting",
    )

    def __init__(self, address: str, codec: Codec, bounds: Bounds) -> None:
        self.address = address
        self.names = [address]
        """All that it is called here: its address, and other names under which it was reached."""
        self.counters = Counters()
        self.link: PeerLink | None = None
        self.dial: asyncio.Task[None] | None = None
        self.trying: PeerLink | None = None
        """What `dial` is trying to open just now."""
        self.question: asyncio.Task[None] | None = None
        """Asks at its address who is there: another process claims to be."""
        self.dial_at = 0.0
        """Not before this time."""
        self.linked_before = False
        self.greeting: Hello | None = None
        """Its last hello."""
        self.has_left = False
        """Whether it has said good-bye, or is known to be elsewhere: it is dialled rarely, and without a word."""
        self.is_lost = False
        """Whether it was told to people that it cannot be reached."""
        self.told_at = -inf
        """When that was."""
        self.refusal = ""
        """Why it has not let this host in, the last time that it was asked."""
        self.by = ""
        """The host that passes on what is sent to this one; empty if that goes directly."""
        self.looked_at = (0, 0)
        """What had been sent to it, and had come from it, when that was last looked at (`ways`)."""
        self.heard_at = -inf
        """At which of these looks something had come."""
        self.silent_since = inf
        """At which of them nothing had come, though something had been sent."""
        self.waiting: deque[Unsent] = deque()
        self._waiting_bytes = 0
        self._backlog = 0
        self._publications = 0
        self._publication_bytes = 0
        self._backoff_s = bounds.backoff_s_min
        self._bounds = bounds
        self._batch = FrameBatch(codec, bounds.frame_bytes_max, bounds.frame_messages_max)

    @property
    def batched(self) -> int:
        """Messages of this tick."""
        return self._batch.messages

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be lost with it but the names and the back-off."""
        return (
            self.link is None
            and self.dial is None
            and self.question is None
            and not self.by
            and not self.waiting
            and not self._batch.messages
        )

    def queue(self, envelope: Envelope, weight: int = 0) -> str | None:
        """Takes an envelope to be sent at the end of the tick, or says why not. `weight`: bytes of publications."""
        if len(self._batch) + self._backlog > self._bounds.queue_bytes_max:
            self._backlog = self._waiting_bytes + (self.link.unsent_bytes if self.link is not None else 0)
            if len(self._batch) + self._backlog > self._bounds.queue_bytes_max:
                self.counters.dropped += 1
                return f"{self._bounds.queue_bytes_max} bytes wait for {self.address} already"
        if not self._batch.add(envelope):
            self.counters.dropped += 1
            return f"a message larger than the {self._bounds.frame_bytes_max} bytes of a frame"
        if weight:
            self._publications += 1
            self._publication_bytes += weight
        return None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for it here."""
        return len(self._batch) + self._waiting_bytes + (self.link.unsent_bytes if self.link is not None else 0)

    @property
    def sent(self) -> int:
        """Grows with whatever is sent to it directly, or would be if it could be reached."""
        return self.counters.messages_out + self.counters.dropped + len(self.waiting)

    @property
    def received_bytes(self) -> int:
        """Grows with whatever comes from it directly."""
        return self.counters.bytes_in + (self.link.unread_bytes if self.link is not None else 0)

    def take_waiting(self) -> list[bytearray]:
        """The frames that wait for a link; they do not wait any more."""
        frames = [frame for entry in self.waiting for frame in entry[-1]]
        self.waiting.clear()
        self._waiting_bytes = 0
        return frames

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits before what would be sent now."""
        link = self.link
        return link is not None and not (self._batch.messages or self.waiting or link.unsent_bytes)

    def send_lone(self, frame: bytes, weight: int) -> None:
        """Sends a frame with one message at once; only while the way is clear. `weight`: bytes of publications."""
        assert self.link is not None
        size = self.link.send((frame,))  # and then what can wait
        counters = self.counters
        counters.messages_out += 1
        counters.frames_out += 1
        counters.bytes_out += size
        if weight:
            counters.publications_out += 1
            counters.publication_bytes_out += weight

    def flush(self, now: float) -> None:
        """The end of the tick: writes the batch, or lets it wait for a link."""
        messages = self._batch.messages
        if messages:
            frames = self._batch.take()
            self.waiting.append((now, messages, self._publications, self._publication_bytes, frames))
            self._publications = self._publication_bytes = 0
            self._waiting_bytes += sum(map(len, frames))
        link = self.link
        if link is not None and self.waiting:
            counters = self.counters
            frames = []
            for _, message_count, publications, publication_bytes, more in self.waiting:
                counters.messages_out += message_count
                counters.publications_out += publications
                counters.publication_bytes_out += publication_bytes
                frames += more
            counters.frames_out += len(frames)
            counters.bytes_out += link.send(frames)
            self.waiting.clear()
            self._waiting_bytes = 0
        self._backlog = self._waiting_bytes + (link.unsent_bytes if link is not None else 0)

    def drop_waiting(self, before: float = float("inf")) -> None:
        """Drops and counts what has waited since before then."""
        while self.waiting and self.waiting[0][0] < before:
            _, messages, _, _, frames = self.waiting.popleft()
            self._waiting_bytes -= sum(map(len, frames))
            self.counters.dropped += messages

    def absorb(self, other: PeerState) -> None:
        """Takes over what waits for a peer that turned out to be this one, and its names."""
        self.names += other.names
        self.waiting.extend(other.waiting)
        self.waiting = deque(sorted(self.waiting, key=lambda entry: entry[0]))
        self._waiting_bytes += other._waiting_bytes
        other.waiting.clear()
        other._waiting_bytes = 0
        self.counters.add(other.counters)

    # When to dial

    def give_up_dial(self) -> None:
        """The peer's own dial came first. Nothing more is said on ours, not even in this tick."""
        if self.trying is not None:
            self.trying.abort("the other side dialled, too")
        if self.dial is not None:
            self.dial.cancel()

    def postpone(self, now: float, chance: Chance) -> float:
        """After a failure: dials again after a wait that doubles each time; returns it."""
        wait_s = self._backoff_s * chance.uniform(0.5, 1.0)  # not all at once when a peer comes back
        self.dial_at = now + wait_s
        self._backoff_s = min(2 * self._backoff_s, self._bounds.backoff_s_max)
        return wait_s

    def rest(self, now: float) -> None:
        """It has left: nothing waits for it, and it is left alone for a while."""
        self.drop_waiting()
        self.dial_at = now + self._bounds.backoff_s_max

    def on_lost(self, now: float, lasted_s: float, chance: Chance) -> None:
        """After the loss of a link: at once again if it was a good one."""
        self.link = None
        if lasted_s >= self._bounds.backoff_s_max:
            self._backoff_s = self._bounds.backoff_s_min
            self.dial_at = now
        else:
            self.postpone(now, chance)
