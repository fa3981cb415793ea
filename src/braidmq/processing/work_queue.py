"""The line in front of a processor: messages that wait, those that its worker has, and the spools behind them.

    taken ──▶ queue ──batch──▶ flying ──done──▶ the spool of its topic

The spools are kept here as well as in the worker: if that goes, the next one is given them, and what was flying stands
in front again. A message that brings its worker down every time is found out by being sent alone.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from braidmq.processors.processor import NO_OFFSET

WINDOW_MESSAGES_MAX: Final = 512
"""Messages that a worker has and has not answered."""
WINDOW_BYTES_MAX: Final = 1 << 20
"""Their bytes; a larger message goes alone."""


class Item(msgspec.Struct):
    """A message on its way through a processor; `raw` is how its worker gets it."""

    topic: str
    raw: bytes
    offset: int
    qos: int
    hops: int
    """Through how many processors it has come."""
    tries: int = 0
    """How often it was alone in a worker that ended."""


class Kept:
    """The spool of one topic, as its messages are sent to a worker."""

    __slots__ = ("bytes", "last", "life", "messages")

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.bytes = 0
        self.last = NO_OFFSET
        self.life = 0
        """The life of the worker that has it."""

    def put(self, raw: bytes, offset: int, size: int) -> None:
        self.messages.append(raw)
        self.bytes += len(raw)
        self.last = offset
        while len(self.messages) > size:
            self.bytes -= len(self.messages.popleft())


class WorkQueue:
    def __init__(self, spool: int) -> None:
        self.spool = spool
        """Messages that a topic keeps."""
        self.spools: dict[str, Kept] = {}
        self.bytes = 0
        """Of all that wait or fly."""
        self._queue: deque[Item] = deque()
        self._flying: deque[Item] = deque()
        self._flying_bytes = 0
        self._alone = 0
        """How many of the next messages are to be sent one by one."""

    def __len__(self) -> int:
        """How many wait or fly."""
        return len(self._queue) + len(self._flying)

    @property
    def flying(self) -> int:
        return len(self._flying)

    def has(self, topic: str) -> bool:
        """Whether messages of a topic wait or fly."""
        return any(item.topic == topic for item in self.items)

    @property
    def items(self) -> list[Item]:
        """All that wait or fly, in their order."""
        return [*self._flying, *self._queue]

    def put(self, item: Item) -> None:
        self._queue.append(item)
        self.bytes += len(item.raw)

    def batch(self) -> list[Item]:
        """The messages to be sent next; they fly from now on."""
        queue, flying = self._queue, self._flying
        taken: list[Item] = []
        window = 1 if self._alone else WINDOW_MESSAGES_MAX
        while queue and len(flying) < window:
            size = len(queue[0].raw)
            if flying and self._flying_bytes + size > WINDOW_BYTES_MAX:
                break
            item = queue.popleft()
            flying.append(item)
            taken.append(item)
            self._flying_bytes += size
        return taken

    def done(self, count: int) -> list[Item]:
        """The worker is done with its next `count` messages: they go into their spools."""
        items = [self._land() for _ in range(count)]
        for item in items:
            self.keep(item)
        return items

    def keep(self, item: Item) -> None:
        """Puts a message that is done with into its spool."""
        kept = self.spools.get(item.topic)
        if kept is None:
            kept = self.spools[item.topic] = Kept()
        kept.put(item.raw, item.offset, self.spool)

    def ground(self) -> Item | None:
        """The worker has gone: what flew stands in front again. If it was one message alone, that is returned."""
        suspect = None
        self._alone = max(self._alone, len(self._flying))
        if len(self._flying) == 1:
            suspect = self._flying[0]
        self._queue.extendleft(reversed(self._flying))
        self._flying.clear()
        self._flying_bytes = 0
        return suspect

    def skip(self) -> Item:
        """Takes the first message out of the line, into its spool: nobody is to try it any more."""
        item = self._queue.popleft()
        self._count_out(item)
        self.keep(item)
        return item

    def state_of(self, topic: str) -> tuple[int, list[bytes]]:
        """(last offset, messages) of a spool as it will be when all that is in the line now is done."""
        kept = self.spools.get(topic)
        last = NO_OFFSET if kept is None else kept.last
        messages = [] if kept is None else list(kept.messages)
        for item in self.items:
            if item.topic == topic:
                messages.append(item.raw)
                last = item.offset
        return last, messages[-self.spool :]

    def resize(self, spool: int) -> None:
        """Spools have another size from now on."""
        self.spool = spool
        for kept in self.spools.values():
            while len(kept.messages) > spool:
                kept.bytes -= len(kept.messages.popleft())

    def _land(self) -> Item:
        item = self._flying.popleft()
        self._flying_bytes -= len(item.raw)
        self._count_out(item)
        return item

    def _count_out(self, item: Item) -> None:
        self.bytes -= len(item.raw)
        if self._alone:
            self._alone -= 1
