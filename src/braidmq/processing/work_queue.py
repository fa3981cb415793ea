"""The work queue of a processor: messages that wait, messages that its worker has, and the spools behind them.

    put ──▶ waiting ──next_batch──▶ in flight ──done──▶ the spool of its topic

A copy of what came to another broker goes the same way, and is not processed: it takes its place in the spool.

Spools are kept here as well as in the worker: if the worker ends, the next one is given them, and what was in flight is
queued again, in front. After that, messages are sent one by one, which finds the one that ends its worker every time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from braidmq.processors.processor import NO_OFFSET, order_of
from braidmq.processors.spool_order import NO_PLACE, Order, place_of
from braidmq.processors.worker_messages import decode_message

WINDOW_MESSAGES_MAX: Final = 512
"""Messages that a worker has and has not answered."""
WINDOW_BYTES_MAX: Final = 1 << 20
"""Their bytes; a larger message goes alone."""


class QueuedMessage(msgspec.Struct):
    """A message on its way through a processor; `raw` is its encoding for the worker."""

    topic: str
    raw: bytes
    offset: int
    qos: int
    hops: int
    """How many processors it has come through."""
    tries: int = 0
    """How often a worker ended that had this message alone."""
    is_copy: bool = False
    """Whether it came to another broker, which processes it."""


class SpoolCopy:
    """The spool of one topic, its messages encoded as they are sent to a worker."""

    __slots__ = ("bytes", "incarnation", "last", "messages")

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.bytes = 0
        self.last = NO_OFFSET
        self.incarnation = 0
        """The incarnation of the worker that has been given this spool."""

    def put(self, raw: bytes, offset: int, size: int) -> None:
        self.messages.append(raw)
        self.bytes += len(raw)
        self.last = offset
        while len(self.messages) > size:
            self.bytes -= len(self.messages.popleft())

    def insert(self, raw: bytes, size: int) -> None:
        """Puts a message that came to another broker in its place, if it has one."""
        place = place_of(self.messages, order_of_raw(raw), order_of_raw, size)
        if place == NO_PLACE:
            return
        self.messages.insert(place, raw)
        self.bytes += len(raw)
        while len(self.messages) > size:
            self.bytes -= len(self.messages.popleft())

    def add(self, item: QueuedMessage, size: int) -> None:
        if item.is_copy:
            self.insert(item.raw, size)
        else:
            self.put(item.raw, item.offset, size)


def order_of_raw(raw: bytes) -> Order:
    """The order of a message that is encoded."""
    return order_of(decode_message(raw))


class WorkQueue:
    def __init__(self, spool: int) -> None:
        self.spool = spool
        """Messages that the spool of a topic keeps."""
        self.spools: dict[str, SpoolCopy] = {}
        self.bytes = 0
        """Of all messages, waiting or in flight."""
        self._waiting: deque[QueuedMessage] = deque()
        self._in_flight: deque[QueuedMessage] = deque()
        self._in_flight_bytes = 0
        self._suspects = 0
        """How many of the next messages are to be sent one by one."""

    def __len__(self) -> int:
        """Messages that wait or are in flight."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def has(self, topic: str) -> bool:
        """Whether messages of a topic wait or are in flight."""
        return any(item.topic == topic for item in self.items)

    @property
    def items(self) -> list[QueuedMessage]:
        """All messages that are in flight or wait, in their order."""
        return [*self._in_flight, *self._waiting]

    def put(self, item: QueuedMessage) -> None:
        self._waiting.append(item)
        self.bytes += len(item.raw)

    def next_batch(self) -> list[QueuedMessage]:
        """The messages to be sent next; they are in flight from now on."""
        waiting, in_flight = self._waiting, self._in_flight
        batch: list[QueuedMessage] = []
        window = 1 if self._suspects else WINDOW_MESSAGES_MAX
        while waiting and len(in_flight) < window:
            size = len(waiting[0].raw)
            if in_flight and self._in_flight_bytes + size > WINDOW_BYTES_MAX:
                break
            item = waiting.popleft()
            in_flight.append(item)
            batch.append(item)
            self._in_flight_bytes += size
        return batch

    def done(self, count: int) -> list[QueuedMessage]:
        """The worker has finished its next `count` messages: they go into their spools."""
        items = [self._pop_in_flight() for _ in range(count)]
        for item in items:
            self.keep(item)
        return items

    def keep(self, item: QueuedMessage) -> None:
        """Puts a finished message into its spool."""
        kept = self.spools.get(item.topic)
        if kept is None:
            kept = self.spools[item.topic] = SpoolCopy()
        kept.add(item, self.spool)

    def requeue_in_flight(self) -> QueuedMessage | None:
        """The worker has ended: what was in flight waits again, in front. If that was one message alone, returns it."""
        suspect = None
        self._suspects = max(self._suspects, len(self._in_flight))
        if len(self._in_flight) == 1:
            suspect = self._in_flight[0]
        self._waiting.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        self._in_flight_bytes = 0
        return suspect

    def give_up_first(self) -> QueuedMessage:
        """Moves the first message that waits into its spool without processing it: it is not tried again."""
        item = self._waiting.popleft()
        self._count_out(item)
        self.keep(item)
        return item

    def state_of(self, topic: str) -> tuple[int, list[bytes]]:
        """(last offset, messages) of a spool as it will be when everything in the queue is processed."""
        state = SpoolCopy()
        kept = self.spools.get(topic)
        if kept is not None:
            state.messages.extend(kept.messages)
            state.last = kept.last
        for item in self.items:
            if item.topic == topic:
                state.add(item, self.spool)
        return state.last, list(state.messages)

    def resize(self, spool: int) -> None:
        """Spools have another size from now on."""
        self.spool = spool
        for kept in self.spools.values():
            while len(kept.messages) > spool:
                kept.bytes -= len(kept.messages.popleft())

    def _pop_in_flight(self) -> QueuedMessage:
        item = self._in_flight.popleft()
        self._in_flight_bytes -= len(item.raw)
        self._count_out(item)
        return item

    def _count_out(self, item: QueuedMessage) -> None:
        self.bytes -= len(item.raw)
        if self._suspects:
            self._suspects -= 1
