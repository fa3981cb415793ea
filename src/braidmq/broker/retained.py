"""Retained messages (MQTT §3.3.1.3): the last one of each topic, found by filter, within bounds.

Where brokers are braided, older copies of what is deleted here may be kept elsewhere, at a broker that cannot be
reached now. So a tombstone stays for a while: a message without payload, which is newer than those copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from braidmq.broker.limits import Limits
from braidmq.broker.local_topics import is_local
from braidmq.broker.message import Message
from braidmq.mqtt.trees import NameTree
from braidmq.mqtt.wire import string

TOMBSTONE_S = 7 * 86_400.0
"""How long a tombstone stays: a broker that was away for longer may bring back what was deleted meanwhile."""

TOMBSTONES_MAX = 10_000
"""Tombstones at a time; the oldest goes."""


DUE_MIN = 1024
"""Deadlines that are kept though most of them may be of messages that were replaced."""


def tombstone(topic: str, at: float, now: float) -> Message:
    """What stays of a retained message that was deleted, or expired, and was from the time `at`."""
    return Message(topic, string(topic), b"", 0, True, expires_at=now + TOMBSTONE_S, at=at)


class Retained:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bytes = 0
        self.levels: dict[str, int] = {}
        """The first levels of all topics that are kept or buried here, the broker's own left out, and how many."""
        self.on_level: Callable[[], None] | None = None
        """Called when a first level has come or gone."""
        self._local_count = 0
        self._tombstones: dict[str, None] = {}
        self._due: list[tuple[float, str]] = []
        """A heap: when messages and tombstones expire, also some that were replaced or deleted since."""
        self._tree: NameTree[Message] = NameTree()

    def __len__(self) -> int:
        return len(self._tree) - len(self._tombstones)

    @property
    def shared(self) -> int:
        """Messages and tombstones, the broker's own left out."""
        return len(self._tree) - self._local_count

    def fits(self, message: Message) -> bool:
        """Whether the bounds allow keeping it; the broker's own statistics do not count."""
        old = self._tree.get(message.topic)
        if old is not None and not old.payload:
            old = None
        count = len(self) - self._local_count + (old is None)
        size = self.bytes + message.size - (old.size if old else 0)
        return count <= self.limits.retained_messages_max and size <= self.limits.retained_bytes_max

    def get(self, topic: str) -> Message | None:
        """The message of a topic, or its tombstone."""
        return self._tree.get(topic)

    def keep(self, message: Message) -> None:
        """Replaces what is there by a message or a tombstone."""
        topic = message.topic
        self.discard(topic)
        self._tree.set(topic, message)
        if message.expires_at is not None:
            self._expire_later(message.expires_at, topic)
        if message.payload:
            self.bytes += message.size
        else:
            self._tombstones[topic] = None
        if is_local(topic):
            self._local_count += 1
        else:
            self._count_level(topic, 1)

    def discard(self, topic: str) -> bool:
        old = self._tree.remove(topic)
        if old is None:
            return False
        if old.payload:
            self.bytes -= old.size
        else:
            del self._tombstones[topic]
        if is_local(topic):
            self._local_count -= 1
        else:
            self._count_level(topic, -1)
        return True

    def _count_level(self, topic: str, change: int) -> None:
        level = topic.partition("/")[0]
        before = self.levels.get(level, 0)
        if before + change:
            self.levels[level] = before + change
        else:
            del self.levels[level]
        if self.on_level is not None and not (before and before + change):
            self.on_level()

    def _expire_later(self, expires_at: float, topic: str) -> None:
        heappush(self._due, (expires_at, topic))
        if len(self._due) > DUE_MIN + 2 * len(self._tree):  # most are of messages that are not there any more
            self._due = [(one.expires_at, one.topic) for one in self._tree.values() if one.expires_at is not None]
            heapify(self._due)

    def surplus(self) -> list[str]:
        """Topics whose tombstones are over the bound."""
        count = len(self._tombstones) - TOMBSTONES_MAX
        return list(islice(self._tombstones, count)) if count > 0 else []

    def match(self, topic_filter: str, now: float) -> Iterator[Message]:
        """Those that a new subscription to the filter gets; what has expired is none [MQTT-3.3.2-5]."""
        return (message for message in self.entries(topic_filter) if message.payload and not message.expired(now))

    def entries(self, topic_filter: str) -> list[Message]:
        """All that is there for a filter: tombstones, and what has expired, too."""
        return list(self._tree.match(topic_filter))

    def values(self) -> Iterator[Message]:
        return self._tree.values()

    def expired(self, now: float) -> list[str]:
        """The topics of messages and tombstones whose time is over."""
        found: dict[str, float] = {}
        while self._due and self._due[0][0] <= now:
            expires_at, topic = heappop(self._due)
            message = self._tree.get(topic)
            if message is not None and message.expires_at == expires_at:
                found[topic] = expires_at
        for topic, expires_at in found.items():  # until they are deleted
            heappush(self._due, (expires_at, topic))
        return list(found)
