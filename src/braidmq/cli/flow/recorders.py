"""Simulated buses of the example flow: each has a drive recorder, which publishes frames, and a display for its driver.

A bus knows what must come of its frames, since it runs the same functions over them. So in the end it is clear whether
all of it came, and how often something came twice.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any, Final

from paho.mqtt.client import MQTTMessage
from paho.mqtt.subscribeoptions import SubscribeOptions

from braidmq.cli.errors import CliError
from braidmq.cli.flow.stream_sender import Sending, StreamSender
from braidmq.cli.mqtt_client.client import (
    Connected,
    ConnectRefused,
    Disconnected,
    MqttClient,
    PublishAnswered,
    StreamBroken,
)
from braidmq.cli.mqtt_client.options import ConnectionOptions
from braidmq.flows import Dataflow

FRAME_S: Final = 0.2
SEATS: Final = 40
BRAKING_EVERY: Final = 25
"""Frames from one hard braking to the next."""
STOP_EVERY: Final = 5
"""Frames from one stop to the next, where persons get on and off."""
SESSION_S: Final = 300


class RecordingBus:
    """One device, at the broker that is next to it now."""

    def __init__(self, flow: Dataflow, number: int, site: str, url: str, trip: str) -> None:
        self.number = number
        self.site = site
        self.stream = f"{trip}-{number}"
        self.frames = 0
        self.acknowledged = 0
        self.changes = 0
        """Frames that differ from the one before: as many counts must come."""
        self.brakings: dict[int, float] = {}
        """Frames with hard braking, and when they were sent."""
        self.warnings: Counter[int] = Counter()
        self.delays: list[float] = []
        self.refused = ""
        self._flow = flow
        self._random = random.Random(number)  # noqa: S311 - no secret: who gets on
        self._aboard: list[str] = []
        self._client_id = f"bus-{self.stream}"
        self._connect(url)

    def _connect(self, url: str) -> None:
        options = ConnectionOptions(url=url, client_id=self._client_id, session_expiry_s=SESSION_S)
        self._client = MqttClient(options, "flow", keep_session=True, reconnect=True)
        recorder, danger = self._flow.component("recorder"), self._flow.component("danger")
        self._sender = StreamSender(self._client, self._client_id, self._flow, recorder)
        self._client.open()
        self._warnings = self._flow.output_topic(danger, self.stream)
        self._client.subscribe([self._warnings], SubscribeOptions(1), None)
        self._sender.begin()

    def move(self, site: str, url: str) -> None:
        """Drives on to where another broker is nearer, once all that it has sent is acknowledged."""
        self._client.close()
        before = self._sender.reserver
        self.site = site
        self._connect(url)
        self._sender.reserver.go_on_near(before, time.monotonic())

    @property
    def is_settled(self) -> bool:
        return self.acknowledged == self.frames

    def publish_frame(self) -> None:
        before = list(self._aboard)
        if self.frames and self.frames % STOP_EVERY == 0:
            self._aboard = [one for one in self._aboard if self._random.random() < 0.7]
            self._aboard += [f"p{self.frames}-{one}" for one in range(self._random.randint(0, 4))][
                : SEATS - len(self._aboard)
            ]
        is_braking = self.frames % BRAKING_EVERY == BRAKING_EVERY - 1
        if self.frames and set(before) != set(self._aboard):
            self.changes += 1
        if is_braking:
            self.brakings[self.frames] = time.monotonic()
        frame = {"frame": self.frames, "persons": self._aboard, "braking": 0.9 if is_braking else 0.1}
        self.frames += 1
        sending = Sending(self.stream, json.dumps(frame).encode(), 1, False, (), self._on_sent)
        self._sender.send(sending, time.monotonic())

    def read_events(self) -> None:
        while (event := self._client.next_event(0.0)) is not None:
            self._on_event(event)
        self._sender.step(time.monotonic())

    def end(self) -> None:
        self._client.close()

    def _on_sent(self, reason: int, words: str) -> None:
        self.acknowledged += 1
        if reason:
            self.refused = words

    def _on_event(self, event: Any) -> None:
        match event:
            case MQTTMessage() if event.topic == self._warnings:
                self._client.ack(event)
                self._on_warning(bytes(event.payload))
            case MQTTMessage():
                self._sender.on_message(event, time.monotonic())
            case PublishAnswered():
                self._sender.on_answered(event)
            case Connected():
                self._sender.begin()
            case ConnectRefused() | StreamBroken():
                raise CliError(f"{self.site} ended the connection of bus {self.number}: {event.words}")
            case Disconnected():
                pass  # the client comes back

    def _on_warning(self, payload: bytes) -> None:
        frame = int(json.loads(payload)["frame"])
        self.warnings[frame] += 1
        if self.warnings[frame] == 1 and frame in self.brakings:
            self.delays.append(time.monotonic() - self.brakings[frame])
