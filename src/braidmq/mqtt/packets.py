"""The control packets of MQTT (§3), as plain values.

A packet says the same in both versions where it can; what only MQTT 5 has is in `properties` and `reason`.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason

V3, V5 = 4, 5
"""Protocol levels: 3.1.1 calls itself 4."""


class RetainHandling(IntEnum):
    """Whether a new subscription is sent the retained messages (MQTT 5 §3.8.3.1)."""

    SEND = 0
    SEND_IF_NEW = 1
    DO_NOT_SEND = 2


class Will(msgspec.Struct):
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = msgspec.field(default_factory=Properties)


class Connect(msgspec.Struct):
    client_id: str
    version: int = V5
    clean_start: bool = True
    keep_alive: int = 0
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    properties: Properties = msgspec.field(default_factory=Properties)


class Connack(msgspec.Struct):
    session_present: bool = False
    reason: Reason = Reason.SUCCESS
    properties: Properties = msgspec.field(default_factory=Properties)


class Publish(msgspec.Struct):
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int | None = None
    properties: Properties = msgspec.field(default_factory=Properties)


class _Ack(msgspec.Struct):
    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = msgspec.field(default_factory=Properties)


class Puback(_Ack):
    pass


class Pubrec(_Ack):
    pass


class Pubrel(_Ack):
    pass


class Pubcomp(_Ack):
    pass


class Subscription(msgspec.Struct, frozen=True):
    """One filter of a SUBSCRIBE with its options; 3.1.1 has only the QoS."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: RetainHandling = RetainHandling.SEND


class Subscribe(msgspec.Struct):
    packet_id: int
    subscriptions: list[Subscription]
    properties: Properties = msgspec.field(default_factory=Properties)


class Suback(msgspec.Struct):
    packet_id: int
    reasons: list[Reason]
    properties: Properties = msgspec.field(default_factory=Properties)


class Unsubscribe(msgspec.Struct):
    packet_id: int
    topic_filters: list[str]
    properties: Properties = msgspec.field(default_factory=Properties)


class Unsuback(msgspec.Struct):
    """In 3.1.1 an UNSUBACK has no reasons: the list is empty."""

    packet_id: int
    reasons: list[Reason] = []
    properties: Properties = msgspec.field(default_factory=Properties)


class Pingreq(msgspec.Struct):
    pass


class Pingresp(msgspec.Struct):
    pass


class Disconnect(msgspec.Struct):
    reason: Reason = Reason.SUCCESS
    properties: Properties = msgspec.field(default_factory=Properties)


class Auth(msgspec.Struct):
    reason: Reason = Reason.SUCCESS
    properties: Properties = msgspec.field(default_factory=Properties)


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
