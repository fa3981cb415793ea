"""What the store has of reservations: a row for each, among the cursors. And what goes with an instance that moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from braidmq.braid.selection.group_names import component_of
from braidmq.select.member import Hold, Version
from braidmq.select.request import SelectionRequest

HOLD: Final = "$hold/"
"""Their keys begin with this; the id of the request follows."""

HoldRow = tuple[str, SelectionRequest, Version]
"""The name of the component, what was asked for, and the fencing number."""

decode_hold: Final = msgspec.msgpack.Decoder(HoldRow).decode


def encode_hold(hold: Hold) -> bytes:
    return msgspec.msgpack.encode((hold.component.name, hold.request, hold.fence))


class MovedInstance(msgspec.Struct, frozen=True, array_like=True):
    """A client as an instance of one component, on its way to another broker with its session."""

    component: str
    incarnation: int = 0
    """Of the member that it belonged to: fencing numbers go on above it."""
    slots: int | None = None
    """As it has said; None if it has not, or that is not known."""
    attributes: dict[str, float] = {}
    holds: tuple[bytes, ...] = ()
    """What is reserved of it, as rows."""


encode_moved: Final = msgspec.msgpack.Encoder().encode
decode_moved: Final = msgspec.msgpack.Decoder(tuple[MovedInstance, ...]).decode


def moved_with(rows: Iterable[bytes]) -> bytes:
    """What goes with an instance of which only what is reserved is known."""
    by_component: dict[str, list[bytes]] = {}
    for row in rows:
        by_component.setdefault(component_of(decode_hold(row)[1].group), []).append(row)
    found = tuple(MovedInstance(component, holds=tuple(some)) for component, some in by_component.items())
    return encode_moved(found) if found else b""
