"""One topic of one processor at a broker that is home to publishers of it: what waits until its spool is here."""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec

from braidmq.broker.timers import Timer
from braidmq.processing.home_messages import SpoolOffer
from braidmq.processing.runner import ProcessorRunner
from braidmq.processing.work_queue import QueuedMessage
from braidmq.processors.processor import order_of
from braidmq.processors.worker_messages import decode_message

RECENT_S: Final = 2.0
"""What came so recently may be on its way to other homes."""
RECENT_BYTES_MAX: Final = 1 << 16
"""How much of it is told."""
DIGEST_MESSAGES_MAX: Final = 1_000
"""Messages of a spool that are compared."""
FETCH_BYTES_MAX: Final = 8 << 20
"""How much of a spool another home is given: the newest."""
PART_BYTES_MAX: Final = 1 << 16
"""How much of it goes in one piece; a larger message goes alone."""


class Home:
    __slots__ = (
        "fetched",
        "held",
        "is_comparing",
        "is_late",
        "is_taken",
        "name",
        "number",
        "offers",
        "rounds",
        "runner",
        "timer",
        "topic",
    )

    def __init__(self, runner: ProcessorRunner, topic: str, name: str) -> None:
        self.runner = runner
        self.topic = topic
        self.name = name
        """The topic on which its homes talk."""
        self.held: list[QueuedMessage] | None = []
        """What has come and waits for the spool; None when nothing waits any more."""
        self.timer: Timer | None = None
        """Ends the wait."""
        self.number = 0
        """Of the question that was asked last."""
        self.is_comparing = False
        """Whether it has the spool, and asks whether anything is missing."""
        self.offers: list[SpoolOffer] = []
        self.rounds = 0
        """How often it may still compare because another one has found a difference."""
        self.is_late = False
        """Whether the next offer is taken, whatever it is."""
        self.is_taken = False
        self.fetched: list[bytes] = []

    @property
    def key(self) -> tuple[str, str]:
        return self.runner.name, self.topic

    @property
    def state(self) -> list[bytes]:
        """The spool as it will be when all is done that is in the queue."""
        return self.runner.queue.state_of(self.topic)[1]

    def recent(self, origin: str, now: float) -> list[msgspec.Raw]:
        """What came to this broker just now, the oldest first."""
        found: list[msgspec.Raw] = []
        room = RECENT_BYTES_MAX
        for raw in reversed(self.state):
            message = decode_message(raw)
            room -= len(raw)
            if room < 0 or message.received_at < now - RECENT_S:
                break
            if message.origin == origin:
                found.append(msgspec.Raw(raw))
        return found[::-1]

    def digest(self) -> int:
        """Of the last messages in the spool, and of their order."""
        found = 0
        for raw in self.state[-DIGEST_MESSAGES_MAX:]:
            found = crc32(repr(order_of(decode_message(raw))).encode(), found)
        return found

    def parts(self) -> list[list[msgspec.Raw]]:
        """The spool in pieces, the oldest first."""
        room = FETCH_BYTES_MAX
        pieces: list[list[msgspec.Raw]] = [[]]
        size = 0
        for raw in reversed(self.state):
            room -= len(raw)
            if room < 0:
                break
            if pieces[-1] and size + len(raw) > PART_BYTES_MAX:
                pieces.append([])
                size = 0
            pieces[-1].append(msgspec.Raw(raw))
            size += len(raw)
        return [piece[::-1] for piece in reversed(pieces)]

    def merge(self) -> bool:
        """Begins with what was fetched and what was here; False if it is too late for that.

        Of a message that is in both, the one that was fetched counts: what was made here from the log may have another
        time than other homes know.
        """
        queue = self.runner.queue
        if self.held is None or queue.has(self.topic):
            return False
        last, own = queue.state_of(self.topic)
        found = {}
        for raw in (*own, *self.fetched):
            message = decode_message(raw)
            found[message.origin, message.offset] = (order_of(message), raw)
        merged = [raw for _, raw in sorted(found.values())]
        self.runner.fill(self.topic, last, merged[-queue.spool :])
        self.fetched = []
        return True
