"""Answers to clients: each goes to the one session that has asked, where it subscribes to the answer's topic.

So nobody can have a broker publish anything to others, and an answer needs no right of its own. A client that would
not hear its answer is told so when it asks.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from braidmq.broker.broker import Broker
from braidmq.broker.component_topics import level_of
from braidmq.broker.local_topics import RESERVED_PREFIX
from braidmq.broker.message import Message, forwarded
from braidmq.broker.router import Target
from braidmq.broker.session import Session
from braidmq.mqtt.packets import Publish
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.wire import string

CONTENT_TYPE: Final = "application/json"

_encode: Final = msgspec.json.Encoder().encode


class ReplyTo(msgspec.Struct, frozen=True):
    """Where a client waits for its answer: the response topic of its request, or `$reserved/<client id>/…`."""

    client_id: str
    topic: str
    forward: bytes


def reply_to(session: Session, packet: Publish, about: str) -> ReplyTo:
    """`about` is the last level of the topic for clients that name none: the component, or the id."""
    properties = packet.properties
    topic = properties.response_topic or f"{RESERVED_PREFIX}{level_of(session.client_id)}/{about}"
    told = Properties(content_type=CONTENT_TYPE, correlation_data=properties.correlation_data)
    return ReplyTo(session.client_id, topic, forwarded(told))


class ClientAnswers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def hears(self, to: ReplyTo) -> bool:
        """Whether the client subscribes to the topic of its answers."""
        return bool(self._targets(to))

    def is_heard(self, client_id: str, topic: str) -> bool:
        """Whether a client subscribes to a topic."""
        return self.hears(ReplyTo(client_id, topic, b""))

    def tell(self, to: ReplyTo, answer: dict[str, Any]) -> None:
        self._give(to, _encode(answer))

    def give(self, client_id: str, topic: str, payload: bytes) -> None:
        """What a client is given as it is, if it subscribes to it."""
        self._give(ReplyTo(client_id, topic, forwarded(Properties())), payload)

    def _give(self, to: ReplyTo, payload: bytes) -> None:
        targets = self._targets(to)
        if targets:
            message = Message(to.topic, string(to.topic), payload, 1, forward=to.forward)
            self._broker.deliver(message, targets, ())
            self._broker.request_flush()

    def tell_session(self, client_id: str, topic: str, answer: dict[str, Any]) -> None:
        """What a client was not asked for and may want to know, if it subscribes to it."""
        self.tell(ReplyTo(client_id, topic, forwarded(Properties(content_type=CONTENT_TYPE))), answer)

    def _targets(self, to: ReplyTo) -> list[Target]:
        session = self._broker.sessions.get(to.client_id)
        receivers = self._broker.router.arriving(to.topic).receivers
        return [target for target in receivers.targets if target.session is session]
