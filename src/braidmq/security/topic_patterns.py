"""Topic patterns of access rules: MQTT filters in which `%u` and `%c` stand for the user and the client identifier.

A pattern is bound to one client before it is used: then it is a filter, held as its levels. A topic is allowed if a
pattern covers it. A subscription's filter is a set of topics: allowed if one pattern covers all of them, refused if a
forbidden pattern overlaps with any of them. As everywhere in MQTT, a leading wildcard does not reach topics that begin
with `$` [MQTT-4.7.2-1].
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

Levels = Sequence[str]

_PLACEHOLDER: Final = re.compile("%[uc]")
_UNUSABLE: Final = re.compile(r"[/+#\0]")


def pattern_problem(pattern: str) -> str:
    """What is wrong with a pattern as a topic filter, or "" if nothing is."""
    levels = _PLACEHOLDER.sub("x", pattern).split("/")
    if not pattern:
        return "it is empty"
    if "\0" in pattern:
        return "it contains U+0000"
    if levels[0] == "$share":
        return "leave out $share and the group; shared subscriptions are judged by what follows them"
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != len(levels) - 1):  # [MQTT-4.7.1-1]
            return 'the wildcard "#" stands alone in the last level'
        if "+" in level and level != "+":  # [MQTT-4.7.1-2]
            return 'the wildcard "+" stands alone in its level'
    return ""


def bound(pattern: str, user: str | None, client_id: str) -> tuple[str, ...] | None:
    """The pattern's levels for one client; None if it cannot match, because a value is missing or unusable.

    A value stands for literal text within one level. One with `/`, `+` or `#` in it would widen the pattern, as would
    one that turns the first level into a `$` topic; a client chooses its identifier itself, so these never match.
    """
    values = {"%u": user, "%c": client_id}
    for placeholder in set(_PLACEHOLDER.findall(pattern)):
        value = values[placeholder]
        if not value or _UNUSABLE.search(value):
            return None
    filled = _PLACEHOLDER.sub(lambda found: values[found[0]] or "", pattern)
    if filled.startswith("$") and not pattern.startswith("$"):
        return None
    return tuple(filled.split("/"))


def covers(pattern: Levels, topic_filter: Levels) -> bool:
    """True if every topic that the filter matches is also matched by the pattern. A topic is a filter of one topic."""
    if topic_filter[0].startswith("$") and pattern[0] in ("#", "+"):
        return False
    for index, level in enumerate(pattern):
        if level == "#":
            return True  # also the parent level itself: §4.7.1.2
        if index == len(topic_filter):
            return False
        wanted = topic_filter[index]
        if wanted == "#":
            # It matches what stands above it too, which a longer pattern does not; but nothing stands above the first.
            return index == 0 and tuple(pattern) == ("+", "#")
        if level not in ("+", wanted):
            return False
    return len(topic_filter) == len(pattern)


def overlaps(pattern: Levels, topic_filter: Levels) -> bool:
    """True if some topic is matched by both."""
    for leading, other in ((pattern[0], topic_filter[0]), (topic_filter[0], pattern[0])):
        if leading in ("#", "+") and other.startswith("$"):
            return False
    for one, other in zip(pattern, topic_filter, strict=False):
        if one == "#" or other == "#":
            return True
        if one != other and "+" not in (one, other):
            return False
    shorter, longer = sorted((pattern, topic_filter), key=len)
    return len(shorter) == len(longer) or longer[len(shorter)] == "#"


def without_share(topic_filter: str) -> str | None:
    """The filter of a shared subscription without `$share/<group>/`; None if nothing follows the group."""
    if not topic_filter.startswith("$share/"):
        return topic_filter
    parts = topic_filter.split("/", 2)
    return parts[2] if len(parts) == 3 and parts[2] else None
