"""Reservations that a client holds: one instance of a component for each of its streams, renewed while it is used.

    $reserve/<component>  →  $reserved/<client id>/<component>: the instance's topic, a lease, an id
    $renew/<id>           →  $reserved/<client id>/<id>

What is for a stream waits until its instance is known; the owner of this object keeps it meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

from braidmq.bounded import BoundedDict
from braidmq.cli.errors import CliError
from braidmq.cli.mqtt_client.client import MqttClient, new_properties

LEASE_S: Final = 60.0
RENEW_AT: Final = 0.4
"""The part of a lease after which it is renewed."""
ANSWER_S: Final = 5.0
"""How long an answer may take before the request is put again."""
AGAIN_S, AGAIN_S_MAX = 0.2, 5.0
"""The pause after a refusal before it is asked again, unless the answer says when to expect one; within a bound."""
UNUSED_S: Final = 120.0
"""A reservation that was not used for so long is released."""
HELD_MAX: Final = 100
"""Reservations of one client: as many as a broker grants."""

Stream = tuple[str, str]
"""A component's group, and the stream."""


@dataclass
class _StreamReservation:
    topic: str = ""
    """Of the instance; empty while it is asked for."""
    id: str = ""
    renew_at: float = 0.0
    used_at: float = 0.0
    asked_at: float = float("-inf")
    again_at: float = float("-inf")
    pause_s: float = AGAIN_S
    before: tuple[str, str] = ("", "")
    """Topic and id of the instance from which the stream goes on, while another is asked for."""


class Reserver:
    def __init__(self, client: MqttClient, client_id: str, lease_s: float = LEASE_S) -> None:
        self._client = client
        self._client_id = client_id
        self._lease_s = lease_s
        self._holds: BoundedDict[Stream, _StreamReservation] = BoundedDict(HELD_MAX)
        self.problem = ""
        """Why the last request was refused."""

    @property
    def answers(self) -> str:
        """The topic of answers begins so."""
        return f"$reserved/{self._client_id}/"

    def begin(self) -> None:
        """After each connect."""
        self._client.subscribe([f"{self.answers}#"], SubscribeOptions(1), None)
        for hold in self._holds.values():
            hold.asked_at = hold.again_at = float("-inf")

    def topic_for(self, group: str, stream: str, now: float) -> str:
        """Where to publish what is for a stream; empty while that is found out."""
        hold = self._holds.get((group, stream))
        if hold is None:
            hold = self._holds[group, stream] = _StreamReservation()
        hold.used_at = now
        if not hold.topic:
            self._ask((group, stream), hold, now)
        return hold.topic

    def go_on_near(self, before: Reserver, now: float) -> None:
        """The client is at another broker: its streams go on at instances near that, with what the old ones know."""
        for stream, hold in before._holds.items():
            if hold.id:
                self._holds[stream] = _StreamReservation(used_at=now, before=(hold.topic, hold.id))
                self._ask(stream, self._holds[stream], now)

    def forget(self, topic: str) -> None:
        """The instance with this topic is gone: another is asked for when it is needed."""
        for hold in self._holds.values():
            if hold.topic == topic:
                hold.topic = hold.id = ""

    def step(self, now: float) -> None:
        """Renews what is used, and releases what is not; called again and again."""
        for stream, hold in list(self._holds.items()):
            if not hold.topic:
                if now - hold.used_at > UNUSED_S:
                    del self._holds[stream]
                continue
            if now - hold.used_at > UNUSED_S:
                self._send(f"$release/{hold.id}", b"", stream)
                del self._holds[stream]
            elif now >= hold.renew_at:
                self._send(f"$renew/{hold.id}", b"", stream)
                hold.renew_at = now + RENEW_AT * self._lease_s / 2

    def on_answer(self, message: MQTTMessage, now: float) -> None:
        """What a broker says about a reservation."""
        try:
            told = msgspec.json.decode(bytes(message.payload), type=dict[str, Any])
        except msgspec.MsgspecError:
            return
        found = self._stream_of(message, str(told.get("id", "")))
        hold = None if found is None else self._holds.get(found)
        if hold is None:
            return
        if told.get("ok"):
            hold.topic = str(told.get("topic") or hold.topic)
            hold.id = str(told.get("id") or hold.id)
            hold.renew_at = now + RENEW_AT * float(told.get("lease") or self._lease_s)
            hold.pause_s = AGAIN_S
            hold.before = ("", "")
            return
        if hold.before[1]:  # none is free near: the old one goes on
            hold.topic, hold.id = hold.before
            hold.before = ("", "")
            hold.renew_at = now
            return
        self.problem = str(told.get("text", ""))
        hold.topic = hold.id = ""
        hold.asked_at = float("-inf")
        expected_s = told.get("expected_in")
        hold.again_at = now + min(float(expected_s) if expected_s is not None else hold.pause_s, hold.pause_s)
        hold.pause_s = min(2 * hold.pause_s, AGAIN_S_MAX)

    def _stream_of(self, message: MQTTMessage, known_as: str) -> Stream | None:
        """Which stream an answer is about: by its correlation data, or by the id of what is held."""
        data = getattr(message.properties, "CorrelationData", b"")
        if data:
            try:
                group, stream = msgspec.json.decode(data, type=tuple[str, str])
                return group, stream
            except msgspec.MsgspecError:
                return None
        return next((stream for stream, hold in self._holds.items() if known_as and hold.id == known_as), None)

    def _ask(self, stream: Stream, hold: _StreamReservation, now: float) -> None:
        if now < hold.again_at or now - hold.asked_at < ANSWER_S:
            return
        hold.asked_at = now
        asked = {"lease": self._lease_s, "key": stream[1], "from": hold.before[1]}
        self._send(f"$reserve/{stream[0]}", msgspec.json.encode(asked), stream)

    def _send(self, topic: str, body: bytes, stream: Stream) -> None:
        properties = new_properties(PacketTypes.PUBLISH)
        properties.CorrelationData = msgspec.json.encode(stream)
        try:
            self._client.publish(topic, body, 1, False, properties)
        except CliError:
            return  # not connected; asked again after that
