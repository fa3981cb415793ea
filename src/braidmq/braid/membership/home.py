"""The home keys: where every broker stands in the overlay, whatever its clients want and publish.

They belong to the empty topic, which no client can name and which every broker subscribes to: what concerns all is said
there. So they stand side by side, in the order of the brokers' names.
"""

from __future__ import annotations

from braidmq.keys import Key, Role, key_of
from braidmq.pubsub.method import HOME as HOME

HOMES_FROM: Key = key_of(HOME, Role.PUBLISHER, "", "")
HOMES_TO: Key = HOMES_FROM[:-1] + b"\x01"
"""All home keys lie in this range."""


def home_key_of(name: str) -> Key:
    return key_of(HOME, Role.PUBLISHER, "", name)


def is_home(key: Key) -> bool:
    return HOMES_FROM <= key < HOMES_TO
