"""The Host on a network: asyncio, TCP or TLS, one link a pair of hosts, one frame a tick and peer.

`NetHost` is what a protocol is given; `Bounds` says how much it may hold, `Tls` secures its links. What `sim` does in
virtual time happens here for real, with the same calls, refusals, forwards and hops.
"""

from braidmq.net.bounds import Bounds
from braidmq.net.counters import Counters
from braidmq.net.faults import Fault
from braidmq.net.host import NetHost
from braidmq.net.links import Tls

__all__ = ["Bounds", "Counters", "Fault", "NetHost", "Tls"]
