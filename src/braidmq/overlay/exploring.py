"""What an overlay offers whose tables follow their use: it is told when a key is used, and looks for what it lacks."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from braidmq.keys import Key


@runtime_checkable
class Exploring(Protocol):
    """An overlay that learns faster for who publishes."""

    def explore(self, key: Key) -> None:
        """The own node of this key publishes: if it may lack subscribers, it looks for them; soon, not now."""
        ...
