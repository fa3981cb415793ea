"""The `$SYS` topics: the broker's numbers as retained messages, for people with an MQTT client and nothing else."""

from __future__ import annotations

import braidmq
from braidmq.broker.broker import Broker
from braidmq.broker.exposition import readings
from braidmq.broker.message import Message
from braidmq.mqtt.wire import string

PREFIX = "$SYS/broker/"


class SysTopics:
    """Publishes what has changed since the last time, every `interval_s`."""

    def __init__(self, broker: Broker, interval_s: float) -> None:
        self._broker = broker
        self.interval_s = interval_s
        self._last: dict[str, str] = {}
        self._publish("version", f"braidmq {braidmq.__version__}")
        self._next()

    def _next(self) -> None:
        broker = self._broker
        self._publish("uptime", f"{broker.now() - broker.started_at:.0f} seconds")
        for measure, value in readings(broker.metrics):
            self._publish(measure.topic, str(value))
        broker.timers.at(broker.now() + self.interval_s, self._next)

    def _publish(self, name: str, value: str) -> None:
        if self._last.get(name) == value:
            return
        self._last[name] = value
        topic = PREFIX + name
        self._broker.publish(Message(topic, string(topic), value.encode(), 1, retain=True))
