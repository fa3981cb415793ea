"""SUBSCRIBE and UNSUBSCRIBE (MQTT §3.8, §3.10), and the retained messages that a new subscription is sent."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from braidmq.broker.message import Message
from braidmq.broker.router import filter_cost
from braidmq.broker.shares import Subscribed
from braidmq.mqtt import packets as p
from braidmq.mqtt.errors import PacketError, violation
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import check_filter, has_wildcard, split_share

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.connection import Connection
    from braidmq.broker.session import Session


def on_subscribe(connection: Connection, packet: p.Subscribe) -> None:
    """One reason a filter, in their order [MQTT-3.8.4-6]; retained messages follow the SUBACK."""
    session = connection.session
    assert session is not None
    broker = connection.broker
    ids = packet.properties.subscription_identifiers
    if ids and not broker.limits.subscription_ids:
        raise PacketError(Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED, "subscription identifiers are switched off")
    for one in packet.subscriptions:
        _check(connection, one)
    reasons: list[Reason] = []
    retained: list[tuple[Message, Subscribed]] = []
    feed_max = max(broker.limits.queue_messages_max, len(broker.retained))
    for one in packet.subscriptions:
        subscribed = Subscribed(
            min(one.qos, broker.limits.qos_max), one.no_local, one.retain_as_published, ids[0] if ids else 0
        )
        reason = _refusal(connection, session, one)
        if reason is None:
            wanted = _retained(connection, session, one)
            if session.feed_count + len(retained) + len(wanted) <= feed_max:
                broker.subscribe(session, one.topic_filter, subscribed)
                retained += ((message, subscribed) for message in wanted)
                reason = Reason(subscribed.qos)
            else:  # it asks again and again for what it does not read
                reason = Reason.QUOTA_EXCEEDED
        reasons.append(reason)
    answer = p.Suback(packet.packet_id, reasons)
    awaited = [one.topic_filter for one in packet.subscriptions if _is_awaited(broker, one.topic_filter)]
    if awaited and broker.braid is not None:
        broker.braid.when_effective(awaited, partial(_answer_later, connection, session, answer, retained))
    else:
        _answer(connection, session, answer, retained)


def _answer(
    connection: Connection, session: Session, answer: p.Suback, retained: list[tuple[Message, Subscribed]]
) -> None:
    connection.send_packet(answer)
    connection.awaits_commit = connection.awaits_commit or session.durable
    if retained:
        session.deliver_retained(retained)


def _answer_later(
    connection: Connection, session: Session, answer: p.Suback, retained: list[tuple[Message, Subscribed]]
) -> None:
    """The subscription has taken effect in the whole braid."""
    if session.connection is connection:
        _answer(connection, session, answer, retained)


def _is_awaited(broker: Broker, full_filter: str) -> bool:
    return broker.braid is not None and broker.braid.is_awaited(split_share(full_filter)[1])


def _check(connection: Connection, one: p.Subscription) -> None:
    """What no client may ask for, and ends the connection."""
    share, topic_filter = split_share(one.topic_filter)
    check_filter(topic_filter, connection.broker.limits.topic_levels_max)
    if share is not None and one.no_local:
        raise violation("No Local on a shared subscription")  # [MQTT-3.8.3-4]


def _refusal(connection: Connection, session: Session, one: p.Subscription) -> Reason | None:
    """Why this client may not have this subscription here; None if it may."""
    broker = connection.broker
    limits = broker.limits
    shared = one.topic_filter.startswith("$share/")
    if shared and not limits.shared_subscriptions:
        return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    if has_wildcard(one.topic_filter) and not limits.wildcards:
        return Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
    if not broker.access.may_subscribe(connection.identity, session.client_id, one.topic_filter):
        return Reason.NOT_AUTHORIZED
    if one.topic_filter not in session.subscriptions:
        size = session.filter_bytes + filter_cost(one.topic_filter)
        if len(session.subscriptions) >= limits.subscriptions_max or size > limits.subscription_bytes_max:
            return Reason.QUOTA_EXCEEDED
    return None


def _retained(connection: Connection, session: Session, one: p.Subscription) -> list[Message]:
    """What Retain Handling says the client is to be sent [MQTT-3.3.1-9/-10/-11]; nothing for a shared one (§4.8.2)."""
    if one.topic_filter.startswith("$share/") or one.retain_handling is p.RetainHandling.DO_NOT_SEND:
        return []
    if one.retain_handling is p.RetainHandling.SEND_IF_NEW and one.topic_filter in session.subscriptions:
        return []
    return list(connection.broker.retained.match(one.topic_filter, connection.broker.now()))


def on_unsubscribe(connection: Connection, packet: p.Unsubscribe) -> None:
    session = connection.session
    assert session is not None
    for topic_filter in packet.topic_filters:
        check_filter(split_share(topic_filter)[1], connection.broker.limits.topic_levels_max)
    reasons = [
        Reason.SUCCESS if connection.broker.unsubscribe(session, topic_filter) else Reason.NO_SUBSCRIPTION_EXISTED
        for topic_filter in packet.topic_filters
    ]
    connection.awaits_commit = connection.awaits_commit or session.durable
    connection.send_packet(p.Unsuback(packet.packet_id, reasons, Properties()))
