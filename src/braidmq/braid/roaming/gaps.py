"""What a session lacks that comes to another broker: publications that the broker before had not got yet, and that this
one may have handled before the session came.

The giver says how far it has followed the histories, and this broker knows how far they have come. What lies between is
asked of the origins, and comes before what was gathered here. An origin that does not answer is asked again later: it
may be the one that is cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from braidmq.braid.catch_up.cursors import SavedCursor
from braidmq.braid.catch_up.history import Sent
from braidmq.braid.roaming.marks import Row, merged
from braidmq.braid.roaming.moved import MovedDelivery
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt.topics import matches


def gaps_of(horizon: Iterable[Row], reached: Iterable[tuple[str, int]], begun_at: float) -> dict[str, SavedCursor]:
    """By origin: where a session stands that may lack something of what it is known, where it comes to, that the origin
    has. Of an origin that the broker before did not follow it may lack what is newer than itself."""
    known = {origin: (floor, ranges) for origin, floor, ranges in merged(horizon)}
    found: dict[str, SavedCursor] = {}
    for origin, last in reached:
        has_floor, has_ranges = known.get(origin, (0, ()))
        if has_ranges or last > has_floor:
            found[origin] = SavedCursor("", has_floor, 0.0 if has_floor else begun_at, list(has_ranges))
    return found


def moved_from(subscriptions: Mapping[str, Subscribed], origin: str, sent: Sent) -> MovedDelivery | None:
    """A publication as the session gets it; None if it would have got none of it."""
    item = sent.item
    matching = [
        one for full, one in subscriptions.items() if not full.startswith("$share/") and matches(full, sent.topic)
    ]
    if item is None or not matching:
        return None
    qos = min(item.qos, max(one.qos for one in matching))
    if not qos:
        return None
    retain = item.retain and any(one.retain_as_published for one in matching)
    ids = tuple([one.identifier for one in matching if one.identifier])
    follows = None if sent.follows is None else (sent.follows.origin, sent.follows.offset)
    return MovedDelivery(sent.topic, item, qos, retain, ids, "", 0, mark=(origin, sent.offset), follows=follows)
