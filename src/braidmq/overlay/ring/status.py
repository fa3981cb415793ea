"""How far a node has come in joining or leaving its ring: the states, and what leads from one to another.

`TRANSITIONS` is all there is to it: `RingNode.become` looks the next state up there, and what is not in the table is an
error of the program. `diagram` draws it; docs/overlays.md shows the drawing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class RingStatus(Enum):
    """What a node of a ring is. Only a node that is IN lets others move its right link."""

    OUT = "out"
    INSERTING = "inserting"
    IN = "in"
    DELETING = "deleting"


class LinkEvent(Enum):
    """What happens to a node, in words for the diagram."""

    FOUNDED = "founds a ring, alone or with nodes of its own host"
    ASKED_IN = "asks its left neighbour to be linked"
    LINKED = "is linked"
    NOT_LINKED = "is refused, or not answered: looks for its position again"
    ASKED_OUT = "asks its left neighbour to be unlinked"
    UNLINKED = "is unlinked"
    NOT_UNLINKED = "is refused, or not answered: checks its left link, and asks again"
    DISSOLVED = "goes without a question: no other host is in its ring"


TRANSITIONS: Final[Mapping[tuple[RingStatus, LinkEvent], RingStatus]] = MappingProxyType(
    {
        (RingStatus.OUT, LinkEvent.FOUNDED): RingStatus.IN,
        (RingStatus.OUT, LinkEvent.ASKED_IN): RingStatus.INSERTING,
        (RingStatus.INSERTING, LinkEvent.LINKED): RingStatus.IN,
        (RingStatus.INSERTING, LinkEvent.NOT_LINKED): RingStatus.OUT,
        (RingStatus.IN, LinkEvent.ASKED_OUT): RingStatus.DELETING,
        (RingStatus.DELETING, LinkEvent.UNLINKED): RingStatus.OUT,
        (RingStatus.DELETING, LinkEvent.NOT_UNLINKED): RingStatus.IN,
        (RingStatus.IN, LinkEvent.DISSOLVED): RingStatus.OUT,
    }
)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    arrows = [f"    {before.name} --> {after.name}: {event.value}" for (before, event), after in TRANSITIONS.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {RingStatus.OUT.name}", *arrows])
