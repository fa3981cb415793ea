"""What message processors get of a topic, behind a narrow interface. A route has one, if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from braidmq.broker.message import Message


class TopicFeed(Protocol):
    def on_publication(self, message: Message, is_logged: bool) -> None:
        """A publication of a client here, which the log has just been given or not."""
        ...

    def on_run(self, payloads: Sequence[bytes], sender: str, is_logged: bool) -> None:
        """Plain QoS 0 publications of a client here."""
        ...

    def on_foreign(self, message: Message) -> None:
        """A publication of another broker's client."""
        ...

    def on_foreign_run(self, payloads: Sequence[bytes]) -> None:
        """Plain QoS 0 publications of other brokers' clients."""
        ...
