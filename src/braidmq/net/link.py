"""One connection to a peer: preamble, hello, then frames, until it ends.

MADE ──preamble and hello──> OPEN ──┐
  └────────────────────────────────┴──fault, loss, close──> CLOSED
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from braidmq.net.faults import Fault, LinkError
from braidmq.net.frames import FrameReader
from braidmq.net.hello import HELLO_BYTES_MAX, PREAMBLE, check_preamble, read_hello

if TYPE_CHECKING:
    from braidmq.net.links import Links
    from braidmq.net.peer import Peer


class Link(asyncio.Protocol):
    def __init__(self, links: Links, dialled: Peer | None, where: str) -> None:
        self.links = links
        self.dialled = dialled
        """Whom this host dialled; None if the other side did."""
        self.where = where
        """The other end, for people, until it has said its address."""
        self.peer: Peer | None = None
        """Who is at the other end, while the link is open."""
        self.address = ""
        """What the other side calls itself; the sender of all that it tells."""
        self.nonce = b""
        self.opened_at = 0.0
        self.deadline = float("inf")
        """When it is cut: it has not said hello, or not taken its last bytes."""
        self.used_at = 0.0
        self.has_greeted = False
        """Whether this host dialled and has said hello."""
        self.failure = ""
        self.settled = asyncio.Event()
        """Set once it is open or will never be."""
        self.is_closed = False
        self._moved = True  # since the last look
        self._written_bytes = 0
        self._taken_bytes = 0
        self._stuck_since: float | None = None
        self._beginning = b""
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._transport: asyncio.Transport | None = None

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def is_idle(self, now: float, idle_s_max: float) -> bool:
        """Whether nothing passed for so long. To be asked now and then."""
        if self._moved or self.unsent_bytes:
            self._moved = False
            self.used_at = now
        return now - self.used_at > idle_s_max

    def is_stuck(self, now: float, stall_s_max: float) -> bool:
        """Whether the other side has taken nothing for so long of what waits for it. To be asked now and then."""
        unsent = self.unsent_bytes
        taken_before, self._taken_bytes = self._taken_bytes, self._written_bytes - unsent
        if not unsent or self._taken_bytes != taken_before:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        return self._stuck_since is not None and now - self._stuck_since > stall_s_max

    def describe(self) -> str:
        return self.address or self.where

    # Out

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.is_closed:
            self._written_bytes += len(data)
            self._moved = True
            self._transport.write(data)

    def open(self, frame_bytes_max: int) -> None:
        self._reader.bytes_max = frame_bytes_max
        self.deadline = float("inf")
        self.settled.set()

    def close(self, why: str, deadline: float) -> None:
        """Ends it once the last bytes have gone, at the latest at the deadline."""
        self._end(why)
        self.deadline = deadline
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str) -> None:
        """Ends it now."""
        self._end(why)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, why: str) -> None:
        self.is_closed = True
        self.failure = self.failure or why
        self.settled.set()
        self.links.on_end(self)

    # In: what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.is_closed:
            self._transport.abort()
            return
        self._set_options(self._transport)
        self.links.on_made(self)
        if self.dialled is not None:
            self.write(self.links.greeting(self.where))
            self.has_greeted = True

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._moved = True
        if self.peer is not None:
            self.peer.counters.bytes_in += len(data)
        try:
            if len(self._beginning) < len(PREAMBLE):
                missing = len(PREAMBLE) - len(self._beginning)
                self._beginning += data[:missing]
                check_preamble(self._beginning)
                data = data[missing:]
            for frame in self._reader.feed(data):
                if self.peer is None:
                    self.links.on_hello(self, read_hello(frame))
                else:
                    self.links.on_frame(self, frame)
                if self.is_closed:
                    return
        except LinkError as error:
            if error.fault is Fault.VERSION and self.dialled is None:
                self.write(PREAMBLE)  # so that the other side can say why, too
                self.links.on_fault(self, error, cut=False)
            else:
                self.links.on_fault(self, error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "the other side closed the connection")
        self.links.on_lost(self)

    def _set_options(self, transport: asyncio.Transport) -> None:
        """Frames go out at once, and a peer whose machine is gone is noticed by the system, too."""
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            stall_ms = int(self.links.bounds.stall_s_max * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
