"""One connection to a peer: preamble, hello (with challenge and proof, if there is a braid key), then frames.

MADE ──preamble and hello──> OPEN ──┐
  └────────────────────────────────┴──fault, loss, close──> CLOSED
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, cast

import msgspec

from braidmq.net.bounds import Bounds
from braidmq.net.braid_key import TAG_BYTES, Opener, Proof, Sealer
from braidmq.net.faults import Fault, LinkError
from braidmq.net.frames import LENGTH_BYTES, FrameReader, framed
from braidmq.net.hello import HELLO_BYTES_MAX, PREAMBLE_BYTES, Hello, check_preamble, preamble, read_hello
from braidmq.net.peer import PeerState
from braidmq.net.security import Security


class LinkOwner(Protocol):
    """What a link, and whatever makes links, asks of the one that has all links of a host (`links`)."""

    bounds: Bounds
    security: Security
    faults: Counter[Fault]
    is_stopping: bool

    def describe(self) -> str:
        """Who this host is, for people."""
        ...

    def keep(self, procedure: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a procedure until it ends, or the links do."""
        ...

    def hello(self, to: str, is_question: bool = False, refusal: str = "") -> Hello: ...

    def on_made(self, link: Link, where: tuple[str, int] | None) -> None:
        """A connection stands, with TLS if that is wanted; the hello is to come. A LinkError if it must not be."""
        ...

    def on_hello(self, link: Link, hello: Hello) -> None:
        """Decides whether a link is opened; a LinkError if not."""
        ...

    def on_frame(self, link: Link, frame: bytes) -> None: ...

    def on_fault(self, link: Link, error: LinkError, cut: bool = True) -> None: ...

    def on_moved(self, rival: PeerState, hello: Hello) -> None:
        """A peer is at another address now, or another host has its name."""
        ...

    def on_end(self, link: Link) -> None:
        """Nothing passes on a link any more; its last bytes may still be on their way."""
        ...

    def on_lost(self, link: Link) -> None:
        """A connection is gone."""
        ...


