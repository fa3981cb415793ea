"""Retained messages (MQTT §3.3.1.3): the last one of each topic, found by filter, within bounds."""

from __future__ import annotations

from collections.abc import Iterator

from braidmq.broker.limits import Limits
from braidmq.broker.message import Message
from braidmq.mqtt.trees import NameTree


class Retained:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bytes = 0
        self._sys_count = 0
        self._tree: NameTree[Message] = NameTree()

    def __len__(self) -> int:
        return len(self._tree)

    def fits(self, message: Message) -> bool:
        """Whether the bounds allow keeping it; the broker's own statistics do not count."""
        old = self._tree.get(message.topic)
        count = len(self._tree) - self._sys_count + (old is None)
        size = self.bytes + message.size - (old.size if old else 0)
        return count <= self.limits.retained_messages_max and size <= self.limits.retained_bytes_max

    def keep(self, message: Message) -> None:
        self.discard(message.topic)
        self._tree.set(message.topic, message)
        self._sys_count += message.topic.startswith("$SYS/")
        self.bytes += message.size

    def discard(self, topic: str) -> bool:
        old = self._tree.remove(topic)
        if old is not None:
            self.bytes -= old.size
            self._sys_count -= topic.startswith("$SYS/")
        return old is not None

    def match(self, topic_filter: str, now: float) -> Iterator[Message]:
        """Those that a new subscription to the filter gets; what has expired is none [MQTT-3.3.2-5]."""
        return (message for message in list(self._tree.match(topic_filter)) if not message.expired(now))

    def expired(self, now: float) -> list[str]:
        return [message.topic for message in self._tree.values() if message.expired(now)]
