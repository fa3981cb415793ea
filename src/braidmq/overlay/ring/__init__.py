"""DDLL: a ring of nodes in the order of their keys, linked both ways, that joins, leaves and crashes do not break.

`Ring` has all nodes of one host in all its rings; a `RingNode` is one key's position in one of them, and its
`RingStatus` says how far it has come in joining or leaving. Every overlay stands on it (Abe and
Yoshida 2015).
"""

from braidmq.overlay.ring.messages import FindGap, Gap, LinkSequence
from braidmq.overlay.ring.node import (
    CALL_TIMEOUT_S,
    CALL_TRIES,
    CHECK_INTERVAL_S,
    NEIGHBOURS_MAX,
    JoinAbandoned,
    Locate,
    RingNode,
    link_all,
    nothing,
    owns,
)
from braidmq.overlay.ring.ring import Ring
from braidmq.overlay.ring.status import LinkEvent, RingStatus

__all__ = [
    "CALL_TIMEOUT_S",
    "CALL_TRIES",
    "CHECK_INTERVAL_S",
    "NEIGHBOURS_MAX",
    "FindGap",
    "Gap",
    "JoinAbandoned",
    "LinkEvent",
    "LinkSequence",
    "Locate",
    "Ring",
    "RingNode",
    "RingStatus",
    "link_all",
    "nothing",
    "owns",
]
