"""Which client may read what: the access rules, and the broker's own topics, for which they have exceptions."""

from __future__ import annotations

from braidmq.broker.component_topics import COMPONENT_PREFIX, level_of
from braidmq.broker.local_topics import BRAID_PREFIX, DEMAND_PREFIX, RESERVED_PREFIX, SPOOL_PREFIXES
from braidmq.security.identity import Access, Identity
from braidmq.security.topic_patterns import without_share


def may_read(access: Access, identity: Identity, client_id: str, full_filter: str) -> bool:
    """Whether a client may have a subscription: to `$demand/x` if it may have one to x, to what brokers say to each
    other never.

    `$reserved/…` and `$component/…` of its own every client may read, and `$reserved/…` no other.
    """
    topic_filter = without_share(full_filter) or full_filter
    if topic_filter.startswith((BRAID_PREFIX, *SPOOL_PREFIXES)):
        return False
    if topic_filter.startswith(RESERVED_PREFIX):
        return topic_filter.split("/")[1] == level_of(client_id)
    if topic_filter.startswith(COMPONENT_PREFIX) and topic_filter.split("/")[2:] == [level_of(client_id)]:
        return True
    if topic_filter.startswith(DEMAND_PREFIX):
        full_filter = topic_filter.removeprefix(DEMAND_PREFIX)
    return access.may_subscribe(identity, client_id, full_filter)
