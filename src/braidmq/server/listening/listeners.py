"""Where clients come in: the listeners of the configuration, each a `Door` of its own kind and with its own rules.

The broker accepts sockets itself instead of leaving it to the loop's server objects. That gives it what they do not
have: a rate over all listeners above which clients wait in the kernel's queue, a pause instead of refusals when the
process has no file descriptor left, and TLS rules that can change between one connection and the next.

On a plain TCP connection nothing stands between the loop and the core: the transport is the core's `Link` as it is, and
the protocol's `data_received` *is* the core connection's `receive`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, cast

from braidmq.broker.notices import Notices, address, described
from braidmq.broker.receiving import accept
from braidmq.security.identity import Origin
from braidmq.server.listening.connect_rate import ConnectRate
from braidmq.server.listening.sockets import (
    LISTENER_PORT,
    ListenError,
    bind_tcp,
    bind_unix,
    end_of_stream,
    host_and_port,
    unix_identity,
    unix_peer,
)
from braidmq.server.listening.tls import (
    ALERT_GRACE_S,
    Handshake,
    ServerTls,
    TlsError,
    certified_origin,
    load_tls,
)
from braidmq.server.listening.websocket import FRAME_SLACK_BYTES, WebSocketProtocol, web_origins

if TYPE_CHECKING:
    from websockets.typing import Origin as WebOrigin

    from braidmq.broker.broker import Broker
    from braidmq.broker.connection import Connection
    from braidmq.broker.limits import Limits
    from braidmq.broker.transport import Transport
    from braidmq.config.settings import Config, Listener

__all__ = ["Door", "ListenError", "Listeners", "StreamProtocol", "TlsError"]

ACCEPT_BATCH_MAX: Final = 64
"""Sockets accepted from one listener before the loop turns to its other work."""
ACCEPT_PAUSE_S: Final = 0.2
"""How long nothing is accepted after the system said that it cannot, most often for lack of file descriptors."""
LINGER_S: Final = 10.0
"""What a peer gets to take its last bytes after the connection was closed; at most twice this, then it is cut off."""
COMPLAINT_INTERVAL_S: Final = 60.0
"""The same complaint is written to the log at most this often."""

_SCHEMES: Final = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss", "unix": "unix"}

_log = logging.getLogger("braidmq.listeners")


class StreamProtocol(asyncio.BaseProtocol):
    """One TCP, TLS or Unix connection. `data_received` is a slot that holds the core's own method."""

    __slots__ = ("_connection", "_door", "_peer", "_transport", "data_received")

    data_received: Callable[[bytes], None]

    def __init__(self, door: Door, peer: str) -> None:
        self._door = door
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None

    @property
    def closing(self) -> bool:
        return self._transport is not None and self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=self._door.limits.outbound_bytes_max)
        self._connection = self._door.admit(transport, transport, self._peer)
        self.data_received = self._connection.receive
        # The loop looks `data_received` up when it is given the protocol, and at that time it was not there yet.
        transport.set_protocol(self)

    def eof_received(self) -> None:
        """The loop then closes the transport."""

    def connection_lost(self, error: Exception | None) -> None:
        self._door.left(self)
        if self._connection is not None:
            self._connection.lost(error)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Door:
    """One listener: the sockets it listens on, its rules, and who came in by it."""

    def __init__(self, settings: Listener, hall: Listeners) -> None:
        self.settings = settings
        self._hall = hall
        self._sockets: list[socket.socket] = []
        self._unix_identity: tuple[int, int] | None = None
        self._lingering: set[StreamProtocol | WebSocketProtocol] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self.inside: set[StreamProtocol | WebSocketProtocol] = set()
        """Every accepted socket, from the first moment to the last."""
        self.tls: ServerTls | None = None
        self.apply(settings, load_tls(settings) if settings.tls else None)

    def apply(self, settings: Listener, tls: ServerTls | None) -> None:
        """The rules for those who come in from now on."""
        self.settings = settings
        self.tls = tls
        self.web_origins: list[WebOrigin | None] | None = web_origins(settings.origins)
        self.web_path = settings.path
        if tls is not None and tls.expired:
            _log.warning("listener %r: certificate %s has expired", settings.name, settings.certificate)

    # What its connections ask for.

    @property
    def limits(self) -> Limits:
        return self._hall.limits

    @property
    def frame_bytes_max(self) -> int:
        return self._hall.limits.packet_bytes_max + FRAME_SLACK_BYTES

    def admit(self, link: Transport, transport: asyncio.Transport, peer: str) -> Connection:
        """Joins a connection whose handshakes are done to the core."""
        if self.tls is None:
            origin = Origin(self.settings.name, peer)
        else:
            origin = certified_origin(self.settings.name, peer, transport.get_extra_info("peercert"))
        return accept(self._hall.broker, link, origin)

    def left(self, protocol: StreamProtocol | WebSocketProtocol) -> None:
        self.inside.discard(protocol)
        self._lingering.discard(protocol)
        self._hall.on_left()

    # Opening and closing.

    def open(self) -> None:
        settings = self.settings
        if settings.kind == "unix":
            self._sockets = [bind_unix(settings.name, settings.path)]
            self._unix_identity = unix_identity(settings.path)
        else:
            self._sockets = bind_tcp(settings.name, settings.host, settings.port, LISTENER_PORT)

    def close(self) -> None:
        """Accepts nobody any more; those who are inside stay, those still shaking hands do not."""
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
        hall = self._hall
        for _ in range(ACCEPT_BATCH_MAX):
            wait_s = hall.rate.wait_s()
            if wait_s > 0:
                hall.pause(wait_s)
                return
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # most often: no file descriptor is left
                hall.complain(f"cannot accept connections: {error.strerror}; clients wait until it can")
                hall.pause(ACCEPT_PAUSE_S)
                return
            hall.rate.take()
            self._on_accepted(accepted, address)

    def _on_accepted(self, accepted: socket.socket, address: tuple[str, int] | str) -> None:
        settings, hall = self.settings, self._hall
        inside_max = settings.connections_max or hall.limits.connections_max
        if len(self.inside) >= inside_max or hall.inside_count >= hall.limits.connections_max:
            accepted.close()
            hall.broker.metrics.connect_refused += 1
            hall.complain(f"listener {settings.name!r} is full: connections are closed as they come in")
            return
        accepted.setblocking(False)
        peer = host_and_port(*address[:2]) if isinstance(address, tuple) else unix_peer(accepted)
        protocol = WebSocketProtocol(self, peer) if settings.websocket else StreamProtocol(self, peer)
        self.inside.add(protocol)
        task = asyncio.get_running_loop().create_task(self._shake_hands(accepted, protocol, peer))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(
        self, accepted: socket.socket, protocol: StreamProtocol | WebSocketProtocol, peer: str
    ) -> None:
        try:
            if self.tls is None:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, accepted)
            else:
                await self._encrypt(accepted, protocol, peer, self.tls)
        except OSError as error:  # TLS errors and time-outs are of this kind too
            self.left(protocol)
            _log.debug("listener %r: no connection with %s: %s", self.settings.name, peer, error)
        except BaseException:
            self.left(protocol)
            raise

    async def _encrypt(
        self, accepted: socket.socket, protocol: StreamProtocol | WebSocketProtocol, peer: str, tls: ServerTls
    ) -> None:
        """The handshake of TLS; a peer with which it fails is told why, and gets the time to hear it."""
        loop = asyncio.get_running_loop()

        def on_failure() -> None:
            loop.call_soon(end_of_stream, accepted)  # behind the alert, which leaves in this turn of the loop
            patience.reschedule(loop.time() + ALERT_GRACE_S)

        handshake = Handshake(on_failure)
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
            if handshake.heard:  # else it did not even try: somebody looks whether the port is open
                self._hall.on_handshake_failed(self.settings.name, peer, handshake.problem(error))
            raise

    def cut_off_lingering(self) -> None:
        """Ends the connections that were closed a while ago and whose peers still have not taken their last bytes."""
        closing = {protocol for protocol in self.inside if protocol.closing}
        for protocol in closing & self._lingering:
            protocol.abort()
        self._lingering = closing


