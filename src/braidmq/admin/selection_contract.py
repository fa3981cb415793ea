"""What is asked and answered about components on the admin port: /braid/components, /braid/select, /braid/reserve,
/braid/renew and /braid/release. As in `contract`, fields are JSON keys that scripts rely on."""

from __future__ import annotations

import msgspec


class InstanceStatus(msgspec.Struct, frozen=True):
    """A client that can be reserved, as one of a component."""

    component: str
    instance: str
    broker: str
    cluster: str
    slots: int
    """How often it can be reserved at a time; 0 while its client is away."""
    taken: int
    load: dict[str, float]
    """What it says of itself."""


class ReservationStatus(msgspec.Struct, frozen=True):
    id: str
    component: str
    instance: str
    broker: str
    by: str
    """The client that has it; empty if it was reserved on the command line."""
    fence: int
    left_s: float
    """Until it is free, unless it is renewed."""


class ComponentsAnswer(msgspec.Struct, frozen=True):
    instances: list[InstanceStatus]
    reservations: list[ReservationStatus]
    silent: list[str] = []
    """Brokers that did not answer in time."""


class ReserveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """As a client asks for it, by `$reserve/<component>`."""

    component: str
    conditions: list[str] = []
    cluster: str | None = None
    lease: float = 60.0
    key: str = ""
    score: str | dict[str, float] = ""


class ReservationRequest(msgspec.Struct, frozen=True):
    """A reservation is to be renewed, or released."""

    id: str


class ReservationAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a request, as clients are told it."""

    ok: bool
    id: str = ""
    component: str = ""
    instance: str = ""
    topic: str = ""
    """What is published there, the instance gets."""
    broker: str = ""
    cluster: str = ""
    lease: float = 0.0
    fence: int = 0
    hops: int = 0
    reason: str = ""
    """If it is not ok: why, in a word …"""
    text: str = ""
    """… and in a sentence."""
    expected_in: float | None = None
    """Seconds until one is expected to be free."""


class ComponentChoice(msgspec.Struct, frozen=True):
    """An instance that a request could get, and what speaks against it."""

    instance: str
    broker: str
    cluster: str
    free: int
    load: dict[str, float]
    steps: int
    """From the asker's cluster to the component's."""
    group: str | None
    """The cluster in which a request meets it first; "" is the whole braid. None if it does not look there."""
    score: float | None
    problem: str
    """Why it cannot be reserved by this request; empty if it can."""


class SelectAnswer(msgspec.Struct, frozen=True):
    component: str
    candidates: list[ComponentChoice]
    """In the order in which a request would take them."""
    delegates: dict[str, str]
    """By cluster, in the order in which they are asked: the broker that is asked there; empty if there is none."""
    hops: int | None
    """Messages on the way to the first of them that fits; None if none does."""
    why: str
    silent: list[str] = []
