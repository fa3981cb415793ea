"""The topics of one broker's clients, and the keys under which the broker is in the overlay for them."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec

from braidmq.keys import Key, Role, key_of


class Advert(msgspec.Struct):
    """A topic that clients here publish."""

    wanted: bool = False
    learnt: bool = False
    """Whether `wanted` was found out since the publisher's node was inserted."""
    right: Key | None = None
    """The right neighbour of the publisher's node, when it was last looked at."""
    resumes: int = 0
    """How many signals have come that it is wanted: one that has come since others were asked is newer than that."""
    wanted_at: float = -inf
    """When it was last heard or seen that it is wanted."""


class OwnKeys:
    """What is subscribed to and advertised here, which keys that takes, and which are there."""

    __slots__ = ("adverts", "cluster", "inserted", "name", "subscribed")

    def __init__(self, name: str, cluster: str) -> None:
        self.name = name
        self.cluster = cluster
        self.subscribed: dict[str, None] = {}
        self.adverts: dict[str, Advert] = {}
        self.inserted: dict[Key, tuple[str, Role]] = {}
        """The keys in the overlay, those just being inserted included: the topic and the role of each."""

    def adopt(self, subscribed: Iterable[str], adverts: Iterable[str]) -> None:
        """Takes over the topics of a laid-out network, whose keys are in the overlay."""
        self.subscribed.update(dict.fromkeys(subscribed))
        self.adverts.update({topic: Advert(learnt=True) for topic in adverts})
        for topic in (*self.subscribed, *self.adverts):
            role = self.role_of(topic)
            if role is not None:
                self.inserted[self.key(topic, role)] = (topic, role)

    def role_of(self, topic: str) -> Role | None:
        """What this broker should be in the overlay for a topic; a subscriber needs no second key to publish."""
        if topic in self.subscribed:
            return Role.SUBSCRIBER
        return Role.PUBLISHER if topic in self.adverts else None

    def key(self, topic: str, role: Role) -> Key:
        return key_of(topic, role, self.cluster, self.name)

    def key_of_publisher(self, topic: str) -> Key:
        """The key under which this broker publishes a topic."""
        return self.key(topic, Role.SUBSCRIBER if topic in self.subscribed else Role.PUBLISHER)

    def wrong(self, topic: str) -> list[Key]:
        """The keys of a topic that should not be there."""
        wanted = self.role_of(topic)
        keys = [self.key(topic, role) for role in Role if role is not wanted]
        return [key for key in keys if key in self.inserted]
