"""One client's connection, without a socket: bytes in, bytes out, and the rules between them.

`receive` walks the packets in the buffer. Plain publications and their acknowledgements are handled where they stand
(`fast_path`); everything else goes through `_dispatch`: decoded by the codec and handled by a method of its type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.broker import publishing, subscribing
from braidmq.broker.connection_state import State
from braidmq.broker.fast_path import Repeat, forward_and_acknowledge, forward_run, send_repeat
from braidmq.broker.flow import Flow, Link
from braidmq.broker.handshake import Handshake
from braidmq.broker.message import Message, publish_bytes
from braidmq.broker.notices import address, described, one_line
from braidmq.mqtt import packets as p
from braidmq.mqtt.codec import decode, encode
from braidmq.mqtt.errors import PacketError, malformed, violation
from braidmq.mqtt.properties import CONNACK, CONNECT, DISCONNECT, Properties
from braidmq.mqtt.reason_tables import sendable
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import ANONYMOUS, Identity, Origin

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.held_acknowledgements import HeldAcknowledgements
    from braidmq.broker.session import Session
    from braidmq.broker.timers import Timer

TICK_BYTES_SMALL = 2048
"""A read up to this size that comes alone is answered at once: there is nothing to gain by waiting for others."""

TICK_BYTES_MAX = 4 * 1024 * 1024
"""Bytes read in one tick after which what they led to is written without waiting for the tick's end."""

_PLAIN_ACKS = frozenset((0x50, 0x62, 0x70))

PACKETS_MAX = 500
"""Packets of one client that are handled one by one before it is the others' turn."""

PACKET_SHARE_BYTES = 32
"""A larger packet counts as one more for every so many bytes: a SUBSCRIBE can hold a thousand filters."""

REASON_TEXT_MAX = 200
"""Characters of a reason string: it may quote what a client sent, and that may be long."""

CLOSE_GRACE_S = 5.0
"""How long the last bytes may take to reach a client before its socket is cut."""


