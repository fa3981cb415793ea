"""What is asked and answered about clients and their homes on the admin port: /clients, /homes, /homes/move. As in
`contract`, fields are JSON keys that scripts rely on."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

PAGE_MAX: Final = 1000
"""Clients of one answer."""
FILTERS_MAX: Final = 100
"""Filters of a client that are told."""
MOVES_MAX: Final = 1000
"""Clients that are sent home by one request."""
HOMES_BYTES_MAX: Final = 32 << 20
"""The largest set of homes that a broker is given."""


class ClientStatus(msgspec.Struct, frozen=True):
    """A client that has a session here."""

    client: str
    user: str | None
    connected: bool
    version: str | None
    """Of MQTT: "5" or "3.1.1"; null while it is not connected."""
    listener: str | None
    address: str | None
    expiry_s: int
    """How long its session outlives the connection."""
    filters: list[str]
    """The first of its subscriptions."""
    subscriptions: int
    queued: int
    in_flight: int
    home: str | None = None
    """The broker where it is at home, if a rule or a plan says so."""
    pinned: bool = False
    """Whether a rule of the configuration says so, which goes before plans."""


class ClientsPage(msgspec.Struct, frozen=True):
    """Clients in the order of their ids."""

    clients: list[ClientStatus]
    total: int
    """Of all that have a session here."""
    next: str | None
    """Ask with `after` for what follows; null if this was the last."""


class HomesRequest(msgspec.Struct, frozen=True):
    """Where clients are at home, by the plan of this digest; it replaces what was told before."""

    plan: Annotated[str, Meta(max_length=128)]
    homes: dict[str, str]


class MoveRequest(msgspec.Struct, frozen=True):
    """The wish that clients that are connected here go home, by the plan of this digest."""

    plan: str
    clients: Annotated[list[str], Meta(max_length=MOVES_MAX)]


class MovesAnswer(msgspec.Struct, frozen=True):
    """What became of each: sent, at home, away, stays, cannot be told, no home or busy."""

    outcomes: dict[str, str]


class TopicHome(msgspec.Struct, frozen=True):
    """A rule of the configuration: who publishes to such a topic is at home at a broker."""

    topic: str
    broker: str


class HomesStatus(msgspec.Struct, frozen=True):
    broker: str
    plan: str
    """The digest of the plan that holds here; empty if there is none."""
    homes: int
    sent: int
    """Clients that were told to go home, while they were connected or when they came."""
    staying: int
    """Those that came back at once, and are served here."""
    refused: int
    """Sessions that their home could not take."""
    under_way: int
    topics: list[TopicHome] = []
