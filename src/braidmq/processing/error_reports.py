"""Errors of a processor, published to the subscribers of `$processor/<name>/errors` and written to the broker's log.

A processor that fails on every message must not flood its site with reports: at most REPORTS_A_SECOND are sent in a
second, and the first report of a later second says how many were left out.
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

REPORTS_A_SECOND: Final = 10

_log = logging.getLogger("braidmq.processing")


class ErrorReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One error, as JSON. `topic` and `offset` are those of the message that caused it, if that is known."""

    processor: str
    what: str
    message: str
    topic: str | None = None
    offset: int | None = None
    left_out: int = 0
    """Errors that were not reported since the last report."""


class ErrorReporter:
    """For the errors of one processor."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._name = name
        self._second = 0
        self._count = 0
        self._left_out = 0

    def report(self, what: str, text: str, topic: str | None, offset: int | None) -> None:
        second = int(self._broker.now())
        if second != self._second:
            self._second = second
            self._count = 0
        self._count += 1
        if self._count > REPORTS_A_SECOND:
            self._left_out += 1
            return
        report = ErrorReport(self._name, what, text, topic, offset, self._left_out)
        self._left_out = 0
        where = "" if topic is None else f" at {topic} (offset {offset})"
        _log.warning("processor %s: %s%s: %s", self._name, what, where, text)
        name = f"{PROCESSOR_PREFIX}{self._name}/errors"
        self._broker.publish(Message(name, string(name), msgspec.json.encode(report), 1))
        self._broker.request_flush()
