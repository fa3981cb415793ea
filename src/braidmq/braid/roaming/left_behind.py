"""What was left behind at another broker, or in an older session: given to a client that has begun anew.

The client was told that it has no session, so it gets none back. It is given the publications that match what it
subscribes to now, after those that have come meanwhile; except those of QoS 2 that were already sent under a packet id:
it may have received them.
"""

from __future__ import annotations

from braidmq.braid.roaming.moved import MovedDelivery, delivery_of
from braidmq.broker.broker import Broker


def deliver_left_behind(broker: Broker, client_id: str, items: list[MovedDelivery]) -> None:
    """Gives a session, if it has not ended, what was left behind and matches what it subscribes to now."""
    session = broker.sessions.get(client_id)
    if session is None:
        return
    now = broker.now()
    for item in items:
        message = delivery_of(item, now).message
        if item.released or message.expired(now):
            continue
        targets = [one for one in broker.router.arriving(message.topic).receivers.targets if one.session is session]
        if not targets or (item.packet_id and item.qos == 2):
            broker.metrics.messages_dropped += 1
            continue
        session.deliver(message, min(message.qos, targets[0].qos), item.retain, targets[0].ids)
    broker.request_flush()