class Link(asyncio.Protocol):
    def __init__(self, links: LinkOwner, dialled: PeerState | None, where: str, is_question: bool = False) -> None:
        self.links = links
        self.dialled = dialled
        """The peer that this host dialled; None if the other side dialled."""
        self.where = where
        """The other end, until it has said its address: the name that was dialled, or a text for people."""
        self.is_question = is_question
        """Whether this host dialled only to ask who is there."""
        self.peer: PeerState | None = None
        """Who is at the other end, while the link is open."""
        self.address = ""
        """What the other side calls itself; the sender of all that it tells."""
        self.nonce = b""
        self.answer: Hello | None = None
        """To a question: who is there."""
        self.opened_at = 0.0
        self.deadline = float("inf")
        """When it is cut: it has not said hello and shown what it must, or not taken its last bytes."""
        self.used_at = 0.0
        self.has_greeted = False
        """Whether this host has said hello."""
        self.failure = ""
        self.is_refused = False
        """Whether the other side does not let this host in."""
        self.settled = asyncio.Event()
        """Set once it is open or will never be."""
        self.is_closed = False
        self._moved = True  # since the last look
        self._written_bytes = 0
        self._taken_bytes = 0
        self._stuck_since: float | None = None
        self._beginning = b""
        self._preamble = preamble(links.security.kind)
        self._proof: Proof | None = None
        self._sealer: Sealer | None = None
        self._opener: Opener | None = None
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._transport: asyncio.Transport | None = None

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def unread_bytes(self) -> int:
        """Of a frame that has not come to its end."""
        return len(self._reader)

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

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The peer's, which TLS has verified."""
        return None if self._transport is None else self._transport.get_extra_info("peercert")

    # Out

    def greet(self, to: str, refusal: str = "") -> None:
        """Says hello, or why not."""
        hello = msgspec.msgpack.encode(self.links.hello(to, self.is_question, refusal))
        self.write(framed(hello if self._proof is None else self._proof.say(hello)))
        self.has_greeted = True

    def send(self, frames: Sequence[bytes | bytearray]) -> int:
        """Sends frames once the link is open; returns their size on the way."""
        if self._sealer is not None:
            frames = [self._sealer.seal(frame) for frame in frames]
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        self.write(data)
        return len(data)

    def write(self, data: bytes | bytearray) -> None:
        if self._transport is not None and not self.is_closed:
            self._written_bytes += len(data)
            self._moved = True
            try:
                self._transport.write(data)
            except (
                RuntimeError
            ):  # uvloop can close a transport without a word, when a connect is cancelled as it succeeds
                self.abort("its connection is gone")
                self.links.on_lost(self)

    def open(self, frame_bytes_max: int) -> None:
        self._reader.bytes_max = frame_bytes_max
        if self._proof is not None:
            self._reader.bytes_max += TAG_BYTES
            self._sealer, self._opener = self._proof.seals()
            self._proof = None
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
        try:
            self.links.on_made(self, transport.get_extra_info("peername"))
        except LinkError as error:
            self.links.on_fault(self, error)
            return
        if self.dialled is not None:
            self.write(self._preamble)
            if self.links.security.braid_key is None:
                self.greet(self.where)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._moved = True
        try:
            if len(self._beginning) < PREAMBLE_BYTES:
                data = self._on_beginning(data)
            for frame in self._reader.feed(data):
                if self.peer is None:
                    self._on_greeting(frame)
                else:
                    self.peer.counters.bytes_in += LENGTH_BYTES + len(frame)
                    self.links.on_frame(self, frame if self._opener is None else self._opener.open(frame))
                if self.is_closed:
                    return
        except LinkError as error:
            self.refuse(error)

    def _on_beginning(self, data: bytes) -> bytes:
        """The preamble, or a part of it; returns what is behind it."""
        missing = PREAMBLE_BYTES - len(self._beginning)
        beginning = self._beginning + data[:missing]
        check_preamble(beginning, self.links.security.kind)
        self._beginning = beginning
        if len(beginning) == PREAMBLE_BYTES:
            key = self.links.security.braid_key
            if key is not None:
                self._proof = key.begin(self._preamble, self.dialled is not None)
            if self.dialled is None:
                self.write(self._preamble if self._proof is None else self._preamble + framed(self._proof.challenge))
        return data[missing:]

    def _on_greeting(self, frame: bytes) -> None:
        """A challenge or a hello."""
        if self._proof is not None:
            if self.dialled is not None and not self.has_greeted:
                self._proof.on_challenge(frame)
                self.greet(self.where)
                return
            frame = self._proof.hear(frame)
        self.links.on_hello(self, read_hello(frame))

    def refuse(self, error: LinkError) -> None:
        """Ends it because of a fault; the side that has dialled is told why, if that can be told."""
        if self.is_closed:
            return
        if error.fault in (Fault.VERSION, Fault.SECURITY) and self.dialled is None:
            # So that the other side can say why, too: another preamble, or nothing in the place of a proof.
            self.write(self._preamble if len(self._beginning) < PREAMBLE_BYTES else framed(b""))
            self.links.on_fault(self, error, cut=False)
        elif error.fault in (Fault.TERMS, Fault.NAME) and self.dialled is None and self.peer is None:
            self.greet(self.address, str(error))
            self.links.on_fault(self, error, cut=False)
        else:
            self.links.on_fault(self, error)

    def connection_lost(self, error: Exception | None) -> None:
        if self.dialled is not None and self.certificate is not None and not self._beginning and not self.is_closed:
            # In TLS 1.3 the other side looks at our certificate when we have finished, and may leave without a word.
            text = f"it left after the TLS handshake ({error or 'no reason given'}): does it trust our certificate?"
            self.links.on_fault(self, LinkError(Fault.TLS, text))
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
