"""What the homes of a topic say to each other.

    to all homes of a topic, on its internal topic
        CopiedMessages    messages that have come to one of them
        SpoolRequest      who has this spool?
    to one broker, on the topic of its mail
        SpoolOffer        I have so much of it
        SpoolTake         give it to me
        SpoolPart         a piece of it

Messages are encoded as workers get them (`processors.worker_messages`).
"""

from __future__ import annotations

import msgspec


class CopiedMessages(msgspec.Struct, frozen=True, tag="c", array_like=True):
    messages: list[msgspec.Raw]


class SpoolRequest(msgspec.Struct, frozen=True, tag="a", array_like=True):
    number: int
    """Of the asker's, for the answers."""
    asker: str
    digest: int
    """Of what is in its spool; 0 if it has none yet."""
    recent: list[msgspec.Raw]
    """What came there just now: it may have left before this one was known there."""


class SpoolOffer(msgspec.Struct, frozen=True, tag="o", array_like=True):
    number: int
    origin: str
    count: int
    """Messages in its spool."""
    publishers: int
    """Of the topic, at the broker that offers."""
    digest: int
    """Of what is in its spool: where it is the same, nothing is missing."""
    recent: list[msgspec.Raw]
    """What came there just now: it may not have reached the others yet."""


class SpoolTake(msgspec.Struct, frozen=True, tag="t", array_like=True):
    number: int
    asker: str
    name: str
    """The internal topic."""


class SpoolPart(msgspec.Struct, frozen=True, tag="p", array_like=True):
    number: int
    left: int
    """How many parts follow."""
    messages: list[msgspec.Raw]


HomeMessage = CopiedMessages | SpoolRequest | SpoolOffer | SpoolTake | SpoolPart

encode_home_message = msgspec.msgpack.Encoder().encode
decode_home_message = msgspec.msgpack.Decoder(HomeMessage).decode
