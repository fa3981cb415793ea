"""What is asked and answered about drains on the admin port: /drain, /drain/cancel. As in `contract`, fields are JSON
keys that scripts rely on."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

DRAIN_S_MAX: Final = 86_400.0
"""The longest drain."""


class DrainRequest(msgspec.Struct, frozen=True):
    """The wish that a broker gives its sessions and clients to others, and then ends."""

    timeout_s: Annotated[float, Meta(gt=0, le=DRAIN_S_MAX)]
    """After so long it ends, whatever is left."""


class DrainCancel(msgspec.Struct, frozen=True):
    """The wish that it stays."""


class DrainStatus(msgspec.Struct, frozen=True):
    state: Literal["serving", "draining", "leaving"]
    """`leaving` once it is over: the broker is about to end."""
    sessions: int = 0
    """Those that are still here."""
    clients: int = 0
    """Connections that are still here."""
    sessions_moved: int = 0
    clients_moved: int = 0
    elapsed_s: float = 0.0
    left_s: float = 0.0
    takers: list[str] = []
    """The brokers that get them."""
    outcome: str | None = None
    """`empty`, or why something is left; None while it goes on."""
    trouble: str | None = None
    """Why the last one was taken back."""
    retained: int = 0
    """Retained messages that are still here, and marks of those that were deleted."""
    retained_moved: int = 0
