"""Topics that are each broker's own, and those that brokers talk to each other on.

None of them is passed on to other brokers, but for `$shortage/…` and `SPOOL_PREFIXES`, and no client may publish there.
What a client publishes to one of `REQUEST_PREFIXES` is a request to its broker: nobody else gets it.
"""

from __future__ import annotations

DEMAND_PREFIX = "$demand/"
BRAID_PREFIX = "$braid/"
PROCESSOR_PREFIX = "$processor/"

RESERVE_PREFIX = "$reserve/"
RENEW_PREFIX = "$renew/"
RELEASE_PREFIX = "$release/"
LOAD_PREFIX = "$load/"
STATE_PREFIX = "$state/"
"""What an instance knows of a stream that goes on at another one; and where that one is given it."""
UNREAD_PREFIXES = (RESERVE_PREFIX, RENEW_PREFIX, RELEASE_PREFIX, LOAD_PREFIX)
"""Requests that nobody can read."""
REQUEST_PREFIXES = (*UNREAD_PREFIXES, STATE_PREFIX)

RESERVED_PREFIX = "$reserved/"
"""What a client that has reserved is told; its client id follows."""
RESERVATION_PREFIX = "$reservation/"
"""What a component that is reserved is told."""

SHORTAGE_PREFIX = "$shortage/"
"""Where brokers tell, in the whole braid, that a component is about to run short; its name follows."""

SPOOL_PREFIX = "$spool/"
"""Messages for the spools of processors, to the brokers that have publishers of a topic. No client may read them."""
SPOOL_MAIL_PREFIX = "$spool-mail/"
"""What one of these brokers says to another one, whose name follows."""
SPOOL_PREFIXES = (SPOOL_PREFIX, SPOOL_MAIL_PREFIX)

LOCAL_PREFIXES = (
    "$SYS/",
    DEMAND_PREFIX,
    BRAID_PREFIX,
    PROCESSOR_PREFIX,
    RESERVED_PREFIX,
    RESERVATION_PREFIX,
    *REQUEST_PREFIXES,
)


_BROKERS_OWN = (*LOCAL_PREFIXES, SHORTAGE_PREFIX, *SPOOL_PREFIXES)


def is_local(topic: str) -> bool:
    return topic.startswith(LOCAL_PREFIXES)


def is_brokers_own(topic: str) -> bool:
    """Whether brokers alone publish there."""
    return topic.startswith(_BROKERS_OWN)
