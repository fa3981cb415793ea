"""What the homes of a topic say to each other.

    to all homes of a topic, on its internal topic
        Copies            messages that have come to one of them
        Ask               who has this spool?
    to one broker, on the topic of its mail
        Offer             I have so much of it
        Take              give it to me
        Part              a piece of it

Messages are encoded as workers get them (`processors.worker_messages`).
"""

from __future__ import annotations

import msgspec


class Copies(msgspec.Struct, frozen=True, tag="c", array_like=True):
    messages: list[msgspec.Raw]


class Ask(msgspec.Struct, frozen=True, tag="a", array_like=True):
    number: int
    """Of the asker's, for the answers."""
    asker: str
    recent: list[msgspec.Raw]
    """What came there just now: it may have left before this one was known there."""


class Offer(msgspec.Struct, frozen=True, tag="o", array_like=True):
    number: int
    origin: str
    count: int
    """Messages in its spool."""
    publishers: int
    """Of the topic, at the broker that offers."""
    recent: list[msgspec.Raw]
    """What came there just now: it may not have reached the others yet."""


class Take(msgspec.Struct, frozen=True, tag="t", array_like=True):
    number: int
    asker: str
    name: str
    """The internal topic."""
    since: float
    """What is older is there."""


class Part(msgspec.Struct, frozen=True, tag="p", array_like=True):
    number: int
    left: int
    """How many parts follow."""
    messages: list[msgspec.Raw]


HomeMessage = Copies | Ask | Offer | Take | Part

encode_home_message = msgspec.msgpack.Encoder().encode
decode_home_message = msgspec.msgpack.Decoder(HomeMessage).decode
