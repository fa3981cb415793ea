"""Where what a component publishes goes: to its own topic for takers that share, and for each taker that is reserved to
the one instance that serves the stream.

What waits for an instance keeps its order, stream by stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes

from braidmq.cli.errors import CliError
from braidmq.cli.flow.reserver import Reserver, Stream
from braidmq.cli.mqtt_client.client import MqttClient, PublishAnswered, new_properties
from braidmq.flows import Dataflow, FlowComponent
from braidmq.mqtt.reasons import Reason

TOPIC: Final = "flow-topic"
"""The user property with the topic that a message would have if its taker were shared."""
WAITING_MAX: Final = 1_000
"""Messages that wait for an instance; with one more, the oldest of its stream is given up."""


@dataclass
class Sending:
    """A message on its way to all that take it."""

    stream: str
    payload: bytes
    qos: int
    retain: bool
    properties: Sequence[tuple[str, str]]
    on_done: Callable[[int, str], None]
    left: int = 0
    reason: int = 0
    words: str = ""

    def settle(self, reason: int, words: str) -> None:
        """One of its takers has it, or will not get it."""
        if reason >= 0x80:
            self.reason, self.words = reason, words
        self.left -= 1
        if not self.left:
            self.on_done(self.reason, self.words)


class StreamSender:
    def __init__(self, client: MqttClient, client_id: str, flow: Dataflow, component: FlowComponent) -> None:
        self._client = client
        self._flow = flow
        self._component = component
        takers = flow.takers_of(component.name)
        self._groups = [flow.group_of(one) for one in takers if one.use == "reserved"]
        self._is_shared = len(self._groups) < len(takers) or not takers
        self.reserver = Reserver(client, client_id)
        self._waiting: dict[Stream, deque[Sending]] = {}
        self._under_way: dict[int, tuple[Sending, Stream | None, str]] = {}
        """By number of the publication: the message, for which stream of a reserved taker, and on which topic."""

    def begin(self) -> None:
        """After each connect. What was under way is not known to have arrived."""
        self._under_way.clear()
        self._waiting.clear()
        if self._groups:
            self.reserver.begin()

    def send(self, sending: Sending, now: float) -> None:
        sending.left = self._is_shared + len(self._groups)
        if self._is_shared:
            self._publish(sending, None, self._flow.output_topic(self._component, sending.stream))
        for group in self._groups:
            waiting = self._waiting.setdefault((group, sending.stream), deque())
            waiting.append(sending)
            if sum(map(len, self._waiting.values())) > WAITING_MAX:
                waiting.popleft().settle(
                    Reason.QUOTA_EXCEEDED, f"{WAITING_MAX} messages wait for an instance of {group}"
                )
            self._pass_on((group, sending.stream), now)

    def step(self, now: float) -> None:
        """Called again and again."""
        if self._groups:
            for stream in list(self._waiting):
                self._pass_on(stream, now)
            self.reserver.step(now)

    def on_message(self, message: MQTTMessage, now: float) -> bool:
        """Whether a message is about reservations."""
        if not message.topic.startswith(self.reserver.answers):
            return False
        self._client.ack(message)
        self.reserver.on_answer(message, now)
        self.step(now)
        return True

    def on_answered(self, event: PublishAnswered) -> None:
        found = self._under_way.pop(event.mid, None)
        if found is None:
            return
        sending, stream, topic = found
        if stream is not None and event.reason == Reason.NO_MATCHING_SUBSCRIBERS:  # the instance is gone
            self.reserver.forget(topic)
            self._waiting.setdefault(stream, deque()).appendleft(sending)
        else:
            sending.settle(event.reason, event.words)

    def _pass_on(self, stream: Stream, now: float) -> None:
        """Publishes what waits for an instance, if it is known."""
        waiting = self._waiting.get(stream)
        if not waiting:
            self._waiting.pop(stream, None)
            return
        topic = self.reserver.topic_for(*stream, now)
        if topic:
            while waiting:
                self._publish(waiting.popleft(), stream, topic)
            del self._waiting[stream]

    def _publish(self, sending: Sending, stream: Stream | None, topic: str) -> None:
        pairs = list(sending.properties)
        if stream is not None:
            pairs.append((TOPIC, self._flow.output_topic(self._component, sending.stream)))
        properties = None
        if pairs:
            properties = new_properties(PacketTypes.PUBLISH)
            properties.UserProperty = pairs
        retain = sending.retain and stream is None
        try:
            mid = self._client.publish(topic, sending.payload, max(1, sending.qos), retain, properties)
        except CliError:
            return  # the connection is lost: whoever has sent it will send it again
        self._under_way[mid] = (sending, stream, topic)
