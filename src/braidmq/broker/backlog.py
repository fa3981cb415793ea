"""What waits for a session's client, in order and within bounds.

Retained messages that a new subscription asks for can be many. They are not copied into the queue: a `BULK` mark stands
where they stand in the order, and each is drawn from where it is kept when its turn comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from braidmq.broker.limits import Limits
from braidmq.broker.message import Delivery, Message
from braidmq.broker.metrics import Metrics

NOTHING = Message("", b"", b"", 0)
"""The message of a delivery that has none (any more)."""

BULK = Delivery(NOTHING, 0)


class Backlog:
    __slots__ = ("_bulk", "_items", "_metrics", "_on_sparse", "_resend_bytes", "_resend_count", "bytes", "qos0_count")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._items: deque[Delivery] = deque()
        self._bulk: deque[Delivery] = deque()
        self._on_sparse: list[tuple[int, Callable[[], None]]] = []
        self.bytes = 0
        self._resend_count = self._resend_bytes = 0
        self.qos0_count = 0
        """How many of QoS 0 wait, a bulk counted as one: later ones of QoS 0 must not overtake them."""

    def __len__(self) -> int:
        return len(self._items)

    def full(self, size: int, limits: Limits) -> bool:
        """Whether a message of this size would go over the bounds; what is only sent again needs no room."""
        count = len(self._items) - self._resend_count
        size += self.bytes - self._resend_bytes
        return count >= limits.queue_messages_max or (count > 0 and size > limits.queue_bytes_max)

    def push(self, delivery: Delivery) -> None:
        self._items.append(delivery)
        self.bytes += delivery.message.size
        if delivery.packet_id:
            self._resend_count += 1
            self._resend_bytes += delivery.message.size
        self.qos0_count += not delivery.qos
        self._metrics.queued_messages += 1

    def fill(self, deliveries: list[Delivery]) -> None:
        """Adds many of QoS 1 and 2 that were never sent; all are counted in one go."""
        self._items.extend(deliveries)
        self.bytes += sum([len(m.name) + len(m.forward) + len(m.payload) for m in [one.message for one in deliveries]])
        self._metrics.queued_messages += len(deliveries)

    def pop(self) -> Delivery:
        """The next one; of a bulk, the next one of it."""
        delivery = self._items[0]
        if delivery is BULK and len(self._bulk) > 1:
            return self._pop_of_bulk()
        self._items.popleft()
        self.bytes -= delivery.message.size
        if delivery.packet_id:
            self._resend_count -= 1
            self._resend_bytes -= delivery.message.size
        self.qos0_count -= not delivery.qos
        self._metrics.queued_messages -= 1
        return self._pop_of_bulk() if delivery is BULK else delivery

    def _pop_of_bulk(self) -> Delivery:
        delivery = self._bulk.popleft()
        if self._on_sparse:
            self._tell_sparse()
        return delivery

    def when_sparse(self, count: int, action: Callable[[], None]) -> None:
        """Calls once, when no more than so many of a bulk wait: more of it can be fetched."""
        self._on_sparse.append((count, action))

    def _tell_sparse(self) -> None:
        due = [one for one in self._on_sparse if len(self._bulk) <= one[0]]
        self._on_sparse = [one for one in self._on_sparse if one not in due]
        for _, action in due:
            action()

    def add_bulk(self, deliveries: Iterable[Delivery]) -> None:
        """Adds many behind what waits, as one."""
        had_some = bool(self._bulk)
        self._bulk.extend(deliveries)
        if self._bulk and not had_some:
            self.push(BULK)

    def drain(self) -> list[Delivery]:
        """Empties the queue."""
        return [self.pop() for _ in range(len(self._items) - bool(self._bulk) + len(self._bulk))]

    def remove(self, wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Takes out what is wanted; the rest keeps its order, and what is left of a bulk its position."""
        fed = [delivery for delivery in self._bulk if wanted(delivery)]
        self._bulk = _without(self._bulk, fed)
        self._tell_sparse()
        found = [one for one in self._items if (not self._bulk if one is BULK else wanted(one))]
        self._items = _without(self._items, found)
        self.bytes -= sum(delivery.message.size for delivery in found)
        self.qos0_count -= sum(not delivery.qos for delivery in found)
        self._metrics.queued_messages -= len(found)
        return [*(one for one in found if one is not BULK), *fed]

    @property
    def waiting(self) -> Iterable[Delivery]:
        return (*self._items, *self._bulk)

    @property
    def bulk_count(self) -> int:
        return len(self._bulk)

    def check(self) -> None:
        """Asserts that the counters agree with what they count."""
        items = self._items
        resent = [one for one in items if one.packet_id]
        assert self.bytes == sum(one.message.size for one in items), "the backlog's bytes"
        assert self.qos0_count == sum(not one.qos for one in items), "the backlog's QoS 0"
        assert self._resend_count == len(resent), "what the backlog sends again"
        assert self._resend_bytes == sum(one.message.size for one in resent), "what the backlog sends again, in bytes"
        assert sum(one is BULK for one in items) == bool(self._bulk), "the mark of a bulk"

    def forget_size(self, delivery: Delivery) -> None:
        """The message of one that waits to be sent again is about to be taken away from it."""
        self.bytes -= delivery.message.size
        self._resend_bytes -= delivery.message.size


def _without(deliveries: deque[Delivery], taken: list[Delivery]) -> deque[Delivery]:
    if not taken:
        return deliveries
    ids = set(map(id, taken))
    return deque(one for one in deliveries if id(one) not in ids)
