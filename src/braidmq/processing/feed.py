"""Where a topic's publications go to its processors. A route has one, if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from braidmq.broker.message import Message
from braidmq.broker.recorder import NOT_LOGGED

if TYPE_CHECKING:
    from braidmq.processing.processing import Processing
    from braidmq.processing.runner import ProcessorRunner


class ProcessorFeed:
    """What processors here take of one topic."""

    __slots__ = ("_processing", "_stations", "_topic")

    def __init__(self, processing: Processing, topic: str, stations: list[ProcessorRunner]) -> None:
        self._processing = processing
        self._topic = topic
        self._stations = stations

    def on_publication(self, message: Message, is_logged: bool) -> None:
        """A publication of a client here, which the log has just been given or not."""
        self._processing.take(self._stations, message, self._processing.offset_of(is_logged), is_here=True)

    def on_run(self, payloads: Sequence[bytes], sender: str, is_logged: bool) -> None:
        """Plain QoS 0 publications of a client here."""
        offset = self._processing.offset_of(is_logged)
        for number, payload in enumerate(payloads):
            message = Message(self._topic, b"", payload, 0, False, sender)
            self._processing.take(self._stations, message, offset if offset < 0 else offset + number, is_here=True)

    def on_foreign(self, message: Message) -> None:
        """A publication of another broker's client."""
        wide = [station for station in self._stations if station.config.where == "here"]
        if wide:
            self._processing.take(wide, message, NOT_LOGGED, is_here=False)

    def on_foreign_run(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.on_foreign(Message(self._topic, b"", payload, 0))
