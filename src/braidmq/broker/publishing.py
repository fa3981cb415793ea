"""Publications that come in, one by one and carefully (MQTT §3.3, §4.3); `fast_path` has the plain ones."""

from __future__ import annotations

from typing import NamedTuple

from braidmq.broker.connection import Connection
from braidmq.broker.federation import ScopeError
from braidmq.broker.local_topics import REQUEST_PREFIXES, is_brokers_own
from braidmq.broker.message import Message, Reached, message_of
from braidmq.broker.notices import one_line, quoted
from braidmq.broker.session import Session
from braidmq.mqtt import packets as p
from braidmq.mqtt.errors import PacketError, violation
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import check_topic
from braidmq.mqtt.wire import string

ALLOWED_TOPICS_MAX = 1024
"""Topics that a connection may publish to, remembered so that the fast path need not ask."""

NEVER = -1
"""A tick that never is: what is unacknowledged is counted each time."""


class Verdict(NamedTuple):
    """How a publication went, and what a client may be told about it; `doubtful` if that is not known yet."""

    reason: Reason
    text: str
    doubtful: Message | None = None


def on_publish(connection: Connection, packet: p.Publish) -> None:
    """Any publication: checked, refused or published, and acknowledged."""
    session = connection.session
    assert session is not None
    broker = connection.broker
    broker.metrics.messages_received += 1
    _resolve_alias(connection, packet)
    _check(connection, packet)
    packet_id = packet.packet_id
    if packet_id is not None and connection.version == p.V5:
        _count_unacknowledged(connection, session, packet_id)
    if packet.qos == 2 and packet_id in session.received:
        _send(connection, p.Pubrec(packet_id))  # the second copy [MQTT-4.3.3-10]
        connection.awaits_commit = connection.awaits_commit or session.durable  # of the first
        return
    reason, text, doubtful = _publish(connection, session, packet)
    if packet_id is not None:
        _acknowledge(connection, session, packet, packet_id, reason, text, doubtful)


def _resolve_alias(connection: Connection, packet: p.Publish) -> None:
    """Replaces an alias by its topic, or remembers a new one (MQTT 5 §3.3.2.3.4)."""
    alias = packet.properties.topic_alias
    if alias is None:
        if not packet.topic and connection.version == p.V5:
            raise violation("neither a topic name nor a topic alias")
        return
    alias_max = connection.broker.limits.topic_alias_max
    if alias > alias_max:
        raise PacketError(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias} (at most {alias_max})")  # [MQTT-3.3.2-9]
    if connection.aliases_in is None:
        connection.aliases_in = {}
    if packet.topic:
        connection.aliases_in[alias] = packet.topic
    elif alias in connection.aliases_in:
        packet.topic = connection.aliases_in[alias]
    else:
        raise violation(f"topic alias {alias} was never set on this connection")


def _check(connection: Connection, packet: p.Publish) -> None:
    limits = connection.broker.limits
    check_topic(packet.topic, limits.topic_levels_max)
    if packet.properties.subscription_identifiers:  # [MQTT-3.3.4-6]
        raise violation("a subscription identifier in a PUBLISH from a client")
    if packet.qos > limits.qos_max:  # [MQTT-3.2.2-11]
        raise PacketError(Reason.QOS_NOT_SUPPORTED, f"QoS {packet.qos} (at most {limits.qos_max})")
    if packet.retain and not limits.retain:  # [MQTT-3.2.2-14]
        raise PacketError(Reason.RETAIN_NOT_SUPPORTED, "this broker keeps no retained messages")


def _count_unacknowledged(connection: Connection, session: Session, packet_id: int) -> None:
    """[MQTT-3.3.4-7]: more publications under way than this broker's Receive Maximum."""
    if packet_id in session.received:
        return
    if connection.held is not None:
        connection.unacknowledged_tick = NEVER
        connection.unacknowledged = len(session.received) + connection.held.qos1
    elif connection.unacknowledged_tick != connection.tick.number:
        connection.unacknowledged_tick = connection.tick.number
        connection.unacknowledged = len(session.received)
    if connection.unacknowledged >= connection.broker.limits.receive_max:
        text = f"more than {connection.broker.limits.receive_max} publications wait for their acknowledgement"
        raise PacketError(Reason.RECEIVE_MAXIMUM_EXCEEDED, text)
    connection.unacknowledged += 1


