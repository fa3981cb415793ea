"""The order of keys, which is the order of every overlay.

A key is (filter, role, cluster path, broker id), written as bytes that compare as the parts do: U+0000 stands between
them, which no MQTT string may hold, and U+0001 between the levels of a cluster path, so that the children of a cluster
follow it directly. Roles sort the publishers of a topic directly before its subscribers: that adjacency is the strong
relay-free property (Banno et al. 2015, §5.3).
"""

from __future__ import annotations

from enum import IntEnum

Key = bytes

SEPARATOR = b"\0"
LEVEL = b"\x01"


class Role(IntEnum):
    PUBLISHER = 1
    SUBSCRIBER = 2


def key_of(topic_filter: str, role: Role, cluster: str, broker: str) -> Key:
    """The key under which a broker stands for a filter in a role."""
    return SEPARATOR.join((topic_filter.encode(), b"%d" % role, _path(cluster), broker.encode()))


def parts_of(key: Key) -> tuple[str, Role, str, str]:
    """What a key says."""
    topic_filter, role, cluster, broker = key.split(SEPARATOR)
    return topic_filter.decode(), Role(int(role)), cluster.replace(LEVEL, b"/").decode(), broker.decode()


def segment(topic_filter: str, role: Role, cluster: str | None = None) -> tuple[Key, Key]:
    """The half-open range of all keys of a filter in a role, or of those inside one cluster and below it."""
    start = topic_filter.encode() + SEPARATOR + b"%d" % role + SEPARATOR
    if cluster is None:
        return start, start[:-1] + b"\x01"
    return start + _path(cluster) + SEPARATOR, start + _path(cluster) + b"\x02"


def _path(cluster: str) -> bytes:
    return cluster.encode().replace(b"/", LEVEL)


def is_within(cluster: str, scope: str | None) -> bool:
    """Whether a cluster is another or below it; None is everything."""
    return scope is None or cluster == scope or (scope != "" and cluster.startswith(scope + "/"))


def cluster_problem(path: str) -> str | None:
    """What is wrong with the path of a cluster; None if nothing is."""
    if any(character <= "\x02" for character in path):
        return "it has one of the characters U+0000 to U+0002"
    if "+" in path or "#" in path:
        return "it has a wildcard, + or #"
    levels = path.split("/")
    if path and "" in levels:
        return "it has an empty level"
    if "-" in levels or "." in levels:
        return "it has a level - or ., which mean something else in scopes"
    return None


def in_arc(start: Key, key: Key, end: Key) -> bool:
    """Whether a key lies in [start, end) of the ring, which wraps; the whole ring if start is end."""
    if start < end:
        return start <= key < end
    return key >= start or key < end


def strictly_between(start: Key, key: Key, end: Key) -> bool:
    """Whether a key lies in (start, end) of the ring; everything but start if start is end."""
    return key != start and in_arc(start, key, end)
