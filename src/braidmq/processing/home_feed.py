"""What comes from other brokers on a topic by which homes talk to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from braidmq.broker.message import Message


class HomeFeed:
    """One such topic, as the router calls it."""

    __slots__ = ("_say", "_topic")

    def __init__(self, say: Callable[[Message], None], topic: str) -> None:
        self._say = say
        self._topic = topic

    def on_publication(self, message: Message, is_logged: bool) -> None:
        """What is said here is for others."""

    def on_run(self, payloads: Sequence[bytes], sender: str, is_logged: bool) -> None:
        """No client may publish there."""

    def on_foreign(self, message: Message) -> None:
        self._say(message)

    def on_foreign_run(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self._say(Message(self._topic, b"", payload, 0))
