"""The Host on a network: asyncio, TCP or TLS, one link a pair of hosts, one frame a tick and peer.

`NetHost` is what a protocol is given; `Bounds` says how much it may hold, `Security` who is let in. What `sim` does in
virtual time happens here for real, with the same calls, refusals, forwards and hops.
"""

from braidmq.net.bounds import Bounds
from braidmq.net.counters import Counters
from braidmq.net.faults import Fault
from braidmq.net.host import NetHost
from braidmq.net.security import Security, SecurityError

__all__ = ["Bounds", "Counters", "Fault", "NetHost", "Security", "SecurityError"]