class Connection(Flow):
    __slots__ = (
        "_tail",
        "_tail_size",
        "_timer",
        "_wanted",
        "aliases_in",
        "aliases_out",
        "aliases_out_max",
        "allowed_topics",
        "awaits_commit",
        "handshake",
        "identity",
        "identity_timer",
        "keep_alive_s",
        "origin",
        "out",
        "owed",
        "packet_max",
        "packet_max_out",
        "problem_information",
        "repeat",
        "seen_at",
        "session",
        "takes_plain",
        "unacknowledged",
        "unacknowledged_tick",
        "version",
    )

    def __init__(self, broker: Broker, link: Link, origin: Origin) -> None:
        super().__init__(broker, link)
        self.origin = origin
        self.identity: Identity = ANONYMOUS
        self.identity_timer: Timer | None = None
        self.version = 0
        self.session: Session | None = None
        self.handshake: Handshake | None = None
        self.out: list[bytes] = []
        self.owed: HeldAcknowledgements | None = None
        """Acknowledgements that wait, while there are such."""
        self.awaits_commit = False
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
        self.seen_at = broker.clock()
        self._tail: list[bytes] = []  # the beginning of a packet whose end is still to come
        self._tail_size = 0
        self._wanted = 0  # its size, as far as it is known: nobody looks at it before so many bytes are there
        self._timer: Timer | None = broker.timers.at(
            broker.now() + broker.limits.connect_timeout_s, self._connect_timeout
        )

    # Bytes in

    def receive(self, data: bytes) -> None:
        """Takes what came from the socket, in any pieces, and acts on every packet that is complete."""
        broker = self.broker
        self.seen_at = broker.clock()
        if self.repeat is not None and not broker.flush_wanted and send_repeat(self, self.repeat, data):
            return
        broker.tick_bytes += len(data)
        first = not broker.flush_wanted
        broker.flush_wanted = True
        if self._tail:
            self._tail.append(data)
            self._tail_size += len(data)
            data = b"".join(self._tail) if self._tail_size >= self._wanted else b""
            if data:
                self._tail.clear()
                self._wanted = 0
        end = len(data)
        at = packets = 0
        try:
            while end - at >= 2:
                header = data[at]
                length = data[at + 1]
                body = at + 2
                if length > 127:
                    length, body = _remaining_length(data, at + 1, self.version)
                    if body == 0:
                        break
                after = body + length
                if after > end or after - at > self.packet_max:
                    self._check_incomplete(header, after - at)
                    self._wanted = after - at
                    break
                if header == 0x30:
                    stop = forward_run(self, data, at, body, after)
                    if stop:
                        at = stop
                        continue
                elif header == 0x32 or header == 0x34:
                    if forward_and_acknowledge(self, data, body, after, header >> 1 & 3):
                        at = after
                        continue
                elif header == 0x40 and length == 2 and self.session is not None:
                    self.session.on_puback(data[body] << 8 | data[body + 1])
                    at = after
                    continue
                elif length == 2 and header in _PLAIN_ACKS and self.session is not None:
                    self._on_plain_ack(self.session, header, data[body] << 8 | data[body + 1])
                    at = after
                    continue
                if self.state is State.AUTHENTICATING:
                    break
                going_on = self._dispatch(header, data[body:after])
                at = after
                if not going_on:
                    break
                packets += 1 + length // PACKET_SHARE_BYTES
                if packets >= PACKETS_MAX and at < end:
                    self.hold_reading()
                    broker.go_on_later(self)
                    break
            if at < end and self.state is not State.CLOSED:
                self._tail.append(data[at:])
                self._tail_size = end - at
                self.repeat = None
        except PacketError as error:
            self.fail(error)
        finally:
            if first:
                if broker.tick_bytes < TICK_BYTES_SMALL and not broker.store.dirty and not broker.recorder.dirty:
                    broker.flush()  # a little traffic is answered at once
                else:
                    broker.settle()
            elif broker.tick_bytes > TICK_BYTES_MAX:
                broker.flush()

    def _on_plain_ack(self, session: Session, header: int, packet_id: int) -> None:
        """An acknowledgement without reason and properties, as both versions send it when all is well."""
        if not packet_id:
            raise malformed("packet identifier 0")  # [MQTT-2.2.1-3]
        if header == 0x50:
            self._on_pubrec(session, packet_id, Reason.SUCCESS)
        elif header == 0x62:
            publishing.on_pubrel(self, packet_id)
        else:
            session.on_pubcomp(packet_id, Reason.SUCCESS)

    def _check_incomplete(self, header: int, size: int) -> None:
        """Refuses by its first bytes what could not be right whatever followed."""
        if self.state is State.CONNECTING and header != 0x10:
            raise violation("the first packet is not a CONNECT")  # [MQTT-3.1.0-1]
        if size > self.packet_max:
            raise PacketError(Reason.PACKET_TOO_LARGE, f"a packet of {size} bytes (at most {self.packet_max})")

    def _dispatch(self, header: int, body: bytes) -> bool:
        """Decodes one packet and gives it to whoever handles it in this state; False if no more should follow now."""
        if header >> 4 == CONNECT and self.state is not State.CONNECTING:
            raise violation("a second CONNECT")  # [MQTT-3.1.0-2], whatever it holds
        if self.state is State.OPEN:
            self._on_packet(self._decode(header, body))
        elif self.state is State.CONNECTING:
            self._on_connect(header, body)
        elif self.state is State.EXCHANGING:
            self._on_exchange(self._decode(header, body))
        return self.state is not State.CLOSED and self.state is not State.AUTHENTICATING

    def _decode(self, header: int, body: bytes) -> p.Packet:
        limits = self.broker.limits
        return decode(header, body, self.version, limits.user_properties_max, limits.packet_filters_max)

    def _on_connect(self, header: int, body: bytes) -> None:
        if header >> 4 != CONNECT:
            raise violation("the first packet is not a CONNECT")  # [MQTT-3.1.0-1]
        if body[:7] == b"\0\4MQTT\5":
            self.version = p.V5  # so that even a malformed CONNECT is refused in its own words
        packet = self._decode(header, body)
        assert isinstance(packet, p.Connect)
        self.version = packet.version
        self.handshake = Handshake(self, packet)
        self.handshake.begin()

    def _on_exchange(self, packet: p.Packet) -> None:
        assert self.handshake is not None
        if isinstance(packet, p.Auth):
            self.handshake.on_auth(packet)
        elif isinstance(packet, p.Disconnect):
            self.end(will=False)
        else:  # §4.12: nothing but AUTH and DISCONNECT before the CONNACK
            raise violation("a packet other than AUTH while authentication is under way")

    def _on_packet(self, packet: p.Packet) -> None:
        session = self.session
        assert session is not None
        match packet:
            case p.Publish():
                publishing.on_publish(self, packet)
            case p.Puback():
                session.on_puback(packet.packet_id)
            case p.Pubrec():
                self._on_pubrec(session, packet.packet_id, packet.reason)
            case p.Pubrel():
                publishing.on_pubrel(self, packet.packet_id)
            case p.Pubcomp():
                session.on_pubcomp(packet.packet_id, packet.reason)
            case p.Subscribe():
                subscribing.on_subscribe(self, packet)
            case p.Unsubscribe():
                subscribing.on_unsubscribe(self, packet)
            case p.Pingreq():
                self.send(b"\xd0\x00")
            case p.Disconnect():
                self._on_disconnect(session, packet)
            case p.Auth():
                self._on_auth(packet)
            case _:
                raise violation(f"{type(packet).__name__.upper()} from a client")

    def _on_pubrec(self, session: Session, packet_id: int, reason: Reason) -> None:
        if session.on_pubrec(packet_id, reason):
            self.awaits_commit = self.awaits_commit or session.durable
            self.send(b"\x62\x02" + packet_id.to_bytes(2))
        elif not reason.failed:
            self.send_packet(p.Pubrel(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND))

    def _on_disconnect(self, session: Session, packet: p.Disconnect) -> None:
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s is not None:
            if expiry_s and not session.expiry_s:  # §3.14.2.2.2
                raise violation("a session expiry in DISCONNECT where CONNECT had none")
            session.expiry_s = min(expiry_s, self.broker.limits.session_expiry_max_s)
        self.end(will=packet.reason is not Reason.SUCCESS)  # [MQTT-3.1.2-10], [MQTT-3.14.4-3]

    def _on_auth(self, packet: p.Auth) -> None:
        """Re-authentication (MQTT 5 §4.12.1)."""
        if self.handshake is None:
            raise violation("AUTH on a connection without an authentication method")
        self.handshake.on_reauth(packet)

    # Bytes out

    def send(self, data: bytes) -> None:
        """Puts bytes into what leaves at the end of the tick."""
        if self.state is State.CLOSED:
            return
        if not self.writable:
            self.count_unread(len(data))
        if not self.out:
            self.broker.touched(self)
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

    def send_publish(self, message: Message, first_byte: int, packet_id: int, ids: tuple[int, ...]) -> bool:
        """Sends a publication; False if the client does not take packets so large [MQTT-3.1.2-24]."""
        metrics = self.broker.metrics
        if not packet_id and not self.writable and not self.stalls(self.broker.publisher):
            metrics.messages_dropped += 1
            return True
        if self.aliases_out_max:
            data = self._with_alias(message, first_byte, packet_id, ids)
        else:
            now = 0.0 if message.expires_at is None else self.broker.now()
            data = publish_bytes(message, self.version, first_byte, packet_id, ids, now)
        if self.packet_max_out and len(data) > self.packet_max_out:
            metrics.messages_dropped += 1
            return False
        metrics.messages_sent += 1
        if not self.out:
            self.broker.touched(self)
        self.out.append(data)
        return True

    def _with_alias(self, message: Message, first_byte: int, packet_id: int, ids: tuple[int, ...]) -> bytes:
        """The first topics that a client is sent get an alias each; it stands for the name from the second time on."""
        if self.aliases_out is None:
            self.aliases_out = {}
        now = self.broker.now()
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

    # The end

    def fail(self, error: PacketError) -> None:
        """Tells the client what it did wrong, where its version has words for it, and closes [MQTT-4.13.1-1]."""
        if self.state is State.CLOSED:
            return
        if error.reason in (Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR):
            self.broker.metrics.packets_malformed += 1
        self.notice("%s (0x%02X)", one_line(error.text), error.reason)
        self._pay_all()
        text = self.explained(error.text)
        if self.state is State.OPEN:
            if self.version == p.V5:
                self.send_packet(p.Disconnect(sendable(error.reason, DISCONNECT), Properties(reason_string=text)))
        elif self.version == p.V5:
            self.send_packet(p.Connack(False, sendable(error.reason, CONNACK), Properties(reason_string=text)))
        elif error.reason is Reason.UNSUPPORTED_PROTOCOL_VERSION and self.handshake is None:
            self.send(b"\x20\x02\x00\x01")  # 3.1.1 [MQTT-3.1.2-2]
        self.end(will=True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.session is not None:
            self.session.pump()

    def explained(self, text: str) -> str | None:
        """A reason string, if the client wants any (MQTT 5 §3.1.2.11.7)."""
        return text[:REASON_TEXT_MAX] if text and self.problem_information else None

    def go_on(self) -> None:
        """Goes on with packets that are here already."""
        self.release_reading()
        if self.state is not State.CLOSED:
            self.receive(b"")

    def disconnect(self, reason: Reason, text: str = "") -> None:
        """The broker's own wish, not the client's fault."""
        self._pay_all()
        if self.state is State.OPEN and self.version == p.V5:
            self.send_packet(p.Disconnect(reason, Properties(reason_string=self.explained(text))))
        self.end(will=reason is not Reason.SUCCESS)

    def end(self, will: bool) -> None:
        """Closes the socket once what was queued has gone, and parts from the session at once."""
        if self.state is State.CLOSED:
            return
        self._pay_all()
        self._part(will)
        self.broker.closing(self)
        self._timer = self.broker.timers.at(self.broker.now() + CLOSE_GRACE_S, self.link.abort)

    def _pay_all(self) -> None:
        """Acknowledgements that wait leave before the connection ends."""
        if self.owed is not None:
            self.owed.pay_all()

    def lost(self, _error: Exception | None = None) -> None:
        """The socket is gone."""
        if self.state is not State.CLOSED:
            self._part(will=True)
        self.out.clear()
        self.broker.disconnected(self)
        if self._timer is not None:
            self._timer.cancel()

    def _part(self, will: bool) -> None:
        self.state = State.CLOSED
        self.end_stall()
        if self.owed is not None:
            self.owed.drop()
        self._tail.clear()
        self.handshake = self.repeat = None
        for timer in (self._timer, self.identity_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self.identity_timer = None
        if self.session is not None:
            self.broker.part(self.session, self, will)
            self.session = None

    # Time

    def _connect_timeout(self) -> None:
        if self.state is not State.OPEN:
            self.broker.metrics.connect_refused += 1
            self.end(will=False)

    def opened(self, keep_alive_s: int) -> None:
        """The CONNACK is out: from now on the keep-alive is what ends a silent connection."""
        self.state = State.OPEN
        self.packet_max = self.broker.limits.packet_bytes_max
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if keep_alive_s:
            self.keep_alive_s = 1.5 * keep_alive_s  # [MQTT-3.1.2-22]
            self._timer = self.broker.timers.at(self.broker.now() + self.keep_alive_s, self._check_alive)

    def _check_alive(self) -> None:
        left_s = self.seen_at + self.keep_alive_s - self.broker.clock()
        if left_s > 0:
            self._timer = self.broker.timers.at(self.broker.now() + left_s, self._check_alive)
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


def _remaining_length(data: bytes, at: int, version: int) -> tuple[int, int]:
    """(length, where the body begins); (0, 0) if the bytes that say so are not all there."""
    value = shift = 0
    for place in range(at, min(at + 4, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte and version == p.V5:
                raise malformed("a remaining length in more bytes than it needs")  # [MQTT-1.5.5-1]
            return value, place + 1
        shift += 7
    if len(data) - at >= 4:
        raise malformed("a remaining length of more than four bytes")
    return 0, 0
