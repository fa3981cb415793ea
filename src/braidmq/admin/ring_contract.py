"""What the admin port says of the ring of brokers, and of distances: /braid/ring, /braid/distances. As in `contract`,
scripts rely on the keys."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class Unreached(msgspec.Struct, frozen=True):
    """A broker that another cannot reach directly."""

    broker: str
    by: str | None
    """The broker that passes on what is for it; None if none was found that reaches it."""


class RingMember(msgspec.Struct, frozen=True, kw_only=True):
    """A broker as a walk around the ring found it. What only the broker itself can say is unset if it is silent."""

    name: str
    address: str
    answers: bool
    cluster: str | UnsetType = UNSET
    is_in: bool | UnsetType = UNSET
    age_s: float | UnsetType = UNSET
    keys: int | UnsetType = UNSET
    routing_entries: int | UnsetType = UNSET
    links: int | UnsetType = UNSET
    left: str | UnsetType | None = UNSET
    right: str | UnsetType | None = UNSET
    unreached: list[Unreached] | UnsetType = UNSET
    copies: int | UnsetType = UNSET
    """Of its store that are there, its own included."""
    copies_wanted: int | UnsetType = UNSET
    copies_at: list[str] | UnsetType = UNSET
    """The brokers that hold the others."""
    is_healthy: bool


class RingAnswer(msgspec.Struct, frozen=True):
    brokers: list[RingMember]
    """In the order of their keys."""
    is_whole: bool
    """Whether the walk came around."""


# How far brokers are from each other


class Distance(msgspec.Struct, frozen=True):
    broker: str
    round_trip_ms: float | None
    """null if it does not answer."""


class DistancesAnswer(msgspec.Struct, frozen=True):
    """The round trips that a broker has just measured to all others."""

    broker: str
    distances: list[Distance]