def _publish(connection: Connection, session: Session, packet: p.Publish) -> Verdict:
    """Publishes if the client may, and says how it went."""
    broker = connection.broker
    if packet.properties.user_properties or packet.topic[:1] == "$":
        try:
            broker.federation.resolve_scope(packet)
        except ScopeError as error:
            broker.metrics.publish_refused += 1
            connection.notice_once("a publication is refused: %s", one_line(error.text))
            return Verdict(error.reason, error.text)
        if packet.topic.startswith(REQUEST_PREFIXES):
            return _request(connection, session, packet)
    if not _may_publish(connection, session, packet.topic):
        broker.metrics.publish_refused += 1
        connection.notice("may not publish to %s", quoted(packet.topic))
        return Verdict(Reason.NOT_AUTHORIZED, f"{packet.topic!r} may not be published by this client")
    refusal = connection.tick.refusal
    if refusal and (packet.qos or (packet.retain and connection.tick.degraded)):
        if connection.version == p.V3:
            raise PacketError(Reason.QUOTA_EXCEEDED, refusal)
        broker.metrics.publish_refused += 1
        return Verdict(Reason.QUOTA_EXCEEDED, refusal)
    message = message_of(packet, session.client_id, broker.now(), broker.limits.message_expiry_max_s)
    if packet.retain and packet.payload and not broker.retained.fits(message):
        broker.metrics.publish_refused += 1
        return Verdict(Reason.QUOTA_EXCEEDED, "no room for another retained message")
    reached = broker.publish(message, connection.flow)
    if reached is Reached.UNKNOWN and packet.qos and connection.version == p.V5:
        return Verdict(Reason.SUCCESS, "", message)
    return Verdict(Reason.SUCCESS if reached else Reason.NO_MATCHING_SUBSCRIBERS, "")


def _request(connection: Connection, session: Session, packet: p.Publish) -> Verdict:
    """What is asked of the broker itself, if the client may: nobody else gets it."""
    broker = connection.broker
    if not broker.access.may_publish(connection.identity, session.client_id, packet.topic):
        verdict = Verdict(Reason.NOT_AUTHORIZED, f"{packet.topic!r} may not be published by this client")
    else:
        verdict = Verdict(*broker.federation.request(session, packet))
    if verdict.reason.failed:
        broker.metrics.publish_refused += 1
        connection.notice_once("a request is refused: %s", one_line(verdict.text))
    return verdict


def _may_publish(connection: Connection, session: Session, topic: str) -> bool:
    if is_brokers_own(topic):
        return False
    allowed = connection.allowed_topics
    if allowed is None:
        return True
    name = string(topic)
    if name in allowed:
        return True
    if not connection.broker.access.may_publish(connection.identity, session.client_id, topic):
        return False
    if len(allowed) >= ALLOWED_TOPICS_MAX:
        allowed.clear()
    allowed.add(name)
    return True


def _acknowledge(
    connection: Connection,
    session: Session,
    packet: p.Publish,
    packet_id: int,
    reason: Reason,
    text: str,
    doubtful: Message | None,
) -> None:
    """PUBACK or PUBREC; 3.1.1 has no words for a refusal and acknowledges all the same [MQTT-3.3.5-2]."""
    if packet.qos == 2 and (not reason.failed or connection.version == p.V3):
        session.received.add(packet_id)
        if session.durable:
            connection.broker.store.save_received(session.row, packet_id)
            connection.tick.took_once = True
    properties = Properties()
    if reason.failed:
        properties.reason_string = connection.explained(text)
        connection.unacknowledged -= packet.qos == 2
    make = p.Puback if packet.qos == 1 else p.Pubrec
    _send(connection, make(packet_id, reason, properties), doubtful)
    broker = connection.broker
    if (broker.store.dirty or broker.recorder.dirty) and not reason.failed:
        connection.awaits_commit = True


def _send(connection: Connection, packet: p.Puback | p.Pubrec, doubtful: Message | None = None) -> None:
    """Sends an acknowledgement; behind those that wait, if there are any, and not before what to say is known."""
    federation = connection.broker.federation
    if doubtful is not None and federation.is_demand_told:
        if connection.held is None:
            connection.unacknowledged_tick = NEVER
        federation.when_known(doubtful, connection.hold_back().add_doubtful(packet))
    elif connection.held is not None:
        connection.held.add(packet)
    else:
        connection.send_packet(packet)


def on_pubrel(connection: Connection, packet_id: int) -> None:
    """The client knows that we have it: the packet id is free again (MQTT §4.3.3)."""
    session = connection.session
    assert session is not None
    if packet_id not in session.received:
        connection.send_packet(p.Pubcomp(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND))
        connection.awaits_commit = connection.awaits_commit or session.durable  # of the first one that was released
        return
    session.received.discard(packet_id)
    connection.unacknowledged = max(0, connection.unacknowledged - 1)
    if session.durable:
        connection.broker.store.drop_received(session.row, packet_id)
        connection.awaits_commit = True
    connection.send(b"\x70\x02" + packet_id.to_bytes(2))
