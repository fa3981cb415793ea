"""What brokers tell each other when one message goes to exactly the brokers of a list (see `multicast`)."""

from __future__ import annotations

from braidmq.host import Address, Message

MANY_TOPICS = "\0"
"""The topic of a copy that carries publications of many: no MQTT topic is that."""

Listed = tuple[Address, str]
"""A broker to pass a copy on to: where it is, and its cluster."""


class MulticastCopy(Message, frozen=True, array_like=True, gc=False):
    """One broker's copy of a message; (root, number) names the message, at all brokers that get it.

    Copies of one topic that go the same way differ in their number and their body alone.
    """

    root: Address
    number: int
    topic: str
    hops: int
    to: tuple[Listed, ...]
    """Brokers that the receiver passes it on to; none in the common case."""
    is_proven: bool
    """Whether the receiver says to the root that it has it."""
    body: bytes


class CopyReceived(Message, frozen=True, array_like=True, gc=False):
    """To the root of a message: this broker has it."""

    number: int
