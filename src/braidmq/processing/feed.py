"""Hands the publications of one topic to its processors. A route has a feed if any processor takes its topic."""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.broker.message import Message
from braidmq.broker.recorder import NOT_LOGGED
from braidmq.processing.intake import Intake
from braidmq.processing.runner import ProcessorRunner


class ProcessorFeed:
    """The processors of one topic, as the router calls them."""

    __slots__ = ("_intake", "_runners", "_topic")

    def __init__(self, intake: Intake, topic: str, runners: list[ProcessorRunner]) -> None:
        self._intake = intake
        self._topic = topic
        self._runners = runners

    def on_publication(self, message: Message, is_logged: bool) -> None:
        """A publication of a client here; `is_logged`: the log has just been given it."""
        self._intake.accept(self._runners, message, self._intake.offset_of(is_logged), is_here=True)

    def on_run(self, payloads: Sequence[bytes], sender: str, is_logged: bool) -> None:
        """Plain QoS 0 publications of a client here."""
        offset = self._intake.offset_of(is_logged)
        for number, payload in enumerate(payloads):
            message = Message(self._topic, b"", payload, 0, False, sender)
            self._intake.accept(self._runners, message, offset if offset < 0 else offset + number, is_here=True)

    def on_foreign(self, message: Message) -> None:
        """A publication of another broker's client."""
        wide = [runner for runner in self._runners if runner.config.where == "here"]
        if wide:
            self._intake.accept(wide, message, NOT_LOGGED, is_here=False)

    def on_foreign_run(self, payloads: Sequence[bytes]) -> None:
        """Plain QoS 0 publications of another broker's client."""
        for payload in payloads:
            self.on_foreign(Message(self._topic, b"", payload, 0))
