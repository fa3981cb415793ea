"""Whether a broker is let into its braid, and where other brokers are, as its links tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from braidmq.braid.catch_up.cursors import Cursors
from braidmq.braid.membership.home import home_key_of
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.membership.presence import Presence
from braidmq.host import Address
from braidmq.overlay import Overlay

NOT_IN = "this broker is not in its braid yet"


class Admission:
    def __init__(
        self, overlay: Overlay, presence: Presence, introducers: Introducers, cursors: Cursors, name: str
    ) -> None:
        self._overlay = overlay
        self._presence = presence
        self._introducers = introducers
        self._cursors = cursors
        self._name = name
        self.refusals: Callable[[], Mapping[str, str]] = dict
        """Why other brokers do not let this one in, by their addresses."""

    @property
    def refusal(self) -> str | None:
        return next(iter(self.refusals().values()), None)

    @property
    def trouble(self) -> str | None:
        """Why this broker is not in its braid, None if it is. One that has met nobody may be in one of its own."""
        refusal = self.refusal
        if self._presence.is_in:
            return refusal if not self._introducers.has_met else None
        home = home_key_of(self._name)
        for (_, key), node in self._overlay.ring.nodes.items():
            if refusal is None and key == home and node.occupant is not None:
                return f"the broker at {node.occupant.address} has the name {self._name!r}, too: set another braid.name"
        return refusal or NOT_IN

    def on_linked(self, identity: str, address: Address) -> None:
        """Another broker is at this address, whatever was known before."""
        self._introducers.recall(address)
        cursor = self._cursors.get(identity)
        if cursor is not None and cursor.address != address:
            cursor.address = address
            self._cursors.note(identity)

    def on_parted(self, address: Address) -> None:
        """Another broker has ended, or is elsewhere: it is not looked for at this address any more."""
        self._introducers.part(address)
        self._overlay.ring.part(address)
