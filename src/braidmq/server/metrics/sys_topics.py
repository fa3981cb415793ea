"""The `$SYS` topics: the broker's numbers as retained messages, for those who have only an MQTT client."""

from __future__ import annotations

import braidmq
from braidmq.broker.broker import Broker
from braidmq.broker.message import Message
from braidmq.broker.timers import Timer
from braidmq.mqtt.wire import string
from braidmq.server.metrics.exposition import readings

PREFIX = "$SYS/broker/"


class SysTopics:
    """Publishes what has changed, every so many seconds."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._interval_s = 0.0
        self._timer: Timer | None = None
        self._last: dict[str, str] = {}

    def set_interval(self, interval_s: float) -> None:
        """Publishes at once, and from now on so often; 0 stops it."""
        self._interval_s = interval_s
        if self._timer is not None:
            self._timer.cancel()
        if interval_s:
            self.publish("version", f"braidmq {braidmq.__version__}")
            self._next()

    def _next(self) -> None:
        broker = self._broker
        self.publish("uptime", f"{broker.now() - broker.started_at:.0f} seconds")
        for measure, value in readings(broker.metrics):
            self.publish(measure.topic, str(value))
        self._timer = broker.timers.at(broker.now() + self._interval_s, self._next)

    def publish(self, name: str, value: str) -> None:
        """Publishes a value that has changed, if statistics are published at all."""
        if self._last.get(name) == value or not self._interval_s:
            return
        self._last[name] = value
        topic = PREFIX + name
        self._broker.publish(Message(topic, string(topic), value.encode(), 1, retain=True))
