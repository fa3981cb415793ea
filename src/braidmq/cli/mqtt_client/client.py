"""An MQTT client for `pub` and `sub`: paho-mqtt on a thread of its own, its callbacks turned into events.

The command takes the events one by one from a bounded queue, in its own thread. So it waits in one line of code only,
where Ctrl-C arrives, and a slow reader of its output slows down the connection instead of filling the memory.
Received messages are acknowledged by the command, with `ack`, once they are printed.
"""

from __future__ import annotations

import queue
import select
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from braidmq.cli.errors import CliError, ExitCode
from braidmq.cli.mqtt_client.options import KEPT_SESSION_EXPIRY_S, BrokerAddress, ConnectionOptions
from braidmq.mqtt.reasons import Reason

EVENTS_MAX: Final = 1_000
INFLIGHT_MAX: Final = 100
"""QoS 1 and 2 publications that are under way to the broker at once, if it allows as many."""
CLOSE_TIMEOUT_S: Final = 2.0
LINGER_TIMEOUT_S: Final = 1.0
RECONNECT_DELAY_MIN_S: Final = 1
RECONNECT_DELAY_MAX_S: Final = 30


@dataclass(frozen=True, slots=True)
class Connected:
    session_present: bool
    properties: Properties

    def property(self, name: str, default: int) -> int:
        """A number in the broker's CONNACK, or the default of the specification."""
        return int(getattr(self.properties, name, default))


