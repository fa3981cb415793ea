"""MQTT over a stream: TCP, TLS or a Unix socket.

Nothing stands between the loop and the core: the transport is the core's `Transport` as it is, and the protocol's
`data_received` *is* the core connection's `receive`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from braidmq.broker.connection import Connection
    from braidmq.server.listening.accepting import AcceptingListener


class StreamProtocol(asyncio.BaseProtocol):
    """One connection. `data_received` is a slot that holds the core's own method."""

    __slots__ = ("_connection", "_listener", "_peer", "_transport", "data_received")

    data_received: Callable[[bytes], None]

    def __init__(self, listener: AcceptingListener, peer: str) -> None:
        self._listener = listener
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None

    @property
    def closing(self) -> bool:
        return self._transport is not None and self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=self._listener.limits.outbound_bytes_max)
        self._connection = self._listener.admit(transport, transport, self._peer)
        self.data_received = self._connection.receive
        # The loop looks `data_received` up when it is given the protocol, and at that time it was not there yet.
        transport.set_protocol(self)

    def eof_received(self) -> None:
        """The loop then closes the transport."""

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.on_closed(self)
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
