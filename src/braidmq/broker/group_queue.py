"""The queue of a shared subscription: what was published here and no member could take yet.

A message is bound to a member only when that member can take it; until then it waits here, in the order in which it
came and within bounds. One that is lent to a member stays, so that it can go to another: it leaves when the member has
acknowledged it, and comes back to the front if that does not happen. The store keeps the queue as a session whose
client id is the filter with its share name, which no client may use.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from braidmq.broker.limits import FOREVER, Limits
from braidmq.broker.message import Delivery, Message
from braidmq.broker.metrics import Metrics
from braidmq.broker.store import SavedSession, Store
from braidmq.mqtt.topics import SHARE_PREFIX

CHANCE_BITS: Final = 39
COUNT_BITS: Final = 24
"""Of the number by which a message is known at other brokers, too: chance makes the numbers of a queue its own."""

PASSED_OVER_MAX: Final = 256
"""Messages that may not go everywhere, and that others overtake which may."""


def is_queue(client_id: str) -> bool:
    """Whether the session of a client id is the queue of a shared subscription."""
    return client_id.startswith(SHARE_PREFIX)


def number_of(kept: Delivery) -> int:
    return kept.ids[0]


class GroupQueue:
    __slots__ = ("_last_number", "_metrics", "_row", "_store", "bytes", "full_filter", "lent", "waiting")

    def __init__(self, full_filter: str, store: Store, metrics: Metrics) -> None:
        self.full_filter = full_filter
        self._store = store
        self._metrics = metrics
        self._row = 0
        self._last_number = -1
        self.waiting: deque[Delivery] = deque()
        self.lent: dict[int, Delivery] = {}
        """By number: what a member has, and has not acknowledged."""
        self.bytes = 0
        """Of all that is in it."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.lent)

    def has_room(self, size: int, members: int, limits: Limits) -> bool:
        """Whether a message of this size fits: a group has as much room as its members here would have."""
        messages_max, bytes_max = limits.queue_messages_max * members, limits.queue_bytes_max * members
        return len(self) < messages_max and (not len(self) or self.bytes + size <= bytes_max)

    def push(self, message: Message, is_stored: bool, number: int = 0) -> Delivery:
        """Adds a message behind those that wait; one that `is_stored` survives the process. It has a number already if
        it comes from another queue."""
        kept = self._new(message, is_stored, number)
        self.waiting.append(kept)
        return kept

    def push_front(self, message: Message, is_stored: bool) -> None:
        """Adds a message that a member had before those that wait."""
        self.waiting.appendleft(self._new(message, is_stored))

    def _new(self, message: Message, is_stored: bool, number: int = 0) -> Delivery:
        number = number or self._next_number()
        kept = Delivery(message, message.qos, message.retain, (number,), self.full_filter)
        if is_stored:
            if not self._row:
                self._row = self._store.next_row()
                self._store.save_session(self._row, self.full_filter, FOREVER, None, "")
            self._store.save_delivery(self._row, kept)
        self._count(kept, 1)
        return kept

    def _next_number(self) -> int:
        self._last_number += 1
        if not self._last_number & (1 << COUNT_BITS) - 1:
            self._last_number = secrets.randbits(CHANCE_BITS) << COUNT_BITS | 1
        return self._last_number

    def _count(self, kept: Delivery, change: int) -> None:
        self.bytes += change * kept.message.size
        self._metrics.queued_messages += change

    def lend(self, now: float, is_allowed: Callable[[Message], bool]) -> Delivery | None:
        """Takes out the first that waits and may go where it is to be lent to; None if there is none."""
        at = 0
        while at < len(self.waiting) and at < PASSED_OVER_MAX:
            kept = self.waiting[at]
            if kept.message.expired(now):  # [MQTT-3.3.2-5]
                del self.waiting[at]
                self._end(kept)
            elif is_allowed(kept.message):
                del self.waiting[at]
                self.lent[number_of(kept)] = kept
                return kept
            else:
                at += 1
        return None

    def set_aside(self, kept: Delivery) -> None:
        """Takes out the first or the last that waits: somebody may have it already."""
        if kept is self.waiting[0]:
            self.waiting.popleft()
        else:
            assert kept is self.waiting.pop()
        self.lent[number_of(kept)] = kept

    def give_back(self, kept: Delivery) -> bool:
        """What was lent goes to the front again; False if it has come to its end meanwhile."""
        if self.lent.pop(number_of(kept), None) is None:
            return False
        self.waiting.appendleft(kept)
        return True

    def settle(self, kept: Delivery) -> None:
        """What was lent has come to its end."""
        if self.lent.pop(number_of(kept), None) is not None:
            self._end(kept)

    def remove(self, kept: Delivery) -> None:
        """One that waits or is lent comes to its end."""
        if self.lent.pop(number_of(kept), None) is None:
            at = next((at for at, one in enumerate(self.waiting) if one is kept), None)
            if at is None:
                return
            del self.waiting[at]
        self._end(kept)

    def drop_oldest(self) -> None:
        """The first that waits comes to its end without a member."""
        self._end(self.waiting.popleft())

    def clear(self) -> None:
        """Nothing of it stays."""
        for kept in (*self.waiting, *self.lent.values()):
            self._end(kept)
        self.waiting.clear()
        self.lent.clear()
        if self._row:
            self._store.drop_session(self._row)
            self._row = 0

    def _end(self, kept: Delivery) -> None:
        self._count(kept, -1)
        if kept.row:
            self._store.drop_delivery(kept)

    def restore(self, saved: SavedSession) -> None:
        """What an earlier process left waits again, whoever had it."""
        self._row = saved.row
        self._fill(one.delivery for one in saved.deliveries)

    def _fill(self, deliveries: Iterable[Delivery]) -> None:
        for kept in deliveries:
            self.waiting.append(kept)
            self._count(kept, 1)


class QueueLoan:
    """A message of a queue that a member here has."""

    __slots__ = ("_kept", "_queue")

    def __init__(self, queue: GroupQueue, kept: Delivery) -> None:
        self._queue = queue
        self._kept = kept

    def settle(self) -> None:
        self._queue.settle(self._kept)

    def give_back(self) -> None:
        self._queue.give_back(self._kept)
