"""Which member of a shared subscription gets a message, where several could: the policy of its group.

`near` takes the nearest that is free. The others look at all brokers alike: `round-robin` gives to each in turn,
`balanced` to each in proportion to what its members can take, `least-loaded` to the one whose members can take most.
For these two, what a member says of its processor counts as well (`member_load`).
With `hash`, messages of one key go to one member as long as it is there: by rendezvous hashing, so that a member that
comes or goes changes only what is its own.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

import msgspec

from braidmq.broker.message import Message
from braidmq.mqtt.properties import PUBLISH, read_properties
from braidmq.mqtt.wire import Reader, varint

PolicyName = Literal["near", "balanced", "least-loaded", "round-robin", "hash"]


class SharePolicy(msgspec.Struct, frozen=True, kw_only=True):
    name: PolicyName = "near"
    key: str = "topic"
    """Of `hash`: `topic`, `client` (who published it), or the name of a user property; where that is missing, the
    topic."""

    def key_of(self, message: Message) -> str:
        if self.key == "client":
            return message.sender
        if self.key == "topic" or not message.forward:
            return message.topic
        forward = varint(len(message.forward)) + message.forward
        found = read_properties(Reader(forward), PUBLISH).user_properties
        return next((value for name, value in found if name == self.key), message.topic)


NEAR = SharePolicy()


def weight(name: str, key: str) -> bytes:
    """Of several, the one with the highest weight has the key."""
    return blake2b(f"{name}\0{key}".encode(), digest_size=8).digest()
