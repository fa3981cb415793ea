"""SUBSCRIBE and UNSUBSCRIBE (MQTT §3.8, §3.10), and the retained messages that a new subscription is sent."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from braidmq.broker.connection import Connection
from braidmq.broker.federation import ANSWERED, RetainedQuery
from braidmq.broker.message import Message
from braidmq.broker.notices import quoted
from braidmq.broker.reading import may_read
from braidmq.broker.router import filter_cost
from braidmq.broker.session import Session
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt import packets as p
from braidmq.mqtt.errors import PacketError, violation
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import check_filter, has_wildcard, split_share


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
    new = New(p.Suback(packet.packet_id, []), [], [])
    feed_max = max(broker.limits.queue_messages_max, len(broker.retained))
    for one in packet.subscriptions:
        subscribed = Subscribed(
            min(one.qos, broker.limits.qos_max), one.no_local, one.retain_as_published, ids[0] if ids else 0
        )
        reason = _refusal(connection, session, one)
        if reason is None:
            wanted = _wants_retained(session, one)
            messages = list(broker.retained.match(one.topic_filter, broker.now())) if wanted else []
            if session.bulk_count + new.kept_count + len(messages) <= feed_max:
                if wanted:
                    _note(connection, session, one.topic_filter, subscribed, messages, new)
                broker.sessions.subscribe(session, one.topic_filter, subscribed)
                reason = Reason(subscribed.qos)
            else:  # it asks again and again for what it does not read
                reason = Reason.QUOTA_EXCEEDED
        if reason.failed:
            connection.notice("may not subscribe to %s: %s", quoted(one.topic_filter), reason.words)
        new.answer.reasons.append(reason)
    filters = [one.topic_filter for one in packet.subscriptions]
    broker.federation.when_effective(filters, partial(_answer, connection, session, new))


class New(NamedTuple):
    """What a SUBSCRIBE has made, and is to be answered when it has taken effect."""

    answer: p.Suback
    retained: list[tuple[str, Subscribed, list[Message]]]
    """By filter: what is kept here, where no other broker has to be asked."""
    queries: list[tuple[RetainedQuery, int]]
    """Questions to other brokers, and how many messages are kept here for each."""

    @property
    def kept_count(self) -> int:
        return sum(len(messages) for *_, messages in self.retained) + sum(count for _, count in self.queries)


def _note(
    connection: Connection,
    session: Session,
    topic_filter: str,
    subscribed: Subscribed,
    messages: list[Message],
    new: New,
) -> None:
    """Notes where the retained messages of a subscription that is about to be made come from."""
    query = connection.broker.federation.query_retained(session, topic_filter, subscribed)
    if query is None:
        new.retained.append((topic_filter, subscribed, messages))
    elif query is not ANSWERED:
        new.queries.append((query, len(messages)))


def _answer(connection: Connection, session: Session, new: New) -> None:
    """The SUBACK, once the subscriptions have taken effect everywhere; then what is retained."""
    if session.connection is not connection:  # its client is gone
        for query, _ in new.queries:
            query.end()
        return
    connection.send_packet(new.answer)
    connection.awaits_commit = connection.awaits_commit or session.durable
    wanted = [
        (message, subscribed)
        for topic_filter, subscribed, messages in new.retained
        if topic_filter in session.subscriptions  # the client, or a new access rule, may have ended it meanwhile
        for message in messages
    ]
    if wanted:
        session.deliver_retained(wanted)
    for query, _ in new.queries:
        query.go()
    if session.shares:
        connection.broker.on_free(session)


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
    if not may_read(broker.access, connection.identity, session.client_id, one.topic_filter):
        return Reason.NOT_AUTHORIZED
    refusal = broker.federation.refusal_of(split_share(one.topic_filter)[1])
    if refusal is not None:
        return refusal
    if one.topic_filter not in session.subscriptions:
        size = session.filter_bytes + filter_cost(one.topic_filter)
        if len(session.subscriptions) >= limits.subscriptions_max or size > limits.subscription_bytes_max:
            return Reason.QUOTA_EXCEEDED
    return None


def _wants_retained(session: Session, one: p.Subscription) -> bool:
    """Whether Retain Handling sends what is retained [MQTT-3.3.1-9/-10/-11]; never for a shared one (§4.8.2)."""
    if one.topic_filter.startswith("$share/") or one.retain_handling is p.RetainHandling.DO_NOT_SEND:
        return False
    return one.retain_handling is not p.RetainHandling.SEND_IF_NEW or one.topic_filter not in session.subscriptions


def on_unsubscribe(connection: Connection, packet: p.Unsubscribe) -> None:
    session = connection.session
    assert session is not None
    for topic_filter in packet.topic_filters:
        check_filter(split_share(topic_filter)[1], connection.broker.limits.topic_levels_max)
    reasons = [
        Reason.SUCCESS
        if connection.broker.sessions.unsubscribe(session, topic_filter)
        else Reason.NO_SUBSCRIPTION_EXISTED
        for topic_filter in packet.topic_filters
    ]
    connection.awaits_commit = connection.awaits_commit or session.durable
    connection.send_packet(p.Unsuback(packet.packet_id, reasons, Properties()))
