"""Simulated buses: MQTT clients that publish how many passengers they have; and the control room, which gets alerts.

Each bus runs the same function over what it publishes, and so knows which alerts must come of it. In the end it is
clear whether all of them came, and none twice.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from typing import Any, Final

from paho.mqtt.client import MQTTMessage
from paho.mqtt.subscribeoptions import SubscribeOptions

from braidmq.cli.demo.plan import DemoSite
from braidmq.cli.errors import CliError
from braidmq.cli.mqtt_client.client import (
    ConnectRefused,
    Disconnected,
    MqttClient,
    PublishAnswered,
    StreamBroken,
    SubscribeAnswered,
)
from braidmq.cli.mqtt_client.options import ConnectionOptions
from braidmq.processors import Message, Processor, Spool, spool_step
from braidmq.processors.processor import Output

FRAME_S: Final = 0.1
PERIOD: Final = 50
"""Frames from one crowd to the next."""
CALM: Final = 20
"""Those of them without a crowd; a trip begins with some of these."""
CALM_COUNTS: Final = (12, 48)
CROWD_COUNTS: Final = (52, 80)
PHASE: Final = 4
"""Frames by which a bus is ahead of the one before."""
PHASE_MAX: Final = 16
ANSWER_S: Final = 20.0


class BrokerGone(Exception):
    """A broker has ended the connection."""


def topic_of(number: int) -> str:
    return f"bus/{number}/frames"


class Bus:
    """One device: a client of its site's broker with a topic of its own."""

    def __init__(self, number: int, site: DemoSite, trip: str, processor: Processor) -> None:
        self.number = number
        self.site = site
        self.topic = topic_of(number)
        self.frames = 0
        self.acknowledged = 0
        self.bytes = 0
        self.processed_at = ""
        """Where it is processed, once that is known."""
        self.expected: set[int] = set()
        """Frames that must cause an alert."""
        self.alerts: dict[int, float] = {}
        """Frames that caused an alert, and after how many seconds it came."""
        self.repeated = 0
        self.unexpected = 0
        self.sent_at: dict[int, float] = {}
        self._trip = trip
        self._processor = processor
        self._spool = Spool(processor.spool)
        self._phase = PHASE * number % PHASE_MAX
        self._random = random.Random(number)  # noqa: S311 - no secret: a bus is full or not
        self._client = MqttClient(ConnectionOptions(url=site.mqtt, client_id=f"bus-{number}-{trip}"), "demo")

    @property
    def missing(self) -> int:
        return len(self.expected - self.alerts.keys())

    def begin(self) -> None:
        """Connects, and waits until its first frame is acknowledged: so buses are assigned in their order."""
        self._client.open()
        self.publish_frame()
        ends_at = time.monotonic() + ANSWER_S
        while not self.acknowledged:
            event = self._client.next_event(max(0.0, ends_at - time.monotonic()))
            if event is None:
                raise CliError(f"{self.site.name} did not acknowledge a frame within {ANSWER_S:g} s")
            self._on_event(event)

    def publish_frame(self) -> None:
        """Publishes a frame."""
        content = {"trip": self._trip, "frame": self.frames, "passengers": self._passengers()}
        payload = json.dumps(content).encode()
        self.sent_at[self.frames] = time.monotonic()
        self._client.publish(self.topic, payload, 1, False, None)
        self.bytes += len(payload)
        message = Message(self.topic, payload, 1, False, 0.0, 0.0, self.site.name, None, (), self.frames)
        if isinstance(spool_step(self._processor, self._spool, message), Output):
            self.expected.add(self.frames)
        self.frames += 1

    def read_events(self) -> None:
        """Handles what the broker has sent so far."""
        while (event := self._client.next_event(0.0)) is not None:
            self._on_event(event)

    def end(self) -> None:
        self._client.close()

    def _on_event(self, event: Any) -> None:
        if isinstance(event, PublishAnswered):
            if event.reason >= 0x80:
                raise CliError(f"{self.site.name} refused a frame: {event.words}")
            self.acknowledged += 1
        elif isinstance(event, Disconnected | StreamBroken | ConnectRefused):
            raise BrokerGone(f"{self.site.name} ended the connection of bus {self.number}: {event.words}")

    def _passengers(self) -> int:
        is_crowded = (self.frames + self._phase) % PERIOD >= CALM
        return self._random.randint(*(CROWD_COUNTS if is_crowded else CALM_COUNTS))


@dataclass
class Alert:
    bus: Bus
    frame: int
    passengers: int
    took_s: float


@dataclass
class ControlRoom:
    """The subscriber to all alerts."""

    site: DemoSite
    topic: str
    trip: str
    buses: dict[str, Bus]
    """By topic."""
    earlier: int = 0
    """Alerts that are not of this trip: Spark has caught up on an earlier one."""
    _client: MqttClient = field(init=False)

    def begin(self) -> None:
        self._client = MqttClient(ConnectionOptions(url=self.site.mqtt, client_id=f"control-room-{self.trip}"), "demo")
        self._client.open()
        self._client.subscribe([self.topic], SubscribeOptions(1, retainHandling=2), None)
        event = self._client.next_event(ANSWER_S)
        if not isinstance(event, SubscribeAnswered) or event.reasons[0] >= 0x80:
            raise CliError(f"{self.site.name} did not accept a subscription to {self.topic}")

    def next_alert(self, timeout_s: float) -> Alert | None:
        """The next one of these buses, or None if none comes in time."""
        ends_at = time.monotonic() + timeout_s
        while (event := self._client.next_event(max(0.0, ends_at - time.monotonic()))) is not None:
            now = time.monotonic()
            if isinstance(event, Disconnected | StreamBroken | ConnectRefused):
                raise BrokerGone(f"{self.site.name} ended the connection of the control room: {event.words}")
            if isinstance(event, MQTTMessage):
                self._client.ack(event)
                alert = self._read(event.payload, now)
                if alert is not None:
                    return alert
        return None

    def end(self) -> None:
        self._client.close()

    def _read(self, payload: bytes | bytearray, now: float) -> Alert | None:
        try:
            content = json.loads(payload)
            bus, frame, passengers = self.buses.get(content["bus"]), int(content["frame"]), int(content["passengers"])
            is_ours = content["trip"] == self.trip
        except (ValueError, KeyError, TypeError):
            return None  # of frames that are not of these buses
        if bus is None or not is_ours or frame not in bus.sent_at:
            self.earlier += 1
            return None
        if frame in bus.alerts:
            bus.repeated += 1
            return None
        if frame not in bus.expected:
            bus.unexpected += 1
        took_s = bus.alerts[frame] = now - bus.sent_at[frame]
        return Alert(bus, frame, passengers, took_s)
