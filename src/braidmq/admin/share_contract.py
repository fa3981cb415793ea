"""What is asked and answered on the admin port about shared subscriptions, as part of topics and traces."""

from __future__ import annotations

import msgspec


class GroupStatus(msgspec.Struct, frozen=True):
    """A shared subscription that a broker knows of."""

    group: str
    """As `$share/name/filter`."""
    policy: str
    members: int
    """Those that are connected to this broker."""
    brokers: list[str]
    """All brokers that have members, connected or away."""
    waiting: int
    """Messages that wait at this broker for a member."""


class GroupPlace(msgspec.Struct, frozen=True):
    """A broker with members of a group."""

    broker: str
    cluster: str
    levels_up: int
    """How many levels up from the asked broker's cluster this one's is found; 0 for the same cluster."""
    members: int | None
    """Those that are connected; None if the broker did not say in time, as with what follows."""
    free: int | None
    """How many messages they could take at once."""
    member: str
    """The client that it would give the next message to; empty if none can take it."""


class GroupChoice(msgspec.Struct, frozen=True):
    """Where a message would go next, of one group, and why; `broker` is empty where it would wait."""

    group: str
    policy: str
    broker: str
    member: str
    why: str
    waiting: int
    places: list[GroupPlace]