@dataclass(frozen=True, slots=True)
class ConnectRefused:
    """The broker answered CONNECT with a no."""

    words: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone; `words` say why, as far as the broker said it, and `reason` is its code."""

    words: str
    reason: int = 0


@dataclass(frozen=True, slots=True)
class SubscribeAnswered:
    mid: int
    reasons: list[int]
    words: str


@dataclass(frozen=True, slots=True)
class PublishAnswered:
    """The last acknowledgement of a publication; at QoS 0, that it was sent."""

    mid: int
    reason: int
    words: str


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """The broker sent something that the client library could not read."""

    words: str


def new_properties(packet_type: int) -> Properties:
    return Properties(packet_type)  # type: ignore[no-untyped-call]


def reason_words(code: int, properties: Any = None) -> str:
    """A reason code in words, with what the broker adds to it."""
    try:
        words = Reason(code).words
    except ValueError:
        words = f"Reason 0x{code:02x}"
    if text := getattr(properties, "ReasonString", None):
        words += f" ({text})"
    if server := getattr(properties, "ServerReference", None):
        words += f"; it points to {server}"
    return words


class _PahoClient(paho.Client):
    """paho's client, but what goes wrong on its thread becomes an event, and PUBREC's reason is not forgotten."""

    def __init__(self, owner: MqttClient, **arguments: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, **arguments)
        self._owner = owner
        self.received_reasons: dict[int, int] = {}
        """The reasons other than success that came with a PUBREC, until its PUBCOMP; at most those in flight."""
        self.ended = threading.Event()

    def loop_forever(self, timeout: float = 1.0, retry_first_connection: bool = False) -> MQTTErrorCode:
        try:
            return super().loop_forever(timeout, retry_first_connection)
        except Exception as error:
            self._owner.post(StreamBroken(f"{type(error).__name__}: {error}"))
            return MQTTErrorCode.MQTT_ERR_UNKNOWN
        finally:
            self.ended.set()

    def _handle_pubrec(self) -> MQTTErrorCode:
        # At QoS 2 it is PUBREC that says "no matching subscribers" or "not authorized"; paho drops its reason code.
        packet = self._in_packet["packet"]
        if len(packet) > 2 and packet[2]:
            self.received_reasons[packet[0] << 8 | packet[1]] = packet[2]
        return super()._handle_pubrec()


class MqttClient:
    def __init__(
        self,
        options: ConnectionOptions,
        command: str,
        *,
        keep_session: bool = False,
        reconnect: bool = False,
        receive_max: int | None = None,
    ) -> None:
        self.address: BrokerAddress = options.address()
        self._options = options
        self._keep_session = keep_session
        self._receive_max = receive_max
        self._events: queue.Queue[Any] = queue.Queue(EVENTS_MAX)
        self._closing = False
        self._paho = self._build(options.client_id_or_random(command), reconnect)

    def open(self) -> Connected:
        """Connects and returns the broker's welcome; a CliError says why it could not."""
        options, address = self._options, self.address
        arguments: dict[str, Any] = {}
        if options.level == 5:
            arguments["clean_start"] = False if self._keep_session else paho.MQTT_CLEAN_START_FIRST_ONLY
            arguments["properties"] = self._connect_properties()
        try:
            self._paho.connect(address.host, address.port, options.keep_alive_s, **arguments)
        except (OSError, ValueError) as error:
            raise _connect_error(error, address, options.timeout_s) from None
        self._paho.loop_start()
        event = self.next_event(options.timeout_s)
        if isinstance(event, Connected):
            return event
        self.close()
        if isinstance(event, ConnectRefused):
            raise CliError(f"{address} refused the connection: {event.words}")
        if event is None:
            raise CliError(
                f"{address} accepted the connection but did not answer in {options.timeout_s:g} s",
                ExitCode.UNAVAILABLE,
                "Is it an MQTT broker, and is TLS on at both ends or at none?",
            )
        raise CliError(
            f"{address} closed the connection before it answered",
            ExitCode.UNAVAILABLE,
            "It may not speak this version of MQTT (try --version 3.1.1), or expect TLS (try --tls).",
        )

    def next_event(self, timeout_s: float | None) -> Any:
        """The next event, or None if none came in time."""
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def post(self, event: Any) -> None:
        """Adds an event, from any thread; waits while the queue is full, unless the client is being closed."""
        while not self._closing:
            try:
                self._events.put(event, timeout=0.2)
            except queue.Full:
                continue
            return

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties | None) -> int:
        """Hands a message over; its PublishAnswered has the number that this returns."""
        info = self._paho.publish(topic, payload, qos, retain, properties)
        if info.rc not in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_AGAIN):
            raise CliError(f"the message could not be sent: {paho.error_string(info.rc)}")
        return info.mid

    def subscribe(self, filters: list[str], options: SubscribeOptions, properties: Properties | None) -> int | None:
        """Asks for these filters; its SubscribeAnswered has the number that this returns. None: not connected now."""
        if self._options.level == 5:
            pairs: list[tuple[str, Any]] = [(topic_filter, options) for topic_filter in filters]
        else:
            pairs = [(topic_filter, options.QoS) for topic_filter in filters]
        _, mid = self._paho.subscribe(cast(Any, pairs), properties=properties)
        return mid

    def ack(self, message: paho.MQTTMessage) -> None:
        self._paho.ack(message.mid, message.qos)

    def close(self) -> None:
        """Says goodbye, so that no will is published, and waits a moment until that is sent."""
        self._closing = True
        self._paho.disconnect()
        self._paho.ended.wait(CLOSE_TIMEOUT_S)

    def _build(self, client_id: str, reconnect: bool) -> _PahoClient:
        options, address = self._options, self.address
        arguments: dict[str, Any] = {}
        if options.level != 5:
            arguments["clean_session"] = not self._keep_session
        client = _PahoClient(
            self,
            client_id=client_id,
            protocol=MQTTProtocolVersion(options.level),
            transport=cast(Literal["tcp", "websockets", "unix"], address.transport),
            reconnect_on_failure=reconnect,
            manual_ack=True,
            **arguments,
        )
        client.connect_timeout = options.timeout_s
        client.max_inflight_messages_set(INFLIGHT_MAX)
        client.reconnect_delay_set(RECONNECT_DELAY_MIN_S, RECONNECT_DELAY_MAX_S)
        user, password = options.credentials(address)
        if user is not None or password is not None:
            client.username_pw_set(user or "", password)
        if address.secure:
            client.tls_set_context(options.tls_context())
        if address.transport == "websockets":
            client.ws_set_options(path=address.path)
        if options.will_topic is not None:
            properties = None
            if options.will_delay_s is not None:
                properties = new_properties(PacketTypes.WILLMESSAGE)
                properties.WillDelayInterval = options.will_delay_s
            payload = (options.will_payload or "").encode()
            client.will_set(options.will_topic, payload, options.will_qos, options.will_retain, properties)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        return client

    def _connect_properties(self) -> Properties:
        properties = new_properties(PacketTypes.CONNECT)
        if self._options.session_expiry_s is not None:
            properties.SessionExpiryInterval = self._options.session_expiry_s
        elif self._keep_session:
            properties.SessionExpiryInterval = KEPT_SESSION_EXPIRY_S
        if self._receive_max is not None:
            properties.ReceiveMaximum = self._receive_max
        return properties

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self.post(ConnectRefused(reason_words(reason.value, properties)))
        else:
            self.post(Connected(flags.session_present, properties or new_properties(PacketTypes.CONNACK)))

    def _on_disconnect(self, client: paho.Client, _data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if self._closing and (connection := client.socket()) is not None:
            _linger(connection)
        if flags.is_disconnect_packet_from_server:
            self.post(Disconnected(reason_words(reason.value, properties), reason.value))
        else:
            self.post(Disconnected("the connection was closed without a reason"))

    def _on_subscribe(self, _client: Any, _data: Any, mid: int, reasons: list[Any], properties: Any) -> None:
        failed = next((reason.value for reason in reasons if reason.is_failure), None)
        words = "" if failed is None else reason_words(failed, properties)
        self.post(SubscribeAnswered(mid, [reason.value for reason in reasons], words))

    def _on_publish(self, _client: Any, _data: Any, mid: int, reason: Any, properties: Any) -> None:
        code = self._paho.received_reasons.pop(mid, reason.value)
        self.post(PublishAnswered(mid, code, reason_words(code, properties)))

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.post(message)


def _linger(connection: Any) -> None:
    """Reads until the broker has closed its end, which DISCONNECT makes it do, or for LINGER_TIMEOUT_S.

    A socket that is closed while there is something to read is reset, and the broker may then never see what was sent
    last: acknowledgements, and DISCONNECT itself.
    """
    deadline = time.monotonic() + LINGER_TIMEOUT_S
    try:
        while select.select([connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                if not connection.recv(65536):
                    return
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
    except (OSError, ValueError):
        return  # it is closed already


def _connect_error(error: OSError | ValueError, address: BrokerAddress, timeout_s: float) -> CliError:
    hint = ""
    if isinstance(error, socket.gaierror):
        text, hint = f"there is no host named {address.host}", "Check the spelling, and the network's name server."
    elif isinstance(error, ConnectionRefusedError):
        text, hint = f"nothing listens at {address}", "Start a broker with `braidmq up`, or say where it is with --url."
    elif isinstance(error, ssl.SSLCertVerificationError):
        text = f"the certificate of {address} is not to be trusted: {error.verify_message}"
        hint = "Name the authority that signed it with --cafile FILE."
    elif isinstance(error, ssl.SSLError):
        text, hint = f"no TLS with {address}: {error.reason or error}", "Is this the port for TLS?"
    elif isinstance(error, TimeoutError):
        text, hint = f"{address} did not answer in {timeout_s:g} s", "Is a firewall in between?"
    elif isinstance(error, FileNotFoundError):
        text, hint = f"there is no socket at {address.host}", "Is the broker running, and does it have a Unix listener?"
    elif isinstance(error, paho.WebsocketConnectionError):
        text = f"{address} does not accept WebSocket connections at {address.path}"
        hint = f"The path is part of the URL: {address}/mqtt"
    else:
        text = f"no connection to {address}: {error}"
    return CliError(text, ExitCode.UNAVAILABLE, hint)
