"""One connection to a peer: preamble, hello, then frames, until it ends.

    MADE ──preamble and hello──> OPEN ──┐
      └────────────────────────────────┴──fault, loss, close──> CLOSED
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, cast

from braidmq.net.faults import Fault, LinkError
from braidmq.net.frames import FrameReader
from braidmq.net.hello import HELLO_BYTES_MAX, PREAMBLE, check_preamble, read_hello

if TYPE_CHECKING:
    from braidmq.net.links import Links
    from braidmq.net.peer import Peer


class Link(asyncio.Protocol):
    def __init__(self, links: Links, dialled: Peer | None) -> None:
        self.links = links
        self.dialled = dialled
        """Whom this host dialled; None if the other side did."""
        self.peer: Peer | None = None
        """Who is at the other end, while the link is open."""
        self.address = ""
        """What the other side calls itself; the sender of all that it tells."""
        self.nonce = b""
        self.opened_at = 0.0
        self.deadline = float("inf")
        """When it is cut: it has not said hello, or not taken its last bytes."""
        self.used_at = 0.0
        self.moved = True
        """Whether anything passed since the last sweep."""
        self.stuck_since: float | None = None
        self.taken_bytes = 0
        self.failure = ""
        self.settled = asyncio.Event()
        """Set once it is open or will never be."""
        self.is_closed = False
        self._written_bytes = 0
        self._beginning = b""
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._raw: asyncio.Transport | None = None
        self._transport: asyncio.Transport | None = None  # none before TLS stands
        self._early: list[bytes] = []

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def taken(self) -> int:
        """Bytes that the other side's system took over."""
        return self._written_bytes - self.unsent_bytes

    def describe(self) -> str:
        if self.address:
            return self.address
        if self.dialled is not None:
            return self.dialled.address
        where = self._raw.get_extra_info("peername") if self._raw is not None else None
        return f"{where[0]} port {where[1]}" if isinstance(where, tuple) else "a stranger"

    # Out

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.is_closed:
            self._written_bytes += len(data)
            self.moved = True
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
        else:
            self.abort(why)

    def abort(self, why: str) -> None:
        """Ends it now."""
        self._end(why)
        if self._raw is not None:
            self._raw.abort()

    def _end(self, why: str) -> None:
        self.is_closed = True
        self.failure = self.failure or why
        self.settled.set()

    # In: what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        context = self.links.on_made(self)
        if self.is_closed:
            return
        if context is None:
            self._transport = self._raw
            if self.dialled is not None:
                self.write(self.links.greeting)
        else:
            self._raw.pause_reading()
            self.links.keep(self._secure(context))

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        if self._transport is None:
            self._early.append(data)  # sent with the end of the TLS handshake; one read at most
            return
        self.moved = True
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

    async def _secure(self, context: ssl.SSLContext) -> None:
        """TLS on an accepted connection. It begins here and not in asyncio's server so that a failure is seen."""
        assert self._raw is not None
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(
                self._raw,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self.links.bounds.connect_timeout_s,
                ssl_shutdown_timeout=self.links.bounds.close_s_max,
            )
        except (OSError, TimeoutError) as error:
            if not self.is_closed:
                self.links.on_fault(self, LinkError(Fault.TLS, f"the TLS handshake failed: {error}"))
            self.links.on_lost(self)
            return
        if transport is None or self.is_closed:
            self._raw.abort()
            self.links.on_lost(self)
            return
        self._transport = transport
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)