class Listeners:
    """All doors of a broker: they open together, share one connect rate, and close together."""

    def __init__(self, config: Config, broker: Broker) -> None:
        self.broker = broker
        self.limits = config.limits
        self.rate = ConnectRate(config.limits.connect_rate_max)
        self.doors = [Door(settings, self) for settings in config.listeners]
        self._resume: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._complained_at: dict[str, float] = {}
        self._notices = Notices(_log, broker.now, broker.timers.at)

    async def start(self) -> None:
        """Opens all doors, or none: a ListenError says which one would not open and why."""
        try:
            for door in self.doors:
                # A host name may have to be looked up, which takes its time.
                await asyncio.to_thread(door.open)
        except BaseException:
            self.stop_accepting()
            raise
        for door in self.doors:
            door.resume()
        self._sweep_later()

    @property
    def addresses(self) -> list[str]:
        """Where clients can connect, as URLs with the ports that are really open."""
        return [address for door in self.doors for address in door.addresses]

    @property
    def inside_count(self) -> int:
        return sum(len(door.inside) for door in self.doors)

    def trouble(self) -> str | None:
        """Why clients cannot connect now, or None if they can."""
        closed = [door.settings.name for door in self.doors if not door.listening]
        return f"not listening: {', '.join(closed)}" if closed else None

    def stop_accepting(self) -> None:
        for door in self.doors:
            door.close()
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None

    async def stop(self, grace_s: float) -> None:
        """Accepts nobody any more, gives those inside the time to leave, and cuts off who is left then."""
        self.stop_accepting()
        await self._wait_until_empty(grace_s)
        for protocol in list(self._inside()):
            protocol.abort()
        await self._wait_until_empty(1.0)
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def reload(self, config: Config) -> None:
        """Applies new rules to connections that come from now on, and re-reads the TLS files.

        `config` is what a ReloadPlan says is effective: its listeners keep their sockets. A broken file raises TlsError
        and changes nothing.
        """
        wanted = {settings.name: settings for settings in config.listeners}
        changes = [
            (door, new, load_tls(new) if new.tls else None)
            for door in self.doors
            if (new := wanted.get(door.settings.name))
        ]
        for door, new, tls in changes:
            door.apply(new, tls)
        self.limits = config.limits
        self.rate.per_s = config.limits.connect_rate_max

    # What the doors ask for.

    def pause(self, pause_s: float) -> None:
        """Nobody is accepted for a while; who comes waits in the kernel's queue."""
        if self._resume is None:
            for door in self.doors:
                door.pause()
            self._resume = asyncio.get_running_loop().call_later(pause_s, self._on_resume)

    def on_left(self) -> None:
        if not self.inside_count:
            self._empty.set()

    def on_handshake_failed(self, listener: str, peer: str, problem: str) -> None:
        self.broker.metrics.tls_handshakes_failed += 1
        origin = Origin(listener, peer)
        who = described(None, None, origin)
        self._notices.say(address(origin), who, "the TLS handshake on listener %r failed: %s", listener, problem)

    def complain(self, text: str) -> None:
        now = time.monotonic()
        if now - self._complained_at.get(text, -COMPLAINT_INTERVAL_S) >= COMPLAINT_INTERVAL_S:
            self._complained_at[text] = now
            _log.warning(text)

    def _on_resume(self) -> None:
        self._resume = None
        for door in self.doors:
            door.resume()

    def _inside(self) -> Iterator[StreamProtocol | WebSocketProtocol]:
        for door in self.doors:
            yield from door.inside

    async def _wait_until_empty(self, timeout_s: float) -> None:
        self._empty.clear()
        if not self.inside_count:
            return
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return

    def _sweep_later(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(LINGER_S, self._on_sweep)

    def _on_sweep(self) -> None:
        for door in self.doors:
            door.cut_off_lingering()
        self._sweep_later()
