"""A group: the components of one topic in one cluster, which stand side by side in the order of keys."""

from __future__ import annotations

from braidmq.host import Message
from braidmq.keys import Key, Role, is_within, key_of, parts_of, segment
from braidmq.overlay.aggregates import label_of
from braidmq.overlay.key_ranges import KeyRange


class ComponentGroup(Message, frozen=True, array_like=True, gc=False):
    """The components of a topic in a cluster and below it; those of the whole braid if the cluster is empty."""

    topic: str
    cluster: str

    @property
    def keys(self) -> KeyRange:
        """From the first key that a member can have up to the last."""
        return segment(self.topic, Role.SUBSCRIBER, self.cluster or None)

    @property
    def label(self) -> str:
        """Of how many of its components are free."""
        return label_of(self.topic, self.cluster)

    def bound(self, attribute: str, reducer: str) -> str:
        """The label of the least or the largest value of an attribute among them."""
        return label_of(self.topic, self.cluster, reducer, attribute)

    def key(self, broker: str) -> Key:
        """Under which a broker stands for its components of this group."""
        return key_of(self.topic, Role.SUBSCRIBER, self.cluster, broker)


def groups_around(topic: str, cluster: str) -> list[ComponentGroup]:
    """All groups of a topic that a cluster belongs to: its own first, the whole braid last."""
    levels = cluster.split("/") if cluster else []
    return [ComponentGroup(topic, "/".join(levels[:count])) for count in range(len(levels), -1, -1)]


def group_at(key: Key) -> ComponentGroup | None:
    """The group that a key is a member's of; None if it is another kind of key."""
    try:
        topic, role, cluster, _ = parts_of(key)
    except ValueError:
        return None
    return ComponentGroup(topic, cluster) if role is Role.SUBSCRIBER else None


def steps_between(one: str, other: str) -> int:
    """How far apart two clusters are: levels up from one to what they have in common, and down to the other."""
    ours, theirs = (cluster.split("/") if cluster else [] for cluster in (one, other))
    shared = 0
    while shared < min(len(ours), len(theirs)) and is_within(other, "/".join(ours[: shared + 1])):
        shared += 1
    return len(ours) + len(theirs) - 2 * shared
