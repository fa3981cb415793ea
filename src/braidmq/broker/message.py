"""An application message inside the broker, and the bytes of the PUBLISH that carries it to one receiver.

A message is made once and shared by all its receivers; a `Delivery` is one receiver's share of it.
"""

from __future__ import annotations

from enum import IntEnum
from math import ceil
from typing import Protocol

import msgspec

from braidmq.mqtt.packets import V3, Publish, Will
from braidmq.mqtt.properties import PUBLISH, Properties, property_bytes
from braidmq.mqtt.wire import string, varint


class Reached(IntEnum):
    """Whether a publication reaches anybody."""

    NOBODY = 0
    UNKNOWN = 1
    """Nobody here; whether anybody elsewhere wants it is being found out."""
    SOMEBODY = 2
    """As far as is known: a receiver may be gone, or out of reach."""


class Message(msgspec.Struct, gc=False):
    """`name` is the topic as it stands on the wire, `forward` the properties that travel with the message unchanged."""

    topic: str
    name: bytes
    payload: bytes
    qos: int
    retain: bool = False
    sender: str = ""
    forward: bytes = b""
    expires_at: float | None = None
    row: int = 0
    """The message's number in the store; 0 while it needs none."""
    holders: int = 0
    """How many stored deliveries refer to it."""
    at: float = 0.0
    """When it was published (Unix time), of one that is retained; of several copies the newest counts."""

    @property
    def size(self) -> int:
        return len(self.name) + len(self.forward) + len(self.payload)

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class Loan(Protocol):
    """A message that a member of a shared subscription has, and that is kept elsewhere until it is acknowledged."""

    def settle(self) -> None:
        """The member has acknowledged it, or it is for nobody."""
        ...

    def give_back(self) -> None:
        """The member is gone: it goes to another one."""
        ...


class Delivery(msgspec.Struct, gc=False):
    """One message on its way to one session."""

    message: Message
    qos: int
    retain: bool = False
    ids: tuple[int, ...] = ()
    group: str = ""
    """The shared subscription that chose this session, as `$share/name/filter`."""
    packet_id: int = 0
    """Given with the first transmission and kept until the exchange ends."""
    row: int = 0
    under_way: bool = False
    """Whether it was sent on the current connection, and so counts against the client's Receive Maximum."""
    loan: Loan | None = None
    """Of a shared subscription, where the session does not keep the message itself."""


def forwarded(properties: Properties) -> bytes:
    """The properties that a server passes on unaltered (MQTT 5 §3.3.2.3); expiry, alias and identifiers are its own."""
    return property_bytes(
        Properties(
            payload_format_indicator=properties.payload_format_indicator,
            content_type=properties.content_type,
            response_topic=properties.response_topic,
            correlation_data=properties.correlation_data,
            user_properties=properties.user_properties,
        ),
        PUBLISH,
    )


def message_of(packet: Publish | Will, sender: str, now: float, expiry_max_s: int) -> Message:
    """The message that a PUBLISH or a will asks to publish."""
    properties = packet.properties
    expiry = properties.message_expiry_interval
    if expiry_max_s and (expiry is None or expiry > expiry_max_s):
        expiry = expiry_max_s
    return Message(
        packet.topic,
        string(packet.topic),
        packet.payload,
        packet.qos,
        packet.retain,
        sender,
        forwarded(properties),
        None if expiry is None else now + expiry,
    )


def publish_bytes(
    message: Message,
    version: int,
    first_byte: int,
    packet_id: int,
    ids: tuple[int, ...],
    now: float,
    alias: bytes = b"",
    name: bytes | None = None,
) -> bytes:
    """A PUBLISH for one receiver. `first_byte` has DUP, QoS and RETAIN; `packet_id` is 0 at QoS 0."""
    name = message.name if name is None else name
    if packet_id:
        name += packet_id.to_bytes(2)
    if version != V3:
        name += property_block(message, ids, now, alias)
    length = len(name) + len(message.payload)
    if length < 128:
        return b"%c%c%b%b" % (first_byte, length, name, message.payload)
    return b"".join((first_byte.to_bytes(), varint(length), name, message.payload))


def property_block(message: Message, ids: tuple[int, ...], now: float, alias: bytes) -> bytes:
    """The properties of a PUBLISH to an MQTT 5 client, with their length."""
    block = message.forward + alias
    if message.expires_at is not None:  # [MQTT-3.3.2-6]: less the time that it waited here
        left_s = ceil(message.expires_at - now - 0.001)  # what took a millisecond took no time
        block += b"\x02" + min(0xFFFFFFFF, max(0, left_s)).to_bytes(4)
    for number in ids:
        block += b"\x0b" + varint(number)
    return varint(len(block)) + block
