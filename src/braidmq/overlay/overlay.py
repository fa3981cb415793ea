"""What every ordered overlay offers: positions on a ring in the order of keys, and a way to the owner of a key.

`Suzaku`, `SkipGraph` and `FlexibleGraph` are overlays. Range delivery (`ranges`) and the publish/subscribe methods are
written against this and run over each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from braidmq.host import Address, Host, Message
from braidmq.keys import Key
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring import Ring
from braidmq.overlay.view import View

Introduce = Callable[[], Address | None]
"""Names some other broker that is in the overlay, a different one each time if possible; None if none is known."""


class FoundOwner(Message, frozen=True, array_like=True, tag="Found", gc=False):
    """The owner of a key, its right neighbour, and how many hops it was away."""

    owner: Peer
    right: Peer
    hops: int


class Overlay(Protocol):
    """A broker's part of an overlay: all its keys (siblings), which share one view."""

    host: Host
    ring: Ring
    introduce: Introduce
    on_change: Callable[[], None]
    """Called when a link or an entry has changed: for the one layer above."""

    def found(self, key: Key) -> None:
        """Becomes the first node of a new overlay."""
        ...

    async def join(self, key: Key) -> bytes:
        """Stands for a key from now on; what the new left neighbour had to say (`Ring.note`)."""
        ...

    async def leave(self, key: Key) -> None:
        """Stands for a key no longer; returns when its last link is gone."""
        ...

    async def lookup(self, key: Key) -> FoundOwner | None:
        """The node from whose key up to its right neighbour's the key lies; None if no broker answered."""
        ...

    @property
    def view(self) -> View:
        """Own nodes with their neighbours, and the routing entries with their aggregates."""
        ...
