"""What goes wrong in a processor, told to those who subscribe to `$processor/<name>/errors`, and to the log.

A processor that fails on every message must not drown its site in reports: a second has REPORTS_A_SECOND of them, and
the first one of a later second says how many were left out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from braidmq.broker.local_topics import PROCESSOR_PREFIX
from braidmq.broker.message import Message
from braidmq.mqtt.wire import string

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.processing.work_queue import Item

REPORTS_A_SECOND: Final = 10

_log = logging.getLogger("braidmq.processing")


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """One error, as JSON. `topic` and `offset` are of the message that it happened to, if that is known."""

    processor: str
    what: str
    message: str
    topic: str | None = None
    offset: int | None = None
    left_out: int = 0
    """Errors that were not reported since the last report."""


class Reports:
    """Of one processor."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._name = name
        self._second = 0
        self._count = 0
        self._left_out = 0

    def tell(self, what: str, text: str, item: Item | None) -> None:
        topic, offset = (None, None) if item is None else (item.topic, item.offset)
        self.tell_of(what, text, topic, offset)

    def tell_of(self, what: str, text: str, topic: str | None, offset: int | None) -> None:
        """The same for a message that is not here."""
        second = int(self._broker.now())
        if second != self._second:
            self._second = second
            self._count = 0
        self._count += 1
        if self._count > REPORTS_A_SECOND:
            self._left_out += 1
            return
        report = Report(self._name, what, text, topic, offset, self._left_out)
        self._left_out = 0
        where = "" if topic is None else f" at {topic} (offset {offset})"
        _log.warning("processor %s: %s%s: %s", self._name, what, where, text)
        name = f"{PROCESSOR_PREFIX}{self._name}/errors"
        self._broker.publish(Message(name, string(name), msgspec.json.encode(report), 1))
        self._broker.request_flush()
