"""Taking back what a session has not received for sure: another one is to have it, or its user may not any more."""

from __future__ import annotations

from braidmq.broker.message import Delivery
from braidmq.broker.session import Session


def give_back(session: Session, group: str = "") -> list[Delivery]:
    """Takes out what shared subscriptions (one, or all) had given to a session and it has not acknowledged.

    What is under way to a connected client stays with it [MQTT-3.10.4-3], and so does a QoS 2 exchange that has begun
    [MQTT-4.8.2-4].
    """
    found = []
    if session.connection is None:
        found = [d for d in session.inflight.values() if d.qos == 1 and d.group and group in ("", d.group)]
        for delivery in found:
            del session.inflight[delivery.packet_id]
    if session.backlog is not None:
        found += session.backlog.remove(lambda d: bool(d.group) and group in ("", d.group) and not d.packet_id)
        session.backlog = session.backlog or None
    for delivery in found:
        session.discard(delivery)
    return found


def topics_waiting(session: Session) -> set[str]:
    """The topics of all that the client has not received for sure."""
    waiting = session.backlog.waiting if session.backlog is not None else ()
    return {delivery.message.topic for delivery in (*session.inflight.values(), *waiting)} - {""}


def withdraw(session: Session, topics: set[str]) -> None:
    """Takes out what waits or is in flight of these topics."""
    for packet_id, delivery in list(session.inflight.items()):
        if delivery.message.topic in topics and not delivery.under_way:
            del session.inflight[packet_id]
            session.discard(delivery)
    if session.backlog is not None:
        for delivery in session.backlog.remove(lambda one: one.message.topic in topics and not one.packet_id):
            session.discard(delivery)
        session.backlog = session.backlog or None
        session.broker.order_changed(session)
