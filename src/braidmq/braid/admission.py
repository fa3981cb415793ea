"""Whether a broker is let into its braid, and where the others are, as its links tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from braidmq.host import Address

if TYPE_CHECKING:
    from braidmq.braid.braid import Braid

NOT_IN = "this broker is not in its braid yet"


class Admission:
    def __init__(self, braid: Braid) -> None:
        self._braid = braid
        self.refusals: Callable[[], Mapping[str, str]] = dict
        """Why others do not let this broker in, by their addresses."""

    @property
    def refusal(self) -> str | None:
        return next(iter(self.refusals().values()), None)

    @property
    def trouble(self) -> str | None:
        """Why this broker is not in its braid, None if it is. One that has met nobody may be in one of its own."""
        braid, refusal = self._braid, self.refusal
        if braid.is_in:
            return refusal if not braid.introducers.has_met else None
        for (_, key), node in braid.overlay.ring.nodes.items():
            if refusal is None and key == braid.home and node.occupant is not None:
                return f"the broker at {node.occupant.address} has the name {braid.name!r}, too: set another braid.name"
        return refusal or NOT_IN

    def on_linked(self, identity: str, address: Address) -> None:
        """Another broker is at this address, whatever was known before."""
        cursors = self._braid.cursors
        self._braid.introducers.recall(address)
        cursor = cursors.get(identity)
        if cursor is not None and cursor.address != address:
            cursor.address = address
            cursors.note(identity)

    def on_parted(self, address: Address) -> None:
        """Another broker has ended, or is elsewhere: it is not looked for at this address any more."""
        self._braid.introducers.part(address)
        self._braid.overlay.ring.part(address)
