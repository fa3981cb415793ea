"""One client's connection, without a socket: its state, what it is sent, and how it ends.

What comes in is walked through by `receiving`, which handles plain publications where they stand (`fast_path`) and
gives everything else to a handler of its type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from braidmq.broker.broker import Broker
from braidmq.broker.connection_state import ConnectionState
from braidmq.broker.flow import Flow
from braidmq.broker.held_acknowledgements import HeldAcknowledgements
from braidmq.broker.message import Message, publish_bytes
from braidmq.broker.notices import address, described, one_line
from braidmq.broker.runs import Repeat
from braidmq.broker.session import Session
from braidmq.broker.timers import Timer
from braidmq.broker.transport import Transport
from braidmq.mqtt import packets as p
from braidmq.mqtt.codec import encode
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.properties import CONNACK, DISCONNECT, Properties
from braidmq.mqtt.reason_tables import sendable
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import ANONYMOUS, Identity, Origin

REASON_TEXT_MAX = 200
"""Characters of a reason string: it may quote what a client sent, and that may be long."""

CLOSE_GRACE_S = 5.0
"""How long the last bytes may take to reach a client before its socket is cut."""


class PendingConnect(Protocol):
    """The way from CONNECT to CONNACK, while a connection is on it; `handshake` has it."""

    @property
    def connect(self) -> p.Connect: ...

    def on_auth(self, packet: p.Auth) -> None:
        """The client goes on with its authentication, before the CONNACK."""
        ...

    def on_reauth(self, packet: p.Auth) -> None:
        """Begins, or goes on with, a new authentication of the open connection."""
        ...


class Connection:
    __slots__ = (
        "_timer",
        "aliases_in",
        "aliases_out",
        "aliases_out_max",
        "allowed_topics",
        "awaits_commit",
        "broker",
        "connack_goes_first",
        "flow",
        "handshake",
        "held",
        "identity",
        "identity_timer",
        "keep_alive_s",
        "link",
        "origin",
        "out",
        "packet_max",
        "packet_max_out",
        "problem_information",
        "receive",
        "repeat",
        "seen_at",
        "session",
        "state",
        "tail",
        "takes_plain",
        "tick",
        "unacknowledged",
        "unacknowledged_tick",
        "version",
        "writable",
    )

    def __init__(self, broker: Broker, link: Transport, origin: Origin) -> None:
        self.broker = broker
        self.tick = tick = broker.tick
        self.link = link
        self.flow = Flow(tick, link)
        self.writable = True
        self.state = ConnectionState.CONNECTING
        self.origin = origin
        self.identity: Identity = ANONYMOUS
        self.identity_timer: Timer | None = None
        self.version = 0
        self.session: Session | None = None
        self.handshake: PendingConnect | None = None
        self.receive: Callable[[bytes], None]
        """Handles what came from the socket; set by `receiving`."""
        self.tail: list[bytes] = []
        """The beginning of a packet whose end is still to come."""
        self.out: list[bytes] = []
        self.held: HeldAcknowledgements | None = None
        """Acknowledgements that wait, while there are such."""
        self.awaits_commit = False
        self.connack_goes_first = False
        self.packet_max = broker.limits.connect_packet_bytes_max
        self.packet_max_out = 0
        self.takes_plain = True
        self.repeat: Repeat | None = None
        self.problem_information = True
        self.keep_alive_s = 0.0
        self.unacknowledged = 0
        self.unacknowledged_tick = 0
        self.aliases_in: dict[int, str] | None = None
        self.aliases_out: dict[bytes, int] | None = None
        self.aliases_out_max = 0
        self.allowed_topics: set[bytes] | None = None
        self.seen_at = tick.clock()
        self._timer: Timer | None = tick.timers.at(tick.now() + broker.limits.connect_timeout_s, self._connect_timeout)

    def identify(self, identity: Identity) -> None:
        """Notes the client's identity: for access control, and for the time that its credentials last."""
        assert self.session is not None
        self.identity = identity
        self.repeat = None
        if self.identity_timer is not None:
            self.identity_timer.cancel()
        free = self.broker.access.unrestricted(identity, self.session.client_id)
        self.allowed_topics = None if free else set()
        if identity.expires_at is not None:
            text = "the credentials have expired"
            self.identity_timer = self.tick.timers.at(
                identity.expires_at, partial(self.disconnect, Reason.NOT_AUTHORIZED, text)
            )

    def reset_plain(self) -> None:
        """Sets `takes_plain` to what was agreed on in CONNECT."""
        self.takes_plain = not self.aliases_out_max and not self.packet_max_out

    # The socket's pace

    def pause_writing(self) -> None:
        self.writable = False
        self.flow.on_full()

    def resume_writing(self) -> None:
        self.writable = True
        self.flow.on_drained()
        if self.session is not None:
            self.session.pump()

    def count_unread(self, size: int) -> None:
        """Answers that the client does not take."""
        self.flow.count_unread(size, self.broker.limits.outbound_bytes_max)

    def go_on(self) -> None:
        """Goes on with packets that are here already."""
        self.flow.release_reading()
        if self.state is not ConnectionState.CLOSED:
            self.receive(b"")

    # Bytes out

    def send(self, data: bytes) -> None:
        """Puts bytes into what leaves at the end of the tick."""
        if self.state is ConnectionState.CLOSED:
            return
        if not self.writable:
            self.count_unread(len(data))
        if not self.out:
            self.tick.touch(self)
        self.out.append(data)

    def send_packet(self, packet: p.Packet) -> bool:
        """Sends a packet; False if the client takes none so large, which ends the connection [MQTT-3.1.2-24]."""
        data = encode(packet, self.version)
        if self.packet_max_out and len(data) > self.packet_max_out:
            if isinstance(packet, p.Connack | p.Disconnect | p.Puback | p.Pubrec):
                # [MQTT-3.2.2-19] and its like: what is only said to be helpful must not make a packet too large.
                packet.properties.reason_string = packet.properties.response_information = None
                data = encode(packet, self.version)
            if len(data) > self.packet_max_out:
                self._unspeakable(packet)
                return False
        self.send(data)
        return True

    def _unspeakable(self, packet: p.Packet) -> None:
        if isinstance(packet, p.Connack | p.Disconnect):
            self.end(will=True)
        else:
            text = f"the client takes no packet of more than {self.packet_max_out} bytes, and needs one"
            self.fail(PacketError(Reason.PACKET_TOO_LARGE, text))

    def send_publish(
        self, message: Message, first_byte: int, packet_id: int, ids: tuple[int, ...], publisher: Flow | None = None
    ) -> bool:
        """Sends a publication; False if the client does not take packets so large [MQTT-3.1.2-24]."""
        metrics = self.tick.metrics
        if not packet_id and not self.writable and not self.flow.stalls(publisher):
            metrics.messages_dropped += 1
            return True
        if self.aliases_out_max:
            data = self._with_alias(message, first_byte, packet_id, ids)
        else:
            now = 0.0 if message.expires_at is None else self.tick.now()
            data = publish_bytes(message, self.version, first_byte, packet_id, ids, now)
        if self.packet_max_out and len(data) > self.packet_max_out:
            metrics.messages_dropped += 1
            return False
        metrics.messages_sent += 1
        if not self.out:
            self.tick.touch(self)
        self.out.append(data)
        return True

    def _with_alias(self, message: Message, first_byte: int, packet_id: int, ids: tuple[int, ...]) -> bytes:
        """The first topics that a client is sent get an alias each; it stands for the name from the second time on."""
        if self.aliases_out is None:
            self.aliases_out = {}
        now = self.tick.now()
        name = message.name
        alias = self.aliases_out.get(name)
        if alias is not None:
            name = b"\0\0"
        elif len(self.aliases_out) < self.aliases_out_max:
            alias = len(self.aliases_out) + 1
        else:
            return publish_bytes(message, self.version, first_byte, packet_id, ids, now)
        data = publish_bytes(message, self.version, first_byte, packet_id, ids, now, b"\x23" + alias.to_bytes(2), name)
        if name and not (self.packet_max_out and len(data) > self.packet_max_out):
            self.aliases_out[message.name] = alias  # set only once the client has been told
        return data

    # Acknowledgements

    def hold_back(self) -> HeldAcknowledgements:
        """The acknowledgements that wait; from now on each waits for those before it."""
        if self.held is None:
            self.held = HeldAcknowledgements(
                self.tick, self._acknowledge, self.broker.federation.on_demand_late, self._end_hold
            )
        return self.held

    def _acknowledge(self, packet: p.Puback | p.Pubrec) -> None:
        self.send_packet(packet)
        self.awaits_commit = self.awaits_commit or self.tick.store.dirty or self.tick.recorder.dirty

    def _end_hold(self) -> None:
        self.held = None

    def _send_held(self) -> None:
        """Acknowledgements that wait leave before the connection ends."""
        if self.held is not None:
            self.held.send_all()

    # The end

    def fail(self, error: PacketError) -> None:
        """Tells the client what it did wrong, where its version has words for it, and closes [MQTT-4.13.1-1]."""
        if self.state is ConnectionState.CLOSED:
            return
        if error.reason in (Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR):
            self.broker.metrics.packets_malformed += 1
        self.notice("%s (0x%02X)", one_line(error.text), error.reason)
        self._send_held()
        text = self.explained(error.text)
        if self.state is ConnectionState.OPEN:
            if self.version == p.V5:
                self.send_packet(p.Disconnect(sendable(error.reason, DISCONNECT), Properties(reason_string=text)))
        elif self.version == p.V5:
            properties = Properties(reason_string=text, server_reference=error.server_reference)
            self.send_packet(p.Connack(False, sendable(error.reason, CONNACK), properties))
        elif error.reason is Reason.UNSUPPORTED_PROTOCOL_VERSION and self.handshake is None:
            self.send(b"\x20\x02\x00\x01")  # 3.1.1 [MQTT-3.1.2-2]
        self.end(will=True)

    def explained(self, text: str) -> str | None:
        """A reason string, if the client wants any (MQTT 5 §3.1.2.11.7)."""
        return text[:REASON_TEXT_MAX] if text and self.problem_information else None

    def disconnect(self, reason: Reason, text: str = "", server_reference: str | None = None) -> None:
        """The broker's own wish, not the client's fault."""
        self._send_held()
        if self.state is ConnectionState.OPEN and self.version == p.V5:
            properties = Properties(reason_string=self.explained(text), server_reference=server_reference)
            self.send_packet(p.Disconnect(reason, properties))
        self.end(will=reason is not Reason.SUCCESS)

    def end(self, will: bool) -> None:
        """Closes the socket once what was queued has gone, and leaves the session at once."""
        if self.state is ConnectionState.CLOSED:
            return
        self._send_held()
        self._leave(will)
        self.tick.close_later(self)
        self._timer = self.tick.timers.at(self.tick.now() + CLOSE_GRACE_S, self.link.abort)

    def cut(self) -> None:
        """What this connection was about to be told is not true: it is told nothing, and will ask again."""
        if self.held is not None:
            self.held.drop()
        self.out.clear()
        self.tick.forget(self)
        self.end(will=True)
        self.link.abort()

    def lost(self, _error: Exception | None = None) -> None:
        """The socket is gone."""
        if self.state is not ConnectionState.CLOSED:
            self._leave(will=True)
        self.out.clear()
        self.tick.forget(self)
        self.broker.on_closed(self)
        if self._timer is not None:
            self._timer.cancel()

    def _leave(self, will: bool) -> None:
        self.state = ConnectionState.CLOSED
        self.flow.close()
        if self.held is not None:
            self.held.drop()
        self.tail.clear()
        self.handshake = self.repeat = None
        for timer in (self._timer, self.identity_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self.identity_timer = None
        if self.session is not None:
            self.broker.sessions.detach(self.session, self, will)
            self.session = None

    # Time

    def _connect_timeout(self) -> None:
        if self.state is not ConnectionState.OPEN:
            self.broker.metrics.connect_refused += 1
            self.end(will=False)

    def opened(self, keep_alive_s: int) -> None:
        """The CONNACK is out: from now on the keep-alive is what ends a silent connection."""
        self.state = ConnectionState.OPEN
        self.packet_max = self.broker.limits.packet_bytes_max
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if keep_alive_s:
            self.keep_alive_s = 1.5 * keep_alive_s  # [MQTT-3.1.2-22]
            self._timer = self.tick.timers.at(self.tick.now() + self.keep_alive_s, self._check_alive)

    def _check_alive(self) -> None:
        left_s = self.seen_at + self.keep_alive_s - self.tick.clock()
        if left_s > 0:
            self._timer = self.tick.timers.at(self.tick.now() + left_s, self._check_alive)
        else:
            text = f"nothing heard for {self.keep_alive_s:g} s"
            self.fail(PacketError(Reason.KEEP_ALIVE_TIMEOUT, text))

    def notice(self, text: str, *arguments: object) -> None:
        """A log line about this client, unless there are too many."""
        session = self.session
        about = f"client {session.client_id}" if session is not None else address(self.origin)
        self.broker.notices.say(about, self, text, *arguments)

    def notice_once(self, text: str, *arguments: object) -> None:
        """A log line about what a client does again and again: it is written the first time."""
        session = self.session
        assert session is not None
        if self.broker.notices.is_news(session.client_id, text % arguments):
            self.notice(text, *arguments)

    def __str__(self) -> str:
        """How a log line calls the client."""
        client_id = user = None
        if self.session is not None:
            client_id, user = self.session.client_id, self.identity.user
        elif self.handshake is not None:
            client_id, user = self.handshake.connect.client_id, self.handshake.connect.username
        return described(client_id, user, self.origin)
