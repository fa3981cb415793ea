"""Topics that are each broker's own, and those that brokers talk to each other on.

None of them is passed on to other brokers, and no client may publish there.
"""

from __future__ import annotations

LOCAL_PREFIXES = ("$SYS/", "$demand/", "$braid/", "$processor/")

DEMAND_PREFIX = "$demand/"
BRAID_PREFIX = "$braid/"
PROCESSOR_PREFIX = "$processor/"


def is_local(topic: str) -> bool:
    return topic.startswith(LOCAL_PREFIXES)
