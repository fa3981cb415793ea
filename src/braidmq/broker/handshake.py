"""From CONNECT to CONNACK: the client's identity, what it may, and which session it gets (MQTT §3.1, §3.2, §4.12)."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from inspect import isawaitable

from braidmq.broker.admission import Arrived
from braidmq.broker.connection import Connection
from braidmq.broker.connection_state import ConnectionState
from braidmq.broker.federation import ScopeError
from braidmq.broker.group_queue import is_queue
from braidmq.broker.limits import FOREVER
from braidmq.broker.local_topics import is_brokers_own
from braidmq.mqtt import packets as p
from braidmq.mqtt.errors import PacketError, violation
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import RETURN_CODES, Reason
from braidmq.mqtt.topics import SHARE_PREFIX, check_topic
from braidmq.security.identity import (
    ANONYMOUS,
    AuthenticationMethod,
    Challenge,
    Credentials,
    Exchange,
    Identity,
    Refusal,
    Verdict,
)


class Handshake:
    """One CONNECT under way. It stays only where an authentication method may be used again."""

    __slots__ = ("assigned", "connect", "connection", "exchange", "method")

    def __init__(self, connection: Connection, connect: p.Connect) -> None:
        self.connection = connection
        self.connect = connect
        self.assigned = False
        self.method = connect.properties.authentication_method
        self.exchange: Exchange | None = None

    def begin(self) -> None:
        connect = self.connect
        connection = self.connection
        broker = connection.broker
        properties = connect.properties
        connection.problem_information = properties.request_problem_information != 0
        if properties.maximum_packet_size is not None:
            connection.packet_max_out = properties.maximum_packet_size
        self._check()
        self._redirect()
        if not connect.client_id:
            self.assigned = True
            connect.client_id = broker.sessions.new_client_id()
        credentials = self._credentials()
        if self.method is not None:
            method = broker.methods.get(self.method)
            if method is None:  # [MQTT-4.12.0-1]
                raise PacketError(Reason.BAD_AUTHENTICATION_METHOD, f"unknown authentication method {self.method!r}")
            self.exchange = self._begin(method, credentials)
            self._step(properties.authentication_data)
            return
        try:
            verdict = broker.authenticator.authenticate(credentials) if broker.authenticator else ANONYMOUS
        except Exception:
            verdict = self._broken()
        if isawaitable(verdict):
            connection.state = ConnectionState.AUTHENTICATING
            connection.flow.hold_reading()
            broker.spawn(self._await(verdict))
        else:
            self._judge(verdict)

    def _check(self) -> None:
        """What is wrong with the CONNECT from any client."""
        connect = self.connect
        limits = self.connection.broker.limits
        if not connect.client_id and connect.version == p.V3 and not connect.clean_start:  # [MQTT-3.1.3-8]
            raise self._refused(Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client id needs a clean session")
        if is_queue(connect.client_id):
            text = f"client ids that begin with {SHARE_PREFIX} are the broker's own"
            raise self._refused(Reason.CLIENT_IDENTIFIER_NOT_VALID, text)
        if connect.will is None:
            return
        check_topic(connect.will.topic, limits.topic_levels_max)
        if connect.will.qos > limits.qos_max:  # [MQTT-3.2.2-12]
            raise self._refused(Reason.QOS_NOT_SUPPORTED, f"a will of QoS {connect.will.qos}")
        if connect.will.retain and not limits.retain:  # [MQTT-3.2.2-13]
            raise self._refused(Reason.RETAIN_NOT_SUPPORTED, "a retained will")
        try:
            self.connection.broker.federation.resolve_scope(connect.will)
        except ScopeError as error:
            raise self._refused(error.reason, f"the will: {error.text}") from None

    def _redirect(self) -> None:
        """A broker that is drained takes no more clients, whoever they are (MQTT 5 §4.11)."""
        connection = self.connection
        federation = connection.broker.federation
        if federation.is_draining:
            connection.broker.metrics.connect_refused += 1
            error = self._refused(Reason.USE_ANOTHER_SERVER, "this broker is being drained")
            error.server_reference = federation.server_reference(connection.origin.listener)
            raise error

    def _credentials(self) -> Credentials:
        connect = self.connect
        return Credentials(connect.client_id, connect.username, connect.password, self.connection.origin)

    def _refused(self, reason: Reason, text: str) -> PacketError:
        """A refusal in the client's own words: 3.1.1 gets its CONNACK here, MQTT 5 on the error's way out."""
        if self.connect.version == p.V3 and reason.failed and reason in RETURN_CODES:
            self.connection.send_packet(p.Connack(False, reason))
        return PacketError(reason, text)

    # Simple authentication

    async def _await(self, verdict: Awaitable[Verdict]) -> None:
        connection = self.connection
        try:
            answer = await verdict
        except Exception:
            answer = self._broken()
        if connection.state is not ConnectionState.AUTHENTICATING:
            return
        connection.state = ConnectionState.CONNECTING
        try:
            self._judge(answer)
        except PacketError as error:
            connection.fail(error)
            return
        self._go_on()

    def _go_on(self) -> None:
        """Reads on, after one reason to wait is gone; another one may have come."""
        if self.connection.state is ConnectionState.AUTHENTICATING:
            self.connection.flow.release_reading()
        else:
            self.connection.go_on()

    def _broken(self) -> Refusal:
        """Whatever a plug-in raises, its client is kept out and learns no more than that."""
        self.connection.broker.log.exception("an authenticator failed")
        return Refusal(Reason.UNSPECIFIED_ERROR, "the authenticator failed")

    def _judge(self, verdict: Verdict) -> None:
        broker = self.connection.broker
        if verdict is None:
            verdict = Refusal(Reason.NOT_AUTHORIZED, "nobody vouches for this client")
        if isinstance(verdict, Refusal):
            broker.metrics.auth_failures += 1
            broker.metrics.connect_refused += 1
            raise self._refused(verdict.reason, verdict.text or verdict.reason.words)
        self.accept(verdict)

    # Enhanced authentication

    def _step(self, data: bytes | None) -> Identity | None:
        """One round of the exchange; the identity once it has come to its end on a connection that is open already."""
        assert self.exchange is not None
        connection = self.connection
        try:
            answer = self.exchange.step(data)
        except Exception:
            answer = self._broken()
        is_open = connection.session is not None
        if isinstance(answer, Challenge):
            properties = Properties(authentication_method=self.method, authentication_data=answer.data)
            connection.send_packet(p.Auth(Reason.CONTINUE_AUTHENTICATION, properties))
            if not is_open:
                connection.state = ConnectionState.EXCHANGING
        elif isinstance(answer, Refusal):
            connection.broker.metrics.auth_failures += 1
            raise PacketError(answer.reason, answer.text or answer.reason.words)
        elif is_open:
            return answer
        else:
            self.accept(answer)
        return None

    def _begin(self, method: AuthenticationMethod, credentials: Credentials) -> Exchange:
        try:
            return method.begin(credentials)
        except Exception:
            broken = self._broken()
            raise PacketError(broken.reason, broken.text) from None

    def on_auth(self, packet: p.Auth) -> None:
        if packet.properties.authentication_method != self.method:  # [MQTT-4.12.0-5]
            raise violation("the authentication method changed during the exchange")
        if packet.reason is not Reason.CONTINUE_AUTHENTICATION:  # [MQTT-4.12.0-3]
            raise violation("AUTH before the CONNACK must say Continue authentication")
        self._step(packet.properties.authentication_data)

    def on_reauth(self, packet: p.Auth) -> None:
        """Begins, or goes on with, a new authentication of the open connection [MQTT-4.12.1-1]."""
        connection = self.connection
        if packet.properties.authentication_method != self.method:
            raise violation("re-authentication must use the method of the CONNECT")
        if packet.reason is Reason.REAUTHENTICATE:
            assert self.method is not None
            method = connection.broker.methods.get(self.method)
            if method is None:
                raise PacketError(Reason.BAD_AUTHENTICATION_METHOD, f"{self.method!r} is no longer available")
            self.exchange = self._begin(method, self._credentials())
        elif packet.reason is not Reason.CONTINUE_AUTHENTICATION or self.exchange is None:
            raise violation("AUTH without an authentication to go on with")
        identity = self._step(packet.properties.authentication_data)
        if identity is not None:
            assert self.exchange is not None
            if identity.owner != connection.identity.owner:
                raise PacketError(Reason.NOT_AUTHORIZED, "a session cannot be given to another user")
            connection.identify(identity)
            properties = Properties(authentication_method=self.method, authentication_data=self.exchange.final_data)
            connection.send_packet(p.Auth(Reason.SUCCESS, properties))
            self.exchange = None

    # The session

    def accept(self, identity: Identity) -> None:
        """The client is who it says: it gets its session, from another broker if it was there."""
        connect = self.connect
        connection = self.connection
        federation = connection.broker.federation
        if not self.assigned and not connection.broker.client_ids.allows(
            identity, connection.origin, connect.client_id
        ):
            text = "this user may not use this client identifier"
            raise self._refused(Reason.CLIENT_IDENTIFIER_NOT_VALID, text)
        if connect.will and not self._may_will(identity, connect.will.topic):
            raise self._refused(Reason.NOT_AUTHORIZED, f"a will for {connect.will.topic!r} is not allowed")
        self._check_room(identity)
        if not federation.is_in:
            self._open(identity)
            return
        self._send_home()
        connection.state = ConnectionState.AUTHENTICATING
        connection.flow.hold_reading()
        federation.admit(connect.client_id, identity.owner, connect.clean_start, partial(self._arrived, identity))

    def _send_home(self) -> None:
        """A client that is at home at another broker is told so (MQTT 5 §4.11)."""
        connection = self.connection
        home = connection.broker.federation.home_reference
        reference = home(self.connect.client_id, self.connect.version, connection.origin.listener)
        if reference is not None:
            error = self._refused(Reason.USE_ANOTHER_SERVER, "the home of this client is another broker")
            error.server_reference = reference
            raise error

    def _check_room(self, identity: Identity) -> None:
        """Whether there is room for the client's session."""
        broker = self.connection.broker
        if broker.is_kept_from(self.connect.client_id, identity.owner):
            raise self._foreign()
        if self._expiry_s() and broker.tick.refusal:
            raise self._refused(Reason.SERVER_UNAVAILABLE, broker.tick.refusal)
        if self.connect.client_id not in broker.sessions and len(broker.sessions) >= broker.limits.sessions_max:
            raise self._refused(Reason.QUOTA_EXCEEDED, f"{broker.limits.sessions_max} sessions are the bound")

    def _foreign(self) -> PacketError:
        return self._refused(Reason.NOT_AUTHORIZED, "this client identifier has a session of another user")

    def _arrived(self, identity: Identity, arrived: Arrived) -> bool:
        """It is known where the client's session is; whether it is opened here."""
        connection = self.connection
        if connection.state is not ConnectionState.AUTHENTICATING:
            return False
        if arrived is Arrived.ELSEWHERE:
            connection.end(will=False)
            return False
        connection.state = ConnectionState.CONNECTING
        try:
            if arrived is Arrived.FOREIGN:
                raise self._foreign()
            if arrived is Arrived.UNREACHABLE:
                text = "this client identifier may have a session of another user, at a broker that does not answer"
                raise self._refused(Reason.SERVER_UNAVAILABLE, text)
            self._check_room(identity)
            self._open(identity)
        except PacketError as error:
            connection.fail(error)
            return False
        connection.broker.federation.when_followed(self.connect.client_id, connection.go_on)
        return True

    def _open(self, identity: Identity) -> None:
        """The client gets its session and the CONNACK, then what waited for it."""
        connect = self.connect
        connection = self.connection
        broker = connection.broker
        client_id = connect.client_id
        expiry_s = self._expiry_s()
        session, present = broker.sessions.open(client_id, identity.owner, connect.clean_start, expiry_s)
        window = min(connect.properties.receive_maximum or 65535, broker.limits.inflight_max)
        connection.session = session
        connection.aliases_out_max = min(connect.properties.topic_alias_maximum or 0, broker.limits.topic_alias_out_max)
        connection.reset_plain()
        if present:
            broker.sessions.withdraw_forbidden(broker.access, [(session, identity)])
        session.attach(connection, window)
        broker.sessions.attached(session, connect.will)
        connection.identify(identity)
        connection.unacknowledged = len(session.received)
        keep_alive = self._keep_alive()
        if not connection.send_packet(self._connack(present, expiry_s, keep_alive)):
            return
        connection.awaits_commit = session.durable
        connection.connack_goes_first = session.durable and connect.will is None
        connection.opened(keep_alive)
        broker.metrics.connects += 1
        session.resume()
        self.exchange = None
        if self.method is None:
            connection.handshake = None

    def _may_will(self, identity: Identity, topic: str) -> bool:
        if is_brokers_own(topic):
            return False
        return self.connection.broker.access.may_will(identity, self.connect.client_id, topic)

    def _expiry_s(self) -> int:
        """3.1.1's clean session ends with the connection, its other kind never; MQTT 5 says how long (§3.1.2.11.2)."""
        if self.connect.version == p.V3:
            wanted = 0 if self.connect.clean_start else FOREVER
        else:
            wanted = self.connect.properties.session_expiry_interval or 0
        return min(wanted, self.connection.broker.limits.session_expiry_max_s)

    def _keep_alive(self) -> int:
        keep_alive_max = self.connection.broker.limits.keep_alive_max_s
        keep_alive = self.connect.keep_alive
        if keep_alive_max and (not keep_alive or keep_alive > keep_alive_max):
            return keep_alive_max
        return keep_alive

    def _connack(self, present: bool, expiry_s: int, keep_alive: int) -> p.Connack:
        """What the client must know of this broker: only where it differs from the defaults (MQTT 5 §3.2.2.3)."""
        packet = p.Connack(present)
        connect = self.connect
        if connect.version == p.V3:
            return packet
        limits = self.connection.broker.limits
        told = packet.properties
        if expiry_s != (connect.properties.session_expiry_interval or 0):
            told.session_expiry_interval = expiry_s
        if limits.receive_max != 65535:
            told.receive_maximum = limits.receive_max
        if limits.qos_max < 2:
            told.maximum_qos = limits.qos_max
        told.maximum_packet_size = limits.packet_bytes_max
        if limits.topic_alias_max:
            told.topic_alias_maximum = limits.topic_alias_max
        if self.assigned:
            told.assigned_client_identifier = connect.client_id  # [MQTT-3.2.2-16]
        if keep_alive != connect.keep_alive:
            told.server_keep_alive = keep_alive  # [MQTT-3.2.2-21]
        for switched_on, name in (
            (limits.retain, "retain_available"),
            (limits.wildcards, "wildcard_subscription_available"),
            (limits.subscription_ids, "subscription_identifier_available"),
            (limits.shared_subscriptions, "shared_subscription_available"),
        ):
            if not switched_on:
                setattr(told, name, 0)
        if connect.properties.request_response_information and limits.response_topic_prefix:
            told.response_information = f"{limits.response_topic_prefix}{connect.client_id}"
        if self.exchange is not None:
            told.authentication_method = self.method
            told.authentication_data = self.exchange.final_data
        return packet
