"""One packet that is not plain: decoded, and given to the handler of its type (MQTT §3)."""

from __future__ import annotations

from braidmq.broker import publishing, subscribing
from braidmq.broker.connection import Connection
from braidmq.broker.connection_state import ConnectionState
from braidmq.broker.handshake import Handshake
from braidmq.broker.session import Session
from braidmq.mqtt import packets as p
from braidmq.mqtt.codec import decode
from braidmq.mqtt.errors import violation
from braidmq.mqtt.properties import CONNECT
from braidmq.mqtt.reasons import Reason


def dispatch(connection: Connection, header: int, body: bytes) -> bool:
    """Decodes one packet and gives it to the handler of its type in this state; False if no more should follow now."""
    if header >> 4 == CONNECT and connection.state is not ConnectionState.CONNECTING:
        raise violation("a second CONNECT")  # [MQTT-3.1.0-2], whatever it holds
    if connection.state is ConnectionState.OPEN:
        _on_packet(connection, _decode(connection, header, body))
    elif connection.state is ConnectionState.CONNECTING:
        _on_connect(connection, header, body)
    elif connection.state is ConnectionState.EXCHANGING:
        _on_exchange(connection, _decode(connection, header, body))
    return connection.state is not ConnectionState.CLOSED and connection.state is not ConnectionState.AUTHENTICATING


def _decode(connection: Connection, header: int, body: bytes) -> p.Packet:
    limits = connection.broker.limits
    return decode(header, body, connection.version, limits.user_properties_max, limits.packet_filters_max)


def _on_connect(connection: Connection, header: int, body: bytes) -> None:
    if header >> 4 != CONNECT:
        raise violation("the first packet is not a CONNECT")  # [MQTT-3.1.0-1]
    if body[:7] == b"\0\4MQTT\5":
        connection.version = p.V5  # so that even a malformed CONNECT is refused in its own words
    packet = _decode(connection, header, body)
    assert isinstance(packet, p.Connect)
    connection.version = packet.version
    connection.handshake = handshake = Handshake(connection, packet)
    handshake.begin()


def _on_exchange(connection: Connection, packet: p.Packet) -> None:
    assert connection.handshake is not None
    if isinstance(packet, p.Auth):
        connection.handshake.on_auth(packet)
    elif isinstance(packet, p.Disconnect):
        connection.end(will=False)
    else:  # §4.12: nothing but AUTH and DISCONNECT before the CONNACK
        raise violation("a packet other than AUTH while authentication is under way")


def _on_packet(connection: Connection, packet: p.Packet) -> None:
    session = connection.session
    assert session is not None
    match packet:
        case p.Publish():
            publishing.on_publish(connection, packet)
        case p.Puback():
            session.on_puback(packet.packet_id)
        case p.Pubrec():
            on_pubrec(connection, session, packet.packet_id, packet.reason)
        case p.Pubrel():
            publishing.on_pubrel(connection, packet.packet_id)
        case p.Pubcomp():
            session.on_pubcomp(packet.packet_id, packet.reason)
        case p.Subscribe():
            subscribing.on_subscribe(connection, packet)
        case p.Unsubscribe():
            subscribing.on_unsubscribe(connection, packet)
        case p.Pingreq():
            connection.send(b"\xd0\x00")
        case p.Disconnect():
            _on_disconnect(connection, session, packet)
        case p.Auth():
            _on_auth(connection, packet)
        case _:
            raise violation(f"{type(packet).__name__.upper()} from a client")


def on_pubrec(connection: Connection, session: Session, packet_id: int, reason: Reason) -> None:
    """The client has a publication of QoS 2, or does not want it (MQTT §4.3.3)."""
    if session.on_pubrec(packet_id, reason):
        connection.awaits_commit = connection.awaits_commit or session.durable
        connection.send(b"\x62\x02" + packet_id.to_bytes(2))
    elif not reason.failed:
        connection.send_packet(p.Pubrel(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND))


def _on_disconnect(connection: Connection, session: Session, packet: p.Disconnect) -> None:
    expiry_s = packet.properties.session_expiry_interval
    if expiry_s is not None:
        if expiry_s and not session.expiry_s:  # §3.14.2.2.2
            raise violation("a session expiry in DISCONNECT where CONNECT had none")
        session.expiry_s = min(expiry_s, connection.broker.limits.session_expiry_max_s)
    connection.end(will=packet.reason is not Reason.SUCCESS)  # [MQTT-3.1.2-10], [MQTT-3.14.4-3]


def _on_auth(connection: Connection, packet: p.Auth) -> None:
    """Re-authentication (MQTT 5 §4.12.1)."""
    if connection.handshake is None:
        raise violation("AUTH on a connection without an authentication method")
    connection.handshake.on_reauth(packet)
