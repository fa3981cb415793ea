"""MQTT over WebSocket (MQTT §6): the frames come off here, and the broker's core sees a stream of bytes as on TCP.

The `websockets` library's sans-IO protocol does HTTP and framing. This module joins it to asyncio on one side and, as a
`Transport`, to the core on the other. What a client sends in several frames, or several packets in one frame, makes no
difference to the core [MQTT-6.0.0-2]; one `write` of the core is one binary frame.

Nothing is compressed (permessage-deflate would cost each connection more memory than all the rest of it), and nothing
is reassembled: each fragment is handed on as it comes, so only one frame's bytes ever wait.
"""

from __future__ import annotations

import asyncio
import http
import logging
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import BytesLike, Subprotocol
from websockets.typing import Origin as WebOrigin

if TYPE_CHECKING:
    from braidmq.broker.connection import Connection
    from braidmq.server.listening.accepting import AcceptingListener

SUBPROTOCOL: Final = Subprotocol("mqtt")
HANDSHAKE_BYTES_MAX: Final = 16 * 1024
"""The HTTP request that asks for the upgrade, with all its headers."""
FRAME_SLACK_BYTES: Final = 1024
"""What a frame may hold above the largest packet: a client may put small packets before or behind a large one."""

PIECE_BYTES_MAX: Final = 16 * 1024
"""Bytes of one connection that are taken apart into frames before other connections have their turn."""

# The library says at level INFO that a connection opened and closed; the core says it better.
_log = logging.getLogger("braidmq.websocket.frames")
_log.setLevel(logging.WARNING)


class WebSocketProtocol(asyncio.Protocol):
    """One WebSocket: from the accepted socket through the HTTP upgrade to the closing handshake."""

    __slots__ = (
        "_connection",
        "_deadline",
        "_frames",
        "_handshake_bytes",
        "_held",
        "_listener",
        "_peer",
        "_rest",
        "_transport",
        "closing",
    )

    _transport: asyncio.Transport
    _frames: ServerProtocol

    def __init__(self, listener: AcceptingListener, peer: str) -> None:
        self._listener = listener
        self._peer = peer
        self._connection: Connection | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._handshake_bytes = 0
        self._held = False
        self._rest = b""
        self.closing = False
        """The core is done with it, or the peer is; what was written may still be on its way."""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        limits = self._listener.limits
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=limits.outbound_bytes_max)
        self._frames = ServerProtocol(
            origins=self._listener.web_origins,
            subprotocols=[SUBPROTOCOL],
            # The client is not known yet, so frames are small; see write().
            max_size=(None, limits.connect_packet_bytes_max + FRAME_SLACK_BYTES),
            logger=_log,
        )
        self._deadline = asyncio.get_running_loop().call_later(limits.connect_timeout_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        """A read can hold thousands of small frames: it is taken in pieces, with turns of other connections between."""
        if self._rest:
            self._rest += data
            return
        if len(data) > PIECE_BYTES_MAX:
            self._rest = data[PIECE_BYTES_MAX:]
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)
        self._receive_piece(data[:PIECE_BYTES_MAX])

    def _go_on(self) -> None:
        data, self._rest = self._rest, b""
        if self._transport.is_closing():
            return
        self.data_received(data)
        if not self._rest and not self._held:
            self._transport.resume_reading()

    def _receive_piece(self, data: bytes) -> None:
        frames = self._frames
        if self._connection is None:
            self._handshake_bytes += len(data)
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                self._refuse(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request is too large.\n")
                return
        frames.receive_data(data)
        payloads: list[BytesLike] = []
        text = False
        for event in frames.events_received():
            if isinstance(event, Request):
                self._upgrade(event)
            elif isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:
                    text = True
                    break
                if event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                    payloads.append(event.data)
        if payloads and not self.closing and self._connection is not None:
            # A packet may come in several frames and a frame may hold several packets [MQTT-6.0.0-2].
            self._connection.receive(b"".join(payloads))
        if text and frames.state is OPEN:
            # Only binary frames carry MQTT; any other data frame ends the connection [MQTT-6.0.0-1].
            frames.fail(CloseCode.UNSUPPORTED_DATA, "MQTT needs binary frames")
        self._flush()

    def eof_received(self) -> None:
        self.closing = True

    def connection_lost(self, error: Exception | None) -> None:
        self.closing = True
        self._end_handshake()
        self._listener.on_closed(self)
        if self._connection is not None:
            self._connection.lost(error)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    # What the core calls: a Transport.

    def write(self, data: bytes) -> None:
        frames = self._frames
        if frames.state is not OPEN:
            return
        if frames.max_fragment_size != self._listener.frame_bytes_max:
            # The broker answers, so the client is no stranger any more and may send large packets.
            frames.max_fragment_size = self._listener.frame_bytes_max
        frames.send_binary(data)
        self._transport.write(b"".join(frames.data_to_send()))

    def close(self) -> None:
        """Sends a close frame; the peer's own one ends the connection, or the time that a listener gives it."""
        if self.closing:
            return
        self.closing = True
        if self._frames.state is OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()
            self._transport.resume_reading()
        else:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        if not self.closing:
            self._held = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._held = False
        if not self._rest:
            self._transport.resume_reading()

    # The handshake.

    def _upgrade(self, request: Request) -> None:
        frames = self._frames
        if frames.eof_sent:  # what stood behind the request was no frame
            return
        path = request.path.partition("?")[0]
        if path != self._listener.web_path:
            self._refuse(http.HTTPStatus.NOT_FOUND, f"MQTT is served at {self._listener.web_path}.\n")
            return
        if not self._listener.settings.origins and not _same_host(request):
            text = "Pages of other sites may not connect unless the listener's `origins` names them.\n"
            self._refuse(http.HTTPStatus.FORBIDDEN, text)
            return
        # The client has to ask for "mqtt" [MQTT-6.0.0-3]; the answer then names it [MQTT-6.0.0-4].
        response = frames.accept(request)
        frames.send_response(response)
        if frames.state is OPEN:
            self._end_handshake()
            self._flush()
            self._connection = self._listener.admit(self, self._transport, self._peer)

    def _refuse(self, status: http.HTTPStatus, text: str) -> None:
        if not self._frames.eof_sent:
            self._frames.send_response(self._frames.reject(status, text))
        self._flush()

    def _end_handshake(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _flush(self) -> None:
        for data in self._frames.data_to_send():
            if data:
                if self._connection is not None and not self._connection.writable:
                    self._connection.count_unread(len(data))
                self._transport.write(data)
            else:  # the library's sign for "this was the last"
                self.closing = True
                self._transport.close()


def web_origins(origins: tuple[str, ...]) -> list[WebOrigin | None] | None:
    """The origins that may connect, as the library wants them: None leaves it to us.

    No origin at all is fine too: only a browser can be trusted to tell it, and a browser always does.
    """
    if not origins or "*" in origins:
        return None
    return [*map(WebOrigin, origins), None]


def _same_host(request: Request) -> bool:
    """Whether the page that connects, if it is one, came from this very host, on whatever port."""
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).hostname == urlsplit("//" + request.headers.get("Host", "")).hostname
