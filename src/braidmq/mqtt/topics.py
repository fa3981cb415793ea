"""Topic names and topic filters (MQTT §4.7): which are valid, and which filter matches which name."""

from __future__ import annotations

from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.reasons import Reason

SHARE_PREFIX = "$share/"
LEVELS_MAX = 128
"""Levels that a topic or filter may have unless the caller says otherwise."""
HIDDEN = "$#"
"""All topics that begin with `$`, which no filter with a wildcard in its first level matches [MQTT-4.7.2-1].

It is no filter, so no client can ask for it; `covers` and `overlaps` know it, for what stands for many filters.
"""


def check_topic(topic: str, levels_max: int = LEVELS_MAX) -> None:
    """Refuses what is not a topic name to publish to: [MQTT-4.7.3-1], [MQTT-3.3.2-2]."""
    if not topic:
        raise PacketError(Reason.TOPIC_NAME_INVALID, "an empty topic name")
    if "+" in topic or "#" in topic:
        raise PacketError(Reason.TOPIC_NAME_INVALID, f"a wildcard in the topic name {topic!r}")
    if topic.count("/") >= levels_max:
        raise PacketError(Reason.TOPIC_NAME_INVALID, f"a topic name of more than {levels_max} levels")


def check_filter(topic_filter: str, levels_max: int = LEVELS_MAX) -> None:
    """Refuses what is not a topic filter: `+` and `#` fill a whole level, `#` only the last [MQTT-4.7.1-1/-2/-3]."""
    if not topic_filter:
        raise PacketError(Reason.TOPIC_FILTER_INVALID, "an empty topic filter")
    levels = topic_filter.split("/")
    if len(levels) > levels_max:
        raise PacketError(Reason.TOPIC_FILTER_INVALID, f"a topic filter of more than {levels_max} levels")
    for position, level in enumerate(levels):
        if len(level) > 1 and ("+" in level or "#" in level):
            raise PacketError(Reason.TOPIC_FILTER_INVALID, f"a wildcard beside other characters in {topic_filter!r}")
        if level == "#" and position != len(levels) - 1:
            raise PacketError(Reason.TOPIC_FILTER_INVALID, f"# before the last level of {topic_filter!r}")


def has_wildcard(topic_filter: str) -> bool:
    """True for a valid filter that matches more than the one topic it spells."""
    return "+" in topic_filter or topic_filter.endswith("#")


def split_share(topic_filter: str) -> tuple[str | None, str]:
    """(share name, filter) of `$share/name/filter` (MQTT 5 §4.8.2), or (None, filter) of a plain one."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return None, topic_filter
    name, slash, rest = topic_filter.removeprefix(SHARE_PREFIX).partition("/")
    if not name or "+" in name or "#" in name:  # [MQTT-4.8.2-1], [MQTT-4.8.2-2]
        raise PacketError(Reason.TOPIC_FILTER_INVALID, f"not a share name in {topic_filter!r}")
    if not slash or not rest:
        raise PacketError(Reason.TOPIC_FILTER_INVALID, f"no topic filter after the share name in {topic_filter!r}")
    return name, rest


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a filter matches a topic name; a leading wildcard does not match `$` topics [MQTT-4.7.2-1]."""
    if topic[:1] == "$" and topic_filter[:1] in ("+", "#"):
        return False
    wanted = topic_filter.split("/")
    given = topic.split("/")
    for position, level in enumerate(wanted):
        if level == "#":
            return True
        if position >= len(given) or (level != "+" and level != given[position]):
            return False
    return len(wanted) == len(given)


def covers(broad: str, narrow: str) -> bool:
    """Whether every topic that `narrow` matches is matched by `broad` as well: topics, filters or HIDDEN."""
    if narrow[:1] == "$":
        if broad[:1] in ("+", "#"):
            return False
        if broad == HIDDEN or narrow == HIDDEN:
            return broad == HIDDEN
    if narrow == "#":
        return broad in ("#", "+/#")  # every topic has a first level
    given = narrow.split("/")
    wanted = broad.split("/")
    for depth, level in enumerate(wanted):
        if level == "#":
            return True
        if depth >= len(given) or given[depth] == "#" or level not in ("+", given[depth]):
            return False
    return len(wanted) == len(given)


def overlaps(one: str, other: str) -> bool:
    """Whether there is a topic that both match: topics, filters or HIDDEN."""
    if one == HIDDEN or other == HIDDEN:
        return one[:1] == other[:1] == "$"
    if (one[:1] == "$" and other[:1] in ("+", "#")) or (other[:1] == "$" and one[:1] in ("+", "#")):
        return False
    ours, theirs = one.split("/"), other.split("/")
    for mine, yours in zip(ours, theirs, strict=False):
        if mine == "#" or yours == "#":
            return True
        if mine != yours and mine != "+" and yours != "+":
            return False
    shared = min(len(ours), len(theirs))
    return ours[shared:] in ([], ["#"]) and theirs[shared:] in ([], ["#"])  # `a/#` matches `a` itself (§4.7.1.2)
