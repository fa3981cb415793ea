"""One listener: it accepts sockets, and brings them through their handshakes to the broker's core.

The broker accepts sockets itself instead of leaving it to the loop's server objects. That gives it what they do not
have: a rate over all listeners above which clients wait in the kernel's queue, a pause instead of refusals when the
process has no file descriptor left, and TLS rules that can change between one connection and the next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Final, Protocol

from braidmq.broker.receiving import accept
from braidmq.security.identity import Origin
from braidmq.server.listening.sockets import (
    LISTENER_PORT,
    bind_tcp,
    bind_unix,
    end_of_stream,
    host_and_port,
    unix_identity,
    unix_peer,
)
from braidmq.server.listening.stream import StreamProtocol
from braidmq.server.listening.tls import ALERT_GRACE_S, ServerTls, TlsHandshake, certified_origin, load_tls
from braidmq.server.listening.websocket import FRAME_SLACK_BYTES, WebSocketProtocol, web_origins

if TYPE_CHECKING:
    from websockets.typing import Origin as WebOrigin

    from braidmq.broker.broker import Broker
    from braidmq.broker.connection import Connection
    from braidmq.broker.limits import Limits
    from braidmq.broker.transport import Transport
    from braidmq.config.settings import Listener
    from braidmq.server.listening.accepting import ClientProtocol
    from braidmq.server.listening.connect_rate import ConnectRate

ACCEPT_BATCH_MAX: Final = 64
"""Sockets accepted from one listener before the loop turns to its other work."""
ACCEPT_PAUSE_S: Final = 0.2
"""How long nothing is accepted after the system said that it cannot, most often for lack of file descriptors."""
LINGER_S: Final = 10.0
"""What a peer gets to take its last bytes after the connection was closed; at most twice this, then it is cut off."""

_SCHEMES: Final = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss", "unix": "unix"}

AnyProtocol = StreamProtocol | WebSocketProtocol

_log = logging.getLogger("braidmq.listeners")


class ListenerGroup(Protocol):
    """What a listener shares with the other listeners of its broker."""

    broker: Broker
    limits: Limits
    rate: ConnectRate

    @property
    def connections_count(self) -> int: ...

    def pause(self, pause_s: float) -> None:
        """Accepts nothing for a while, on any listener."""

    def on_closed(self) -> None: ...

    def on_handshake_failed(self, listener: str, peer: str, problem: str) -> None: ...

    def complain(self, text: str) -> None: ...


class ActiveListener:
    """One listener of the configuration: its sockets, its rules, and the connections that it has accepted."""

    def __init__(self, settings: Listener, group: ListenerGroup) -> None:
        self.settings = settings
        self._group = group
        self._sockets: list[socket.socket] = []
        self._unix_identity: tuple[int, int] | None = None
        self._lingering: set[ClientProtocol] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self.connections: set[ClientProtocol] = set()
        """Of every accepted socket, from the first moment to the last."""
        self.tls: ServerTls | None = None
        self.apply(settings, load_tls(settings) if settings.tls else None)

    def apply(self, settings: Listener, tls: ServerTls | None) -> None:
        """Sets the rules for connections from now on."""
        self.settings = settings
        self.tls = tls
        self.web_origins: list[WebOrigin | None] | None = web_origins(settings.origins)
        self.web_path = settings.path
        if tls is not None and tls.expired:
            _log.warning("listener %r: certificate %s has expired", settings.name, settings.certificate)

    # What its connections ask for.

    @property
    def limits(self) -> Limits:
        return self._group.limits

    @property
    def frame_bytes_max(self) -> int:
        return self._group.limits.packet_bytes_max + FRAME_SLACK_BYTES

    def admit(self, link: Transport, transport: asyncio.Transport, peer: str) -> Connection:
        """Joins a connection whose handshakes are done to the core."""
        if self.tls is None:
            origin = Origin(self.settings.name, peer)
        else:
            origin = certified_origin(self.settings.name, peer, transport.get_extra_info("peercert"))
        return accept(self._group.broker, link, origin)

    def on_closed(self, protocol: ClientProtocol) -> None:
        self.connections.discard(protocol)
        self._lingering.discard(protocol)
        self._group.on_closed()

    # Opening and closing.

    def open(self) -> None:
        settings = self.settings
        if settings.kind == "unix":
            self._sockets = [bind_unix(settings.name, settings.path)]
            self._unix_identity = unix_identity(settings.path)
        else:
            self._sockets = bind_tcp(settings.name, settings.host, settings.port, LISTENER_PORT)

    def close(self) -> None:
        """Accepts no more connections; those that are open stay, those still in a handshake do not."""
        self.pause()
        for listening in self._sockets:
            listening.close()
        self._sockets = []
        if self._unix_identity is not None:
            # Another broker may have taken the path over since.
            if unix_identity(self.settings.path) == self._unix_identity:
                os.unlink(self.settings.path)
            self._unix_identity = None
        for handshake in self._handshakes:
            handshake.cancel()

    @property
    def addresses(self) -> list[str]:
        settings = self.settings
        scheme = _SCHEMES[settings.kind]
        if settings.kind == "unix":
            return [f"unix://{settings.path}"] if self._sockets else []
        path = settings.path if settings.websocket else ""
        return [f"{scheme}://{host_and_port(*listening.getsockname()[:2])}{path}" for listening in self._sockets]

    # Accepting.

    @property
    def listening(self) -> bool:
        return bool(self._sockets)

    def resume(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.add_reader(listening, self._on_acceptable, listening)

    def pause(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)

    def _on_acceptable(self, listening: socket.socket) -> None:
        group = self._group
        for _ in range(ACCEPT_BATCH_MAX):
            wait_s = group.rate.wait_s()
            if wait_s > 0:
                group.pause(wait_s)
                return
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # most often: no file descriptor is left
                group.complain(f"cannot accept connections: {error.strerror}; clients wait until it can")
                group.pause(ACCEPT_PAUSE_S)
                return
            group.rate.spend()
            self._on_accepted(accepted, address)

    def _on_accepted(self, accepted: socket.socket, address: tuple[str, int] | str) -> None:
        settings, group = self.settings, self._group
        connections_max = settings.connections_max or group.limits.connections_max
        if len(self.connections) >= connections_max or group.connections_count >= group.limits.connections_max:
            accepted.close()
            group.broker.metrics.connect_refused += 1
            group.complain(f"listener {settings.name!r} is full: connections are closed as they come in")
            return
        accepted.setblocking(False)
        peer = host_and_port(*address[:2]) if isinstance(address, tuple) else unix_peer(accepted)
        protocol = WebSocketProtocol(self, peer) if settings.websocket else StreamProtocol(self, peer)
        self.connections.add(protocol)
        task = asyncio.get_running_loop().create_task(self._shake_hands(accepted, protocol, peer))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, protocol: AnyProtocol, peer: str) -> None:
        try:
            if self.tls is None:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, accepted)
            else:
                await self._encrypt(accepted, protocol, peer, self.tls)
        except OSError as error:  # TLS errors and time-outs are of this kind too
            self.on_closed(protocol)
            _log.debug("listener %r: no connection with %s: %s", self.settings.name, peer, error)
        except BaseException:
            self.on_closed(protocol)
            raise

    async def _encrypt(self, accepted: socket.socket, protocol: AnyProtocol, peer: str, tls: ServerTls) -> None:
        """Does the TLS handshake; a peer with which it fails is told why, and gets time to read that."""
        loop = asyncio.get_running_loop()

        def on_failure() -> None:
            loop.call_soon(end_of_stream, accepted)  # behind the alert, which leaves in this turn of the loop
            patience.reschedule(loop.time() + ALERT_GRACE_S)

        handshake = TlsHandshake(on_failure)
        handshake.watch()
        try:
            async with asyncio.timeout(None) as patience:
                await loop.connect_accepted_socket(
                    lambda: protocol,
                    accepted,
                    ssl=tls.context,
                    ssl_handshake_timeout=self.limits.connect_timeout_s,
                    ssl_shutdown_timeout=LINGER_S,
                )
        except OSError as error:
            if handshake.heard:  # else the peer did not even try: it only looked whether the port is open
                self._group.on_handshake_failed(self.settings.name, peer, handshake.problem(error))
            raise

    def cut_off_lingering(self) -> None:
        """Ends the connections that were closed a while ago and whose peers still have not taken their last bytes."""
        closing = {protocol for protocol in self.connections if protocol.closing}
        for protocol in closing & self._lingering:
            protocol.abort()
        self._lingering = closing
