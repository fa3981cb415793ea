"""The groups of components, as clients name them: `<component>` is the topic `$braid/component/<component>`."""

from __future__ import annotations

from typing import Final

from braidmq.select import ComponentGroup
from braidmq.select.group import groups_around

GROUP_PREFIX: Final = "$braid/component/"
"""What the topic of a component's group begins with: a name that no client can subscribe to."""


def group_topic(component: str) -> str:
    return GROUP_PREFIX + component


def component_of(group: ComponentGroup) -> str:
    return group.topic.removeprefix(GROUP_PREFIX)


def groups_asked(component: str, cluster: str | None, own_cluster: str) -> list[ComponentGroup]:
    """The groups that a request looks in, one after the other: that of a cluster, or if none is named, those around
    the broker's own."""
    if cluster is None:
        return groups_around(group_topic(component), own_cluster)
    return [ComponentGroup(group_topic(component), cluster)]
