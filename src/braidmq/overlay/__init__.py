"""Ordered overlays: nodes in the order of their keys, behind one interface.

`Overlay` is what all of them offer; `suzaku`, `skip_graph` and `flexible` are the three there are, each on the `ring`;
`ranges` delivers to ranges of keys over any of them. `vectors`, `key_ranges` and `aggregates` are small notions that
they share.
"""

from braidmq.overlay.overlay import FoundOwner, Introduce, Overlay
from braidmq.overlay.peers import Acquaintances, Peer
from braidmq.overlay.view import RoutingEntry, View

__all__ = ["Acquaintances", "FoundOwner", "Introduce", "Overlay", "Peer", "RoutingEntry", "View"]
